//! A batch without its padding, for steps that compute on exact shapes.
//!
//! Slots have the rows of their bucket. A step that wants none of the padding copies each row's own part to where it lies in
//! a batch whose rows are as long as their utterances, rounded up to [`FRAME_STEP`](crate::FRAME_STEP) frames.

use tandem_corpus::Extent;

use crate::batch::schema::{Dim, Placed};
use crate::batch::shape::{Bucket, RowShape};
use crate::feed::data_thread::{BatchInfo, Utterance};

/// Bytes that go from one place of a batch to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPiece {
    /// Where they lie in the slot.
    pub from: u64,
    /// Where they lie in the batch without padding.
    pub to: u64,
    /// How many.
    pub bytes: u64,
}

impl BatchInfo {
    /// The shape of this batch without its padding. A row that nobody stands in is as short as rows come.
    pub fn exact_bucket(&self) -> Bucket {
        let extent = |utterance: &Option<Utterance>| {
            let (frames, tokens) = utterance.map_or((1, 1), |utterance| (utterance.frames, utterance.tokens));
            RowShape::from(Extent { frames, tokens: tokens.max(1) })
        };
        Bucket::new(self.utterances.iter().map(extent))
    }

    /// What has to be copied from the slot to make a batch of `exact`, which no row is longer in than in the slot.
    pub fn pieces(&self, exact: &Bucket) -> Vec<CopyPiece> {
        let there = self.layout.reshaped(exact);
        let fields = self.layout.fields.iter().zip(&there.fields);
        fields.flat_map(|(from, to)| self.pieces_of(from, to, exact)).collect()
    }

    fn pieces_of(&self, from: &Placed, to: &Placed, exact: &Bucket) -> Vec<CopyPiece> {
        let whole = || vec![CopyPiece { from: from.offset, to: to.offset, bytes: to.bytes }];
        let rows = |starts: fn(&Bucket) -> Vec<u64>| {
            let inner: u64 = to.shape[1..].iter().product::<u64>() * to.field.dtype.bytes();
            let (here, there) = (starts(&self.bucket), starts(exact));
            let piece = |(from_start, to_range): (&u64, &[u64])| CopyPiece {
                from: from.offset + from_start * inner,
                to: to.offset + to_range[0] * inner,
                bytes: (to_range[1] - to_range[0]) * inner,
            };
            here.iter().zip(there.windows(2)).map(piece).collect()
        };
        match from.field.dims.first() {
            Some(Dim::Tokens) => rows(|bucket| bucket.token_starts().collect()),
            Some(Dim::Frames) => rows(|bucket| bucket.frame_starts().collect()),
            _ => whole(),
        }
    }
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

    /// Every number of the batch without padding comes from the same place of the same row.
    #[test]
    fn pieces_bring_every_number_and_nothing_else() {
        let info = info();
        let exact = info.exact_bucket();
        let there = SPEECH.layout(&exact);
        assert_eq!(info.layout.reshaped(&exact), there);
        // What a number is, by its place: field, row, place in the row.
        let names = |layout: &Layout, bucket: &Bucket| {
            let mut at = vec![None; (layout.bytes / 4) as usize];
            for (field, placed) in layout.fields.iter().enumerate() {
                let starts: Vec<u64> = match placed.field.dims[0] {
                    Dim::Tokens => bucket.token_starts().collect(),
                    Dim::Frames => bucket.frame_starts().collect(),
                    _ => (0..=bucket.batch()).collect(),
                };
                let inner: u64 = placed.shape[1..].iter().product();
                for (row, range) in starts.windows(2).enumerate() {
                    for place in 0..(range[1] - range[0]) * inner {
                        at[(placed.offset / 4 + range[0] * inner + place) as usize] = Some((field, row, place));
                    }
                }
            }
            at
        };
        let (from, wanted) = (names(&info.layout, &info.bucket), names(&there, &exact));
        let mut got = vec![None; wanted.len()];
        for CopyPiece { from: at, to, bytes } in info.pieces(&exact) {
            let [at, to, length] = [at, to, bytes].map(|bytes| bytes as usize / 4);
            got[to..to + length].copy_from_slice(&from[at..at + length]);
        }
        assert!(got == wanted);
    }
}
