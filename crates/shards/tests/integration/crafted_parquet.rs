//! Parquet files put together byte by byte, to claim what no writer claims.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_shards::{PageTable, ParquetTable, ShardFault, ValueAddress, WantedForm};

use crate::parquet::{rows, wanted};
use crate::support::{OwnedCell, text};

/// Codecs and encodings by their numbers in the format.
const UNCOMPRESSED: i64 = 0;
const GZIP: i64 = 2;
const ZSTD: i64 = 6;
const PLAIN: i64 = 0;
const DICTIONARY: i64 = 8;
const DELTA_BYTE_ARRAY: i64 = 7;

/// A field of a Thrift struct.
enum Field {
    I32(i64),
    I64(i64),
    Bytes(Vec<u8>),
    Struct(Vec<u8>),
    Structs(Vec<Vec<u8>>),
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A Thrift struct of fields with rising numbers.
fn fields(fields: Vec<(u8, Field)>) -> Vec<u8> {
    let (mut out, mut last) = (Vec::new(), 0);
    for (number, field) in fields {
        let step = (number - last) << 4;
        last = number;
        let zigzag = |value: i64| (value << 1 ^ value >> 63) as u64;
        match field {
            Field::I32(value) => {
                out.push(step | 5);
                varint(zigzag(value), &mut out);
            }
            Field::I64(value) => {
                out.push(step | 6);
                varint(zigzag(value), &mut out);
            }
            Field::Bytes(bytes) => {
                out.push(step | 8);
                varint(bytes.len() as u64, &mut out);
                out.extend(bytes);
            }
            Field::Struct(bytes) => {
                out.push(step | 12);
                out.extend(bytes);
            }
            Field::Structs(structs) => {
                out.extend([step | 9, 0xfc]);
                varint(structs.len() as u64, &mut out);
                out.extend(structs.concat());
            }
        }
    }
    out.push(0);
    out
}

/// A data page with its header, which claims these numbers of bytes and values.
fn data_page(uncompressed: usize, num_values: i64, encoding: i64, body: &[u8]) -> Vec<u8> {
    let of_values = [(1, num_values), (2, encoding), (3, 3), (4, 3)].map(|(number, value)| (number, Field::I32(value)));
    let header = fields(vec![
        (1, Field::I32(0)),
        (2, Field::I32(uncompressed as i64)),
        (3, Field::I32(body.len() as i64)),
        (5, Field::Struct(fields(of_values.into()))),
    ]);
    [header, body.to_vec()].concat()
}

fn dictionary_page(num_values: i64, body: &[u8]) -> Vec<u8> {
    let of_values = fields(vec![(1, Field::I32(num_values)), (2, Field::I32(PLAIN))]);
    let size = Field::I32(body.len() as i64);
    let header =
        fields(vec![(1, Field::I32(2)), (2, Field::I32(body.len() as i64)), (3, size), (7, Field::Struct(of_values))]);
    [header, body.to_vec()].concat()
}

/// A file with one column `x` of byte strings, not one of them null, in one row group.
fn file(codec: i64, num_rows: i64, pages: &[Vec<u8>]) -> Vec<u8> {
    let data = pages.concat();
    let name = |name: &str| Field::Bytes(name.as_bytes().to_vec());
    let root = fields(vec![(4, name("schema")), (5, Field::I32(1))]);
    let leaf = fields(vec![(1, Field::I32(6)), (3, Field::I32(0)), (4, name("x"))]);
    let metadata = fields(vec![
        (1, Field::I32(6)),
        (4, Field::I32(codec)),
        // Values and bytes that nothing depends on.
        (5, Field::I64(i64::MAX)),
        (6, Field::I64(-1)),
        (7, Field::I64(data.len() as i64)),
        (9, Field::I64(4)),
    ]);
    let chunk = fields(vec![(2, Field::I64(4)), (3, Field::Struct(metadata))]);
    let group = fields(vec![(1, Field::Structs(vec![chunk])), (2, Field::I64(-1)), (3, Field::I64(num_rows))]);
    let footer = fields(vec![
        (1, Field::I32(1)),
        (2, Field::Structs(vec![root, leaf])),
        (3, Field::I64(num_rows)),
        (4, Field::Structs(vec![group])),
    ]);
    [b"PAR1", &data[..], &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// Values in plain encoding: a length and bytes, one after the other.
fn plain(values: &[&[u8]]) -> Vec<u8> {
    values.iter().flat_map(|value| [&(value.len() as u32).to_le_bytes(), *value].concat()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn as_text(bytes: &[u8]) -> Result<Vec<OwnedCell>, ShardFault> {
    rows(bytes, &[wanted("x", WantedForm::Text)]).map(|(rows, _)| rows.into_iter().flatten().collect())
}

/// Reads the column as text and by address; the reason why neither works.
fn reason(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    let by_address = rows(bytes, &[wanted("x", WantedForm::Address)])
        .and_then(|(_, pages)| pages.read_value(&bytes.to_vec(), ValueAddress { position: 0, extent: 0 }, &mut out));
    assert!(by_address.is_err(), "read by its address: {out:?}");
    as_text(bytes).unwrap_err().to_string()
}

#[test]
fn a_crafted_file_is_read_if_it_does_not_lie() {
    let body = plain(&[b"one", b"", b"three"]);
    let expected = ["one", "", "three"].map(text);
    for (codec, compressed) in
        [(UNCOMPRESSED, body.clone()), (GZIP, gzip(&body)), (ZSTD, zstd::bulk::compress(&body, 1).unwrap())]
    {
        let bytes = file(codec, 3, &[data_page(body.len(), 3, PLAIN, &compressed)]);
        assert_eq!(as_text(&bytes).unwrap(), expected, "codec {codec}");
    }
    let keys = data_page(4, 3, DICTIONARY, &[2, 3, 0b01_0010, 0]);
    let bytes = file(UNCOMPRESSED, 3, &[dictionary_page(3, &plain(&[b"a", b"b", b"c"])), keys]);
    assert_eq!(as_text(&bytes).unwrap(), ["c", "a", "b"].map(text));
}

#[test]
fn a_page_that_decompresses_to_another_size_than_it_claims_is_a_fault() {
    let bomb = vec![0; 8 << 20];
    for (codec, compressed) in [(GZIP, gzip(&bomb)), (ZSTD, zstd::bulk::compress(&bomb, 1).unwrap())] {
        assert!(compressed.len() < 10_000, "{}", compressed.len());
        for claimed in [100, compressed.len() * 2] {
            let bytes = file(codec, 1, &[data_page(claimed, 1, PLAIN, &compressed)]);
            assert!(reason(&bytes).contains(&format!("expected {claimed} bytes after decompression")), "{claimed}");
        }
        let bytes = file(codec, 1, &[data_page(1 << 30 | 1, 1, PLAIN, &compressed)]);
        assert!(reason(&bytes).contains("the limit is 1073741824"), "codec {codec}");
    }
}

#[test]
fn rows_that_a_page_cannot_hold_are_a_fault() {
    let body = plain(&[b"one", b"two"]);
    let claims = |num_values| file(UNCOMPRESSED, num_values, &[data_page(body.len(), num_values, PLAIN, &body)]);
    assert_eq!(as_text(&claims(2)).unwrap(), ["one", "two"].map(text));
    assert!(as_text(&claims(3)).is_err());
    // 14 bytes hold three lengths.
    assert!(matches!(rows(&claims(4), &[wanted("x", WantedForm::Address)]), Err(ShardFault::Damaged { .. })));
    assert!(reason(&claims(i64::from(i32::MAX))).contains("claims 2147483647 rows in "));
    assert!(reason(&claims(i64::from(u32::MAX))).contains("claims 4294967295 rows in "));
}

#[test]
fn a_key_or_a_dictionary_that_lies_is_a_fault() {
    let values = plain(&[b"a", b"b"]);
    let keys = |key: u8| data_page(3, 1, DICTIONARY, &[2, 2, key]);
    let with = |num_values, key| file(UNCOMPRESSED, 1, &[dictionary_page(num_values, &values), keys(key)]);
    assert_eq!(as_text(&with(2, 1)).unwrap(), [text("b")]);
    assert!(reason(&with(2, 2)).contains("expected a key of a dictionary of "));
    assert!(reason(&with(1, 1)).contains("expected a key of a dictionary of "));
    assert!(reason(&with(3, 1)).contains("the dictionary claims 3 values in 10 bytes"));
    assert!(reason(&file(UNCOMPRESSED, 1, &[keys(0)])).contains("needs a dictionary and there is none"));
    let two = [dictionary_page(2, &values), dictionary_page(2, &values), keys(0)];
    assert!(reason(&file(UNCOMPRESSED, 1, &two)).contains("expected one dictionary"));
}

/// Delta-encoded numbers: `first`, then `count - 1` times `first + step`.
fn delta(count: u64, first: u32, step: u32) -> Vec<u8> {
    let mut out = vec![0x80, 0x01, 4];
    varint(count, &mut out);
    varint(u64::from(first) << 1, &mut out);
    // The first block has 32 bits for each of its first 32 differences, all others have none.
    out.extend([0, 32, 0, 0, 0]);
    out.extend(step.to_le_bytes());
    out.extend([0; 31 * 4]);
    (129..count).step_by(128).for_each(|_| out.extend([0; 5]));
    out
}

/// Each value is the one before and nothing more: 2000 values of a mebibyte in a page of a mebibyte.
#[test]
fn values_that_repeat_the_one_before_are_bounded_together() {
    let size: u32 = 1 << 20;
    let page = |count: u64| {
        let (prefixes, suffixes) = (delta(count, 0, size), delta(count, size, size.wrapping_neg()));
        let body = [prefixes, suffixes, vec![b'a'; size as usize]].concat();
        data_page(body.len(), count as i64, DELTA_BYTE_ARRAY, &body)
    };
    let expected = text(&"a".repeat(size as usize));
    let few = as_text(&file(UNCOMPRESSED, 3, &[page(3)])).unwrap();
    assert!(few == [expected.clone(), expected.clone(), expected], "the page is not what it should be");

    let bytes = file(UNCOMPRESSED, 2000, &[page(2000)]);
    let table = ParquetTable::open(Arc::new(bytes.clone())).unwrap();
    let mut seen = 0;
    let result = table.rows(&[wanted("x", WantedForm::Text)], &mut PageTable::default(), &mut |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(seen, 1024, "as many as fit a page");
    assert!(result.unwrap_err().to_string().contains("the values of the page have more than 1073741824 bytes"));

    let (_, pages) = rows(&bytes, &[wanted("x", WantedForm::Address)]).unwrap();
    let read = |extent| pages.read_value(&bytes, ValueAddress { position: 0, extent }, &mut Vec::new());
    assert!(read(5).is_ok());
    assert!(read(1999).unwrap_err().to_string().contains("the values of the page have more than 1073741824 bytes"));
}

#[test]
fn a_visit_of_a_file_made_to_harm_stops_at_its_first_fault() {
    let body = plain(&[b"one"]);
    let good = data_page(body.len(), 1, PLAIN, &body);
    let bytes = file(UNCOMPRESSED, 3, &[good.clone(), good, data_page(9, 1, PLAIN, &body)]);
    let table = ParquetTable::open(Arc::new(bytes)).unwrap();
    let mut seen = 0;
    let result = table.rows(&[wanted("x", WantedForm::Text)], &mut PageTable::default(), &mut |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((result.is_err(), seen), (true, 2));
}
