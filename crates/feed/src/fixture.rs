//! Corpora for tests, in folders that are deleted with the test.

use std::path::Path;
use std::sync::Arc;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, OpenOptions, Shard};
use tandem_device::Route;
use tandem_events::Emitter;
use tempfile::TempDir;

use crate::{CacheSpec, FeedPlan, FeedSpec, FeedState, FromFiles, SPEECH, TrainingSet, TrainingSetOptions};

/// Holding one means that the folder exists and is used by this test only.
pub(crate) struct FeedFolder(TempDir);

impl FeedFolder {
    pub(crate) fn new(name: &str) -> FeedFolder {
        FeedFolder(tempfile::Builder::new().prefix(&format!("tandem-{name}-")).tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn wav(&self, name: &str, clip: &Clip) {
        let mut file = Vec::new();
        wav::write(clip, &mut file).unwrap();
        self.write(name, file);
    }
}

/// A tone at a third of full scale.
pub(crate) fn sine(rate_hz: u32, seconds: f64) -> Clip {
    let num_samples = (seconds * f64::from(rate_hz)).round() as u32;
    let value = |i: u32| (f64::from(i) * 1000.0 / f64::from(rate_hz)).sin() * 11_000.0;
    Clip { samples: (0..num_samples).map(|i| value(i) as i16).collect(), rate_hz }
}

/// A feed of batches of one row, from a list of which no recording need exist.
pub(crate) fn feed_spec(list: &Path) -> FeedSpec {
    let dataset = Arc::new(Dataset::open(list, &OpenOptions::default()).unwrap());
    let rows = dataset.train_rows();
    let training_set = Arc::new(TrainingSet::survey(dataset, &rows, &TrainingSetOptions::default()).unwrap());
    let buckets = training_set.bucket_plan(1, 1).unwrap();
    let plan = FeedPlan {
        schema: SPEECH,
        buckets: buckets.buckets().to_vec(),
        route: Route::Handover,
        data_slots: 1,
        model_slots: 1,
        rates_hz: Vec::new(),
        uploads: 2,
        pinned_uploads: 2,
        table_bytes: training_set.table_bytes(),
        cached_pitches: 0,
        verify_every: None,
    };
    FeedSpec {
        training_set,
        buckets,
        evaluates: false,
        plan,
        route_why: "a test".to_owned(),
        seed: 7,
        shard: Shard::WHOLE,
        from: FeedState::default(),
        recordings: Arc::new(FromFiles),
        threads: 1,
        max_threads: 1,
        depth_fixed: false,
        cache: CacheSpec::default(),
        read_ahead_bytes: 0,
        max_bad_fraction: 0.05,
        bad_samples: None,
        cores: None,
        emitter: Emitter::none(),
    }
}
