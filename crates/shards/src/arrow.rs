//! Rows of an Arrow IPC file or stream: what Hugging Face `datasets` and F5-TTS write.
//!
//! A record batch with a thousand recordings has hundreds of megabytes, so it is never read as a whole. Its metadata says
//! where each buffer is: of the columns that are asked for, validity, offsets, text and numbers are read; of a byte
//! column the offsets only, which give the place of each value.
//!
//! The file format is the stream format between two magic numbers, so both are walked from message to message. Bytes
//! after the end-of-stream marker (the footer of a file) are not read.

mod batch;
mod column;
mod dictionary;
mod message;
mod number;
mod schema;
mod text_list;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use arrow_ipc::MessageHeader;
use tandem_storage::ReadAt;

use self::batch::BatchReader;
use self::dictionary::ArrowDictionaries;
use self::message::{MessageSpan, read_message};
use self::schema::{ArrowLeaf, ArrowSchema};
use crate::fault::ShardFault;
use crate::table::{Cell, ColumnKind, TableColumn, find_column};

/// An Arrow file or stream whose schema was read.
///
/// Holding one says that the schema makes sense and nothing about the rows.
pub struct ArrowTable {
    reader: Arc<dyn ReadAt>,
    schema: ArrowSchema,
    /// Where the messages after the schema begin.
    start: u64,
    span: MessageSpan,
    num_rows: OnceLock<u64>,
}

impl ArrowTable {
    /// Reads the schema: three or four small reads.
    ///
    /// Fails with [`ShardFault::Unsupported`] on big-endian files and types that are not known, otherwise with
    /// [`ShardFault::Damaged`].
    pub fn open(reader: Arc<dyn ReadAt>) -> Result<ArrowTable, ShardFault> {
        let span = MessageSpan::find(&*reader)?;
        let mut metadata = Vec::new();
        let found = read_message(&*reader, span.start, &span, &mut metadata).map_err(not_arrow)?;
        let Some(found) = found else {
            let reason = "expected the schema of an Arrow file, found its end".to_owned();
            return Err(ShardFault::Damaged { offset: span.start, reason });
        };
        let Some(schema) = found.message.header_as_schema() else {
            let reason = "expected the schema of an Arrow file, found another message".to_owned();
            return Err(ShardFault::Damaged { offset: span.start, reason });
        };
        let schema = ArrowSchema::read(&schema, found.message.version(), span.start)?;
        let start = found.body.end;
        Ok(ArrowTable { reader, schema, start, span, num_rows: OnceLock::new() })
    }

    /// All columns, in the order of the schema. The fields of a struct are columns of their own; a list is one column,
    /// of kind [`ColumnKind::TextList`] if its items are strings and otherwise [`ColumnKind::Other`].
    pub fn columns(&self) -> &[TableColumn] {
        &self.schema.columns
    }

    /// The number of rows. Known after [`ArrowTable::rows`] has visited all of them: an Arrow file does not store it.
    pub fn num_rows(&self) -> Option<u64> {
        self.num_rows.get().copied()
    }

    /// Visits all rows in order with the cells of the columns `wanted`, in that order, until `visit` breaks. A column of
    /// bytes gives [`Cell::Bytes`] with addresses inside the file; a field of a null struct is null. A list of strings gives
    /// [`Cell::Text`] with all its items and nothing between them; an item that is null has no text.
    ///
    /// Holds one record batch of the wanted columns without their bytes; a buffer may have 256 MiB. Reads each message's
    /// metadata, then one to five buffers per column.
    ///
    /// Fails with [`ShardFault::Unsupported`] if there is no such column, if its kind is [`ColumnKind::Other`], if
    /// `wanted` is empty, or if a batch is compressed; with [`ShardFault::Damaged`] where the file is damaged or cut
    /// short. The rows of all batches before were visited then.
    pub fn rows(
        &self,
        wanted: &[&str],
        visit: &mut dyn FnMut(u64, &[Cell<'_>]) -> ControlFlow<()>,
    ) -> Result<(), ShardFault> {
        let leaves = self.find(wanted)?;
        let mut dictionaries = ArrowDictionaries::of(&leaves);
        let (mut offset, mut row) = (self.start, 0);
        let mut metadata = Vec::new();
        while let Some(found) = read_message(&*self.reader, offset, &self.span, &mut metadata)? {
            let damaged = |reason: &str| ShardFault::Damaged { offset, reason: reason.to_owned() };
            let (reader, body) = (&*self.reader, found.body.clone());
            match found.message.header_type() {
                MessageHeader::RecordBatch => {
                    let batch =
                        found.message.header_as_record_batch().ok_or_else(|| damaged("a batch without data"))?;
                    let batch = BatchReader::new(reader, &self.schema.fields, &batch, offset, body)?;
                    if visit_batch(&batch, &leaves, &dictionaries, &mut row, visit)?.is_break() {
                        return Ok(());
                    }
                }
                MessageHeader::DictionaryBatch => {
                    let batch = found
                        .message
                        .header_as_dictionary_batch()
                        .ok_or_else(|| damaged("a dictionary without data"))?;
                    dictionaries.add(reader, &batch, offset, body)?;
                }
                MessageHeader::Schema => return Err(damaged("expected record batches, found a second schema")),
                _ => return Err(damaged("expected a record batch, found a message that is none")),
            }
            offset = found.body.end;
        }
        // Two passes over one file count the same rows.
        let _ = self.num_rows.set(row);
        Ok(())
    }

    fn find(&self, wanted: &[&str]) -> Result<Vec<&ArrowLeaf>, ShardFault> {
        if wanted.is_empty() {
            let reason = "expected the name of a column to read, found none".to_owned();
            return Err(ShardFault::Unsupported { reason });
        }
        let ArrowSchema { columns, leaves, .. } = &self.schema;
        let find = |name: &&str| {
            let at = find_column(columns, name)?;
            match (columns.get(at), leaves.get(at)) {
                (Some(column), Some(leaf)) if column.kind != ColumnKind::Other => Ok(leaf),
                (column, _) => {
                    let found = column.map_or("none", |column| column.type_name);
                    let reason = format!("column `{name}`: expected text, numbers or bytes, found {found}");
                    Err(ShardFault::Unsupported { reason })
                }
            }
        };
        wanted.iter().map(find).collect()
    }
}

/// Visits the rows of one batch and counts them in `row`.
fn visit_batch(
    batch: &BatchReader<'_>,
    leaves: &[&ArrowLeaf],
    dictionaries: &ArrowDictionaries,
    row: &mut u64,
    visit: &mut dyn FnMut(u64, &[Cell<'_>]) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, ShardFault> {
    if batch.num_rows == 0 {
        return Ok(ControlFlow::Continue(()));
    }
    let columns = leaves.iter().map(|leaf| batch.column(leaf, dictionaries));
    let columns = columns.collect::<Result<Vec<_>, ShardFault>>()?;
    let mut cells = Vec::with_capacity(columns.len());
    for index in 0..batch.num_rows {
        cells.clear();
        for column in &columns {
            cells.push(column.cell(index)?);
        }
        if visit(*row, &cells).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        *row += 1;
    }
    Ok(ControlFlow::Continue(()))
}

/// The first message decides whether it is an Arrow file at all.
fn not_arrow(fault: ShardFault) -> ShardFault {
    match fault {
        ShardFault::Damaged { offset, reason } => {
            ShardFault::Damaged { offset, reason: format!("expected an Arrow file or stream: {reason}") }
        }
        other => other,
    }
}
