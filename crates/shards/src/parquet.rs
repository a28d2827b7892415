//! Parquet files: tables whose columns are stored in compressed pages.
//!
//! The rows are read once, in order. Of a byte column only the place of each value is kept: the page and the row within
//! it. A value is then read at any time from that one page.
//!
//! Files are not trusted. Footers and page headers are read here, checked against the bytes that are there, and pages are
//! decompressed and decoded here. The `parquet` crate writes files and reads none: it reserves memory and stack by what a
//! file claims, and its decoders panic on damaged pages. Page checksums are not verified.

mod compact;
mod schema_element;
mod schema;
mod column_chunk;
mod footer;
mod codec;
mod page_header;
mod walk;
mod hybrid;
mod levels;
mod delta;
mod page_body;
mod byte_values;
mod number_values;
mod cursor;
mod address;
mod dictionaries;
mod page_table;
mod page_table_bytes;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_storage::ReadAt;

use address::AddressPages;
use codec::PageCodec;
use column_chunk::ChunkPlace;
use cursor::{ColumnCursor, CursorKind, ValueCursor};
use footer::ParquetFooter;
use page_table::ChunkEntry;
use schema::{LeafValues, ParquetLeaf};
use walk::{ChunkSpan, ChunkWalk, indexed_pages};

use crate::fault::{ShardFault, damaged};
use crate::table::{Cell, TableColumn, find_column};

pub use page_table::PageTable;

/// Read at once where pages are read whole.
const READ_BYTES: u64 = 1 << 20;

/// Read at once where only headers are.
const HEADER_READ_BYTES: u64 = 1 << 10;

/// A column that rows are asked for, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedColumn<'a> {
    /// Its name, with dots.
    pub name: &'a str,
    /// How its values are handed over.
    pub form: WantedForm,
}

/// How the values of a column are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedForm {
    /// As [`Cell::Text`]. Also from a column of bytes: some writers do not mark text as such.
    Text,
    /// As [`Cell::Number`].
    Number,
    /// As [`Cell::Bytes`]: a place in the [`PageTable`].
    Address,
}

/// A Parquet file. Holding one means that its footer has been read and that its row counts add up.
pub struct ParquetTable {
    reader: Arc<dyn ReadAt>,
    footer: ParquetFooter,
}

impl ParquetTable {
    /// Reads the footer: two reads, and memory for at most 64 MiB of it and 4 million column chunks.
    ///
    /// Fails with [`ShardFault::Unsupported`] if the file is encrypted, with [`ShardFault::Damaged`] if it is no
    /// Parquet file, does not add up or claims more rows than it has bytes.
    pub fn open(reader: Arc<dyn ReadAt>) -> Result<ParquetTable, ShardFault> {
        let footer = ParquetFooter::read(reader.as_ref())?;
        Ok(ParquetTable { reader, footer })
    }

    /// Its columns, in the order of the schema. The fields of a group are columns of their own; a list is one column of
    /// kind [`ColumnKind::Other`](crate::ColumnKind::Other).
    pub fn columns(&self) -> &[TableColumn] {
        &self.footer.schema.columns
    }

    /// Number of rows, as the footer says. [`ParquetTable::rows`] fails if there are fewer or more.
    pub fn num_rows(&self) -> u64 {
        self.footer.num_rows
    }

    /// Visits every row in order with one cell for each of `wanted`, until `visit` breaks. Pages of columns wanted as
    /// [`WantedForm::Address`] are added to `pages`.
    ///
    /// Texts and numbers are read and decoded. Of a byte column only the headers of pages are read, or the offset
    /// index, unless rows may be null and the page is compressed with its levels: then it is read and decompressed.
    /// Memory: a page of each wanted column and 1024 decoded rows.
    ///
    /// Fails at the first row that cannot be read, or if a column does not have the rows that its row group claims;
    /// rows before that have been visited.
    pub fn rows(
        &self,
        wanted: &[WantedColumn<'_>],
        pages: &mut PageTable,
        visit: &mut dyn FnMut(u64, &[Cell<'_>]) -> ControlFlow<()>,
    ) -> Result<(), ShardFault> {
        let leaves: Vec<WantedLeaf<'_>> = wanted.iter().map(|column| self.find(column)).collect::<Result<_, _>>()?;
        if leaves.is_empty() {
            let reason = "expected the name of a column to read, found none".to_owned();
            return Err(ShardFault::Unsupported { reason });
        }
        let mut first_row = 0;
        for (number, group) in self.footer.groups.iter().enumerate() {
            let cursors = leaves.iter().map(|leaf| self.cursor(number, leaf));
            let mut rows = GroupRows {
                number,
                cursors: cursors.collect::<Result<_, _>>()?,
                names: wanted,
                first_row,
                num_rows: group.num_rows,
            };
            if rows.visit(pages, visit)?.is_break() {
                return Ok(());
            }
            first_row += rows.num_rows;
        }
        Ok(())
    }

    fn find<'t>(&'t self, wanted: &WantedColumn<'t>) -> Result<WantedLeaf<'t>, ShardFault> {
        let schema = &self.footer.schema;
        let at = find_column(&schema.columns, wanted.name)?;
        let leaf = schema.leaves.get(at);
        let form = leaf.and_then(|leaf| match (wanted.form, leaf.values?) {
            (WantedForm::Number, LeafValues::Numbers(number)) => Some(LeafForm::Values(CursorKind::Number(number))),
            (WantedForm::Text, LeafValues::Bytes) => Some(LeafForm::Values(CursorKind::Text)),
            (WantedForm::Address, LeafValues::Bytes) => Some(LeafForm::Addresses),
            _ => None,
        });
        match leaf.zip(form) {
            Some((leaf, form)) => Ok(WantedLeaf { name: wanted.name, form, leaf }),
            None => {
                let expected = match wanted.form {
                    WantedForm::Text => "text",
                    WantedForm::Number => "numbers",
                    WantedForm::Address => "byte strings",
                };
                let found = schema.columns.get(at).map_or("none", |column| column.type_name);
                let reason = format!("column `{}`: expected {expected}, found {found}", wanted.name);
                Err(ShardFault::Unsupported { reason })
            }
        }
    }

    fn cursor(&self, group: usize, wanted: &WantedLeaf<'_>) -> Result<ColumnCursor<'_>, ShardFault> {
        let missing = || damaged(0, format!("row group {group} has no column `{}`", wanted.name));
        let place = self.footer.chunk(group, wanted.leaf.chunk).ok_or_else(missing)?;
        let span = place.span(wanted.name, self.reader.num_bytes())?;
        Ok(match wanted.form {
            LeafForm::Addresses => self.addresses(group, wanted, place, span),
            LeafForm::Values(kind) => {
                let walk = ChunkWalk::new(self.reader.as_ref(), span, READ_BYTES);
                ColumnCursor::Values(Box::new(ValueCursor::new(walk, wanted.name, wanted.leaf.max_level, kind)))
            }
        })
    }

    fn addresses(
        &self,
        group: usize,
        wanted: &WantedLeaf<'_>,
        place: &ChunkPlace,
        span: ChunkSpan,
    ) -> ColumnCursor<'_> {
        let max_level = wanted.leaf.max_level;
        let entry = ChunkEntry {
            codec: span.codec,
            max_level,
            row_group: u32::try_from(group).unwrap_or(u32::MAX),
            column: u32::try_from(wanted.leaf.chunk).unwrap_or(u32::MAX),
            dictionary_offset: 0,
            dictionary_bytes: 0,
        };
        let reader = self.reader.as_ref();
        let num_rows = self.footer.groups.get(group).map_or(0, |group| group.num_rows);
        // With nulls, levels have to be read, and headers come with them.
        let index = place.index().filter(|_| max_level == 0);
        let pages = index.and_then(|index| indexed_pages(reader, index, span, num_rows));
        let indexed = pages.and_then(|pages| AddressPages::indexed(pages, span, entry));
        // Compressed levels are read with their page; others with no more than the header.
        let reads_pages = max_level > 0 && span.codec != PageCodec::Uncompressed;
        let ahead = if reads_pages { READ_BYTES } else { HEADER_READ_BYTES };
        let walking = || AddressPages::walking(ChunkWalk::new(reader, span, ahead), entry);
        ColumnCursor::Addresses(Box::new(indexed.unwrap_or_else(walking)))
    }
}

/// A column that rows are asked for, found.
struct WantedLeaf<'t> {
    name: &'t str,
    form: LeafForm,
    leaf: &'t ParquetLeaf,
}

/// How a column is read, if it is one that can be.
#[derive(Clone, Copy)]
enum LeafForm {
    Values(CursorKind),
    Addresses,
}

impl fmt::Debug for ParquetTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (columns, num_rows) = (self.columns(), self.num_rows());
        out.debug_struct("ParquetTable").field("columns", &columns).field("num_rows", &num_rows).finish()
    }
}

/// The rows of a row group.
struct GroupRows<'t, 'w> {
    number: usize,
    cursors: Vec<ColumnCursor<'t>>,
    names: &'w [WantedColumn<'w>],
    first_row: u64,
    num_rows: u64,
}

impl GroupRows<'_, '_> {
    fn visit(
        &mut self,
        pages: &mut PageTable,
        visit: &mut dyn FnMut(u64, &[Cell<'_>]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ShardFault> {
        let mut done = 0;
        while let Some(ready) = self.ready(done, pages)? {
            let mut cells: Vec<Cell<'_>> = Vec::with_capacity(self.cursors.len());
            for row in 0..ready {
                cells.clear();
                for cursor in &self.cursors {
                    cells.push(cursor.cell(row)?);
                }
                if visit(self.first_row + done + row as u64, &cells).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.cursors.iter_mut().for_each(|cursor| cursor.take(ready));
            done += ready as u64;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// How many rows all columns have ready; none at the end of the row group, which must be that of every column.
    fn ready(&mut self, done: u64, pages: &mut PageTable) -> Result<Option<usize>, ShardFault> {
        let left = self.num_rows - done;
        let mut least = usize::try_from(left).unwrap_or(usize::MAX);
        for (cursor, column) in self.cursors.iter_mut().zip(self.names) {
            let ready = cursor.ready(pages)?;
            if (ready == 0) != (left == 0) {
                let (group, name, claimed) = (self.number, column.name, self.num_rows);
                let found = if left == 0 { "more".to_owned() } else { done.to_string() };
                let reason = format!("row group {group} claims {claimed} rows; column `{name}` has {found}");
                return Err(damaged(cursor.position(), reason));
            }
            least = least.min(ready);
        }
        Ok((left > 0).then_some(least))
    }
}
