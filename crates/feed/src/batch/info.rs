//! What is known of a batch in a slot.

use std::sync::Arc;

use tandem_corpus::{Cursor, SampleIndex};

use super::schema::Layout;
use super::shape::Bucket;
use crate::load::bad_samples::Replacement;

/// What is known of a batch in a slot.
#[derive(Clone, Debug)]
pub struct BatchInfo {
    /// Its number since the feed started, from 0.
    pub sequence: u64,
    /// Its position in the order of the corpus.
    pub cursor: Cursor,
    /// The first of the batches that the ranks of a run work on at the same time: its own cursor on rank 0.
    pub group: Cursor,
    /// Index of its bucket in the plan, from 0.
    pub bucket_index: usize,
    /// That bucket: row starts in frames and tokens.
    pub bucket: Bucket,
    /// The layout of its fields.
    pub layout: Arc<Layout>,
    /// Its utterances by row; none for a row that an evaluation leaves empty.
    pub utterances: Vec<Option<Utterance>>,
    /// The rows that hold another sample than the order asks for.
    pub replacements: Vec<Replacement>,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utterance {
    /// Its sample in the corpus.
    pub sample: SampleIndex,
    /// Its frames, without padding.
    pub frames: u32,
    /// Its tokens, without padding.
    pub tokens: u32,
}
