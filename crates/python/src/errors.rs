//! Errors of the loader as Python's exceptions. The message is the loader's.

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyRuntimeError, PyValueError};
use tandem_corpus::CorpusError;
use tandem_feed::FeedError;
use tandem_loader::LoaderError;

/// A file that is not there, a file or store that cannot be used, an argument that cannot work, or a failure.
pub(crate) fn to_python(error: LoaderError) -> PyErr {
    let message = error.to_string();
    match &error {
        LoaderError::Feed(FeedError::Missing { .. }) => PyFileNotFoundError::new_err(message),
        LoaderError::Feed(FeedError::Corpus(CorpusError::NotADataset { path, .. })) if !path.exists() => {
            PyFileNotFoundError::new_err(message)
        }
        LoaderError::Log { .. }
        | LoaderError::Feed(
            FeedError::Unopened(_)
            | FeedError::Unusable { .. }
            | FeedError::StorageUnreachable { .. }
            | FeedError::Corpus(CorpusError::Read { .. } | CorpusError::Audio { .. } | CorpusError::Write { .. }),
        ) => PyOSError::new_err(message),
        _ if error.is_usage() => PyValueError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}
