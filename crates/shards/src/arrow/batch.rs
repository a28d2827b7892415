//! The buffers of one record batch, found and checked; their bytes are read for the columns that are asked for.

use std::ops::Range;

use arrow_ipc::RecordBatch;
use tandem_storage::ReadAt;

use super::column::{ColumnValues, LoadedColumn, Offsets};
use super::dictionary::ArrowDictionaries;
use super::schema::{ArrowEncoding, ArrowLeaf, FieldBuffers};
use super::text_list::join_items;
use crate::fault::ShardFault;

/// The most that one buffer may have to be read into memory.
pub(super) const MAX_BUFFER_BYTES: u64 = 256 << 20;

/// One record batch whose metadata fits the schema.
pub(super) struct BatchReader<'a> {
    pub(super) num_rows: usize,
    reader: &'a dyn ReadAt,
    /// Of the message.
    offset: u64,
    /// Rows and nulls of each field, as the batch claims them.
    nodes: Vec<(i64, i64)>,
    /// All buffers, as positions in the file; inside the body.
    buffers: Vec<Range<u64>>,
    /// The first buffer of each field.
    first_buffers: Vec<usize>,
}

impl<'a> BatchReader<'a> {
    /// Checks the batch in the message at `offset` against `fields` and its `body`.
    pub(super) fn new(
        reader: &'a dyn ReadAt,
        fields: &[FieldBuffers],
        batch: &RecordBatch<'_>,
        offset: u64,
        body: Range<u64>,
    ) -> Result<BatchReader<'a>, ShardFault> {
        let damaged = |reason: String| ShardFault::Damaged { offset, reason };
        if batch.compression().is_some() {
            let reason = "expected record batches without compression, found compressed ones: write the file without it \
                          (pyarrow: `IpcWriteOptions(compression=None)`)";
            return Err(ShardFault::Unsupported { reason: reason.to_owned() });
        }
        let num_rows = usize::try_from(batch.length())
            .map_err(|_| damaged(format!("expected a number of rows, found {}", batch.length())))?;
        let nodes: Vec<(i64, i64)> =
            batch.nodes().into_iter().flatten().map(|node| (node.length(), node.null_count())).collect();
        let mut buffers = Vec::new();
        for buffer in batch.buffers().into_iter().flatten() {
            let range = inside(&body, buffer.offset(), buffer.length()).ok_or_else(|| {
                let (at, size) = (buffer.offset(), buffer.length());
                damaged(format!(
                    "expected a buffer in a body of {} bytes, found {size} bytes at {at}",
                    body.end - body.start
                ))
            })?;
            buffers.push(range);
        }
        let views: Vec<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
        let (first_buffers, num_buffers) = count_buffers(fields, &views)
            .ok_or_else(|| damaged("expected a number of buffers for each column of views, found none".into()))?;
        if nodes.len() != fields.len() || buffers.len() != num_buffers {
            let (nodes, found) = (nodes.len(), buffers.len());
            let expected = fields.len();
            return Err(damaged(format!(
                "expected {expected} fields with {num_buffers} buffers, found {nodes} with {found}"
            )));
        }
        Ok(BatchReader { num_rows, reader, offset, nodes, buffers, first_buffers })
    }

    /// Reads what is needed of a column to give its cells: all of its buffers but the bytes of byte strings.
    ///
    /// Each kind has a buffer with a byte and more per row, so a number of rows that is not real is found out here.
    pub(super) fn column<'d>(
        &self,
        leaf: &ArrowLeaf,
        dictionaries: &'d ArrowDictionaries,
    ) -> Result<LoadedColumn<'d>, ShardFault> {
        // One set of bits, however many structs there are around the column.
        let mut validity: Option<Vec<u8>> = None;
        for field in leaf.structs.iter().chain([&leaf.field]) {
            self.check_num_rows(*field)?;
            let Some(bits) = self.validity(*field, self.num_rows)? else { continue };
            match &mut validity {
                None => validity = Some(bits),
                Some(all) => all.iter_mut().zip(bits).for_each(|(all, bits)| *all &= bits),
            }
        }
        let values = match leaf.encoding {
            ArrowEncoding::Text { is_large } => {
                let (offsets, text) = self.text(leaf.field, is_large, self.num_rows)?;
                ColumnValues::Text { offsets, text }
            }
            ArrowEncoding::TextList { is_large, has_large_items } => {
                self.text_lists(leaf.field, is_large, has_large_items)?
            }
            ArrowEncoding::Bytes { is_large } => {
                let data = self.buffer(leaf.field, 2)?;
                let offsets = self.offsets(leaf.field, is_large, self.num_rows, data.end - data.start)?;
                ColumnValues::Bytes { offsets, position: data.start }
            }
            ArrowEncoding::Number(format) => {
                ColumnValues::Numbers { format, bytes: self.fixed(leaf.field, format.num_bytes())? }
            }
            ArrowEncoding::Coded { dictionary, keys, .. } => {
                let Some(dictionary) = dictionaries.get(dictionary) else {
                    let reason = format!("expected dictionary {dictionary} before the rows that use it, found none");
                    return Err(ShardFault::Unsupported { reason });
                };
                ColumnValues::Coded { keys, bytes: self.fixed(leaf.field, keys.num_bytes())?, dictionary }
            }
            ArrowEncoding::Opaque => {
                return Err(ShardFault::Unsupported { reason: "the type of the column is not read".to_owned() });
            }
        };
        Ok(LoadedColumn { validity, values, offset: self.offset })
    }

    /// The strings of the first field.
    pub(super) fn strings(&self, is_large: bool) -> Result<LoadedColumn<'static>, ShardFault> {
        self.check_num_rows(0)?;
        let validity = self.validity(0, self.num_rows)?;
        let (offsets, text) = self.text(0, is_large, self.num_rows)?;
        Ok(LoadedColumn { validity, values: ColumnValues::Text { offsets, text }, offset: self.offset })
    }

    /// A column has a value for each row. The items of lists do not.
    fn check_num_rows(&self, field: usize) -> Result<(), ShardFault> {
        match self.num_values(field)? {
            num_rows if num_rows == self.num_rows => Ok(()),
            num_rows => {
                let reason = format!("expected {} rows in each column, found {num_rows}", self.num_rows);
                Err(ShardFault::Damaged { offset: self.offset, reason })
            }
        }
    }

    /// How many values a field has, as the batch claims.
    fn num_values(&self, field: usize) -> Result<usize, ShardFault> {
        let (num_values, _) = *self.nodes.get(field).ok_or_else(|| self.no_buffer())?;
        usize::try_from(num_values).map_err(|_| {
            let reason = format!("expected a number of values, found {num_values}");
            ShardFault::Damaged { offset: self.offset, reason }
        })
    }

    /// The validity bits of a field; `None` if it has no nulls.
    fn validity(&self, field: usize, num_values: usize) -> Result<Option<Vec<u8>>, ShardFault> {
        let (_, num_nulls) = *self.nodes.get(field).ok_or_else(|| self.no_buffer())?;
        if num_nulls == 0 {
            return Ok(None);
        }
        let buffer = self.buffer(field, 0)?;
        self.read_start(&buffer, num_values.div_ceil(8) as u64).map(Some)
    }

    /// The strings of a field. The text begins at the first offset.
    fn text(&self, field: usize, is_large: bool, num_values: usize) -> Result<(Offsets, Vec<u8>), ShardFault> {
        let data = self.buffer(field, 2)?;
        let offsets = self.offsets(field, is_large, num_values, data.end - data.start)?;
        let used = data.start + offsets.first()..data.start + offsets.last();
        let text = self.read_start(&used, used.end - used.start)?;
        Ok((offsets, text))
    }

    /// The lists of a field, whose items are the strings of the next field, as one string each.
    fn text_lists(
        &self,
        field: usize,
        is_large: bool,
        has_large_items: bool,
    ) -> Result<ColumnValues<'static>, ShardFault> {
        let num_items = self.num_values(field + 1)?;
        let lists = self.offsets(field, is_large, self.num_rows, num_items as u64)?;
        // Without items there need not be offsets.
        let (items, mut text) = match num_items {
            0 => (Offsets::default(), Vec::new()),
            _ => self.text(field + 1, has_large_items, num_items)?,
        };
        let validity = self.validity(field + 1, num_items)?;
        let offsets = join_items(&lists, &items, validity.as_deref(), &mut text).ok_or_else(|| self.no_buffer())?;
        Ok(ColumnValues::Text { offsets, text })
    }

    /// The offsets of a field with `num_values` values. None is beyond `data_len`.
    fn offsets(&self, field: usize, is_large: bool, num_values: usize, data_len: u64) -> Result<Offsets, ShardFault> {
        let buffer = self.buffer(field, 1)?;
        let width = if is_large { 8 } else { 4 };
        let num_bytes = (num_values as u64).saturating_add(1).saturating_mul(width);
        let bytes = self.read_start(&buffer, num_bytes)?;
        let offsets = Offsets::check(bytes, is_large, num_values, data_len);
        offsets.map_err(|reason| ShardFault::Damaged { offset: buffer.start, reason })
    }

    /// The values of a field that have `width` bytes each.
    fn fixed(&self, field: usize, width: usize) -> Result<Vec<u8>, ShardFault> {
        self.read_start(&self.buffer(field, 1)?, (self.num_rows as u64).saturating_mul(width as u64))
    }

    /// Buffer `number` of a field.
    fn buffer(&self, field: usize, number: usize) -> Result<Range<u64>, ShardFault> {
        let buffer = self.first_buffers.get(field).and_then(|first| self.buffers.get(first + number));
        buffer.cloned().ok_or_else(|| self.no_buffer())
    }

    fn no_buffer(&self) -> ShardFault {
        ShardFault::Damaged { offset: self.offset, reason: "expected the buffers of a column, found none".to_owned() }
    }

    /// The first `num_bytes` bytes of a buffer, which may be padded. Allocates only what is in the file.
    fn read_start(&self, buffer: &Range<u64>, num_bytes: u64) -> Result<Vec<u8>, ShardFault> {
        let found = buffer.end.saturating_sub(buffer.start);
        if num_bytes > found {
            let reason =
                format!("expected a buffer of {num_bytes} bytes in a batch of {} rows, found {found}", self.num_rows);
            return Err(ShardFault::Damaged { offset: buffer.start, reason });
        }
        let size = usize::try_from(num_bytes).ok().filter(|_| num_bytes <= MAX_BUFFER_BYTES).ok_or_else(|| {
            let reason = format!(
                "expected buffers of at most {MAX_BUFFER_BYTES} bytes, found {num_bytes}: write smaller record batches"
            );
            ShardFault::Unsupported { reason }
        })?;
        let mut bytes = vec![0; size];
        self.reader.read_exact_at(buffer.start, &mut bytes)?;
        Ok(bytes)
    }
}

/// A buffer of the body as a place in the file.
fn inside(body: &Range<u64>, offset: i64, num_bytes: i64) -> Option<Range<u64>> {
    let start = body.start.checked_add(u64::try_from(offset).ok()?)?;
    let end = start.checked_add(u64::try_from(num_bytes).ok()?)?;
    (end <= body.end).then_some(start..end)
}

/// The first buffer of each field and the number of all. `views`: how many more each column of views has.
fn count_buffers(fields: &[FieldBuffers], views: &[i64]) -> Option<(Vec<usize>, usize)> {
    let mut views = views.iter();
    let mut firsts = Vec::with_capacity(fields.len());
    let mut next = 0usize;
    for field in fields {
        firsts.push(next);
        let more = if field.is_view { usize::try_from(*views.next()?).ok()? } else { 0 };
        next = next.checked_add(field.count)?.checked_add(more)?;
    }
    Some((firsts, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_inside_the_body() {
        let check = |offset, num_bytes, expected| assert_eq!(inside(&(100..200), offset, num_bytes), expected);
        check(0, 100, Some(100..200));
        check(100, 0, Some(200..200));
        check(1, 100, None);
        check(-1, 1, None);
        check(1, -1, None);
        check(i64::MAX, i64::MAX, None);
    }

    #[test]
    fn views_have_as_many_buffers_as_the_batch_says() {
        let fields = [(2, false), (2, true), (3, false), (2, true)];
        let fields = fields.map(|(count, is_view)| FieldBuffers { count, is_view });
        assert_eq!(count_buffers(&fields, &[0, 3]), Some((vec![0, 2, 4, 7], 12)));
        assert_eq!(count_buffers(&fields, &[0]), None);
        assert_eq!(count_buffers(&fields, &[0, -1]), None);
        assert_eq!(count_buffers(&fields, &[i64::MAX, i64::MAX]), None);
    }
}
