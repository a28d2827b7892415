//! Cells of a row become an utterance.

use std::borrow::Cow;

use tandem_shards::{Cell, ShardFault, TableColumn, ValueAddress};

use super::super::scan::{ShardRow, ShardScan};
use super::ids::{IdSource, base_name, shard_stem, stem_of};
use super::layout::TableLayout;
use crate::json_value::RejectedRow;
use crate::lines::MAX_LINE_BYTES;
use crate::problem::{ProblemKind, excerpt};
use crate::recording_reader::RecordingReader;

/// Makes rows of a table.
pub(super) struct TableRows<'l> {
    /// The columns to read, without that of the recordings.
    columns: Vec<&'l TableColumn>,
    text: usize,
    path: Option<usize>,
    id: Option<usize>,
    speaker: Option<usize>,
    lang: Option<usize>,
    duration: Option<usize>,
    ids: IdSource,
    shard_stem: &'l str,
}

/// Opens the recording at an address.
pub(super) type OpenAddress<'a> = &'a dyn Fn(ValueAddress) -> Result<RecordingReader, ShardFault>;

impl<'l> TableRows<'l> {
    pub(super) fn new(layout: &'l TableLayout, ids: IdSource, shard_name: &'l str) -> TableRows<'l> {
        let mut columns = vec![&layout.text];
        let mut place = |column: &'l Option<TableColumn>| {
            column.as_ref().map(|column| {
                columns.push(column);
                columns.len() - 1
            })
        };
        let (path, id) = (place(&layout.path), place(&layout.id));
        let (speaker, lang, duration) = (place(&layout.speaker), place(&layout.lang), place(&layout.duration));
        TableRows { columns, text: 0, path, id, speaker, lang, duration, ids, shard_stem: shard_stem(shard_name) }
    }

    /// The columns whose cells [`TableRows::add`] takes, in this order.
    pub(super) fn columns(&self) -> &[&'l TableColumn] {
        &self.columns
    }

    /// Adds the row `row`, from 0. `address` is the place of its recording, if it has one in the shard.
    pub(super) fn add(
        &mut self,
        row: u64,
        cells: &[Cell<'_>],
        address: Option<ValueAddress>,
        open: OpenAddress<'_>,
        scan: &mut ShardScan<'_>,
    ) {
        // A line past the last number has the last number, as in lists.
        let number = u32::try_from(row + 1).unwrap_or(u32::MAX);
        if let Err((kind, detail)) = self.try_add(row, number, cells, address, open, scan) {
            scan.problem(Some(number), kind, detail);
        }
    }

    fn try_add(
        &self,
        row: u64,
        number: u32,
        cells: &[Cell<'_>],
        address: Option<ValueAddress>,
        open: OpenAddress<'_>,
        scan: &mut ShardScan<'_>,
    ) -> Result<(), RejectedRow> {
        let cell = |place: Option<usize>| place.and_then(|place| cells.get(place)).copied().unwrap_or(Cell::Null);
        let path = name(cell(self.path))?;
        let path = path.as_deref().map(str::trim).filter(|path| !path.is_empty());
        let id = match self.ids {
            IdSource::Column => name(cell(self.id))?.unwrap_or_default(),
            IdSource::Stem => path.and_then(stem_of).map_or_else(|| self.numbered(row), Cow::Borrowed),
            IdSource::Number => self.numbered(row),
        };
        let key = match (address, path) {
            (Some(_), path) => path.and_then(base_name).unwrap_or(&id),
            (None, Some(path)) => path,
            (None, None) => {
                let detail = format!("`{}` has neither a recording nor the path of one", excerpt(&id));
                return Err((ProblemKind::MissingAudio, detail));
            }
        };
        let text = name(cell(Some(self.text)))?.unwrap_or_default();
        if text.len() > MAX_LINE_BYTES {
            let detail = format!("the text has {} bytes, at most {MAX_LINE_BYTES} are read", text.len());
            return Err((ProblemKind::LineTooLong, detail));
        }
        let (speaker, lang) = (name(cell(self.speaker))?, name(cell(self.lang))?);
        let duration_s = match cell(self.duration) {
            Cell::Number(seconds) => Some(seconds),
            _ => None,
        };
        let shard_row = ShardRow {
            number,
            id: &id,
            text: &text,
            speaker: speaker.as_deref(),
            lang: lang.as_deref(),
            key,
            address,
            offset_s: None,
            duration_s,
        };
        match address {
            Some(address) => scan.row(&shard_row, Some(&|| open(address))),
            None => scan.row(&shard_row, None),
        }
        Ok(())
    }

    fn numbered(&self, row: u64) -> Cow<'static, str> {
        format!("{}-{row:06}", self.shard_stem).into()
    }
}

/// From here on, not every whole number is a number of its own: two names would become one.
const MAX_WHOLE: f64 = (1_u64 << 53) as f64;

/// A string, or a number used as a name. A number that is none (NaN) is none.
fn name(cell: Cell<'_>) -> Result<Option<Cow<'_, str>>, RejectedRow> {
    match cell {
        Cell::Text(text) => Ok(Some(text.into())),
        Cell::Number(number) if number.is_nan() => Ok(None),
        Cell::Number(number) if number.abs() < MAX_WHOLE => Ok(Some(number.to_string().into())),
        Cell::Number(number) => {
            let detail = format!("a number that is a name must be below {MAX_WHOLE}, found {number}: store it as text");
            Err((ProblemKind::BadNumber, detail))
        }
        Cell::Null | Cell::Bytes(_) => Ok(None),
    }
}
