//! A folder that is read over http, and storage that loses no time.

use std::path::Path;
use std::time::Duration;

use tandem_storage::{ObjectLocation, Storage, StorageSettings};
use tandem_test_support::object_server::{ObjectServer, ServerFaults};
use tempfile::TempDir;

/// A bucket with objects, and a server for it.
pub(crate) struct TestBucket {
    pub(crate) server: ObjectServer,
    pub(crate) storage: Storage,
    folder: TempDir,
}

impl TestBucket {
    pub(crate) fn start(faults: ServerFaults) -> TestBucket {
        TestBucket::with_timeout(faults, Duration::from_secs(30))
    }

    /// Waits between attempts are short, and so is the timeout where a test waits for one.
    pub(crate) fn with_timeout(faults: ServerFaults, request_timeout: Duration) -> TestBucket {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        let server = ObjectServer::start(folder.path(), faults);
        let wait = Duration::from_millis(1);
        let settings = StorageSettings { max_attempts: 5, first_wait: wait, max_wait: wait, request_timeout };
        let storage = Storage::with_variables(settings, server.variables());
        TestBucket { server, storage, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts an object there and says where it is: as an object of S3, and as a page.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) -> [ObjectLocation; 2] {
        let path = self.folder.path().join("bucket").join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self.at(key)
    }

    pub(crate) fn at(&self, key: &str) -> [ObjectLocation; 2] {
        let bucket = ObjectLocation::parse("s3://bucket").unwrap();
        let page = ObjectLocation::parse(&format!("{}/bucket", self.server.url())).unwrap();
        [bucket.join(key), page.join(key)]
    }
}

/// Bytes that differ from their neighbours, and from place to place.
pub(crate) fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(next).collect()
}
