//! A page table as bytes, for an index.
//!
//! Little-endian: the mark `TPT1`, the numbers of chunks and pages (4 bytes each), then records of one size each.

use super::codec::PageCodec;
use super::page_header::MOST_PAGE_BYTES;
use super::page_table::{ChunkEntry, PageEntry, PageTable, size_is_possible};
use crate::fault::{ShardFault, damaged};

const MARK: [u8; 4] = *b"TPT1";
const HEAD_BYTES: usize = 12;
const CHUNK_BYTES: usize = 22;
const PAGE_BYTES: usize = 25;

impl PageTable {
    /// The table as bytes, the same for the same table. 25 bytes per page and 22 per row group and column.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.chunks.len() * CHUNK_BYTES + self.pages.len() * PAGE_BYTES);
        out.extend(MARK);
        // Both are numbered with 32 bits where they are added.
        out.extend((self.chunks.len() as u32).to_le_bytes());
        out.extend((self.pages.len() as u32).to_le_bytes());
        for chunk in &self.chunks {
            out.extend([chunk.codec.number(), chunk.max_level]);
            out.extend(chunk.row_group.to_le_bytes());
            out.extend(chunk.column.to_le_bytes());
            out.extend(chunk.dictionary_offset.to_le_bytes());
            out.extend(chunk.dictionary_bytes.to_le_bytes());
        }
        for page in &self.pages {
            out.extend(page.chunk.to_le_bytes());
            out.extend(page.offset.to_le_bytes());
            out.extend(page.num_bytes.to_le_bytes());
            out.extend(page.uncompressed_bytes.to_le_bytes());
            out.extend(page.rows.to_le_bytes());
            out.push(page.needs_dictionary.into());
        }
        out
    }

    /// The table that was encoded. Its spans are possible, but may lie outside the file: see [`PageTable::check`].
    ///
    /// Memory: about that of `bytes`. Fails with [`ShardFault::Damaged`], whose offset is one of `bytes`, unless these
    /// are exactly what [`PageTable::encode`] makes.
    pub fn decode(bytes: &[u8]) -> Result<PageTable, ShardFault> {
        let mut records = Records { bytes, at: 0 };
        let mark = records.take::<4>()?;
        if mark != MARK {
            return Err(damaged(0, format!("a page table begins with TPT1, found {}", mark.escape_ascii())));
        }
        let (num_chunks, num_pages) = (records.u32()? as usize, records.u32()? as usize);
        let expected =
            HEAD_BYTES as u64 + num_chunks as u64 * CHUNK_BYTES as u64 + num_pages as u64 * PAGE_BYTES as u64;
        if expected != bytes.len() as u64 {
            return Err(damaged(4, format!("expected a page table of {expected} bytes, found {}", bytes.len())));
        }
        let mut table = PageTable::default();
        table.chunks = (0..num_chunks).map(|_| records.chunk()).collect::<Result<_, _>>()?;
        table.pages = (0..num_pages).map(|_| records.page(num_chunks)).collect::<Result<_, _>>()?;
        Ok(table)
    }
}

struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Records<'_> {
    fn chunk(&mut self) -> Result<ChunkEntry, ShardFault> {
        let at = self.at;
        let [codec, max_level] = self.take()?;
        let Some(codec) = PageCodec::from_number(codec) else {
            return Err(damaged(at as u64, format!("codec {codec} is unknown")));
        };
        let chunk = ChunkEntry {
            codec,
            max_level,
            row_group: self.u32()?,
            column: self.u32()?,
            dictionary_offset: self.u64()?,
            dictionary_bytes: self.u32()?,
        };
        match span_is_possible(chunk.dictionary_offset, chunk.dictionary_bytes) {
            true => Ok(chunk),
            false => Err(damaged(at as u64, format!("{chunk:?} cannot be"))),
        }
    }

    fn page(&mut self, num_chunks: usize) -> Result<PageEntry, ShardFault> {
        let at = self.at;
        let page = PageEntry {
            chunk: self.u32()?,
            offset: self.u64()?,
            num_bytes: self.u32()?,
            uncompressed_bytes: self.u32()?,
            rows: self.u32()?,
            needs_dictionary: match self.take()? {
                [0] => false,
                [1] => true,
                [other] => return Err(damaged(at as u64, format!("expected 0 or 1, found {other}"))),
            },
        };
        let is_possible = (page.chunk as usize) < num_chunks
            && page.rows > 0
            && page.num_bytes > 0
            && page.uncompressed_bytes <= MOST_PAGE_BYTES
            && span_is_possible(page.offset, page.num_bytes);
        match is_possible {
            true => Ok(page),
            false => Err(damaged(at as u64, format!("{page:?} cannot be"))),
        }
    }

    fn u32(&mut self) -> Result<u32, ShardFault> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ShardFault> {
        self.take().map(u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ShardFault> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let taken = taken.ok_or_else(|| damaged(self.at as u64, "the page table is cut short"))?;
        self.at += N;
        Ok(*taken)
    }
}

fn span_is_possible(offset: u64, num_bytes: u32) -> bool {
    size_is_possible(num_bytes) && offset.checked_add(num_bytes.into()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> PageTable {
        let mut table = PageTable::default();
        table.chunks.push(ChunkEntry {
            codec: PageCodec::Zstd,
            max_level: 2,
            row_group: 1,
            column: 3,
            dictionary_offset: 4,
            dictionary_bytes: 10,
        });
        let page =
            PageEntry { chunk: 0, offset: 14, num_bytes: 50, uncompressed_bytes: 200, rows: 7, needs_dictionary: true };
        table.pages.extend([page, PageEntry { offset: 64, needs_dictionary: false, ..page }]);
        table
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let table = table();
        let read = PageTable::decode(&table.encode()).unwrap();
        assert_eq!(read, table);
        assert_eq!(
            (read.span(1), read.dictionary_span(0), read.dictionary_span(1)),
            (Some(64..114), Some(4..14), None)
        );
        assert_eq!(read.span(2), None);
    }

    #[test]
    fn a_table_that_is_cut_or_longer_is_a_fault() {
        let bytes = table().encode();
        for end in 0..bytes.len() {
            assert!(PageTable::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(PageTable::decode(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn impossible_entries_are_faults() {
        let check = |change: fn(&mut PageTable)| {
            let mut table = table();
            change(&mut table);
            assert!(PageTable::decode(&table.encode()).is_err(), "{:?} {:?}", table.chunks, table.pages);
        };
        check(|table| table.pages[0].chunk = 1);
        check(|table| table.pages[0].offset = u64::MAX - 10);
        check(|table| table.pages[0].num_bytes = u32::MAX);
        check(|table| table.pages[0].num_bytes = 0);
        check(|table| table.pages[0].rows = 0);
        check(|table| table.pages[0].uncompressed_bytes = u32::MAX);
        check(|table| table.chunks[0].dictionary_offset = u64::MAX);
    }

    #[test]
    fn a_page_or_a_dictionary_past_the_end_of_the_file_is_a_fault() {
        let check = |change: fn(&mut PageTable), num_bytes| {
            let mut table = table();
            change(&mut table);
            table.check(num_bytes)
        };
        assert!(check(|_| (), 114).is_ok());
        assert!(check(|_| (), 113).is_err());
        assert!(check(|table| table.chunks[0].dictionary_offset = 105, 114).is_err());
        assert!(check(|table| table.pages[1].offset = u64::MAX, 114).is_err());
    }
}
