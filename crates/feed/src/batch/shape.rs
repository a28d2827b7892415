//! The shapes of batches. They are few and static, so that every one is planned and compiled before the first step.
//!
//! The rows of a shape differ in length. Row i of every batch takes an utterance from the same part of the corpus by
//! length, and is padded to the longest of that part. A field stores all rows back to back.

use std::sync::Arc;

use tandem_corpus::Extent;
use tandem_device::bytes::round_up;

/// Frames of a row are a multiple of this, so that kernels work on full tiles.
pub const FRAME_STEP: u32 = tandem_audio::TILE_FRAMES;

/// The room of one row of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// Frames its recording is padded to: a multiple of [`FRAME_STEP`].
    pub frames: u64,
    /// Tokens its text is padded to.
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
    /// The longest utterance that fits.
    pub fn extent(&self) -> Extent {
        let most = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Extent { frames: most(self.frames), tokens: most(self.tokens) }
    }
}

/// The shape of a batch: its rows. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    rows: Arc<[RowShape]>,
}

impl Bucket {
    /// A shape of these rows.
    pub fn new(rows: impl IntoIterator<Item = RowShape>) -> Bucket {
        Bucket { rows: rows.into_iter().collect() }
    }

    /// `batch` equal rows.
    pub fn even(frames: u64, tokens: u64, batch: u64) -> Bucket {
        Bucket::new((0..batch).map(|_| RowShape { frames, tokens }))
    }

    /// The rows, shortest first.
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

    /// The frame at which each row starts, then the end of the last row: one number more than there are rows.
    pub fn frame_starts(&self) -> impl Iterator<Item = u64> {
        starts(self.rows.iter().map(|row| row.frames))
    }

    /// The token at which each row starts, then the end of the last row.
    pub fn token_starts(&self) -> impl Iterator<Item = u64> {
        starts(self.rows.iter().map(|row| row.tokens))
    }
}

/// Start offsets of items of these sizes stored back to back, then the end of the last one.
pub(crate) fn starts(sizes: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut end = 0;
    std::iter::once(0).chain(sizes.map(move |size| {
        end += size;
        end
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_stored_back_to_back() {
        let row = |frames, tokens| RowShape { frames, tokens };
        let bucket = Bucket::new([row(8, 3), row(24, 2), row(24, 7)]);
        assert_eq!(bucket.frame_starts().collect::<Vec<_>>(), [0, 8, 32, 56]);
        assert_eq!(bucket.token_starts().collect::<Vec<_>>(), [0, 3, 5, 12]);
        assert_eq!((bucket.batch(), bucket.frames(), bucket.tokens()), (3, 56, 12));
        assert_eq!((bucket.longest_frames(), bucket.longest_tokens()), (24, 7));
        assert_eq!(Bucket::even(24, 7, 2), Bucket::new([row(24, 7), row(24, 7)]));
    }
}
