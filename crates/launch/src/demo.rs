//! The demo corpus: synthetic speech, written, scanned and split like any other corpus.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tandem_audio::{Clip, wav};
use tandem_corpus::{CorpusError, Dataset, LengthIndex, OpenOptions, demo};
use tandem_feed::{FeedError, TrainingSet, scan_lengths};
use tandem_plan::setting::Id;
use tandem_plan::{CorpusFacts, SettingError, Settings, training_set_options};

use crate::launch::{Corpora, ValidationUtterances};

/// Its name in a plan.
pub const NAME: &str = "synthetic speech";
/// Fixed, so that the speech is the same every time.
const SEED: u64 = 1234;
/// Minutes of speech per row of a batch: about three utterances, so that some can be held out or too long.
const MINUTES_PER_ROW: f64 = 0.15;
const LEAST_MINUTES: f64 = 1.0;
const MOST_MINUTES: f64 = 30.0;

/// The demo corpus could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It could not be written or read back.
    #[error("synthetic speech could not be made: {0}")]
    Files(#[from] CorpusError),
    /// It could not be used.
    #[error("synthetic speech could not be used: {0}")]
    Feed(#[from] FeedError),
    /// A file that a setting names cannot be used.
    #[error(transparent)]
    Setting(#[from] SettingError),
}

/// Writes synthetic speech to `folder`, enough for the batches of `settings`, with a tenth held out.
///
/// Cost: some milliseconds per utterance; a typical batch needs fifty utterances.
pub fn corpora(folder: &Path, settings: &Settings) -> Result<(CorpusFacts, Corpora), DemoError> {
    let minutes = (settings.count(Id::BatchSize) as f64 * MINUTES_PER_ROW).clamp(LEAST_MINUTES, MOST_MINUTES);
    demo::write(folder, minutes, (SEED, demo::VOICES.len()), |path, samples, rate_hz| {
        let mut file = Vec::new();
        wav::write(&Clip { samples: samples.to_vec(), rate_hz }, &mut file).map_err(io::Error::other)?;
        fs::write(path, file)
    })?;
    let dataset = Dataset::open(folder, &OpenOptions::default())?;
    let (mut index, _) = LengthIndex::open(folder, &dataset);
    let dataset = scan_lengths(dataset, &mut index, 2, |_| ControlFlow::Continue(()))?.dataset;
    let split = dataset.split(settings.count(Id::Seed));
    let training_set = TrainingSet::survey(Arc::new(dataset), &split.train, &training_set_options(settings)?)?;
    let mut facts = CorpusFacts::of(NAME, &training_set);
    facts.num_validation = split.eval.len();
    let validation = ValidationUtterances { dataset: Arc::clone(training_set.dataset()), rows: split.eval };
    Ok((facts, Corpora { train: Arc::new(training_set), validation }))
}
