//! What tells an object from what it was before.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::time::UNIX_EPOCH;

use object_store::ObjectMeta;

use crate::error::StorageError;
use crate::location::ObjectLocation;

/// Size, time and ETag of an object when it was seen. Another stamp means another content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectStamp {
    /// Its size.
    pub num_bytes: u64,
    /// When it was last modified, from 1970; 0 if unknown. Of an object in a store in whole seconds: lists and single
    /// answers round differently.
    pub modified_ns: u64,
    /// The store's own version of it. Files have none.
    pub etag: Option<Box<str>>,
}

impl ObjectStamp {
    pub(crate) fn of_file(metadata: &Metadata) -> io::Result<ObjectStamp> {
        match metadata.file_type() {
            kind if kind.is_file() => {}
            kind if kind.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            _ => return Err(io::Error::other("not a regular file")),
        }
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        Ok(ObjectStamp { num_bytes: metadata.len(), modified_ns, etag: None })
    }

    pub(crate) fn of_object(meta: &ObjectMeta) -> ObjectStamp {
        let seconds = u64::try_from(meta.last_modified.timestamp()).unwrap_or(0);
        let etag = meta.e_tag.as_deref().filter(|etag| !etag.is_empty());
        ObjectStamp {
            num_bytes: meta.size,
            modified_ns: seconds.saturating_mul(1_000_000_000),
            etag: etag.map(Into::into),
        }
    }

    /// Fails with [`StorageError::Changed`] if `self`, which was found, is not the object that was expected.
    ///
    /// ETags decide where both have one. Times decide where one of them lacks it.
    pub(crate) fn check(&self, expected: &ObjectStamp, location: &ObjectLocation) -> Result<(), StorageError> {
        let same = match (&self.etag, &expected.etag) {
            (Some(found), Some(expected)) => strong(found) == strong(expected),
            _ => self.modified_ns == expected.modified_ns || self.modified_ns == 0 || expected.modified_ns == 0,
        };
        if same && self.num_bytes == expected.num_bytes {
            return Ok(());
        }
        let location = location.to_string();
        Err(StorageError::Changed { location, expected: expected.to_string(), found: self.to_string() })
    }
}

impl fmt::Display for ObjectStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.num_bytes)?;
        match &self.etag {
            Some(etag) => write!(f, " with ETag {etag}"),
            None if self.modified_ns == 0 => Ok(()),
            None => write!(f, " of second {}", self.modified_ns as f64 / 1e9),
        }
    }
}

/// A proxy that compresses marks an ETag as weak; the object is the same.
fn strong(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_decide_before_times_and_sizes_always() {
        let stamp = |num_bytes, modified_ns, etag: Option<&str>| ObjectStamp {
            num_bytes,
            modified_ns,
            etag: etag.map(Into::into),
        };
        let check = |found: ObjectStamp, expected: ObjectStamp, same: bool| {
            let result = found.check(&expected, &ObjectLocation::file("a"));
            assert_eq!(result.is_ok(), same, "{found} {expected}");
        };
        check(stamp(1, 5, Some("\"a\"")), stamp(1, 9, Some("W/\"a\"")), true);
        check(stamp(1, 5, Some("\"a\"")), stamp(1, 5, Some("\"b\"")), false);
        check(stamp(1, 5, Some("\"a\"")), stamp(2, 5, Some("\"a\"")), false);
        check(stamp(1, 5, None), stamp(1, 5, Some("\"b\"")), true);
        check(stamp(1, 5, None), stamp(1, 9, None), false);
        check(stamp(1, 0, None), stamp(1, 9, None), true);
    }
}
