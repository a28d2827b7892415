//! An object that can be read at any position.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use crate::fetch::outside;
use crate::location::ObjectLocation;
use crate::read_at::ReadAt;
use crate::reader::ObjectReader;
use crate::stamp::ObjectStamp;
use crate::storage::Storage;

/// An object that can be read. Holding one of a file means that the file is open and had this stamp. Of an object in a
/// store, every read checks the stamp.
#[derive(Clone)]
pub struct Object {
    storage: Storage,
    location: ObjectLocation,
    stamp: ObjectStamp,
    /// Of an object on this machine.
    file: Option<Arc<File>>,
}

impl Object {
    pub(crate) fn local(storage: Storage, location: ObjectLocation, stamp: ObjectStamp, file: File) -> Object {
        Object { storage, location, stamp, file: Some(Arc::new(file)) }
    }

    pub(crate) fn remote(storage: Storage, location: ObjectLocation, stamp: ObjectStamp) -> Object {
        Object { storage, location, stamp, file: None }
    }

    /// Size, time and ETag.
    pub fn stamp(&self) -> &ObjectStamp {
        &self.stamp
    }

    /// Where it is.
    pub fn location(&self) -> &ObjectLocation {
        &self.location
    }

    /// Reads `range` from its beginning to its end. A range that ends after the object is cut there.
    ///
    /// Costs two blocks of memory: of 256 KiB for a file, and of 8 MiB for an object in a store.
    pub fn reader(&self, range: Range<u64>) -> ObjectReader {
        let end = range.end.min(self.stamp.num_bytes);
        ObjectReader::new(self.clone(), range.start.min(end)..end)
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.file.is_none()
    }
}

impl ReadAt for Object {
    fn num_bytes(&self) -> u64 {
        self.stamp.num_bytes
    }

    /// One system call, or one request. A storage error is inside it: [`StorageError::inside`](crate::StorageError::inside).
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(file) = &self.file {
            return file.read_exact_at(buffer, offset);
        }
        let range = offset..offset.checked_add(buffer.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if range.end > self.stamp.num_bytes {
            return Err(outside(&self.location, &range, self.stamp.num_bytes).into());
        }
        let bytes = self.storage.fetch(&self.location, range, &self.stamp).wait()?;
        // A fetch gives what was asked for, or an error.
        buffer.copy_from_slice(bytes.get(..buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("location", &self.location).field("stamp", &self.stamp).finish_non_exhaustive()
    }
}

/// A range of an object on this machine, in memory. The range is within the size that the open file had.
pub(crate) fn read_file(object: &Object, range: Range<u64>) -> io::Result<Bytes> {
    let num_bytes = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(num_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(num_bytes, 0);
    object.read_exact_at(range.start, &mut bytes)?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StorageError;

    #[test]
    fn a_file_that_changed_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let location = ObjectLocation::file(dir.path().join("a"));
        std::fs::write(location.path().unwrap(), "text").unwrap();
        let storage = Storage::default();
        let stamp = storage.stamp(&location).unwrap();
        let object = storage.open(&location, Some(&stamp)).unwrap();
        let mut buffer = [0; 2];
        object.read_exact_at(2, &mut buffer).unwrap();
        assert_eq!(&buffer, b"xt");
        assert_eq!(object.read_exact_at(3, &mut buffer).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let other = ObjectStamp { modified_ns: stamp.modified_ns - 1, ..stamp };
        for error in [storage.open(&location, Some(&other)).err(), storage.fetch(&location, 0..1, &other).wait().err()]
        {
            assert!(matches!(error, Some(StorageError::Changed { .. })), "{error:?}");
        }
        let error = storage.fetch(&location, 3..5, &other).wait().unwrap_err();
        assert!(error.to_string().contains("within 4 bytes, found 3..5"), "{error}");
    }
}
