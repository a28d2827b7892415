//! Arrow files that pyarrow wrote, and damaged ones.

use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use tandem_shards::{ArrowTable, Cell, ColumnKind, ShardFault, ValueAddress};

use crate::damage::{cases, changes, damaged};
use crate::support::{OwnedCell, Watched, text};

const STREAM: &[u8] = include_bytes!("../data/speech_stream.arrow");
const FILE: &[u8] = include_bytes!("../data/speech_file.arrow");
const LEGACY: &[u8] = include_bytes!("../data/speech_legacy.arrow");
const TYPES: &[u8] = include_bytes!("../data/types.arrow");
const TYPES_V4: &[u8] = include_bytes!("../data/types_v4.arrow");
const CODED: &[u8] = include_bytes!("../data/coded.arrow");
const LISTS: &[u8] = include_bytes!("../data/lists.arrow");
const COMPRESSED: &[u8] = include_bytes!("../data/compressed.arrow");
const BIG_ENDIAN: &[u8] = include_bytes!("../data/big_endian.arrow");

const NUM_ROWS: u64 = 40;
const COLUMNS: [&str; 6] = ["audio.bytes", "id", "text", "audio.path", "duration", "speaker"];

fn open(bytes: &[u8]) -> Result<ArrowTable, ShardFault> {
    ArrowTable::open(Arc::new(bytes.to_vec()))
}

/// All rows that come, and the fault that ends them.
fn rows(table: &ArrowTable, wanted: &[&str]) -> (Vec<Vec<OwnedCell>>, Option<ShardFault>) {
    let mut found = Vec::new();
    let result = table.rows(wanted, &mut |row, cells| {
        assert_eq!(row, found.len() as u64);
        found.push(cells.iter().map(OwnedCell::from).collect());
        ControlFlow::Continue(())
    });
    (found, result.err())
}

fn column(bytes: &[u8], name: &str) -> Vec<OwnedCell> {
    match open(bytes).map(|table| rows(&table, &[name])) {
        Ok((rows, None)) => rows.into_iter().flatten().collect(),
        Ok((_, Some(fault))) | Err(fault) => panic!("{name}: {fault}"),
    }
}

/// What `make_tar_arrow.py` writes into the rows of the speech files.
fn check_speech_row(bytes: &[u8], i: u64, values: &[OwnedCell]) {
    let audio_is_null = i % 7 == 5;
    match &values[0] {
        OwnedCell::Null => assert!(audio_is_null || i % 7 == 6, "{i}"),
        OwnedCell::Bytes(ValueAddress { position, extent }) => {
            let expected: Vec<u8> = (0..i * 37 % 200).map(|k| ((i * 31 + k * 7) % 251) as u8).collect();
            assert_eq!(bytes[*position as usize..][..*extent as usize], expected, "{i}");
        }
        other => panic!("{i}: {other:?}"),
    }
    assert_eq!(values[1], text(&format!("utt{i}")));
    assert_eq!(values[2], if i % 5 == 3 { OwnedCell::Null } else { text(&format!("text number {i} é")) });
    assert_eq!(values[3], if audio_is_null { OwnedCell::Null } else { text(&format!("{i}.wav")) });
    assert_eq!(values[4], OwnedCell::Number(i as f64 / 4.0));
    assert_eq!(values[5], OwnedCell::Number((i % 3) as f64));
}

#[test]
fn streams_files_and_old_streams_have_the_same_rows() {
    for bytes in [STREAM, FILE, LEGACY] {
        let table = open(bytes).unwrap();
        assert_eq!(table.num_rows(), None);
        let (rows, fault) = rows(&table, &COLUMNS);
        assert!(fault.is_none(), "{fault:?}");
        assert_eq!((rows.len() as u64, table.num_rows()), (NUM_ROWS, Some(NUM_ROWS)));
        for (i, values) in rows.iter().enumerate() {
            check_speech_row(bytes, i as u64, values);
        }
    }
}

#[test]
fn fields_of_structs_are_columns_and_lists_are_one() {
    let table = open(STREAM).unwrap();
    let columns: Vec<_> = table.columns().iter().map(|column| (column.name.as_str(), column.kind)).collect();
    assert_eq!(
        columns,
        [
            ("id", ColumnKind::Text),
            ("tags", ColumnKind::Other),
            ("audio.bytes", ColumnKind::Bytes),
            ("audio.path", ColumnKind::Text),
            ("text", ColumnKind::Text),
            ("duration", ColumnKind::Number),
            ("speaker", ColumnKind::Number),
        ]
    );
}

#[test]
fn bytes_of_recordings_and_other_columns_are_not_read() {
    let watched = Watched::new(STREAM);
    let table = ArrowTable::open(watched.clone()).unwrap();
    let (rows, _) = rows(&table, &["audio.bytes", "id"]);
    let reads = watched.reads();
    let mut num_values = 0;
    for values in rows {
        let OwnedCell::Bytes(ValueAddress { position, extent }) = values[0] else { continue };
        let value = position..position + u64::from(extent);
        assert!(reads.iter().all(|read| read.end <= value.start || value.end <= read.start), "{value:?}");
        num_values += 1;
    }
    assert_eq!(num_values, 30);
    let other = STREAM.windows(11).position(|window| window == b"text number").unwrap() as u64;
    assert!(reads.iter().all(|read| !read.contains(&other)));
}

#[test]
fn a_visit_that_breaks_ends_the_walk() {
    let watched = Watched::new(STREAM);
    let table = ArrowTable::open(watched.clone()).unwrap();
    let mut last = None;
    table
        .rows(&["id"], &mut |row, _| {
            last = Some(row);
            if row == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((last, table.num_rows()), (Some(3), None));
    let furthest = watched.reads().iter().map(|read| read.end).max().unwrap();
    assert!(furthest < STREAM.len() as u64 / 2, "{furthest}");
}

#[test]
fn every_type_has_its_buffers_so_that_the_last_column_is_right() {
    for bytes in [TYPES, TYPES_V4] {
        let expected: Vec<OwnedCell> = (0..5).map(|i| text(&format!("last {i}"))).collect();
        assert_eq!(column(bytes, "last"), expected);
        let words: Vec<OwnedCell> = (0..5).map(|i| text(&format!("word {i}"))).collect();
        assert_eq!(column(bytes, "large_text"), words);
        for (i, value) in column(bytes, "large_bytes").iter().enumerate() {
            let OwnedCell::Bytes(ValueAddress { position, extent }) = value else { panic!("{value:?}") };
            assert_eq!(bytes[*position as usize..][..*extent as usize], *format!("word {i}").as_bytes());
        }
        assert_eq!(column(bytes, "coded"), [text("b"), text("a"), OwnedCell::Null, text("b"), text("c")]);
        let leaf = [0.0, 3.0, 4.0].map(OwnedCell::Number);
        let [first, fourth, fifth] = leaf;
        assert_eq!(column(bytes, "outer.inner.leaf"), [first, OwnedCell::Null, OwnedCell::Null, fourth, fifth]);
    }
}

#[test]
fn numbers_of_all_widths() {
    let check = |name: &str, factor: f64| {
        let expected: Vec<OwnedCell> = (0..5).map(|i| OwnedCell::Number(f64::from(i) * factor)).collect();
        assert_eq!(column(TYPES, name), expected, "{name}");
    };
    for bits in [8, 16, 32, 64] {
        check(&format!("int{bits}"), -3.0);
        check(&format!("uint{bits}"), 3.0);
    }
    check("float16", -1.5);
    check("float32", -1.5);
}

#[test]
fn types_that_are_not_read_cannot_be_asked_for() {
    let table = open(TYPES).unwrap();
    for name in ["null", "bool", "decimal", "date", "text_view", "bytes_view", "map", "dense", "runs", "coded_numbers"]
    {
        let found = table.columns().iter().find(|column| column.name == name).unwrap();
        assert_eq!(found.kind, ColumnKind::Other, "{name}");
        let (rows, fault) = rows(&table, &[name]);
        assert!(rows.is_empty());
        assert!(matches!(fault, Some(ShardFault::Unsupported { .. })), "{name}: {fault:?}");
    }
}

#[test]
fn dictionaries_grow_and_are_replaced() {
    let expected = ["anna", "bert", "", "dora", "anna", "carl", "emil", "fritz"];
    let expected = expected.map(|name| if name.is_empty() { OwnedCell::Null } else { text(name) });
    assert_eq!(column(CODED, "speaker"), expected);
}

/// The text of row `i` of the lists, as `make_tar_arrow.py` cuts it into characters.
fn list_text(i: u64) -> OwnedCell {
    match i % 6 {
        3 => text(&format!("tëxt {i} 你好😀end")),
        4 => OwnedCell::Null,
        5 => text(""),
        _ => text(&format!("tëxt {i} 你好😀")),
    }
}

#[test]
fn a_list_of_strings_is_read_as_one_text() {
    let texts: Vec<OwnedCell> = (0..18).map(list_text).collect();
    for name in ["text", "large", "large_items"] {
        assert_eq!(column(LISTS, name), texts, "{name}");
    }
    let in_struct = (0..18).map(|i| if i % 4 == 1 { OwnedCell::Null } else { list_text(i) });
    assert_eq!(column(LISTS, "struct.text"), in_struct.collect::<Vec<_>>());
    // The item between them is null, and its byte is in the file.
    assert_eq!(column(LISTS, "hidden"), vec![text("xz"); 18]);
    assert_eq!(column(LISTS, "last"), (0..18).map(|i| text(&format!("last {i}"))).collect::<Vec<_>>());
    for bytes in [TYPES, TYPES_V4] {
        assert_eq!(column(bytes, "large_list"), (0..5).map(|i| text(&format!("word {i}"))).collect::<Vec<_>>());
    }
}

#[test]
fn only_lists_of_plain_strings_are_text() {
    let table = open(LISTS).unwrap();
    let columns: Vec<_> = table.columns().iter().map(|column| (column.name.as_str(), column.kind)).collect();
    let texts = ["text", "large", "large_items", "hidden", "struct.text"].map(|name| (name, ColumnKind::TextList));
    let others = ["nested", "structs", "fixed", "coded", "bytes", "numbers"].map(|name| (name, ColumnKind::Other));
    let strings = ["audio_path", "last"].map(|name| [(name, ColumnKind::Text)]);
    assert_eq!(columns, [&strings[0][..], &texts, &others, &strings[1]].concat());
    for (name, _) in others {
        let (found, fault) = rows(&table, &[name]);
        assert!(found.is_empty() && matches!(fault, Some(ShardFault::Unsupported { .. })), "{name}: {fault:?}");
    }
}

#[test]
fn a_list_that_ends_after_the_last_item_is_a_fault() {
    // The first batch's lists have 63 items in all.
    let offsets = [0_i32, 10, 20, 30, 43, 43, 43, 53, 63].map(i32::to_le_bytes).concat();
    let place = LISTS.windows(offsets.len()).position(|window| window == offsets).unwrap();
    let check = |at: usize, offset: i32, expected: &str| {
        let mut bytes = LISTS.to_vec();
        bytes[place + at * 4..][..4].copy_from_slice(&offset.to_le_bytes());
        let (found, fault) = rows(&open(&bytes).unwrap(), &["text"]);
        let fault = fault.unwrap();
        assert!(matches!(fault, ShardFault::Damaged { offset, .. } if offset == place as u64), "{fault}");
        assert!(found.is_empty() && fault.to_string().contains(expected), "{fault}");
    };
    check(8, 64, "expected offset 8 between 53 and 63, found 64");
    check(2, i32::MAX, "expected offset 2 between 10 and 63, found 2147483647");
    check(2, 9, "expected offset 2 between 10 and 63, found 9");
    check(2, -1, "offset 2 is missing or negative");
}

#[test]
fn what_cannot_be_read_is_refused_with_a_reason() {
    let check = |bytes: &[u8], wanted: &[&str], expected: &str| {
        let fault = open(bytes).and_then(|table| match rows(&table, wanted) {
            (found, None) => panic!("{expected}: {} rows", found.len()),
            (_, Some(fault)) => Err::<(), _>(fault),
        });
        let fault = fault.unwrap_err().to_string();
        assert!(fault.contains(expected), "{fault}");
    };
    check(COMPRESSED, &["id"], "write the file without it");
    check(BIG_ENDIAN, &["id"], "found big-endian");
    check(STREAM, &["audio"], "expected a column `audio`, found `id`, `tags`, `audio.bytes`, `audio.path`, `text`");
    check(STREAM, &["tags"], "column `tags`: expected text, numbers or bytes, found List");
    check(STREAM, &[], "expected the name of a column to read, found none");
    check(b"", &["id"], "expected an Arrow file or stream, found an empty file");
    check(b"short", &["id"], "expected an Arrow file or stream, found 5 bytes");
    check(&[b'x'; 2000], &["id"], "expected an Arrow file or stream: ");
    check(b"\xff\xff\xff\xff\0\0\0\0", &["id"], "expected the schema of an Arrow file, found its end");
    check(b"ARROW1\0\0", &["id"], "expected an Arrow file or stream: expected a message, found the end of the file");
}

#[test]
fn text_that_is_not_utf_8_is_a_fault() {
    let mut bytes = STREAM.to_vec();
    let place = bytes.windows(5).position(|window| window == b"utt12").unwrap();
    bytes[place] = 0xFF;
    let (found, fault) = rows(&open(&bytes).unwrap(), &["id"]);
    assert_eq!(found.len(), 12);
    assert!(fault.unwrap().to_string().contains("expected UTF-8 text in row 12"));
}

#[test]
fn a_file_cut_anywhere_gives_the_rows_of_its_complete_batches_and_a_fault() {
    let (all, _) = rows(&open(STREAM).unwrap(), &COLUMNS);
    let mut seen = Vec::new();
    for size in 0..STREAM.len() {
        let Ok(table) = open(&STREAM[..size]) else { continue };
        let (found, fault) = rows(&table, &COLUMNS);
        assert_eq!(found, all[..found.len()], "{size}");
        // Without the end-of-stream marker, a stream may end after any message.
        assert!(fault.is_some() || [0, 20, 37, 40].contains(&found.len()), "{size}");
        if let Some(fault) = fault {
            assert!(matches!(fault, ShardFault::Damaged { offset, .. } if offset <= size as u64), "{size}: {fault}");
        }
        if seen.last() != Some(&found.len()) {
            seen.push(found.len());
        }
    }
    assert_eq!(seen, [0, 20, 37, 40]);
}

#[test]
fn a_file_without_its_footer_and_end_marker_is_cut_short() {
    let marker = FILE.windows(8).rposition(|window| window == b"\xff\xff\xff\xff\0\0\0\0").unwrap();
    let (found, fault) = rows(&open(&FILE[..marker]).unwrap(), &["id"]);
    assert_eq!(found.len() as u64, NUM_ROWS);
    assert!(matches!(fault, Some(ShardFault::Damaged { .. })), "{fault:?}");
}

/// Reads anything with all columns; every address lies inside the file, and no read is larger than the file.
fn check_anything(bytes: &[u8]) -> Result<(), TestCaseError> {
    let watched = Watched::new(bytes);
    let Ok(table) = ArrowTable::open(watched.clone()) else { return Ok(()) };
    let readable = table.columns().iter().filter(|column| column.kind != ColumnKind::Other);
    let names: Vec<String> = readable.map(|column| column.name.clone()).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let alone = all.iter().map(std::slice::from_ref);
    for wanted in alone.chain([all.as_slice()]) {
        let (mut num_rows, mut is_outside) = (0usize, false);
        let _ = table.rows(wanted, &mut |_, cells| {
            num_rows += 1;
            for cell in cells {
                if let Cell::Bytes(ValueAddress { position, extent }) = cell {
                    let end = position.checked_add(u64::from(*extent));
                    is_outside |= end.is_none_or(|end| end > bytes.len() as u64);
                }
            }
            ControlFlow::Continue(())
        });
        prop_assert!(!is_outside);
        // A row has a byte and more in the body of its own batch.
        prop_assert!(num_rows <= bytes.len());
    }
    prop_assert!(watched.reads().iter().all(|read| read.end - read.start <= bytes.len() as u64));
    Ok(())
}

const ALL: [&[u8]; 8] = [STREAM, FILE, LEGACY, TYPES, TYPES_V4, CODED, LISTS, COMPRESSED];

/// Sizes, offsets and counts are words of four or eight bytes at multiples of four.
#[test]
fn every_word_of_a_file_may_lie() {
    for bytes in [CODED, &STREAM[..3000], LISTS] {
        for at in (0..bytes.len() - 8).step_by(4) {
            for lie in [&[0xFF; 4][..], &[0xFF, 0xFF, 0xFF, 0x7F], &[0xFF; 8], &[0, 0, 0, 0x10, 0, 0, 0, 0]] {
                let mut changed = bytes.to_vec();
                changed[at..at + lie.len()].copy_from_slice(lie);
                check_anything(&changed).unwrap_or_else(|error| panic!("byte {at} with {lie:?}: {error}"));
            }
        }
    }
}

#[test]
fn a_key_that_its_dictionary_does_not_have_is_a_fault() {
    // A byte is a key if nothing else goes wrong when it changes.
    let names = column(CODED, "speaker");
    let place = (0..CODED.len()).find(|place| {
        let mut changed = CODED.to_vec();
        changed[*place] = 100;
        let (found, fault) = open(&changed).map(|table| rows(&table, &["speaker"])).unwrap_or_default();
        let is_key =
            fault.is_some_and(|fault| fault.to_string().contains("expected a key of the dictionary, found 100"));
        is_key && found.iter().flatten().eq(&names[..found.len()])
    });
    assert!(place.is_some(), "no byte is a key");
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), is_message: bool) {
        check_anything(&bytes)?;
        if is_message {
            let size = (bytes.len() as u32).to_le_bytes();
            check_anything(&[&[0xFF; 4], &size[..], &bytes].concat())?;
        }
    }

    #[test]
    fn a_damaged_file_gives_only_addresses_inside_it((which, other) in (0..ALL.len(), 0..ALL.len()), changes in changes()) {
        check_anything(&damaged(ALL[which], ALL[other], &changes))?;
    }
}
