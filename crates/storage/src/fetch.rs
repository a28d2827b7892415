//! Bytes to fetch, and bytes that are on their way.

use std::fmt;
use std::io;
use std::ops::Range;

use bytes::Bytes;

use crate::error::StorageError;
use crate::location::ObjectLocation;
use crate::object::read_file;
use crate::remote::InFlight;
use crate::stamp::ObjectStamp;
use crate::storage::Storage;

/// Bytes of an object that are to be fetched, or on their way. Dropping it cancels the request.
pub struct ObjectFetch {
    num_bytes: u64,
    source: Source,
}

enum Source {
    /// Not asked for yet. A file is read by the thread that waits.
    Planned { storage: Storage, location: ObjectLocation, range: Range<u64>, expected: ObjectStamp },
    /// Known already: nothing, or why not.
    Known(Result<Bytes, StorageError>),
    /// Read by another thread. The storage keeps that thread alive.
    Request { request: InFlight<Bytes>, _storage: Storage },
}

impl ObjectFetch {
    pub(crate) fn new(
        storage: &Storage,
        location: &ObjectLocation,
        range: Range<u64>,
        expected: &ObjectStamp,
    ) -> ObjectFetch {
        let num_bytes = range.end.saturating_sub(range.start);
        let is_inside = range.start <= range.end && range.end <= expected.num_bytes;
        let source = match is_inside {
            false => Source::Known(Err(outside(location, &range, expected.num_bytes))),
            // No request can ask for nothing.
            true if num_bytes == 0 && location.is_remote() => Source::Known(Ok(Bytes::new())),
            true => {
                let (storage, location) = (storage.clone(), location.clone());
                Source::Planned { storage, location, range, expected: expected.clone() }
            }
        };
        ObjectFetch { num_bytes, source }
    }

    /// Starts to read from a store, in the background. Waits for nothing. Again does nothing, and neither does it for a file.
    ///
    /// Never fails here: [`ObjectFetch::wait`] does.
    pub fn start(&mut self) {
        let Source::Planned { storage, location, range, expected } = &self.source else { return };
        if !location.is_remote() {
            return;
        }
        let remote = storage.remote(location);
        self.source = match remote.and_then(|remote| remote.read(location, range.clone(), expected.clone())) {
            Ok(request) => Source::Request { request, _storage: storage.clone() },
            Err(error) => Source::Known(Err(error)),
        };
    }

    /// The bytes, all of them. Starts to read, if nobody did. Blocks until they are here or the last attempt has failed.
    pub fn wait(mut self) -> Result<Bytes, StorageError> {
        self.start();
        match self.source {
            Source::Planned { storage, location, range, expected } => {
                let object = storage.open(&location, Some(&expected))?;
                read_file(&object, range).map_err(|source| StorageError::local(&location, source))
            }
            Source::Known(result) => result,
            Source::Request { request, .. } => request.wait(),
        }
    }

    /// How many bytes it is for. Known before any of them is asked for.
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }
}

impl fmt::Debug for ObjectFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFetch").field("num_bytes", &self.num_bytes).finish_non_exhaustive()
    }
}

/// A range that is not within its object.
pub(crate) fn outside(location: &ObjectLocation, range: &Range<u64>, num_bytes: u64) -> StorageError {
    let text = format!("expected a range within {num_bytes} bytes, found {range:?}");
    let source = io::Error::new(io::ErrorKind::UnexpectedEof, text);
    StorageError::Io { location: location.to_string(), source }
}
