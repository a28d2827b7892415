//! A store that fails while a corpus is opened: nothing of it is stored as if it were the corpus.

use std::time::Duration;

use tandem_corpus::{CorpusError, CorpusOpening, Dataset, OpenOptions};
use tandem_storage::{Storage, StorageSettings};
use tandem_test_support::corpora::lhotse_fixtures;
use tandem_test_support::object_server::{ObjectServer, ServerFaults};

fn open(server: &ObjectServer, index: &std::path::Path) -> Result<Dataset, CorpusError> {
    let settings =
        StorageSettings { max_attempts: 2, first_wait: Duration::from_millis(1), ..StorageSettings::default() };
    let storage = Storage::with_variables(settings, server.variables());
    let options = OpenOptions { storage, index_folder: Some(index.to_owned()), ..OpenOptions::default() };
    let mut opening = CorpusOpening::begin(&["s3://shar/".to_owned()], &options)?;
    for (number, shard) in opening.pending() {
        let scanned = shard.scan(None)?;
        opening.add(number, scanned);
    }
    opening.finish()
}

#[test]
fn a_store_that_fails_at_any_request_is_an_error_and_not_a_damaged_shard() {
    let whole = ObjectServer::start(&lhotse_fixtures(), ServerFaults::default());
    let folder = tempfile::tempdir().unwrap();
    let clean = open(&whole, &folder.path().join("clean")).unwrap();
    assert_eq!((clean.samples().len(), clean.problems().len()), (8, 0));
    for from in 1..=whole.requests() {
        let index = folder.path().join(from.to_string());
        let down =
            ObjectServer::start(&lhotse_fixtures(), ServerFaults { down_from: Some(from), ..ServerFaults::default() });
        let error = open(&down, &index).unwrap_err();
        assert!(error.is_exhausted() && error.is_failure(), "from request {from}: {error}");
        let again = open(&whole, &index).unwrap();
        assert_eq!((again.samples().len(), again.problems().len()), (8, 0), "from request {from}");
    }
}
