//! What can go wrong with bytes of files and of objects.

use std::io;

/// Why an object could not be found, opened or read. Texts hold no user, no password and no query.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is no such file or object.
    #[error("expected an object, found nothing: {location}")]
    Missing {
        /// What was asked for.
        location: String,
    },
    /// Credentials or rights are missing.
    #[error("access denied: {reason}: {location}")]
    Denied {
        /// What was asked for.
        location: String,
        /// What the store said, and what to set.
        reason: String,
        /// A store refused the request (401, 403), rather than the file system of this machine.
        by_service: bool,
    },
    /// The object is not the one that was seen before.
    #[error("the object changed: expected {expected}, found {found}: {location}")]
    Changed {
        /// What was asked for.
        location: String,
        /// Its stamp when it was seen before.
        expected: String,
        /// Its stamp now.
        found: String,
    },
    /// The store did not give a usable answer, however often it was asked. Says nothing about the object.
    #[error("no usable answer after {attempts} attempts, the last: {last}: {location}")]
    Unreachable {
        /// What was asked for.
        location: String,
        /// Requests that were made.
        attempts: u32,
        /// What was wrong with the last of them.
        last: String,
    },
    /// The wait for the store was ended: whoever asked stops. Says nothing about the object.
    #[error("interrupted before the store gave its answer: {location}")]
    Interrupted {
        /// What was asked for.
        location: String,
    },
    /// The store cannot do this at all.
    #[error("{reason}: {location}")]
    Unsupported {
        /// What was asked for.
        location: String,
        /// What is missing, and what to do instead.
        reason: String,
    },
    /// A text is neither a path nor a URL of a store.
    #[error("{reason}: {text}")]
    BadLocation {
        /// The text.
        text: String,
        /// What was expected.
        reason: String,
    },
    /// No file and no object matches a pattern.
    #[error("expected at least one match, found none: {pattern}")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// A pattern or a folder stands for more than is ever read.
    #[error("expected at most {limit} {what}, found more: {pattern}")]
    TooMany {
        /// The pattern or folder.
        pattern: String,
        /// What there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// A file of this machine could not be read, or a range is outside its object.
    #[error("{source}: {location}")]
    Io {
        /// What was asked for.
        location: String,
        /// Why.
        source: io::Error,
    },
}

impl StorageError {
    /// Whether it says something about the service, or about whoever asks, rather than about this object: the next object
    /// fails alike, so a run stops instead of counting a bad recording.
    pub fn is_exhausted(&self) -> bool {
        match self {
            StorageError::Unreachable { .. } | StorageError::Unsupported { .. } | StorageError::Interrupted { .. } => {
                true
            }
            StorageError::Denied { by_service, .. } => *by_service,
            _ => false,
        }
    }

    /// The storage error inside an [`io::Error`] that [`ReadAt`](crate::ReadAt) or a reader of this crate gave.
    pub fn inside(error: &io::Error) -> Option<&StorageError> {
        error.get_ref()?.downcast_ref()
    }

    /// A failed system call on a file of this machine.
    pub(crate) fn local(location: impl ToString, source: io::Error) -> StorageError {
        let location = location.to_string();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StorageError::Missing { location },
            io::ErrorKind::PermissionDenied => {
                let reason = "expected the right to read it".into();
                StorageError::Denied { location, reason, by_service: false }
            }
            _ => StorageError::Io { location, source },
        }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> io::Error {
        let kind = match &error {
            StorageError::Missing { .. } | StorageError::NoMatch { .. } => io::ErrorKind::NotFound,
            StorageError::Denied { .. } => io::ErrorKind::PermissionDenied,
            StorageError::BadLocation { .. } => io::ErrorKind::InvalidInput,
            StorageError::Io { source, .. } => source.kind(),
            // Readers try again after `ErrorKind::Interrupted`, for ever: an interrupted wait must not be one.
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_a_trip_through_io() {
        let error = StorageError::Unreachable { location: "s3://b/k".into(), attempts: 8, last: "503".into() };
        assert!(error.is_exhausted());
        let error = io::Error::from(error);
        assert!(StorageError::inside(&error).is_some_and(StorageError::is_exhausted));
        assert!(StorageError::inside(&io::Error::other("text")).is_none());
    }

    #[test]
    fn an_interrupted_wait_ends_a_reader_that_tries_again() {
        let error = io::Error::from(StorageError::Interrupted { location: "s3://b/k".into() });
        assert_ne!(error.kind(), io::ErrorKind::Interrupted);
        assert!(StorageError::inside(&error).is_some_and(StorageError::is_exhausted));
    }

    #[test]
    fn a_local_error_stops_no_run() {
        let check = |kind: io::ErrorKind| StorageError::local("a", kind.into());
        assert!(matches!(check(io::ErrorKind::NotFound), StorageError::Missing { .. }));
        let denied = check(io::ErrorKind::PermissionDenied);
        assert!(matches!(denied, StorageError::Denied { .. }) && !denied.is_exhausted());
        assert!(!check(io::ErrorKind::IsADirectory).is_exhausted());
    }
}
