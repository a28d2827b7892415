//! The shapes batches come in. Few, so that every one is planned and compiled before the first step.
//!
//! A shape is static, and its rows are not equally long: row i of every batch takes an utterance of the same part of
//! the corpus by length, and is padded to the longest of that part. Fields of a batch have all rows one behind the
//! other.

use std::sync::Arc;

use tandem_corpus::Extent;
use tandem_device::bytes::round_up;

use crate::survey::buckets::{FRAME_STEP, NUM_BUCKETS};

/// What one row of a shape holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// What its recording is padded to: a multiple of [`FRAME_STEP`].
    pub frames: u64,
    /// What its text is padded to.
    pub tokens: u64,
}

impl From<Extent> for RowShape {
    /// A row for the longest utterance of a part.
    fn from(longest: Extent) -> RowShape {
        let frames = u64::from(longest.frames.max(1));
        RowShape { frames: round_up(frames, FRAME_STEP.into()), tokens: longest.tokens.into() }
    }
}

impl RowShape {
    /// The longest utterance there is room for.
    pub fn extent(&self) -> Extent {
        let most = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Extent { frames: most(self.frames), tokens: most(self.tokens) }
    }
}

/// A shape: its rows. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    rows: Arc<[RowShape]>,
}

impl Bucket {
    /// A shape of these rows.
    pub fn new(rows: impl IntoIterator<Item = RowShape>) -> Bucket {
        Bucket { rows: rows.into_iter().collect() }
    }

    /// `batch` rows that are all alike: a shape like any other.
    pub fn even(frames: u64, tokens: u64, batch: u64) -> Bucket {
        Bucket::new((0..batch).map(|_| RowShape { frames, tokens }))
    }

    /// What each row holds, shortest first.
    pub fn rows(&self) -> &[RowShape] {
        &self.rows
    }

    /// Utterances of a (micro-)batch.
    pub fn batch(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Frames of all rows.
    pub fn frames(&self) -> u64 {
        self.rows.iter().map(|row| row.frames).sum()
    }

    /// Tokens of all rows.
    pub fn tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.tokens).sum()
    }

    /// Frames of the longest row.
    pub fn longest_frames(&self) -> u64 {
        self.rows.iter().map(|row| row.frames).max().unwrap_or(0)
    }

    /// Tokens of the row for the longest text.
    pub fn longest_tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.tokens).max().unwrap_or(0)
    }

    /// The frame at which each row begins, and behind the last one the end: one number more than there are rows.
    pub fn frame_starts(&self) -> impl Iterator<Item = u64> {
        starts(self.rows.iter().map(|row| row.frames))
    }

    /// The token at which each row begins, and behind the last one the end.
    pub fn token_starts(&self) -> impl Iterator<Item = u64> {
        starts(self.rows.iter().map(|row| row.tokens))
    }
}

/// Where things of these sizes begin when they lie one behind the other, and where the last one ends.
pub(crate) fn starts(sizes: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut end = 0;
    std::iter::once(0).chain(sizes.map(move |size| {
        end += size;
        end
    }))
}

/// Shapes for plans without a corpus to look at: as if lengths were evenly spread up to `max_frames` and `max_tokens`.
/// Rows rise linearly to those, dealt to the shapes to and fro as [`Parts`](tandem_corpus::Parts) deals them.
pub fn even_buckets(max_frames: u64, max_tokens: u64, batch: u64) -> Vec<Bucket> {
    let num_shapes = NUM_BUCKETS as u64;
    let row = |shape: u64, row: u64| {
        let turn = if row.is_multiple_of(2) { shape } else { num_shapes - 1 - shape };
        let (part, parts) = (row * num_shapes + turn + 1, num_shapes * batch);
        // Products of two numbers that people may set, each of at most 2^32.
        let share = |most: u64| (most * part).div_ceil(parts.max(1)).max(1);
        RowShape { frames: round_up(share(max_frames), FRAME_STEP.into()), tokens: share(max_tokens) }
    };
    (0..num_shapes).map(|shape| Bucket::new((0..batch).map(|i| row(shape, i)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_rise_and_reach_the_longest_item() {
        for (frames, tokens, batch) in [(1000, 200, 16), (8, 1, 4), (9, 200, 3), (64, 3, 1), (100_000, 10_000, 64)] {
            let buckets = even_buckets(frames, tokens, batch);
            assert_eq!(buckets.len(), NUM_BUCKETS);
            for bucket in &buckets {
                assert_eq!(bucket.batch(), batch);
                let rows = bucket.rows();
                assert!(rows.windows(2).all(|w| w[0].frames <= w[1].frames && w[0].tokens <= w[1].tokens));
                assert!(rows.iter().all(|row| row.frames.is_multiple_of(8) && row.frames > 0 && row.tokens > 0));
            }
            let longest = |of: fn(&Bucket) -> u64| buckets.iter().map(of).max().unwrap();
            assert_eq!(longest(Bucket::longest_frames), frames.next_multiple_of(8));
            assert_eq!(longest(Bucket::longest_tokens), tokens);
        }
    }

    #[test]
    fn rows_lie_one_behind_the_other() {
        let row = |frames, tokens| RowShape { frames, tokens };
        let bucket = Bucket::new([row(8, 3), row(24, 2), row(24, 7)]);
        assert_eq!(bucket.frame_starts().collect::<Vec<_>>(), [0, 8, 32, 56]);
        assert_eq!(bucket.token_starts().collect::<Vec<_>>(), [0, 3, 5, 12]);
        assert_eq!((bucket.batch(), bucket.frames(), bucket.tokens()), (3, 56, 12));
        assert_eq!((bucket.longest_frames(), bucket.longest_tokens()), (24, 7));
        assert_eq!(Bucket::even(24, 7, 2), Bucket::new([row(24, 7), row(24, 7)]));
    }

    #[test]
    fn the_default_shapes() {
        let sums: Vec<(u64, u64)> = even_buckets(1000, 200, 16).iter().map(|b| (b.frames(), b.tokens())).collect();
        assert_eq!(sums, [(8312, 1656), (8312, 1656)]);
    }
}
