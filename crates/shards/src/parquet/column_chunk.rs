//! Row groups and column chunks, as the footer has them.
//!
//! What a chunk claims is looked at when the chunk is read: a column that nobody asks for may be compressed or stored in
//! a way that is not read.

use super::codec::PageCodec;
use super::compact::{CompactFault, CompactReader, STRUCT, expect};
use super::walk::ChunkSpan;
use crate::fault::{ShardFault, damaged};

/// The most column chunks of a file: 40 bytes of memory each.
const MOST_CHUNKS: usize = 1 << 22;

/// A row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupEntry {
    pub(super) num_rows: u64,
}

/// Where a column chunk is, as the footer claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkPlace {
    pub(super) data_offset: i64,
    /// 0 if there is no dictionary.
    dictionary_offset: i64,
    pub(super) compressed_bytes: i64,
    index_offset: i64,
    /// 0 if there is no offset index.
    index_bytes: u32,
    codec: u8,
    /// It is encrypted or in another file.
    is_elsewhere: bool,
}

impl GroupEntry {
    /// Reads a row group and adds its column chunks to `chunks`: one for each of `chunk_types`, of that type.
    pub(super) fn read(
        reader: &mut CompactReader<'_>,
        chunk_types: &[u32],
        chunks: &mut Vec<ChunkPlace>,
    ) -> Result<GroupEntry, CompactFault> {
        let (first, mut num_rows) = (chunks.len(), None);
        let mut last = 0;
        while let Some((field, kind)) = reader.field(&mut last)? {
            match field {
                1 => {
                    let count = reader.structs(kind)?;
                    if count != chunk_types.len() || chunks.len() != first || first + count > MOST_CHUNKS {
                        return Err(CompactFault::Wrong("a row group has other columns than the schema, or too many"));
                    }
                    for physical_type in chunk_types {
                        chunks.push(ChunkPlace::read(reader, *physical_type)?);
                    }
                }
                3 => num_rows = u64::try_from(reader.long(kind)?).ok(),
                _ => reader.skip(kind)?,
            }
        }
        match num_rows {
            Some(num_rows) if chunks.len() == first + chunk_types.len() => Ok(GroupEntry { num_rows }),
            _ => Err(CompactFault::Wrong("a row group has no columns or no number of rows")),
        }
    }
}

impl ChunkPlace {
    fn read(reader: &mut CompactReader<'_>, physical_type: u32) -> Result<ChunkPlace, CompactFault> {
        let mut place = ChunkPlace::default();
        let (mut is_elsewhere, mut is_described) = (false, false);
        let mut last = 0;
        while let Some((field, kind)) = reader.field(&mut last)? {
            match field {
                1 => is_elsewhere |= !reader.binary(kind)?.is_empty(),
                3 => {
                    expect(kind, STRUCT)?;
                    place.read_metadata(reader, physical_type)?;
                    is_described = true;
                }
                4 => place.index_offset = reader.long(kind)?,
                5 => place.index_bytes = reader.count(kind)?,
                8 | 9 => {
                    is_elsewhere = true;
                    reader.skip(kind)?;
                }
                _ => reader.skip(kind)?,
            }
        }
        place.is_elsewhere = is_elsewhere;
        match is_described || is_elsewhere {
            true => Ok(place),
            false => Err(CompactFault::Wrong("a column chunk does not say where it is")),
        }
    }

    fn read_metadata(&mut self, reader: &mut CompactReader<'_>, physical_type: u32) -> Result<(), CompactFault> {
        let (mut codec, mut size, mut offset) = (None, None, None);
        let mut last = 0;
        while let Some((field, kind)) = reader.field(&mut last)? {
            match field {
                1 => {
                    if reader.count(kind)? != physical_type {
                        return Err(CompactFault::Wrong("a column chunk has another type than its column"));
                    }
                }
                4 => codec = Some(reader.count(kind)?),
                7 => size = Some(reader.long(kind)?),
                9 => offset = Some(reader.long(kind)?),
                11 => self.dictionary_offset = reader.long(kind)?,
                _ => reader.skip(kind)?,
            }
        }
        let (Some(codec), Some(size), Some(offset)) = (codec, size, offset) else {
            return Err(CompactFault::Wrong("a column chunk does not say where it is and how it is compressed"));
        };
        self.codec = u8::try_from(codec).unwrap_or(u8::MAX);
        (self.compressed_bytes, self.data_offset) = (size, offset);
        Ok(())
    }

    /// Where the pages of column `name` are, in a file of `num_bytes`.
    pub(super) fn span(&self, name: &str, num_bytes: u64) -> Result<ChunkSpan, ShardFault> {
        if self.is_elsewhere {
            let reason = format!("column `{name}` is encrypted or in another file; write the table to one plain file");
            return Err(ShardFault::Unsupported { reason });
        }
        // Some writers set 0 where there is no dictionary.
        let has_dictionary = self.dictionary_offset > 0 && self.dictionary_offset < self.data_offset;
        let start = if has_dictionary { self.dictionary_offset } else { self.data_offset };
        let size = self.compressed_bytes;
        let span = u64::try_from(start).ok().zip(u64::try_from(size).ok());
        let span = span.and_then(|(start, size)| Some((start, start.checked_add(size)?)));
        match span.filter(|(_, end)| *end <= num_bytes) {
            Some((start, end)) => Ok(ChunkSpan { start, end, codec: PageCodec::of(self.codec.into(), name)? }),
            None => {
                let reason =
                    format!("column `{name}` claims {size} bytes from byte {start} on; the file has {num_bytes}");
                Err(damaged(start.unsigned_abs().min(num_bytes), reason))
            }
        }
    }

    /// Offset and size of the offset index.
    pub(super) fn index(&self) -> Option<(u64, u64)> {
        let offset = u64::try_from(self.index_offset).ok()?;
        (self.index_bytes > 0).then_some((offset, self.index_bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(data_offset: i64, dictionary_offset: i64, compressed_bytes: i64) -> ChunkPlace {
        ChunkPlace { data_offset, dictionary_offset, compressed_bytes, ..ChunkPlace::default() }
    }

    #[test]
    fn a_chunk_lies_inside_the_file() {
        let span = |place: ChunkPlace| place.span("x", 100).map(|span| span.start..span.end).ok();
        assert_eq!(span(place(4, 0, 96)), Some(4..100));
        assert_eq!(span(place(20, 10, 90)), Some(10..100), "a dictionary comes first");
        assert_eq!(span(place(20, 30, 80)), Some(20..100), "a dictionary that comes later is none");
        assert_eq!(span(place(4, 0, 97)), None);
        assert_eq!(span(place(-4, 0, 10)), None);
        assert_eq!(span(place(4, 0, -1)), None);
        assert_eq!(span(place(i64::MAX, 0, i64::MAX)), None);
    }

    #[test]
    fn a_chunk_in_another_file_is_refused_when_it_is_read() {
        let mut reader = CompactReader::new(&[0x18, 1, b'f', 0x2c, 0x45, 0, 0x36, 2, 0x26, 8, 0, 0]);
        let place = ChunkPlace::read(&mut reader, 6).unwrap();
        assert!(matches!(place.span("x", 100), Err(ShardFault::Unsupported { .. })));
    }

    #[test]
    fn a_chunk_of_another_type_than_its_column_is_wrong() {
        let read = |physical_type| {
            let bytes = [0x3c, 0x15, 12, 0x35, 0, 0x36, 2, 0x26, 8, 0, 0];
            ChunkPlace::read(&mut CompactReader::new(&bytes), physical_type)
        };
        assert!(read(6).is_ok());
        assert!(matches!(read(1), Err(CompactFault::Wrong(_))));
    }
}
