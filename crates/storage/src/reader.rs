//! An object from its beginning to its end, in blocks.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use crate::fetch::ObjectFetch;
use crate::object::{Object, read_file};
use crate::read_at::ReadAt as _;

/// Of a file.
const FILE_BLOCK_BYTES: u64 = 256 << 10;
/// Of an object in a store: at 1 Gbit/s and 50 ms until the first byte, a fifth of the time is waiting, and the block
/// ahead hides it.
const STORE_BLOCK_BYTES: u64 = 8 << 20;

/// Reads a range of an object from its beginning to its end; position 0 is the beginning of the range.
///
/// From a store, the block after the current one is already on its way while blocks are read in order. A seek out of both
/// drops them. Errors have a [`StorageError`](crate::StorageError) inside.
pub struct ObjectReader {
    object: Object,
    range: Range<u64>,
    /// From the beginning of the range. May be past its end.
    position: u64,
    block: Bytes,
    /// Where the block begins, from the beginning of the range.
    block_start: u64,
    /// The block ahead and where it begins. In a lock only so that a reader can be shared; it is never contended.
    ahead: Mutex<Option<(u64, ObjectFetch)>>,
}

impl ObjectReader {
    pub(crate) fn new(object: Object, range: Range<u64>) -> ObjectReader {
        ObjectReader { object, range, position: 0, block: Bytes::new(), block_start: 0, ahead: Mutex::new(None) }
    }

    /// The size of the range.
    pub fn num_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// What the block holds from the position on.
    fn rest_of_block(&self) -> &[u8] {
        let skip = self.position.checked_sub(self.block_start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.block.get(skip..)).unwrap_or(&[])
    }

    /// Makes the block hold the position, which is inside the range.
    fn load(&mut self) -> io::Result<()> {
        if !self.object.is_remote() {
            let bytes = self.block_at(self.position, FILE_BLOCK_BYTES);
            self.block = read_file(&self.object, bytes)?;
            self.block_start = self.position;
            return Ok(());
        }
        let is_next = self.position == self.block_start + self.block.len() as u64;
        let ahead = self.ahead.get_mut().unwrap_or_else(|error| error.into_inner()).take();
        let holds = |start: u64, fetch: &ObjectFetch| (start..start + fetch.num_bytes()).contains(&self.position);
        let (start, fetch) = match ahead {
            Some((start, fetch)) if holds(start, &fetch) => (start, fetch),
            _ => (self.position, self.fetch(self.position)),
        };
        let end = start + fetch.num_bytes();
        // A seek in between makes it less likely that the next block is needed.
        if (is_next || start != self.position) && end < self.num_bytes() {
            self.ahead = Mutex::new(Some((end, self.fetch(end))));
        }
        self.block = Bytes::new();
        self.block = fetch.wait()?;
        self.block_start = start;
        Ok(())
    }

    /// Starts to read the block at `position`.
    fn fetch(&self, position: u64) -> ObjectFetch {
        let bytes = self.block_at(position, STORE_BLOCK_BYTES);
        let mut fetch = self.object.storage().fetch(self.object.location(), bytes, self.object.stamp());
        fetch.start();
        fetch
    }

    /// The bytes of the object that a block at `position` of the range has.
    fn block_at(&self, position: u64, max_bytes: u64) -> Range<u64> {
        let start = self.range.start + position;
        start..self.range.end.min(start.saturating_add(max_bytes))
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.num_bytes().saturating_sub(self.position);
        if buffer.is_empty() || left == 0 {
            return Ok(0);
        }
        if self.rest_of_block().is_empty() {
            // A large read of a file needs no block.
            let whole = buffer.len() as u64 >= FILE_BLOCK_BYTES && buffer.len() as u64 <= left;
            if whole && !self.object.is_remote() {
                self.object.read_exact_at(self.range.start + self.position, buffer)?;
                self.position += buffer.len() as u64;
                return Ok(buffer.len());
            }
            self.load()?;
        }
        let bytes = self.rest_of_block();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.num_bytes().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, "expected a position, found one before the beginning");
        self.position = position.ok_or_else(invalid)?;
        Ok(self.position)
    }
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ObjectReader");
        shown.field("object", &self.object).field("range", &self.range).field("position", &self.position);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectLocation, Storage};

    #[test]
    fn a_reader_of_a_file_reads_and_seeks_in_its_range() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|n| (n * 7 / 3) as u8).collect();
        let location = ObjectLocation::file(dir.path().join("a"));
        std::fs::write(location.path().unwrap(), &bytes).unwrap();
        let object = Storage::default().open(&location, None).unwrap();
        for step in [1_000, 300_000, 2_000_000] {
            let mut reader = object.reader(100..u64::MAX);
            let mut found = Vec::new();
            let mut buffer = vec![0; step];
            loop {
                let count = reader.read(&mut buffer).unwrap();
                found.extend_from_slice(&buffer[..count]);
                if count == 0 {
                    break;
                }
            }
            assert!(found == bytes[100..], "steps of {step}");
        }
        let mut reader = object.reader(100..900_000);
        let mut two = [0; 2];
        for (to, at) in [(SeekFrom::Start(5), 105), (SeekFrom::Current(300_000), 300_107), (SeekFrom::End(-2), 899_998)]
        {
            reader.seek(to).unwrap();
            reader.read_exact(&mut two).unwrap();
            assert_eq!(two, bytes[at..at + 2], "{to:?}");
        }
        assert_eq!(reader.read(&mut two).unwrap(), 0);
        reader.seek(SeekFrom::Start(u64::MAX)).unwrap();
        assert_eq!(reader.read(&mut two).unwrap(), 0);
        assert!(reader.seek(SeekFrom::Start(0)).is_ok() && reader.seek(SeekFrom::Current(-1)).is_err());
    }

    #[test]
    fn a_reader_can_be_sent_and_shared() {
        fn check<T: Send + Sync>() {}
        check::<ObjectReader>();
        check::<Object>();
        check::<Storage>();
    }
}
