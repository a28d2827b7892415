//! A little speech, and runs on it.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, LengthIndex, OpenOptions, demo};
use tandem_device::{Machine, SimSpec};
use tandem_events::Emitter;
use tandem_feed::{TrainingSet, scan_lengths};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::{Corpora, LaunchError, Launched, ValidationUtterances, launch};
use tandem_plan::{CorpusFacts, Settings, training_set_options};

/// A little speech, measured.
pub(crate) struct Speeches {
    folder: tempfile::TempDir,
}

impl Speeches {
    pub(crate) fn new(minutes: f64) -> Speeches {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &Path, samples: &[i16], rate_hz: u32| {
            let clip = Clip { samples: samples.to_vec(), rate_hz };
            wav::write(&clip, &mut File::create(path)?).map_err(io::Error::other)
        };
        demo::write(folder.path(), minutes, (7, 6), write).unwrap();
        Speeches { folder }
    }

    fn survey(&self, settings: &Settings) -> (CorpusFacts, Corpora) {
        let dataset = Dataset::open(self.folder.path(), &OpenOptions::default()).unwrap();
        let (mut index, _) = LengthIndex::open(self.folder.path(), &dataset);
        let dataset = scan_lengths(dataset, &mut index, 2, |_| ControlFlow::Continue(())).unwrap().dataset;
        let split = dataset.split(1234);
        let options = training_set_options(settings).unwrap();
        let training_set = TrainingSet::survey(Arc::new(dataset), &split.train, &options).unwrap();
        let facts = CorpusFacts::of("demo", &training_set);
        let validation = ValidationUtterances { dataset: Arc::clone(training_set.dataset()), rows: split.eval };
        (facts, Corpora { train: Arc::new(training_set), validation })
    }

    /// A plan for the smallest model on simulated cards, or on this computer.
    pub(crate) fn resolve(&self, sim: Option<&SimSpec>, flags: &[(&str, &str)]) -> (Resolved, Corpora) {
        let common = [("buffer-size", "6"), ("num-workers", "2"), ("model-size", "nano"), ("max-steps", "30")];
        let settings = Settings::new().with(&common).unwrap().with(flags).unwrap();
        let (facts, corpora) = self.survey(&settings);
        let inventory = match sim {
            Some(spec) => Inventory::of(Machine::simulated(spec.clone())).unwrap(),
            None => Inventory::survey(None).unwrap(),
        };
        (inventory.resolve(&settings, Some(&facts)).unwrap(), corpora)
    }

    /// A run, ready for its first step.
    pub(crate) fn launch(&self, resolved: &Resolved, corpora: &Corpora) -> Result<Launched, LaunchError> {
        let bad = self.folder.path().join("bad.jsonl");
        launch(resolved, corpora, None, bad, &Emitter::none(), &mut |_| {}).map(|(launched, _)| launched)
    }
}
