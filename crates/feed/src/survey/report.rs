//! The report of a dataset check: problems, and statistics of the corpus.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tandem_corpus::{Distribution, Format, Problem, ProblemKind};

use crate::batch::shape::Bucket;
use crate::survey::buckets::Padding;
use crate::survey::left_out::LeftOut;

/// The result of a dataset check.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusReport {
    /// The corpus, as it was given.
    pub path: PathBuf,
    /// What it is written as.
    pub format: Format,
    /// The format, and where its recordings are, for people.
    pub layout: String,
    /// What else is there that could be read as a corpus, and was not.
    pub not_read: Vec<String>,
    /// Problems, by file and line.
    pub problems: Vec<Problem>,
    /// What would solve many problems at once.
    pub hints: Vec<String>,
    /// Checked rows.
    pub num_utterances: usize,
    /// Excluded rows.
    pub num_excluded: usize,
    /// Lengths of the recordings that could be decoded.
    pub seconds: Distribution,
    /// Lengths of the texts, in symbols.
    pub tokens: Distribution,
    /// Speakers.
    pub speakers: Vec<UtteranceGroup>,
    /// Languages, as the corpus spells them.
    pub langs: Vec<UtteranceGroup>,
    /// What a run with the default settings would train on, counted as the plan counts it.
    pub training: UsageReport,
    /// How many utterances of the training set have a problem, by kind: these problems leave nothing out.
    pub trained_on: BTreeMap<ProblemKind, usize>,
    /// The shapes of batches; none if no utterance can train.
    pub shapes: Option<ShapeReport>,
}

/// What a run would train on, and what it would skip.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageReport {
    /// Utterances that train.
    pub num_utterances: usize,
    /// Their total duration.
    pub seconds: f64,
    /// Utterances for validation.
    pub num_validation: usize,
    /// Rows of its lists that are no utterances, by reason in words.
    pub rejected: BTreeMap<&'static str, usize>,
    /// Utterances that cannot train, by reason.
    pub left_out: LeftOut,
    /// The longest recording that trains, in frames.
    pub max_frames: u32,
    /// The longest text that trains, in symbols.
    pub max_tokens: u32,
}

impl UsageReport {
    /// Why utterances are skipped, with their number.
    pub fn skipped(&self) -> Vec<String> {
        self.left_out.reasons(&self.rejected, self.max_frames.into(), self.max_tokens.into())
    }
}

/// Utterances with the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct UtteranceGroup {
    /// The name; none for rows that give none.
    pub name: Option<String>,
    /// Number of utterances.
    pub num_utterances: usize,
    /// Their total duration.
    pub seconds: f64,
}

/// The shapes of batches, and their padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeReport {
    /// Each with rows from the shortest to the longest.
    pub buckets: Vec<BucketUse>,
    /// Utterances of a batch: as asked for, or all of them.
    pub batch: u32,
    /// The padding of one epoch.
    pub padding: Padding,
    /// The padding with other numbers of shapes, fewest first, as far as there are enough utterances.
    pub others: Vec<OtherPadding>,
}

/// The padding of one epoch with another number of shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherPadding {
    /// The number of shapes.
    pub num_buckets: usize,
    /// The padding.
    pub padding: Padding,
}

/// A bucket and its utterances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketUse {
    /// The shape.
    pub bucket: Bucket,
    /// Utterances of all its rows.
    pub num_utterances: usize,
}

impl CorpusReport {
    /// Whether there are no problems.
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}
