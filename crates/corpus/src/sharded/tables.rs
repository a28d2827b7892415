//! Parquet and Arrow files: a row of the table is an utterance.
//!
//! ```text
//! columns ─> TableLayout ─> first pass: ids, places ─> second pass: TableRows ─> ShardScan
//! ```
//!
//! Two passes, because ids depend on all rows where no column has them. Each reads what the other does not; only the names of
//! recordings are read twice, and those only if they may become ids.

mod ids;
mod layout;
mod pages;
mod rows;

use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_shards::{
    ArrowTable, Cell, ColumnKind, PageTable, ParquetTable, ShardFault, TableColumn, ValueAddress, WantedColumn,
    WantedForm,
};
use tandem_storage::ReadAt;

use self::ids::{IdSource, StemCheck};
use self::layout::TableLayout;
use self::pages::PageReader;
use self::rows::TableRows;
use super::scan::ShardScan;
use super::source::ColumnNames;
use crate::recording_reader::RecordingReader;

/// Scans the Parquet file `bytes`. The addresses of the rows are places in the page table.
///
/// Memory: 8 bytes per row, and 16 more where names of recordings are ids. A row without a duration costs the page of its
/// recording. After a failure the rows in `scan` have no pages: they must not be used.
pub(crate) fn scan_parquet(
    bytes: &Arc<dyn ReadAt>,
    columns: &ColumnNames,
    shard_name: &str,
    scan: &mut ShardScan<'_>,
) -> Result<PageTable, ShardFault> {
    let table = ParquetTable::open(Arc::clone(bytes))?;
    check_rows(table.num_rows(), bytes.num_bytes())?;
    let layout = TableLayout::find(table.columns(), columns)?;
    let mut pages = PageTable::default();
    let (places, ids) = read_places(&table, &layout, &mut pages)?;
    let mut rows = TableRows::new(&layout, ids, shard_name);
    let reader = PageReader::new(bytes.as_ref(), &pages);
    let wanted: Vec<WantedColumn<'_>> = rows.columns().iter().map(|column| as_value(column)).collect();
    // No byte column is among them: no page is added.
    table.rows(&wanted, &mut PageTable::default(), &mut |row, cells| {
        let place = usize::try_from(row).ok().and_then(|row| places.get(row));
        let address = place.and_then(|place| place.address());
        rows.add(row, cells, address, &|address| reader.open(address), scan);
        ControlFlow::Continue(())
    })?;
    drop(reader);
    Ok(pages)
}

/// Scans the Arrow file or stream `bytes`. The addresses of the rows are bytes of the file.
///
/// Memory: one record batch without its recordings, and 16 bytes per row where names of recordings are ids. After a failure
/// the rows before it are in `scan`.
pub(crate) fn scan_arrow(
    bytes: &Arc<dyn ReadAt>,
    columns: &ColumnNames,
    shard_name: &str,
    scan: &mut ShardScan<'_>,
) -> Result<(), ShardFault> {
    let table = ArrowTable::open(Arc::clone(bytes))?;
    let layout = TableLayout::find(table.columns(), columns)?;
    layout.check_arrow()?;
    let mut stems = StemCheck::default();
    // The rows before the damage are added by the second pass, which finds it as well.
    let checked = match layout.stem_column() {
        Some(column) => table.rows(&[&column.name], &mut |_, cells| stems.add(text_of(cells.first()))),
        None => Ok(()),
    };
    let mut rows = TableRows::new(&layout, IdSource::of(&layout, &stems), shard_name);
    let mut wanted: Vec<&str> = rows.columns().iter().map(|column| column.name.as_str()).collect();
    // Last, so that the others are where the rows look for them.
    wanted.extend(layout.bytes.as_ref().map(|column| column.name.as_str()));
    let open = |address: ValueAddress| {
        let range = address.position..address.position.saturating_add(address.extent.into());
        Ok(RecordingReader::of_piece(Arc::clone(bytes), range))
    };
    let scanned = table.rows(&wanted, &mut |row, cells| {
        let address = match cells.last() {
            Some(Cell::Bytes(address)) => Some(*address),
            _ => None,
        };
        rows.add(row, cells, address, &open, scan);
        ControlFlow::Continue(())
    });
    scanned.and(checked)
}

/// A row of a table with recordings has a byte and more. A file that claims otherwise is a few bytes that stand for rows
/// without end.
fn check_rows(num_rows: u64, num_bytes: u64) -> Result<(), ShardFault> {
    match num_rows <= num_bytes {
        true => Ok(()),
        false => {
            let reason = format!("expected a row to have a byte at least, found {num_rows} rows in {num_bytes} bytes");
            Err(ShardFault::Damaged { offset: num_bytes, reason })
        }
    }
}

/// Where a recording is, in less memory than its address.
struct Place {
    page: u32,
    value: u32,
}

impl Place {
    /// Stands for no recording: a page table has fewer pages.
    const NONE: Place = Place { page: u32::MAX, value: 0 };

    fn of(cell: Option<&Cell<'_>>) -> Place {
        match cell {
            Some(Cell::Bytes(address)) => {
                u32::try_from(address.position).map_or(Place::NONE, |page| Place { page, value: address.extent })
            }
            _ => Place::NONE,
        }
    }

    fn address(&self) -> Option<ValueAddress> {
        let address = ValueAddress { position: self.page.into(), extent: self.value };
        (self.page != u32::MAX).then_some(address)
    }
}

/// The first pass over a Parquet file: where all recordings are, and what their ids will be.
fn read_places(
    table: &ParquetTable,
    layout: &TableLayout,
    pages: &mut PageTable,
) -> Result<(Vec<Place>, IdSource), ShardFault> {
    let bytes = layout.bytes.as_ref();
    let bytes = bytes.map(|column| WantedColumn { name: &column.name, form: WantedForm::Address });
    let wanted: Vec<WantedColumn<'_>> = bytes.into_iter().chain(layout.stem_column().map(as_value)).collect();
    let (mut places, mut stems) = (Vec::new(), StemCheck::default());
    if wanted.is_empty() {
        return Ok((places, IdSource::of(layout, &stems)));
    }
    let has_bytes = layout.bytes.is_some();
    table.rows(&wanted, pages, &mut |_, cells| {
        if has_bytes {
            places.push(Place::of(cells.first()));
        }
        // Ids that repeat end nothing here: the places are wanted all the same.
        if layout.stem_column().is_some() && stems.add(text_of(cells.last())).is_break() && !has_bytes {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok((places, IdSource::of(layout, &stems)))
}

fn as_value(column: &TableColumn) -> WantedColumn<'_> {
    let form = if column.kind == ColumnKind::Number { WantedForm::Number } else { WantedForm::Text };
    WantedColumn { name: &column.name, form }
}

fn text_of<'a>(cell: Option<&Cell<'a>>) -> Option<&'a str> {
    match cell {
        Some(Cell::Text(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
