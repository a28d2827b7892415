//! Corpora for tests, in folders that go when the test does.

use std::path::Path;

use tandem_audio::{Clip, wav};
use tempfile::TempDir;

/// Holding one means that the folder is there and nobody else's.
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
