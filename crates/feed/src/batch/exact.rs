//! A batch without its padding, for steps that compute on exact shapes.
//!
//! A slot has the rows of its bucket. To drop the padding, a step copies the utterance of each row into a batch whose rows
//! are as long as their utterances, rounded up to [`FRAME_STEP`](crate::FRAME_STEP) frames.

use tandem_corpus::Extent;

use super::info::{BatchInfo, Utterance};
use super::schema::{Dim, Placed};
use super::shape::{Bucket, RowShape};

/// A contiguous range of a batch and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRegion {
    /// Byte offset in the slot.
    pub from: u64,
    /// Byte offset in the batch without padding.
    pub to: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl BatchInfo {
    /// The shape of this batch without its padding. An empty row has the minimum length.
    pub fn exact_bucket(&self) -> Bucket {
        let extent = |utterance: &Option<Utterance>| {
            let (frames, tokens) = utterance.map_or((1, 1), |utterance| (utterance.frames, utterance.tokens));
            RowShape::from(Extent { frames, tokens: tokens.max(1) })
        };
        Bucket::new(self.utterances.iter().map(extent))
    }

    /// The copies that turn the slot into a batch of shape `exact`. No row of `exact` is longer than the slot's.
    pub fn pieces(&self, exact: &Bucket) -> Vec<CopyRegion> {
        let target = self.layout.reshaped(exact);
        let fields = self.layout.fields.iter().zip(&target.fields);
        fields.flat_map(|(from, to)| self.regions_of(from, to, exact)).collect()
    }

    fn regions_of(&self, from: &Placed, to: &Placed, exact: &Bucket) -> Vec<CopyRegion> {
        let whole = || vec![CopyRegion { from: from.offset, to: to.offset, bytes: to.bytes }];
        let inner = to.shape[1..].iter().product::<u64>() * to.field.dtype.bytes();
        let frames = |bytes: u64| rows(from, to, bytes, self.bucket.frame_starts(), exact.frame_starts());
        match from.field.dims.first() {
            Some(Dim::Tokens) => rows(from, to, inner, self.bucket.token_starts(), exact.token_starts()),
            Some(Dim::Frames) => frames(inner),
            Some(Dim::Samples) => frames(inner * self.layout.sizes.hop_samples),
            _ => whole(),
        }
    }
}

/// A region for each row: `bytes` for every step of its starts.
fn rows(
    from: &Placed,
    to: &Placed,
    bytes: u64,
    from_starts: impl Iterator<Item = u64>,
    to_starts: impl Iterator<Item = u64>,
) -> Vec<CopyRegion> {
    let to_starts: Vec<u64> = to_starts.collect();
    let region = |(from_start, to_range): (u64, &[u64])| CopyRegion {
        from: from.offset + from_start * bytes,
        to: to.offset + to_range[0] * bytes,
        bytes: (to_range[1] - to_range[0]) * bytes,
    };
    from_starts.zip(to_starts.windows(2)).map(region).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem_corpus::{Cursor, SampleIndex};

    use super::*;
    use crate::batch::schema::{Layout, SPEECH};

    fn info() -> BatchInfo {
        let row = |frames, tokens| RowShape { frames, tokens };
        let bucket = Bucket::new([row(16, 4), row(48, 9), row(48, 9)]);
        let utterance = |sample, frames, tokens| Some(Utterance { sample: SampleIndex(sample), frames, tokens });
        BatchInfo {
            sequence: 0,
            cursor: Cursor::default(),
            group: Cursor::default(),
            bucket_index: 0,
            layout: Arc::new(SPEECH.layout(&bucket)),
            bucket,
            utterances: vec![utterance(0, 9, 4), utterance(1, 33, 2), None],
            replacements: Vec::new(),
        }
    }

    #[test]
    fn rows_are_as_long_as_their_utterances() {
        let row = |frames, tokens| RowShape { frames, tokens };
        assert_eq!(info().exact_bucket(), Bucket::new([row(16, 4), row(40, 2), row(8, 1)]));
    }

    /// Every element of the batch without padding comes from the same position of the same row.
    #[test]
    fn copy_regions_have_every_element_and_nothing_else() {
        let info = info();
        let exact = info.exact_bucket();
        let target = SPEECH.layout(&exact);
        assert_eq!(info.layout.reshaped(&exact), target);
        // Field, row and position in the row of every element.
        let elements = |layout: &Layout, bucket: &Bucket| {
            let mut at = vec![None; (layout.bytes / 4) as usize];
            for (field, placed) in layout.fields.iter().enumerate() {
                let starts: Vec<u64> = match placed.field.dims[0] {
                    Dim::Tokens => bucket.token_starts().collect(),
                    Dim::Frames => bucket.frame_starts().collect(),
                    _ => (0..=bucket.batch()).collect(),
                };
                let inner: u64 = placed.shape[1..].iter().product();
                for (row, range) in starts.windows(2).enumerate() {
                    for position in 0..(range[1] - range[0]) * inner {
                        at[(placed.offset / 4 + range[0] * inner + position) as usize] = Some((field, row, position));
                    }
                }
            }
            at
        };
        let (from, wanted) = (elements(&info.layout, &info.bucket), elements(&target, &exact));
        let mut got = vec![None; wanted.len()];
        for CopyRegion { from: at, to, bytes } in info.pieces(&exact) {
            let [at, to, length] = [at, to, bytes].map(|bytes| bytes as usize / 4);
            got[to..to + length].copy_from_slice(&from[at..at + length]);
        }
        assert!(got == wanted);
    }
}
