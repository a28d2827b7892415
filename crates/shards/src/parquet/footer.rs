//! The end of the file: schema, row groups, where each column is.
//!
//! Statistics, sort orders, bloom filters and the number of values of a column chunk are passed over: nothing depends on
//! what they claim.

use tandem_storage::ReadAt;

use super::column_chunk::{ChunkPlace, GroupEntry};
use super::compact::{CompactFault, CompactReader};
use super::schema::ParquetSchema;
use crate::fault::{ShardFault, damaged};

/// The most bytes of a footer. A row group takes about a kilobyte.
const MOST_FOOTER_BYTES: u64 = 64 << 20;

/// Length of the footer and magic number, at the very end.
const TAIL_BYTES: u64 = 8;

/// What a footer says, as far as it is used.
#[derive(Debug)]
pub(super) struct ParquetFooter {
    pub(super) schema: ParquetSchema,
    pub(super) groups: Vec<GroupEntry>,
    /// The column chunks of all row groups, one row group after the other.
    chunks: Vec<ChunkPlace>,
    /// The rows of all row groups.
    pub(super) num_rows: u64,
}

impl ParquetFooter {
    /// Reads the footer. Two reads; memory for its bytes and 40 for each column chunk.
    pub(super) fn read(reader: &dyn ReadAt) -> Result<ParquetFooter, ShardFault> {
        let num_bytes = reader.num_bytes();
        let least = TAIL_BYTES + 4;
        if num_bytes < least {
            let reason = format!("expected a Parquet file of at least {least} bytes, found {num_bytes}");
            return Err(damaged(0, reason));
        }
        let mut tail = [0; TAIL_BYTES as usize];
        reader.read_exact_at(num_bytes - TAIL_BYTES, &mut tail)?;
        let [a, b, c, d, magic @ ..] = tail;
        match &magic {
            b"PAR1" => {}
            b"PARE" => return Err(encrypted()),
            other => {
                let found = other.escape_ascii();
                let reason = format!("expected a Parquet file, which ends with PAR1; this one ends with {found}");
                return Err(damaged(num_bytes - 4, reason));
            }
        }
        let size = u64::from(u32::from_le_bytes([a, b, c, d]));
        let most = (num_bytes - least).min(MOST_FOOTER_BYTES);
        if size > most {
            let reason = format!("the footer claims {size} bytes; at most {most} are possible");
            return Err(damaged(num_bytes - TAIL_BYTES, reason));
        }
        let start = num_bytes - TAIL_BYTES - size;
        let mut bytes = vec![0; size as usize];
        reader.read_exact_at(start, &mut bytes)?;
        let parsed = parse(&bytes).map_err(|fault| damaged(start, format!("the footer: {}", fault.reason())))?;
        let (footer, claimed) = parsed.ok_or_else(encrypted)?;
        footer.check_rows(claimed, num_bytes).map_err(|reason| damaged(start, reason))?;
        Ok(footer)
    }

    /// Column chunk `number` of a row group.
    pub(super) fn chunk(&self, group: usize, number: usize) -> Option<&ChunkPlace> {
        let count = self.schema.chunk_types.len();
        self.chunks.get(group.checked_mul(count)?.checked_add(number)?).filter(|_| number < count)
    }

    /// Rows are visited one by one, so their number has to be real. Every row of a corpus takes a byte and more.
    fn check_rows(&self, claimed: i64, num_bytes: u64) -> Result<(), String> {
        let found = self.num_rows;
        if u64::try_from(claimed) != Ok(found) {
            return Err(format!("the file claims {claimed} rows, its row groups {found}"));
        }
        match found <= num_bytes {
            true => Ok(()),
            false => Err(format!("the file claims {found} rows in {num_bytes} bytes")),
        }
    }
}

fn encrypted() -> ShardFault {
    ShardFault::Unsupported { reason: "the file is encrypted; write it again without encryption".into() }
}

/// The footer in `bytes` and the number of rows that it claims; none if the file is encrypted.
fn parse(bytes: &[u8]) -> Result<Option<(ParquetFooter, i64)>, CompactFault> {
    let mut reader = CompactReader::new(bytes);
    let (mut schema, mut claimed, mut groups) = (None, None, None);
    let mut chunks = Vec::new();
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match (field, &schema) {
            (2, None) => schema = Some(ParquetSchema::read(&mut reader, kind)?),
            (3, _) => claimed = Some(reader.long(kind)?),
            (4, Some(schema)) if groups.is_none() => {
                let count = reader.structs(kind)?;
                let read = (0..count).map(|_| GroupEntry::read(&mut reader, &schema.chunk_types, &mut chunks));
                groups = Some(read.collect::<Result<Vec<_>, _>>()?);
            }
            (2 | 4, _) => return Err(CompactFault::Wrong("expected a schema, then row groups")),
            (8, _) => return Ok(None),
            _ => reader.skip(kind)?,
        }
    }
    let (Some(schema), Some(claimed), Some(groups)) = (schema, claimed, groups) else {
        return Err(CompactFault::Wrong("expected a schema, row groups and a number of rows"));
    };
    let mut num_rows = 0_u64;
    for group in &groups {
        num_rows = num_rows
            .checked_add(group.num_rows)
            .ok_or(CompactFault::Wrong("its row groups claim more rows than can be counted"))?;
    }
    Ok(Some((ParquetFooter { schema, groups, chunks, num_rows }, claimed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of nothing but this footer.
    fn file(footer: &[u8]) -> Vec<u8> {
        let size = (footer.len() as u32).to_le_bytes();
        [b"PAR1".as_slice(), footer, &size, b"PAR1"].concat()
    }

    /// A schema of one column `x` of numbers: root and leaf.
    const SCHEMA: [u8; 18] = [0x29, 0x2c, 0x48, 1, b'r', 0x15, 2, 0, 0x15, 2, 0x25, 0, 0x18, 1, b'x', 0x15, 0, 0];

    /// A row group of `rows` rows with one column chunk: codec, size, where it begins.
    fn group(rows: u8) -> Vec<u8> {
        let chunk = [0x3c, 0x15, 2, 0x35, 0, 0x36, 20, 0x26, 8, 0, 0];
        [&[0x19, 0x1c][..], &chunk, &[0x26, rows * 2, 0]].concat()
    }

    fn footer(claimed: u8, groups: &[u8]) -> Vec<u8> {
        let groups: Vec<Vec<u8>> = groups.iter().map(|rows| group(*rows)).collect();
        let head = [0x16, claimed * 2, 0x19, (groups.len() as u8) << 4 | 0x0c];
        [&SCHEMA[..], &head, &groups.concat(), &[0]].concat()
    }

    fn fault(bytes: &[u8]) -> String {
        ParquetFooter::read(&bytes.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn row_groups_and_their_chunks_are_found() {
        let found = ParquetFooter::read(&file(&footer(7, &[3, 4]))).unwrap();
        assert_eq!(found.num_rows, 7);
        assert_eq!(found.schema.columns[0].name, "x");
        let chunk = found.chunk(1, 0).unwrap();
        assert_eq!((chunk.data_offset, chunk.compressed_bytes), (4, 10));
        assert!(found.chunk(0, 1).is_none() && found.chunk(2, 0).is_none());
    }

    #[test]
    fn row_counts_add_up_and_are_possible() {
        assert!(fault(&file(&footer(8, &[3, 4]))).contains("the file claims 8 rows, its row groups 7"));
        assert_eq!(ParquetFooter::read(&file(&footer(51, &[51]))).unwrap().num_rows, 51);
        assert!(fault(&file(&footer(52, &[52]))).contains("the file claims 52 rows in 51 bytes"));
    }

    #[test]
    fn a_footer_cut_anywhere_is_a_fault() {
        let bytes = footer(7, &[3, 4]);
        for end in 0..bytes.len() {
            assert!(fault(&file(&bytes[..end])).contains("the footer: "), "cut at {end}");
        }
    }

    #[test]
    fn a_footer_longer_than_the_file_is_a_fault() {
        let file = [b"PAR1".as_slice(), &[0xff, 0xff, 0xff, 0x7f], b"PAR1"].concat();
        assert!(matches!(ParquetFooter::read(&file), Err(ShardFault::Damaged { offset: 4, .. })));
        assert!(matches!(ParquetFooter::read(&b"PAR1".to_vec()), Err(ShardFault::Damaged { .. })));
    }

    #[test]
    fn an_encrypted_file_is_unsupported() {
        let file_of_its_own = [b"PARE".as_slice(), &[0, 0, 0, 0], b"PARE"].concat();
        assert!(matches!(ParquetFooter::read(&file_of_its_own), Err(ShardFault::Unsupported { .. })));
        // Field 8 of the footer: the algorithm, with a footer that is not encrypted itself.
        assert!(matches!(ParquetFooter::read(&file(&[0x8c, 0x00, 0x00])), Err(ShardFault::Unsupported { .. })));
    }

    /// The `parquet` crate reads a set as a list, recursively: this footer of 3 MB ended the process.
    #[test]
    fn a_schema_nested_a_million_deep_is_a_fault_whatever_type_it_has() {
        for kind in [9, 10] {
            let mut bytes = vec![0x20 | kind, 0xfc, 0xc1, 0x84, 0x3d];
            (0..1_000_000).for_each(|_| bytes.extend([0x48, 1, b'g', 0x15, 2, 0]));
            bytes.extend([0x15, 2, 0x35, 1, b'x', 0, 0]);
            assert!(fault(&file(&bytes)).contains("the footer: "));
        }
    }
}
