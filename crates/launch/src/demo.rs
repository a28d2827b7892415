//! A corpus for whoever has none at hand: synthetic speech, written, measured and split like any other.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tandem_audio::{Clip, wav};
use tandem_corpus::{CorpusError, Dataset, LengthIndex, OpenOptions, demo};
use tandem_feed::{FeedError, TrainingSet, scan_lengths};
use tandem_plan::setting::Id;
use tandem_plan::{CorpusFacts, Settings, training_set_options};

use crate::launch::Corpora;

/// What a plan calls it.
pub const NAME: &str = "synthetic speech";
/// The same speech every time.
const SEED: u64 = 1234;
/// Of speech for every row of a batch: three utterances of it, so that some can be held out or too long.
const MINUTES_PER_ROW: f64 = 0.15;
const LEAST_MINUTES: f64 = 1.0;
const MOST_MINUTES: f64 = 30.0;

/// There is no synthetic speech.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It could not be written or read back.
    #[error("synthetic speech could not be made: {0}")]
    Files(#[from] CorpusError),
    /// It could not be used.
    #[error("synthetic speech could not be used: {0}")]
    Feed(#[from] FeedError),
}

/// Writes synthetic speech to `folder`, enough for the batches of `settings`. A tenth of it is held out.
///
/// Cost: some milliseconds an utterance, of which a usual batch wants fifty.
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
    let material = TrainingSet::survey(Arc::new(dataset), &split.train, &training_set_options(settings))?;
    let mut facts = CorpusFacts::of(NAME, &material);
    facts.num_validation = split.eval.len();
    let held_out = (Arc::clone(material.dataset()), split.eval);
    Ok((facts, Corpora { train: Arc::new(material), held_out }))
}
