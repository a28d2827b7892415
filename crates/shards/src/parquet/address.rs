//! Where the values of a byte column chunk are, row by row. The values themselves are read only where nulls are hidden
//! among them.

use std::vec;

use super::codec::PageCodec;
use super::cursor::BATCH_ROWS;
use super::levels::PresenceReader;
use super::page_body::{OLD_LEVELS, PageBody};
use super::page_header::{PageKind, ValueEncoding};
use super::page_table::{ChunkEntry, PageEntry, PageTable, size_is_possible};
use super::walk::{ChunkSpan, ChunkWalk, FoundPage, IndexedPage};
use crate::fault::{ShardFault, damaged};
use crate::table::ValueAddress;

/// Walks through the pages of a byte column, notes them in the page table and says where each row's value is.
pub(super) struct AddressPages<'t> {
    source: PageSource<'t>,
    chunk: ChunkEntry,
    /// Its number in the page table, once it has a page there.
    number: Option<u32>,
    page: Option<AddressPage>,
    batch: Vec<Option<ValueAddress>>,
    taken: usize,
}

enum PageSource<'t> {
    /// From header to header.
    Walk(ChunkWalk<'t>),
    /// By the offset index: nothing of the pages is read.
    Index(vec::IntoIter<IndexedPage>),
}

struct AddressPage {
    number: u64,
    offset: u64,
    rows: u32,
    next: u32,
    /// None if every row has a value.
    levels: Option<PresenceReader>,
}

impl<'t> AddressPages<'t> {
    /// Over a chunk that is walked through.
    pub(super) fn walking(walk: ChunkWalk<'t>, chunk: ChunkEntry) -> AddressPages<'t> {
        AddressPages::new(PageSource::Walk(walk), chunk)
    }

    /// Over a chunk without nulls whose pages are known. What comes before the first of them is the dictionary.
    pub(super) fn indexed(
        pages: Vec<IndexedPage>,
        span: ChunkSpan,
        chunk: ChunkEntry,
    ) -> Option<AddressPages<'static>> {
        let before = pages.first()?.offset.checked_sub(span.start)?;
        // Sizes that no page table takes.
        let is_possible = |num_bytes: u64| u32::try_from(num_bytes).is_ok_and(size_is_possible);
        if !is_possible(before) || !pages.iter().all(|page| is_possible(page.num_bytes.into())) {
            return None;
        }
        let chunk = ChunkEntry {
            dictionary_offset: if before > 0 { span.start } else { 0 },
            dictionary_bytes: u32::try_from(before).ok()?,
            ..chunk
        };
        Some(AddressPages::new(PageSource::Index(pages.into_iter()), chunk))
    }

    fn new(source: PageSource<'_>, chunk: ChunkEntry) -> AddressPages<'_> {
        AddressPages { source, chunk, number: None, page: None, batch: Vec::new(), taken: 0 }
    }

    /// Rows that are known and not taken; 0 at the end of the chunk.
    pub(super) fn ready(&mut self, pages: &mut PageTable) -> Result<usize, ShardFault> {
        while self.taken >= self.batch.len() {
            match &mut self.page {
                Some(page) if page.next < page.rows => {
                    self.taken = 0;
                    page.fill(&mut self.batch)?;
                }
                _ => {
                    if !self.open_next(pages)? {
                        return Ok(0);
                    }
                }
            }
        }
        Ok(self.batch.len() - self.taken)
    }

    /// Where the value of a row that is ready is; none if it has no value.
    pub(super) fn address(&self, row: usize) -> Option<ValueAddress> {
        self.batch.get(self.taken + row).copied().flatten()
    }

    /// Takes rows that are ready.
    pub(super) fn take(&mut self, rows: usize) {
        self.taken += rows;
    }

    /// Where it is in the file, for messages.
    pub(super) fn position(&self) -> u64 {
        match (&self.source, &self.page) {
            (PageSource::Walk(walk), _) => walk.position(),
            (PageSource::Index(_), page) => page.as_ref().map_or(0, |page| page.offset),
        }
    }

    /// Goes to the next page; false at the end of the chunk.
    fn open_next(&mut self, pages: &mut PageTable) -> Result<bool, ShardFault> {
        let (entry, levels) = match &mut self.source {
            PageSource::Index(indexed) => {
                let Some(page) = indexed.next() else { return Ok(false) };
                let entry = PageEntry {
                    chunk: 0,
                    offset: page.offset,
                    num_bytes: page.num_bytes,
                    uncompressed_bytes: 0,
                    rows: page.rows,
                    needs_dictionary: self.chunk.dictionary_bytes > 0,
                };
                (entry, None)
            }
            PageSource::Walk(walk) => {
                let Some(found) = walk.next_page()? else { return Ok(false) };
                let FoundPage { offset, head } = found;
                if head.kind == PageKind::Dictionary {
                    return self.note_dictionary(found).map(|()| true);
                }
                if !head.is_data() || head.num_values == 0 {
                    return Ok(true);
                }
                check_encoding(&found, &self.chunk)?;
                let levels = match self.chunk.max_level {
                    0 => None,
                    level => Some(levels(walk, &found, level)?),
                };
                let entry = PageEntry {
                    chunk: 0,
                    offset,
                    num_bytes: total_bytes(&found)?,
                    uncompressed_bytes: head.uncompressed_bytes,
                    rows: head.num_values,
                    needs_dictionary: head.encoding == ValueEncoding::Dictionary,
                };
                (entry, levels)
            }
        };
        let number = self.note_page(entry, pages)?;
        self.page = Some(AddressPage { number, offset: entry.offset, rows: entry.rows, next: 0, levels });
        Ok(true)
    }

    fn note_dictionary(&mut self, found: FoundPage) -> Result<(), ShardFault> {
        if self.chunk.dictionary_bytes > 0 || self.number.is_some() {
            return Err(damaged(found.offset, "expected one dictionary, before all other pages"));
        }
        self.chunk.dictionary_offset = found.offset;
        self.chunk.dictionary_bytes = total_bytes(&found)?;
        Ok(())
    }

    fn note_page(&mut self, entry: PageEntry, pages: &mut PageTable) -> Result<u64, ShardFault> {
        let full = || damaged(entry.offset, "the file has more than 4294967295 pages");
        let chunk = match self.number {
            Some(number) => number,
            None => {
                let number = u32::try_from(pages.chunks.len()).map_err(|_| full())?;
                pages.chunks.push(self.chunk);
                *self.number.insert(number)
            }
        };
        let number = u32::try_from(pages.pages.len()).map_err(|_| full())?;
        pages.pages.push(PageEntry { chunk, ..entry });
        Ok(number.into())
    }
}

impl AddressPage {
    fn fill(&mut self, batch: &mut Vec<Option<ValueAddress>>) -> Result<(), ShardFault> {
        batch.clear();
        let end = self.rows.min(self.next.saturating_add(BATCH_ROWS));
        for extent in self.next..end {
            let is_present = match &mut self.levels {
                Some(levels) => levels.next_row().map_err(|reason| damaged(self.offset, reason))?,
                None => true,
            };
            batch.push(is_present.then_some(ValueAddress { position: self.number, extent }));
        }
        self.next = end;
        Ok(())
    }
}

/// The definition levels of a page. Reads no more of it than it must.
fn levels(walk: &mut ChunkWalk<'_>, found: &FoundPage, max_level: u8) -> Result<PresenceReader, ShardFault> {
    let FoundPage { offset, head } = *found;
    let body = offset + u64::from(head.header_bytes);
    let levels = match head.kind {
        PageKind::DataV2 { repetition_bytes, definition_bytes, .. } => {
            walk.bytes(body + u64::from(repetition_bytes), definition_bytes.into())?
        }
        PageKind::Data { levels_are_rle: true } if walk.codec() == PageCodec::Uncompressed => {
            let size = walk.bytes(body, u64::from(head.compressed_bytes.min(4)))?;
            let size = size.first_chunk::<4>().map(|size| u32::from_le_bytes(*size));
            match size.filter(|size| u64::from(*size) + 4 <= u64::from(head.compressed_bytes)) {
                Some(size) => walk.bytes(body + 4, size.into())?,
                None => return Err(damaged(body, "definition levels do not fit the page")),
            }
        }
        PageKind::Data { levels_are_rle: true } => {
            let bytes = walk.bytes(offset, head.total_bytes())?;
            let page =
                PageBody::open(walk.codec(), &head, max_level, &bytes).map_err(|reason| damaged(offset, reason))?;
            return page.levels.map(PresenceReader::copied).ok_or_else(|| damaged(offset, "the page has no levels"));
        }
        _ => return Err(ShardFault::Unsupported { reason: OLD_LEVELS.into() }),
    };
    PresenceReader::new(levels, max_level).map_err(|reason| damaged(offset, reason))
}

fn check_encoding(found: &FoundPage, chunk: &ChunkEntry) -> Result<(), ShardFault> {
    let (rows, bytes) = (found.head.num_values, found.head.uncompressed_bytes);
    match found.head.encoding {
        // A value has at least its length.
        ValueEncoding::Plain if chunk.max_level == 0 && rows > bytes / 4 => {
            Err(damaged(found.offset, format!("the page claims {rows} values in {bytes} bytes")))
        }
        ValueEncoding::Dictionary if chunk.dictionary_bytes == 0 => {
            Err(damaged(found.offset, "the page needs a dictionary and there is none"))
        }
        ValueEncoding::Plain
        | ValueEncoding::Dictionary
        | ValueEncoding::DeltaLengthByteArray
        | ValueEncoding::DeltaByteArray => Ok(()),
        other => {
            let reason = format!("byte strings are encoded as {other:?}, which is not read; write the file again");
            Err(ShardFault::Unsupported { reason })
        }
    }
}

fn total_bytes(found: &FoundPage) -> Result<u32, ShardFault> {
    let size = found.head.total_bytes();
    u32::try_from(size).map_err(|_| damaged(found.offset, format!("the page has {size} bytes")))
}
