//! A column chunk, row by row.

use std::sync::Arc;

use bytes::Bytes;

use super::address::AddressPages;
use super::byte_values::{ByteDictionary, ByteValues};
use super::levels::PresenceReader;
use super::number_values::{NumberKind, NumberValues};
use super::page_body::PageBody;
use super::page_header::{MOST_PAGE_BYTES, PageHead, PageKind, ValueEncoding};
use super::page_table::PageTable;
use super::walk::{ChunkWalk, FoundPage};
use crate::fault::{ShardFault, damaged};
use crate::table::Cell;

/// Rows that are decoded at once.
pub(super) const BATCH_ROWS: u32 = 1024;

/// What the values of a column are read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CursorKind {
    Text,
    Number(NumberKind),
}

/// Reads the rows of a column chunk in batches, each within one page.
pub(super) enum ColumnCursor<'t> {
    Values(Box<ValueCursor<'t>>),
    Addresses(Box<AddressPages<'t>>),
}

impl ColumnCursor<'_> {
    /// Rows that are decoded and not taken. Decodes the next batch if there are none; 0 at the end of the chunk.
    pub(super) fn ready(&mut self, pages: &mut PageTable) -> Result<usize, ShardFault> {
        match self {
            ColumnCursor::Values(cursor) => cursor.ready(),
            ColumnCursor::Addresses(cursor) => cursor.ready(pages),
        }
    }

    /// The value of a row that is ready.
    pub(super) fn cell(&self, row: usize) -> Result<Cell<'_>, ShardFault> {
        match self {
            ColumnCursor::Values(cursor) => cursor.cell(row),
            ColumnCursor::Addresses(cursor) => Ok(cursor.address(row).map_or(Cell::Null, Cell::Bytes)),
        }
    }

    /// Where it is in the file, for messages.
    pub(super) fn position(&self) -> u64 {
        match self {
            ColumnCursor::Values(cursor) => cursor.walk.position(),
            ColumnCursor::Addresses(cursor) => cursor.position(),
        }
    }

    /// Takes rows that are ready.
    pub(super) fn take(&mut self, rows: usize) {
        match self {
            ColumnCursor::Values(cursor) => cursor.batch.taken += rows,
            ColumnCursor::Addresses(cursor) => cursor.take(rows),
        }
    }
}

/// Texts or numbers of a column chunk.
pub(super) struct ValueCursor<'t> {
    walk: ChunkWalk<'t>,
    name: String,
    /// The definition level of a row that has a value.
    max_level: u8,
    kind: CursorKind,
    dictionary: Option<CursorDictionary>,
    page: Option<OpenPage>,
    batch: Batch,
}

enum CursorDictionary {
    Bytes(Arc<ByteDictionary>),
    Numbers(Arc<[f64]>),
}

struct OpenPage {
    offset: u64,
    rows_left: u32,
    /// Rows to decode at once.
    step: u32,
    /// Bytes that its values may still have.
    bytes_left: usize,
    levels: Option<PresenceReader>,
    values: PageValues,
}

enum PageValues {
    Bytes(ByteValues),
    Numbers(NumberValues),
}

#[derive(Default)]
struct Batch {
    texts: Vec<Option<Bytes>>,
    numbers: Vec<Option<f64>>,
    taken: usize,
}

impl<'t> ValueCursor<'t> {
    pub(super) fn new(walk: ChunkWalk<'t>, name: &str, max_level: u8, kind: CursorKind) -> ValueCursor<'t> {
        let (dictionary, page, batch) = (None, None, Batch::default());
        ValueCursor { walk, name: name.to_owned(), max_level, kind, dictionary, page, batch }
    }

    fn ready(&mut self) -> Result<usize, ShardFault> {
        while self.batch.len() == 0 {
            match &mut self.page {
                Some(page) if page.rows_left > 0 => {
                    page.decode(&mut self.batch).map_err(|reason| damaged(page.offset, reason))?;
                }
                _ => match self.walk.next_page()? {
                    Some(found) => self.open(found)?,
                    None => return Ok(0),
                },
            }
        }
        Ok(self.batch.len())
    }

    fn cell(&self, row: usize) -> Result<Cell<'_>, ShardFault> {
        let at = self.batch.taken + row;
        if let CursorKind::Number(_) = self.kind {
            return Ok(self.batch.numbers.get(at).copied().flatten().map_or(Cell::Null, Cell::Number));
        }
        let Some(Some(text)) = self.batch.texts.get(at) else { return Ok(Cell::Null) };
        str::from_utf8(text).map(Cell::Text).map_err(|error| {
            let offset = self.page.as_ref().map_or(0, |page| page.offset);
            damaged(offset, format!("column `{}`: expected UTF-8 text, found other bytes: {error}", self.name))
        })
    }

    fn open(&mut self, found: FoundPage) -> Result<(), ShardFault> {
        let FoundPage { offset, head } = found;
        if head.kind == PageKind::Other {
            return Ok(());
        }
        let bytes = self.walk.bytes(offset, head.total_bytes())?;
        let opened =
            PageBody::open(self.walk.codec(), &head, self.max_level, &bytes).and_then(|body| match head.kind {
                PageKind::Dictionary => self.open_dictionary(&head, body),
                _ => self.open_data(offset, &head, body),
            });
        opened.map_err(|reason| damaged(offset, reason))
    }

    fn open_dictionary(&mut self, head: &PageHead, body: PageBody) -> Result<(), String> {
        if self.dictionary.is_some() || self.page.is_some() {
            return Err("expected one dictionary, before all other pages".into());
        }
        self.dictionary = Some(match self.kind {
            CursorKind::Text => CursorDictionary::Bytes(Arc::new(ByteDictionary::new(body.values, head.num_values)?)),
            CursorKind::Number(kind) => CursorDictionary::Numbers(kind.dictionary(&body.values, head.num_values)?),
        });
        Ok(())
    }

    fn open_data(&mut self, offset: u64, head: &PageHead, body: PageBody) -> Result<(), String> {
        let (encoding, num_values) = (head.encoding, head.num_values);
        let values = match (self.kind, &self.dictionary) {
            (CursorKind::Text, Some(CursorDictionary::Bytes(dictionary))) => {
                PageValues::Bytes(ByteValues::new(body.values, encoding, num_values, Some(dictionary))?)
            }
            (CursorKind::Text, _) => PageValues::Bytes(ByteValues::new(body.values, encoding, num_values, None)?),
            (CursorKind::Number(kind), Some(CursorDictionary::Numbers(dictionary))) => {
                PageValues::Numbers(NumberValues::new(body.values, kind, encoding, num_values, Some(dictionary))?)
            }
            (CursorKind::Number(kind), _) => {
                PageValues::Numbers(NumberValues::new(body.values, kind, encoding, num_values, None)?)
            }
        };
        // Such a value is built from the one before: a page can stand for very many bytes, so take one at a time and
        // count them. With all other encodings values share the memory of their page or dictionary.
        let (step, bytes_left) = match encoding {
            ValueEncoding::DeltaByteArray => (1, MOST_PAGE_BYTES as usize),
            _ => (BATCH_ROWS, usize::MAX),
        };
        self.page = Some(OpenPage { offset, rows_left: num_values, step, bytes_left, levels: body.levels, values });
        Ok(())
    }
}

impl Batch {
    fn len(&self) -> usize {
        (self.texts.len() + self.numbers.len()).saturating_sub(self.taken)
    }
}

impl OpenPage {
    /// Replaces `batch` by the next rows of the page.
    fn decode(&mut self, batch: &mut Batch) -> Result<(), String> {
        batch.texts.clear();
        batch.numbers.clear();
        batch.taken = 0;
        let rows = self.rows_left.min(self.step);
        self.rows_left -= rows;
        for _ in 0..rows {
            let is_present = self.levels.as_mut().map_or(Ok(true), PresenceReader::next_row)?;
            match &mut self.values {
                PageValues::Bytes(values) => {
                    let value = if is_present { Some(values.next()?) } else { None };
                    let size = value.as_ref().map_or(0, Bytes::len);
                    self.bytes_left = match self.bytes_left {
                        usize::MAX => usize::MAX,
                        left => left.checked_sub(size).ok_or_else(too_large)?,
                    };
                    batch.texts.push(value);
                }
                PageValues::Numbers(values) => {
                    batch.numbers.push(if is_present { Some(values.next()?) } else { None });
                }
            }
        }
        Ok(())
    }
}

/// What is wrong with a page whose values share beginnings and are more than any page may hold.
pub(super) fn too_large() -> String {
    format!("the values of the page have more than {MOST_PAGE_BYTES} bytes")
}
