//! Parquet files of pyarrow (`tests/data/make_parquet.py`), read value by value.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

use std::ops::ControlFlow;
use std::sync::Arc;

use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use tandem_shards::{ColumnKind, PageTable, ParquetTable, ShardFault, ValueAddress, WantedColumn, WantedForm};
use tandem_storage::ReadAt;

use crate::support::{OwnedCell, Watched};

const ROWS: u64 = 60;

pub(crate) const NESTED: [&str; 9] = [
    "nested_none",
    "nested_none_v2",
    "nested_snappy",
    "nested_zstd_v2",
    "nested_gzip",
    "nested_lz4_v2",
    "nested_fallback",
    "nested_index",
    "nested_delta_length",
];

pub(crate) const FLAT: [&str; 4] = ["flat_none", "flat_index", "flat_delta", "flat_large"];

/// Files whose values repeat.
pub(crate) const REPEATED: [&str; 2] = ["flat_dictionary", "flat_index_dictionary"];

/// What `make_parquet.py` writes.
pub(crate) fn value(i: u64) -> Vec<u8> {
    (0..i * 37 % 200).map(|j| (i * 31 + j * 7) as u8).collect()
}

fn text(i: u64) -> String {
    format!("text {i} äö")
}

pub(crate) fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    std::fs::read(format!("{folder}/{name}.parquet")).unwrap()
}

pub(crate) fn wanted(name: &str, form: WantedForm) -> WantedColumn<'_> {
    WantedColumn { name, form }
}

/// All rows of a file, and its pages.
pub(crate) fn rows(bytes: &[u8], columns: &[WantedColumn<'_>]) -> Result<(Vec<Vec<OwnedCell>>, PageTable), ShardFault> {
    rows_of(Arc::new(bytes.to_vec()), columns)
}

fn rows_of(
    reader: Arc<dyn ReadAt>,
    columns: &[WantedColumn<'_>],
) -> Result<(Vec<Vec<OwnedCell>>, PageTable), ShardFault> {
    let table = ParquetTable::open(reader)?;
    let (mut found, mut pages) = (Vec::new(), PageTable::default());
    table.rows(columns, &mut pages, &mut |row, cells| {
        assert_eq!(row, found.len() as u64);
        found.push(cells.iter().map(OwnedCell::from).collect());
        ControlFlow::Continue(())
    })?;
    assert_eq!(found.len() as u64, table.num_rows());
    Ok((found, pages))
}

/// Where the values of one byte column are, and the pages.
pub(crate) fn addresses(bytes: &[u8], name: &str) -> (Vec<Option<ValueAddress>>, PageTable) {
    let (rows, pages) = rows(bytes, &[wanted(name, WantedForm::Address)]).unwrap();
    let address = |row: Vec<OwnedCell>| match row[..] {
        [OwnedCell::Bytes(address)] => Some(address),
        [OwnedCell::Null] => None,
        _ => panic!("{row:?}"),
    };
    (rows.into_iter().map(address).collect(), pages)
}

pub(crate) fn metadata(bytes: &[u8]) -> ParquetMetaData {
    ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(bytes)).unwrap()
}

/// Reads every value in a scattered order, in each of the ways there are.
fn check_values(name: &str, column: &str, expected: impl Fn(u64) -> Option<Vec<u8>>) {
    let bytes = file(name);
    let (addresses, pages) = addresses(&bytes, column);
    let stored = PageTable::decode(&pages.encode()).unwrap();
    stored.check(bytes.len() as u64).unwrap();
    let mut out = vec![1, 2, 3];
    for i in (0..ROWS).map(|i| i * 23 % ROWS) {
        let expected = expected(i);
        assert_eq!(addresses[i as usize].is_some(), expected.is_some(), "{name}: row {i}");
        let (Some(address), Some(expected)) = (addresses[i as usize], expected) else { continue };
        stored.read_value(&bytes, address, &mut out).unwrap();
        assert_eq!(out, expected, "{name}: row {i}");
        let part = |span: std::ops::Range<u64>| &bytes[span.start as usize..span.end as usize];
        let dictionary = stored.dictionary_span(address.position).map(part);
        let page = part(stored.span(address.position).unwrap());
        stored.value_in(page, dictionary, address, &mut out).unwrap();
        assert_eq!(out, expected, "{name}: row {i} of fetched bytes");
    }
}

#[test]
fn every_value_of_a_nested_audio_column_is_read_at_random() {
    for name in NESTED {
        check_values(name, "audio.bytes", |i| (i % 5 < 3).then(|| value(i)));
        check_values(name, "audio.path", |i| (i % 5 != 3).then(|| format!("{i}.flac").into_bytes()));
    }
}

#[test]
fn every_value_of_a_flat_audio_column_is_read_at_random() {
    for name in FLAT {
        check_values(name, "audio_data", |i| Some(value(i)));
    }
    for name in REPEATED {
        check_values(name, "audio_data", |i| Some(value(i % 6)));
    }
}

#[test]
fn the_files_have_several_pages_and_dictionaries_where_they_should() {
    for name in NESTED.iter().chain(&FLAT) {
        let column = if name.starts_with("flat") { "audio_data" } else { "audio.bytes" };
        let pages = addresses(&file(name), column).1;
        assert!(pages.num_pages() > 4, "{name} has {} pages", pages.num_pages());
    }
    let uses_dictionary = |name, column| {
        let pages = addresses(&file(name), column).1;
        let spans: Vec<bool> = (0..pages.num_pages()).map(|page| pages.dictionary_span(page).is_some()).collect();
        (spans.contains(&true), spans.contains(&false))
    };
    assert_eq!(uses_dictionary("nested_fallback", "audio.bytes"), (true, true));
    assert_eq!(uses_dictionary("flat_dictionary", "audio_data"), (true, false));
    assert_eq!(uses_dictionary("flat_index_dictionary", "audio_data"), (true, false));
    assert_eq!(uses_dictionary("nested_snappy", "audio.bytes"), (false, true));
}

#[test]
fn texts_and_numbers_come_with_addresses_row_by_row() {
    let columns = [
        wanted("duration", WantedForm::Number),
        wanted("audio.bytes", WantedForm::Address),
        wanted("text", WantedForm::Text),
    ];
    for name in NESTED {
        let (rows, pages) = rows(&file(name), &columns).unwrap();
        let mut out = Vec::new();
        for (i, row) in (0..).zip(&rows) {
            assert_eq!(row[0], OwnedCell::Number(i as f64 * 0.25), "{name}: row {i}");
            let expected = if i % 7 == 2 { OwnedCell::Null } else { OwnedCell::Text(text(i)) };
            assert_eq!(row[2], expected, "{name}: row {i}");
            let OwnedCell::Bytes(address) = row[1] else { continue };
            pages.read_value(&file(name), address, &mut out).unwrap();
            assert_eq!(out, value(i), "{name}: row {i}");
        }
    }
}

#[test]
fn text_that_is_not_marked_as_text_is_read_as_text() {
    for name in FLAT.iter().chain(&REPEATED) {
        let columns = [wanted("text", WantedForm::Text), wanted("utt", WantedForm::Text)];
        let (rows, _) = rows(&file(name), &columns).unwrap();
        for (i, row) in (0..).zip(&rows) {
            assert_eq!(row[..], [OwnedCell::Text(text(i)), OwnedCell::Text(format!("utt{i}"))], "{name}: row {i}");
        }
    }
}

#[test]
fn bytes_that_are_not_text_are_a_fault_when_read_as_text() {
    let found = rows(&file("flat_none"), &[wanted("audio_data", WantedForm::Text)]);
    assert!(matches!(found, Err(ShardFault::Damaged { .. })), "{found:?}");
}

#[test]
fn numbers_of_every_width_are_read() {
    let names = ["i32", "u32", "i64", "u64", "f32", "f64"];
    let columns = names.map(|name| wanted(name, WantedForm::Number));
    for name in ["numbers", "numbers_v2"] {
        let (rows, _) = rows(&file(name), &columns).unwrap();
        for (i, row) in (0..).zip(rows) {
            let at = i as f64;
            let i64s = if i % 4 == 1 { OwnedCell::Null } else { OwnedCell::Number(-(2_f64.powi(40)) * at) };
            let u64s = (2_u64.pow(63) + 2_u64.pow(20) * i) as f64;
            let expected = [
                OwnedCell::Number(at - 30.0),
                OwnedCell::Number(2_f64.powi(32) - 1.0 - at),
                i64s,
                OwnedCell::Number(u64s),
                OwnedCell::Number(at * 0.5),
                OwnedCell::Number(at * 0.25),
            ];
            assert_eq!(row, expected, "{name}: row {i}");
        }
    }
}

#[test]
fn columns_have_dotted_names_and_kinds() {
    let check = |name, expected: &[(&str, ColumnKind)]| {
        let table = ParquetTable::open(Arc::new(file(name))).unwrap();
        let found: Vec<_> = table.columns().iter().map(|column| (column.name.as_str(), column.kind)).collect();
        assert_eq!(found, expected, "{name}");
        assert_eq!(table.num_rows(), ROWS);
    };
    use ColumnKind::{Bytes, Number, Other, Text};
    check("nested_none", &[("audio.bytes", Bytes), ("audio.path", Text), ("text", Text), ("duration", Number)]);
    check("flat_none", &[("utt", Text), ("audio_data", Bytes), ("text", Bytes)]);
    let table = ParquetTable::open(Arc::new(file("numbers"))).unwrap();
    let others: Vec<_> = table.columns().iter().filter(|column| column.kind != Number).collect();
    let others: Vec<_> = others.iter().map(|column| (column.name.as_str(), column.kind, column.type_name)).collect();
    assert_eq!((table.columns().len(), &others[..]), (8, &[("day", Other, "DATE"), ("words", Other, "LIST")][..]));
}

#[test]
fn what_cannot_be_read_is_refused_with_advice() {
    let check = |name, column, form, advice: &str| match rows(&file(name), &[wanted(column, form)]) {
        Err(ShardFault::Unsupported { reason }) => assert!(reason.contains(advice), "{reason}"),
        other => panic!("{name} {column}: {other:?}"),
    };
    check("flat_brotli", "audio_data", WantedForm::Address, "write the file again with zstd");
    check("flat_none", "audio", WantedForm::Address, "expected a column `audio`, found `utt`, `audio_data`, `text`");
    check("flat_none", "utt", WantedForm::Number, "column `utt`: expected numbers, found STRING");
    check("numbers", "words", WantedForm::Text, "column `words`: expected text, found LIST");
    check("numbers", "day", WantedForm::Number, "column `day`: expected numbers, found DATE");
    check("numbers", "i32", WantedForm::Address, "column `i32`: expected byte strings, found INT32");
    assert!(matches!(rows(&file("flat_none"), &[]), Err(ShardFault::Unsupported { .. })));
}

#[test]
fn a_visitor_that_breaks_sees_no_more_rows() {
    let table = ParquetTable::open(Arc::new(file("nested_snappy"))).unwrap();
    let mut seen = Vec::new();
    let columns = [wanted("audio.bytes", WantedForm::Address)];
    let result = table.rows(&columns, &mut PageTable::default(), &mut |row, _| {
        seen.push(row);
        if row == 45 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    result.unwrap();
    assert_eq!(seen, (0..=45).collect::<Vec<_>>());
}

#[test]
fn with_an_offset_index_only_the_last_page_is_looked_at() {
    for name in ["flat_index", "flat_index_dictionary"] {
        let reader = Watched::new(&file(name));
        rows_of(reader.clone(), &[wanted("audio_data", WantedForm::Address)]).unwrap();
        let reads = reader.reads();
        // The footer, and for each of two row groups the index and a header.
        assert_eq!(reads.len(), 2 + 2 * 2, "{name}: {reads:?}");
        let data = reads.iter().filter(|read| read.start < data_end(&file(name)));
        assert!(
            data.clone().count() == 2 && data.clone().all(|read| read.end - read.start <= 256),
            "{name}: {reads:?}"
        );
    }
}

/// Where the last column chunk ends.
fn data_end(bytes: &[u8]) -> u64 {
    let metadata = metadata(bytes);
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    chunks.map(|chunk| chunk.byte_range()).map(|(start, size)| start + size).max().unwrap()
}

#[test]
fn an_offset_index_that_lies_never_leads_to_a_wrong_value() {
    let bytes = file("flat_index");
    let expected = addresses(&bytes, "audio_data").1;
    let mut out = Vec::new();
    for (group, change) in [(0, 0x15), (1, 0x15), (0, 2), (1, 2)] {
        let index = metadata(&bytes).row_group(group).column(1).offset_index_range().unwrap();
        for at in index {
            let mut changed = bytes.clone();
            changed[at as usize] ^= change;
            let (addresses, pages) = addresses(&changed, "audio_data");
            for page in 0..expected.num_pages() {
                assert_eq!(pages.span(page), expected.span(page), "byte {at}");
            }
            for (i, address) in (0..).zip(&addresses) {
                match pages.read_value(&changed, address.unwrap(), &mut out) {
                    Ok(()) => assert_eq!(out, value(i), "byte {at}"),
                    Err(fault) => assert!(change == 2, "byte {at} is seen to be wrong: {fault}"),
                }
            }
        }
    }
}

#[test]
fn a_value_takes_one_read_and_its_dictionary_another_once() {
    let check = |name, column, wanted: &[usize], expected| {
        let reader = Watched::new(&file(name));
        let (places, pages) = addresses(&file(name), column);
        let mut out = Vec::new();
        for i in wanted {
            pages.read_value(&*reader, places[*i].unwrap(), &mut out).unwrap();
        }
        assert_eq!(reader.reads().len(), expected, "{name}");
    };
    check("nested_snappy", "audio.bytes", &[45], 1);
    // Four pages and a dictionary.
    check("flat_dictionary", "audio_data", &[1, 30, 2, 39], 5);
}

#[test]
fn an_address_that_has_no_value_is_a_fault() {
    let bytes = file("nested_zstd_v2");
    let (places, pages) = addresses(&bytes, "audio.bytes");
    let mut out = Vec::new();
    let first = places[2].unwrap();
    let null = ValueAddress { extent: first.extent + 1, ..first };
    assert!(matches!(pages.read_value(&bytes, null, &mut out), Err(ShardFault::Damaged { .. })));
    for address in [ValueAddress { extent: 1000, ..first }, ValueAddress { position: 1000, ..first }] {
        assert!(matches!(pages.read_value(&bytes, address, &mut out), Err(ShardFault::Damaged { .. })));
    }
    assert!(pages.value_in(&bytes[..10], None, first, &mut out).is_err());
}
