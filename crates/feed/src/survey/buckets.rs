//! The shapes for a corpus, and their padding.
//!
//! [`Parts`] sorts the corpus by length and cuts it into a part for every row of every shape. A row is padded to the longest
//! of its part. Padding is therefore the spread of lengths inside one part, plus the rounding to [`FRAME_STEP`] (4 frames
//! per row on average): with 32 parts, one voice pads 3.6 % in two shapes, where eight shapes of equal rows padded 7.3 %.

use std::sync::Arc;

use tandem_corpus::{Arrangement, Extent, Order, Parts, SampleIndex};
use tandem_device::bytes::round_up;

use crate::batch::shape::{Bucket, FRAME_STEP, RowShape};

/// The default number of shapes. Each is compiled and captured before the first step, so fewer start faster. With two, one
/// voice pads 3 %; four would save another percent (`corpus check` counts it).
pub const NUM_BUCKETS: usize = 2;
/// The most shapes a plan has.
pub const MAX_BUCKETS: usize = 16;

/// The shapes for a set of utterances. Holding one means that every utterance has a row that fits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    parts: Arc<Parts>,
    buckets: Vec<Bucket>,
}

/// The size of one epoch, and its padding.
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
    /// At most `num_buckets` (and at most [`MAX_BUCKETS`]) shapes of `batch` rows for `rows`. Too few rows give fewer shapes,
    /// then a smaller batch ([`Parts::cut`]). None without rows. Cost: a sort.
    pub fn solve(rows: &[(SampleIndex, Extent)], num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        let parts = Parts::cut(rows.iter().copied(), num_buckets.clamp(1, MAX_BUCKETS), batch)?;
        let bucket = |shape| Bucket::new((0..parts.batch()).map(|row| RowShape::from(parts.longest(shape, row))));
        let buckets = (0..parts.num_shapes()).map(bucket).collect();
        Some(BucketPlan { parts: Arc::new(parts), buckets })
    }

    /// The same with shapes whose rows have one length, for tensors `[batch, time]`: rows of a shape are of similar length, and
    /// are padded to the longest of them.
    pub fn padded(rows: &[(SampleIndex, Extent)], num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        let num_buckets = num_buckets.clamp(1, MAX_BUCKETS);
        let parts = Parts::arrange(rows.iter().copied(), num_buckets, batch, Arrangement::ByLength)?;
        let bucket = |shape| {
            let longest = |row| parts.longest(shape, row);
            let longest = (0..parts.batch()).map(longest).fold(Extent::default(), Extent::or);
            let RowShape { frames, tokens } = RowShape::from(longest);
            Bucket::even(frames, tokens, parts.batch() as u64)
        };
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

    /// The utterances of every row.
    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// The training order.
    pub fn order(&self, seed: u64) -> Order {
        Order::training(seed, Arc::clone(&self.parts))
    }

    /// The padding of the first epoch under `seed`, without the utterances that sit it out. Cost: linear in utterances.
    pub fn padding(&self, seed: u64) -> Padding {
        let order = self.order(seed);
        let mut padding = Padding::default();
        for (shape, bucket) in self.buckets.iter().enumerate() {
            padding.batches += self.parts.num_batches(shape) as u64;
            for (row, room) in bucket.rows().iter().enumerate() {
                let members = self.parts.members(shape, row);
                members.iter().for_each(|(_, extent)| padding.add(extent, room));
                let out = order.sits_out(0, shape, row);
                if let Some((_, extent)) = members.iter().find(|(member, _)| Some(*member) == out) {
                    padding.remove(extent, room);
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

    fn remove(&mut self, extent: &Extent, room: &RowShape) {
        self.real_frames -= u64::from(extent.frames);
        self.padded_frames -= room.frames - u64::from(extent.frames);
        self.real_tokens -= u64::from(extent.tokens);
        self.padded_tokens -= room.tokens - u64::from(extent.tokens);
    }

    /// The share of frames that is padding, 0 to 1.
    pub fn frame_waste(&self) -> f64 {
        share(self.padded_frames, self.real_frames)
    }

    /// The share of symbols that is padding, 0 to 1.
    pub fn token_waste(&self) -> f64 {
        share(self.padded_tokens, self.real_tokens)
    }
}

fn share(padded: u64, real: u64) -> f64 {
    if padded == 0 { 0.0 } else { padded as f64 / (padded + real) as f64 }
}

/// Shapes for a plan without a corpus: as if lengths were evenly distributed up to `max_frames` and `max_tokens`. Rows grow
/// linearly and are assigned to the shapes back and forth, as [`Parts`] assigns them.
pub fn even_buckets(max_frames: u64, max_tokens: u64, batch: u64) -> Vec<Bucket> {
    let num_shapes = NUM_BUCKETS as u64;
    let row = |shape: u64, row: u64| {
        let column = if row.is_multiple_of(2) { shape } else { num_shapes - 1 - shape };
        let (part, parts) = (row * num_shapes + column + 1, num_shapes * batch);
        // Both factors are settings of at most 2^32.
        let share = |most: u64| (most * part).div_ceil(parts.max(1)).max(1);
        RowShape { frames: round_up(share(max_frames), FRAME_STEP.into()), tokens: share(max_tokens) }
    };
    (0..num_shapes).map(|shape| Bucket::new((0..batch).map(|i| row(shape, i)))).collect()
}

#[cfg(test)]
mod tests;
