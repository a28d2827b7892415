//! Dictionaries of strings: a column may store keys, and the strings once, in a message before.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_ipc::DictionaryBatch;
use tandem_storage::ReadAt;

use super::batch::{BatchReader, MAX_BUFFER_BYTES};
use super::column::LoadedColumn;
use super::schema::{ArrowEncoding, ArrowLeaf, FieldBuffers};
use crate::fault::ShardFault;
use crate::table::Cell;

/// The most messages that one dictionary may come in.
const MAX_CHUNKS: usize = 65_536;

/// The dictionaries of the columns that are asked for, as far as the messages were read.
pub(super) struct ArrowDictionaries {
    by_id: BTreeMap<i64, ArrowDictionary>,
}

/// Strings by key.
pub(super) struct ArrowDictionary {
    is_large: bool,
    is_given: bool,
    chunks: Vec<Chunk>,
    /// Bytes of the messages that it was read from.
    num_bytes: u64,
}

/// The strings that one message gave.
struct Chunk {
    /// The key of the first one.
    first_key: u64,
    num_values: usize,
    strings: LoadedColumn<'static>,
}

impl ArrowDictionaries {
    /// No strings yet, for the columns `leaves`.
    pub(super) fn of(leaves: &[&ArrowLeaf]) -> ArrowDictionaries {
        let coded = leaves.iter().filter_map(|leaf| match leaf.encoding {
            ArrowEncoding::Coded { dictionary, is_large, .. } => {
                Some((dictionary, ArrowDictionary { is_large, is_given: false, chunks: Vec::new(), num_bytes: 0 }))
            }
            _ => None,
        });
        ArrowDictionaries { by_id: coded.collect() }
    }

    /// The dictionary `id`, if a message gave it.
    pub(super) fn get(&self, id: i64) -> Option<&ArrowDictionary> {
        self.by_id.get(&id).filter(|dictionary| dictionary.is_given)
    }

    /// Takes in the message at `offset` if its dictionary is asked for. It replaces the strings, or adds to them if it
    /// is a delta.
    pub(super) fn add(
        &mut self,
        reader: &dyn ReadAt,
        batch: &DictionaryBatch<'_>,
        offset: u64,
        body: Range<u64>,
    ) -> Result<(), ShardFault> {
        let Some(dictionary) = self.by_id.get_mut(&batch.id()) else { return Ok(()) };
        let Some(data) = batch.data() else {
            return Err(ShardFault::Damaged {
                offset,
                reason: "expected the strings of a dictionary, found none".into(),
            });
        };
        let fields = [FieldBuffers { count: 3, is_view: false }];
        let num_bytes = body.end - body.start;
        let batch_reader = BatchReader::new(reader, &fields, &data, offset, body)?;
        if !batch.isDelta() {
            dictionary.chunks.clear();
            dictionary.num_bytes = 0;
        }
        dictionary.num_bytes += num_bytes;
        if dictionary.num_bytes > MAX_BUFFER_BYTES {
            let reason =
                format!("expected a dictionary of at most {MAX_BUFFER_BYTES} bytes, found {}", dictionary.num_bytes);
            return Err(ShardFault::Unsupported { reason });
        }
        dictionary.is_given = true;
        // Without strings there need not be offsets.
        if batch_reader.num_rows > 0 {
            dictionary.push(batch_reader.num_rows, batch_reader.strings(dictionary.is_large)?)?;
        }
        Ok(())
    }
}

impl ArrowDictionary {
    /// The string of a key. `None` if there is no such key.
    pub(super) fn get(&self, key: u64) -> Option<Result<Cell<'_>, ShardFault>> {
        let after = self.chunks.partition_point(|chunk| chunk.first_key <= key);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        let index = usize::try_from(key - chunk.first_key).ok().filter(|index| *index < chunk.num_values)?;
        Some(chunk.strings.cell(index))
    }

    fn push(&mut self, num_values: usize, strings: LoadedColumn<'static>) -> Result<(), ShardFault> {
        if self.chunks.len() == MAX_CHUNKS {
            let reason = format!("expected a dictionary in at most {MAX_CHUNKS} messages, found more");
            return Err(ShardFault::Unsupported { reason });
        }
        let first_key = self.chunks.last().map_or(0, |chunk| chunk.first_key + chunk.num_values as u64);
        self.chunks.push(Chunk { first_key, num_values, strings });
        Ok(())
    }
}
