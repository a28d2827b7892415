//! Recordings in the pages of a Parquet file, read in the order of the rows.

use std::cell::RefCell;

use tandem_shards::{PageTable, ShardFault, ValueAddress};
use tandem_storage::ReadAt;

use crate::recording_reader::RecordingReader;

/// A larger page is read again for each of its values.
const MAX_HELD_BYTES: u64 = 64 << 20;

/// Reads values. The bytes of the last page are held, because rows that follow each other share one.
pub(super) struct PageReader<'a> {
    bytes: &'a dyn ReadAt,
    pages: &'a PageTable,
    last: RefCell<Option<(u64, Vec<u8>)>>,
}

impl<'a> PageReader<'a> {
    pub(super) fn new(bytes: &'a dyn ReadAt, pages: &'a PageTable) -> PageReader<'a> {
        PageReader { bytes, pages, last: RefCell::new(None) }
    }

    /// The value at `address`. At most one read of its page, and one of its dictionary.
    pub(super) fn open(&self, address: ValueAddress) -> Result<RecordingReader, ShardFault> {
        let mut value = Vec::new();
        match self.pages.span(address.position) {
            // The page table holds dictionaries itself, and what is left of their pages is small.
            Some(span)
                if span.end - span.start <= MAX_HELD_BYTES
                    && self.pages.dictionary_span(address.position).is_none() =>
            {
                let mut last = self.last.borrow_mut();
                let page = match last.take() {
                    Some((number, bytes)) if number == address.position => bytes,
                    other => {
                        let mut bytes = other.map(|(_, bytes)| bytes).unwrap_or_default();
                        bytes.resize((span.end - span.start) as usize, 0);
                        self.bytes.read_exact_at(span.start, &mut bytes)?;
                        bytes
                    }
                };
                let (_, page) = last.insert((address.position, page));
                self.pages.value_in(page, None, address, &mut value)?;
            }
            _ => self.pages.read_value(self.bytes, address, &mut value)?,
        }
        Ok(RecordingReader::of_bytes(value))
    }
}
