//! A folder for a test, gone when the test is. Unit tests and integration tests use this one file.

use std::path::Path;

use tempfile::TempDir;

/// Holding one means that the folder is there and nobody else's.
pub(crate) struct CorpusFolder(TempDir);

impl CorpusFolder {
    pub(crate) fn new(name: &str) -> CorpusFolder {
        CorpusFolder(tempfile::Builder::new().prefix(&format!("tandem-{name}-")).tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}
