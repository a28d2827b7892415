//! What a dataset check found: the problems, and what the corpus is like.

use std::path::PathBuf;

use tandem_corpus::{Distribution, Problem};

use crate::batch::shape::Bucket;
use crate::survey::buckets::Padding;

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusReport {
    /// The corpus, as it was given.
    pub path: PathBuf,
    /// Everything wrong, by file and line.
    pub problems: Vec<Problem>,
    /// What would settle many problems at once.
    pub hints: Vec<String>,
    /// Rows whose recordings were looked at.
    pub num_utterances: usize,
    /// Rows that were to be left out.
    pub num_excluded: usize,
    /// Lengths of the recordings that could be decoded.
    pub seconds: Distribution,
    /// Lengths of the texts, in symbols.
    pub tokens: Distribution,
    /// Who speaks.
    pub speakers: Vec<UtteranceGroup>,
    /// In which languages, as the corpus spells them.
    pub langs: Vec<UtteranceGroup>,
    /// The shapes batches would come in; none when no utterance could train.
    pub shapes: Option<ShapeReport>,
}

/// Utterances that have a name in common.
#[derive(Clone, Debug, PartialEq)]
pub struct UtteranceGroup {
    /// The name; none for rows that give none.
    pub name: Option<String>,
    /// How many there are.
    pub num_utterances: usize,
    /// How long they are together.
    pub seconds: f64,
}

/// The shapes of batches, and what they cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeReport {
    /// Each with rows from the shortest to the longest.
    pub buckets: Vec<BucketUse>,
    /// Utterances of a batch: what was asked for, or all there are.
    pub batch: u32,
    /// The padding of one epoch.
    pub padding: Padding,
    /// What other numbers of shapes would pad, fewest shapes first: those that the utterances are enough for.
    pub others: Vec<(usize, Padding)>,
    /// The longest recording kept: by default, 99.5 % are.
    pub max_frames: u32,
    /// The longest text kept, in symbols.
    pub max_tokens: u32,
    /// Utterances longer than that.
    pub num_left_out: usize,
}

/// A bucket and how many utterances belong into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketUse {
    /// The shape.
    pub bucket: Bucket,
    /// Utterances of its rows' parts.
    pub num_utterances: usize,
}

impl CorpusReport {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}
