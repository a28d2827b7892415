//! Where the pages of byte columns are: all that is needed to read one value without the footer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tandem_storage::ReadAt;

use super::byte_values::{ByteDictionary, ByteValues};
use super::codec::PageCodec;
use super::cursor::too_large;
use super::dictionaries::DictionaryCache;
use super::page_body::PageBody;
use super::page_header::{MOST_PAGE_BYTES, PageHead, PageKind, ValueEncoding};
use crate::fault::{ShardFault, damaged};
use crate::table::ValueAddress;

/// The most bytes of a page with its header, as it is in the file.
const MOST_SPAN_BYTES: u32 = MOST_PAGE_BYTES + (1 << 20);

/// The pages of the byte columns of one file. [`ParquetTable::rows`](crate::ParquetTable::rows) fills it; an index
/// stores it, and reads values with it without opening the file's footer again.
///
/// About 30 bytes per page. Dictionaries that were read are cached, at most 8 of them and 64 MiB.
#[derive(Default)]
pub struct PageTable {
    pub(super) chunks: Vec<ChunkEntry>,
    pub(super) pages: Vec<PageEntry>,
    cache: DictionaryCache,
}

/// A column chunk: what its pages have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkEntry {
    pub(super) codec: PageCodec,
    /// Definition level of a row that has a value; 0 if every row has.
    pub(super) max_level: u8,
    pub(super) row_group: u32,
    pub(super) column: u32,
    /// Where the dictionary page is; its size is 0 if there is none.
    pub(super) dictionary_offset: u64,
    pub(super) dictionary_bytes: u32,
}

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageEntry {
    pub(super) chunk: u32,
    pub(super) offset: u64,
    /// Size in the file, with its header.
    pub(super) num_bytes: u32,
    /// Size of what it holds; 0 if it is known by the offset index only.
    pub(super) uncompressed_bytes: u32,
    pub(super) rows: u32,
    /// Whether its values are in the dictionary, or may be.
    pub(super) needs_dictionary: bool,
}

impl PageTable {
    /// Number of pages.
    pub fn num_pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The bytes of the file that hold a page; none if there is no such page.
    pub fn span(&self, page: u64) -> Option<Range<u64>> {
        let entry = self.entry(page)?.0;
        Some(entry.offset..entry.offset + u64::from(entry.num_bytes))
    }

    /// The bytes of the file that hold the dictionary of a page; none if it needs none.
    pub fn dictionary_span(&self, page: u64) -> Option<Range<u64>> {
        let (entry, chunk) = self.entry(page)?;
        let span = chunk.dictionary_offset..chunk.dictionary_offset + u64::from(chunk.dictionary_bytes);
        (entry.needs_dictionary && chunk.dictionary_bytes > 0).then_some(span)
    }

    /// Size of a page when it is uncompressed, as its header claims; none if it is not known before the page is read.
    pub fn uncompressed_bytes(&self, page: u64) -> Option<u64> {
        let entry = self.entry(page)?.0;
        (entry.uncompressed_bytes > 0).then_some(entry.uncompressed_bytes.into())
    }

    /// Reads the value at `address` into `out`, which is cleared first. `reader` is the file that the table is of.
    ///
    /// One read of one page, and one of the dictionary unless it is cached or not needed. Memory: the page, compressed
    /// and uncompressed. Fails if the page is not what the table says or if the row has no value.
    pub fn read_value(&self, reader: &dyn ReadAt, address: ValueAddress, out: &mut Vec<u8>) -> Result<(), ShardFault> {
        let page = self.page_at(address)?;
        let dictionary = match self.dictionary_span(address.position) {
            Some(span) => Some(self.dictionary(reader, page.0.chunk, span)?),
            None => None,
        };
        let bytes = read_span(reader, page.0.offset, page.0.num_bytes)?;
        extract(page, &bytes, dictionary, address.extent, out)
    }

    /// Like [`PageTable::read_value`], from bytes that have been fetched: those of [`PageTable::span`] and of
    /// [`PageTable::dictionary_span`].
    ///
    /// Copies both. Fails like [`PageTable::read_value`].
    pub fn value_in(
        &self,
        page_bytes: &[u8],
        dictionary_bytes: Option<&[u8]>,
        address: ValueAddress,
        out: &mut Vec<u8>,
    ) -> Result<(), ShardFault> {
        let page = self.page_at(address)?;
        let dictionary = match dictionary_bytes.filter(|_| page.0.needs_dictionary) {
            Some(bytes) => Some(open_dictionary(page.1, &Bytes::copy_from_slice(bytes))?),
            None => None,
        };
        extract(page, &Bytes::copy_from_slice(page_bytes), dictionary, address.extent, out)
    }

    /// Fails if a page or a dictionary is not within a file of `num_bytes`. Otherwise all spans are.
    pub fn check(&self, num_bytes: u64) -> Result<(), ShardFault> {
        let pages = self.pages.iter().map(|page| (page.offset, page.num_bytes));
        let dictionaries = self.chunks.iter().map(|chunk| (chunk.dictionary_offset, chunk.dictionary_bytes));
        for (offset, size) in pages.chain(dictionaries.filter(|(_, size)| *size > 0)) {
            if offset.checked_add(size.into()).is_none_or(|end| end > num_bytes) {
                let reason = format!("a page of {size} bytes is expected here; the file has {num_bytes} bytes");
                return Err(damaged(offset, reason));
            }
        }
        Ok(())
    }

    fn entry(&self, page: u64) -> Option<(&PageEntry, &ChunkEntry)> {
        let entry = self.pages.get(usize::try_from(page).ok()?)?;
        Some((entry, self.chunks.get(entry.chunk as usize)?))
    }

    fn page_at(&self, address: ValueAddress) -> Result<(&PageEntry, &ChunkEntry), ShardFault> {
        let found = self.entry(address.position);
        let page = found
            .ok_or_else(|| damaged(0, format!("page {} of {} is asked for", address.position, self.pages.len())))?;
        match address.extent < page.0.rows {
            true => Ok(page),
            false => Err(damaged(page.0.offset, format!("row {} of {} is asked for", address.extent, page.0.rows))),
        }
    }

    fn dictionary(
        &self,
        reader: &dyn ReadAt,
        number: u32,
        span: Range<u64>,
    ) -> Result<Arc<ByteDictionary>, ShardFault> {
        if let Some(dictionary) = self.cache.get(number) {
            return Ok(dictionary);
        }
        let chunk = self.chunks.get(number as usize);
        let chunk = chunk.ok_or_else(|| damaged(span.start, "the column chunk of a page is missing"))?;
        let bytes = read_span(reader, chunk.dictionary_offset, chunk.dictionary_bytes)?;
        let dictionary = open_dictionary(chunk, &bytes)?;
        self.cache.put(number, Arc::clone(&dictionary));
        Ok(dictionary)
    }
}

/// Dictionaries that are cached make no difference.
impl PartialEq for PageTable {
    fn eq(&self, other: &PageTable) -> bool {
        self.chunks == other.chunks && self.pages == other.pages
    }
}

impl fmt::Debug for PageTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PageTable").field("chunks", &self.chunks.len()).field("pages", &self.pages.len()).finish()
    }
}

/// Whether a page of this size may be asked for.
pub(super) fn size_is_possible(num_bytes: u32) -> bool {
    num_bytes <= MOST_SPAN_BYTES
}

fn read_span(reader: &dyn ReadAt, offset: u64, size: u32) -> Result<Bytes, ShardFault> {
    let num_bytes = reader.num_bytes();
    if !size_is_possible(size) || offset.checked_add(size.into()).is_none_or(|end| end > num_bytes) {
        let reason = format!("a page of {size} bytes is expected here; the file has {num_bytes} bytes");
        return Err(damaged(offset, reason));
    }
    let mut bytes = vec![0; size as usize];
    reader.read_exact_at(offset, &mut bytes)?;
    Ok(bytes.into())
}

fn open_dictionary(chunk: &ChunkEntry, bytes: &Bytes) -> Result<Arc<ByteDictionary>, ShardFault> {
    let open = || {
        let head = checked_head(bytes, chunk.codec)?;
        if head.kind != PageKind::Dictionary {
            return Err("expected a dictionary page, found another".to_owned());
        }
        let body = PageBody::open(chunk.codec, &head, chunk.max_level, bytes)?;
        ByteDictionary::new(body.values, head.num_values).map(Arc::new)
    };
    open().map_err(|reason| damaged(chunk.dictionary_offset, reason))
}

/// The header of a page that is all of `bytes`.
fn checked_head(bytes: &[u8], codec: PageCodec) -> Result<PageHead, String> {
    let head = PageHead::parse(bytes).map_err(|fault| format!("the header of a page: {}", fault.reason()))?;
    head.check(codec, bytes.len() as u64 - u64::from(head.header_bytes))?;
    match head.total_bytes() == bytes.len() as u64 {
        true => Ok(head),
        false => Err(format!("the page has {} bytes, expected {}", head.total_bytes(), bytes.len())),
    }
}

/// The value in row `row` of a page.
fn extract(
    (entry, chunk): (&PageEntry, &ChunkEntry),
    bytes: &Bytes,
    dictionary: Option<Arc<ByteDictionary>>,
    row: u32,
    out: &mut Vec<u8>,
) -> Result<(), ShardFault> {
    out.clear();
    let value = || {
        let head = checked_head(bytes, chunk.codec)?;
        if !head.is_data() || head.num_values != entry.rows {
            let expected = entry.rows;
            return Err(format!("expected a page of {expected} rows, found {:?} with {}", head.kind, head.num_values));
        }
        let PageBody { levels, values } = PageBody::open(chunk.codec, &head, chunk.max_level, bytes)?;
        let mut before = row;
        if let Some(mut levels) = levels {
            before = 0;
            for _ in 0..row {
                before += u32::from(levels.next_row()?);
            }
            if !levels.next_row()? {
                return Err(format!("row {row} of the page has no value"));
            }
        }
        let values = ByteValues::new(values, head.encoding, head.num_values, dictionary.as_ref())?;
        value_at(values, head.encoding, before)
    };
    let value = value().map_err(|reason| damaged(entry.offset, reason))?;
    out.extend_from_slice(&value);
    Ok(())
}

/// The value behind `before` others.
fn value_at(mut values: ByteValues, encoding: ValueEncoding, before: u32) -> Result<Bytes, String> {
    if encoding != ValueEncoding::DeltaByteArray {
        values.skip(before)?;
        return values.next();
    }
    // Each value is built from the one before, and a small page can stand for very many bytes.
    let mut num_bytes = 0_u64;
    for _ in 0..before {
        num_bytes += values.next()?.len() as u64;
        if num_bytes > MOST_PAGE_BYTES.into() {
            return Err(too_large());
        }
    }
    values.next()
}
