//! Walks through the pages of a column chunk by their headers.

use bytes::Bytes;
use tandem_storage::ReadAt;

use super::codec::PageCodec;
use super::compact::{CompactFault, CompactReader};
use super::page_header::PageHead;
use crate::fault::{ShardFault, damaged};

/// What is read to find a header. Most have fewer than 100 bytes; statistics in it may be larger.
const FIRST_GUESS: u64 = 256;

/// The most bytes of a header.
const MOST_HEADER_BYTES: u64 = 1 << 20;

/// The most bytes of an offset index: 2 million pages.
const MOST_INDEX_BYTES: u64 = 32 << 20;

/// Where a column chunk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkSpan {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: PageCodec,
}

/// A page that the walk has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPage {
    pub(super) offset: u64,
    pub(super) head: PageHead,
}

/// Goes from page to page. Keeps one window of the file in memory, so that small pages cost no read each.
pub(super) struct ChunkWalk<'t> {
    reader: &'t dyn ReadAt,
    chunk: ChunkSpan,
    next: u64,
    /// What is read at once where less is asked for.
    ahead: u64,
    window: Bytes,
    window_start: u64,
}

impl<'t> ChunkWalk<'t> {
    /// At the first page.
    pub(super) fn new(reader: &'t dyn ReadAt, chunk: ChunkSpan, ahead: u64) -> ChunkWalk<'t> {
        ChunkWalk { reader, chunk, next: chunk.start, ahead, window: Bytes::new(), window_start: 0 }
    }

    pub(super) fn codec(&self) -> PageCodec {
        self.chunk.codec
    }

    /// Where the next header is, or would be.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// The next page, whose claims have been checked; none at the end of the chunk.
    pub(super) fn next_page(&mut self) -> Result<Option<FoundPage>, ShardFault> {
        let offset = self.next;
        if offset >= self.chunk.end {
            return Ok(None);
        }
        let head = self.head(offset)?;
        let room = (self.chunk.end - offset).saturating_sub(head.header_bytes.into());
        head.check(self.chunk.codec, room).map_err(|reason| damaged(offset, reason))?;
        self.next = offset + head.total_bytes();
        Ok(Some(FoundPage { offset, head }))
    }

    /// Bytes of the chunk.
    pub(super) fn bytes(&mut self, offset: u64, size: u64) -> Result<Bytes, ShardFault> {
        let room = self.chunk.end.saturating_sub(offset);
        if size > room {
            return Err(damaged(offset, format!("expected {size} bytes of a column, found {room}")));
        }
        let start = offset.checked_sub(self.window_start).filter(|start| start + size <= self.window.len() as u64);
        if let Some(start) = start {
            return Ok(self.window.slice(start as usize..(start + size) as usize));
        }
        let mut window = vec![0; size.max(self.ahead.min(room)) as usize];
        self.reader.read_exact_at(offset, &mut window)?;
        self.window = window.into();
        self.window_start = offset;
        Ok(self.window.slice(..size as usize))
    }

    fn head(&mut self, offset: u64) -> Result<PageHead, ShardFault> {
        let most = (self.chunk.end - offset).min(MOST_HEADER_BYTES);
        let mut size = FIRST_GUESS.min(most);
        loop {
            match PageHead::parse(&self.bytes(offset, size)?) {
                Ok(head) => return Ok(head),
                Err(CompactFault::Short) if size < most => size = (size * 8).min(most),
                Err(fault) => return Err(damaged(offset, format!("the header of a page: {}", fault.reason()))),
            }
        }
    }
}

/// A page, as the offset index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexedPage {
    pub(super) offset: u64,
    pub(super) num_bytes: u32,
    pub(super) rows: u32,
}

/// The pages of a column chunk without nulls from its offset index, if that covers the chunk and its rows without a
/// gap. Two reads: the index does not say how many rows the last page has, so its header is read. An index that cannot
/// be read is no fault: the headers of the pages say the same.
pub(super) fn indexed_pages(
    reader: &dyn ReadAt,
    index: (u64, u64),
    chunk: ChunkSpan,
    num_rows: u64,
) -> Option<Vec<IndexedPage>> {
    let (offset, size) = index;
    if size > MOST_INDEX_BYTES || offset.checked_add(size)? > reader.num_bytes() {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    reader.read_exact_at(offset, &mut bytes).ok()?;
    let locations = page_locations(&bytes).ok()?;
    let ends = locations.iter().skip(1).copied();
    let ends = ends.chain([(i64::try_from(chunk.end).ok()?, 0, i64::try_from(num_rows).ok()?)]);
    let pages = locations.iter().zip(ends).map(|(page, next)| {
        let follows = page.0.checked_add(page.1)? == next.0 && page.0 >= 0 && page.2 >= 0;
        let rows = u32::try_from(next.2.checked_sub(page.2)?).ok().filter(|rows| *rows > 0)?;
        follows.then_some(IndexedPage { offset: page.0 as u64, num_bytes: u32::try_from(page.1).ok()?, rows })
    });
    let pages: Vec<IndexedPage> = pages.collect::<Option<_>>()?;
    let starts_right = locations.first().is_some_and(|page| page.2 == 0 && page.0 as u64 >= chunk.start);
    let last = *pages.last()?;
    let mut walk = ChunkWalk { next: last.offset, ..ChunkWalk::new(reader, chunk, 0) };
    let ends_right = walk.next_page().ok()?.is_some_and(|page| page.head.num_values == last.rows);
    (starts_right && ends_right).then_some(pages)
}

/// Offset, size and first row of each page.
type Location = (i64, i64, i64);

/// The least bytes of a page in the index: three fields and an end.
const LEAST_LOCATION_BYTES: usize = 7;

fn page_locations(bytes: &[u8]) -> Result<Vec<Location>, CompactFault> {
    let mut reader = CompactReader::new(bytes);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        if field != 1 {
            reader.skip(kind)?;
            continue;
        }
        let count = reader.structs(kind)?;
        if count > reader.remaining() / LEAST_LOCATION_BYTES {
            return Err(CompactFault::Short);
        }
        return (0..count).map(|_| page_location(&mut reader)).collect();
    }
    Err(CompactFault::Wrong("an offset index has no pages"))
}

fn page_location(reader: &mut CompactReader<'_>) -> Result<Location, CompactFault> {
    let mut found = (-1, -1, -1);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match field {
            1 => found.0 = reader.long(kind)?,
            2 => found.1 = reader.count(kind)?.into(),
            3 => found.2 = reader.long(kind)?,
            _ => reader.skip(kind)?,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_index_claims_no_more_pages_than_it_has_room_for() {
        // Two pages: 300 bytes at byte 4 from row 0 on, and so on.
        let page = |row: u8| [0x16, 8, 0x15, 0xd8, 0x04, 0x16, row * 2, 0];
        let index = [&[0x19, 0x2c][..], &page(0), &page(9), &[0]].concat();
        assert_eq!(page_locations(&index), Ok(vec![(4, 300, 0), (4, 300, 9)]));
        let many = [&[0x19, 0xfc, 40][..], &[0; 100]].concat();
        assert_eq!(page_locations(&many), Err(CompactFault::Short));
    }
}
