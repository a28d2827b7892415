//! What the tests of tables share: bytes that note what is read of them, and cells that outlive their row.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_shards::{Cell, ValueAddress};
use tandem_storage::ReadAt;

/// Bytes that note what was read of them.
pub(crate) struct Watched {
    bytes: Vec<u8>,
    reads: Mutex<Vec<Range<u64>>>,
}

impl Watched {
    pub(crate) fn new(bytes: &[u8]) -> Arc<Watched> {
        Arc::new(Watched { bytes: bytes.to_vec(), reads: Mutex::default() })
    }

    /// All reads so far.
    pub(crate) fn reads(&self) -> Vec<Range<u64>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ReadAt for Watched {
    fn num_bytes(&self) -> u64 {
        self.bytes.num_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = offset..offset + buffer.len() as u64;
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).push(read);
        self.bytes.read_exact_at(offset, buffer)
    }
}

/// A cell that outlives its row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OwnedCell {
    Null,
    Text(String),
    Number(f64),
    Bytes(ValueAddress),
}

impl From<&Cell<'_>> for OwnedCell {
    fn from(cell: &Cell<'_>) -> OwnedCell {
        match cell {
            Cell::Null => OwnedCell::Null,
            Cell::Text(text) => OwnedCell::Text((*text).to_owned()),
            Cell::Number(number) => OwnedCell::Number(*number),
            Cell::Bytes(address) => OwnedCell::Bytes(*address),
        }
    }
}

/// A cell of text.
pub(crate) fn text(text: &str) -> OwnedCell {
    OwnedCell::Text(text.to_owned())
}
