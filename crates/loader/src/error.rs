//! What can go wrong between options and batches. A variant is a different thing to do next.

use tandem_device::{DeviceError, IsolationError};
use tandem_feed::FeedError;

/// Why there is no loader, or no batch.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// An option is unknown, or has a value that cannot be.
    #[error("{0}")]
    Option(String),
    /// The corpus has no row that can be used.
    #[error("{0}")]
    Nothing(String),
    /// The plan does not fit in a limit.
    #[error("{0}")]
    DoesNotFit(String),
    /// There is no such device, or it cannot be used.
    #[error("{0}")]
    NoDevice(String),
    /// A state is of another corpus, or of other options.
    #[error("this state cannot be loaded: {0}")]
    ForeignState(String),
    /// The program stopped it while recordings were measured. Lengths measured until then are stored.
    #[error("opening the feed was stopped")]
    Stopped,
    /// The loader was closed.
    #[error("the feed is closed: open another")]
    Closed,
    /// The loader cannot change while batches of it are in use.
    #[error("{held} of its batches are still in use: drop every tensor of them first")]
    InUse {
        /// How many.
        held: usize,
    },
    /// Too few steps to say anything.
    #[error("{0}")]
    NotMeasured(String),
    /// A file of logs cannot be written.
    #[error("cannot write the log in {path}: {error}")]
    Log {
        /// The file or folder.
        path: String,
        /// Why.
        error: String,
    },
    /// The corpus, a recording or a stage of the feed.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<IsolationError> for LoaderError {
    fn from(error: IsolationError) -> LoaderError {
        LoaderError::Device(error.into())
    }
}

impl LoaderError {
    /// Whether what was asked for cannot be: another value works, the same one never does.
    pub fn is_usage(&self) -> bool {
        match self {
            LoaderError::Option(_)
            | LoaderError::Nothing(_)
            | LoaderError::DoesNotFit(_)
            | LoaderError::NoDevice(_)
            | LoaderError::ForeignState(_) => true,
            LoaderError::Feed(FeedError::Corpus(error)) => !error.is_failure(),
            LoaderError::Feed(FeedError::Text(_) | FeedError::Espeak(_)) => true,
            _ => false,
        }
    }
}
