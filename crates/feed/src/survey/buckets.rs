//! The shapes for a corpus, and what they pad.
//!
//! [`Parts`] cuts the corpus by length into a part for every row of every shape; a row is padded to the longest of its
//! part. So padding is what lengths inside one part differ by, and what rounding to [`FRAME_STEP`] adds (4 frames a row
//! in the mean): 32 parts of one voice pad 3.6 % with two shapes, where eight shapes of equal rows padded 7.3 %.

use std::sync::Arc;

use tandem_corpus::{Extent, Order, Parts, SampleIndex};

use crate::batch::shape::{Bucket, RowShape};

/// Frames of a row are a multiple of this, so that kernels meet whole tiles.
pub const FRAME_STEP: u32 = tandem_audio::TILE_FRAMES;
/// Shapes, unless somebody says otherwise. Each is compiled and captured before the first step, so fewer start faster;
/// with two of them one voice pads 3 %, and what four would save is a percent (`corpus check` counts it).
pub const NUM_BUCKETS: usize = 2;
/// More shapes are not planned.
pub const MAX_BUCKETS: usize = 16;

/// The shapes for a set of utterances. Holding one means that there is a row for each of them, and a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    parts: Arc<Parts>,
    buckets: Vec<Bucket>,
}

/// What one epoch carries, and what it pads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Batches of the epoch.
    pub batches: u64,
    /// Frames of recordings.
    pub real_frames: u64,
    /// Frames of padding.
    pub padded_frames: u64,
    /// Symbols of texts.
    pub real_tokens: u64,
    /// Symbols of padding.
    pub padded_tokens: u64,
}

impl BucketPlan {
    /// At most `num_buckets` (and at most [`MAX_BUCKETS`]) shapes of `batch` rows for `rows`. Where there are too few
    /// of them, there are fewer shapes, then a smaller batch ([`Parts::cut`]). None without rows. Cost: a sort.
    pub fn solve(rows: &[(SampleIndex, Extent)], num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        let parts = Parts::cut(rows.iter().copied(), num_buckets.clamp(1, MAX_BUCKETS), batch)?;
        let bucket = |shape| Bucket::new((0..parts.batch()).map(|row| RowShape::from(parts.longest(shape, row))));
        let buckets = (0..parts.num_shapes()).map(bucket).collect();
        Some(BucketPlan { parts: Arc::new(parts), buckets })
    }

    /// The shapes.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Utterances of a batch.
    pub fn batch(&self) -> u32 {
        self.parts.batch() as u32
    }

    /// Which utterances belong into which row.
    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// The order in which they are served for training.
    pub fn order(&self, seed: u64) -> Order {
        Order::training(seed, Arc::clone(&self.parts))
    }

    /// The padding of the first epoch under `seed`: all of them but those who sit it out. Cost: linear in utterances.
    pub fn padding(&self, seed: u64) -> Padding {
        let mut sitting_out = self.order(seed).sitting_out(0);
        sitting_out.sort_unstable();
        let mut padding = Padding::default();
        for (shape, bucket) in self.buckets.iter().enumerate() {
            padding.batches += self.parts.num_batches(shape) as u64;
            for (row, room) in bucket.rows().iter().enumerate() {
                let members = self.parts.members(shape, row).iter();
                for (_, extent) in members.filter(|(member, _)| sitting_out.binary_search(member).is_err()) {
                    padding.add(extent, room);
                }
            }
        }
        padding
    }
}

impl Padding {
    fn add(&mut self, extent: &Extent, room: &RowShape) {
        self.real_frames += u64::from(extent.frames);
        self.padded_frames += room.frames - u64::from(extent.frames);
        self.real_tokens += u64::from(extent.tokens);
        self.padded_tokens += room.tokens - u64::from(extent.tokens);
    }

    /// The share of frames that are padding, 0 to 1.
    pub fn frame_waste(&self) -> f64 {
        share(self.padded_frames, self.real_frames)
    }

    /// The share of symbols that are padding, 0 to 1.
    pub fn token_waste(&self) -> f64 {
        share(self.padded_tokens, self.real_tokens)
    }
}

fn share(padded: u64, real: u64) -> f64 {
    if padded == 0 { 0.0 } else { padded as f64 / (padded + real) as f64 }
}

#[cfg(test)]
mod tests;
