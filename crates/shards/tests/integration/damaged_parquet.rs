//! Parquet files with changed bytes. They may be refused; they must not panic, and no address leaves the file.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

use std::ops::ControlFlow;
use std::sync::Arc;

use ::parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataWriter};
use proptest::prelude::*;
use proptest::sample::Index;
use tandem_shards::{Cell, PageTable, ParquetTable, ShardFault, ValueAddress, WantedForm};

use crate::damage::{cases, changes, damaged};
use crate::parquet::{FLAT, NESTED, REPEATED, file, metadata, rows, wanted};
use crate::support::Watched;

/// The file with a footer whose row group `group` claims `claimed` rows, and the file as many as add up.
fn with_claimed_rows(bytes: &[u8], group: usize, claimed: i64) -> Vec<u8> {
    let old = metadata(bytes);
    let groups = old.row_groups().iter().enumerate().map(|(number, found)| {
        let rows = if number == group { claimed } else { found.num_rows() };
        found.clone().into_builder().set_num_rows(rows).build().unwrap()
    });
    let groups: Vec<_> = groups.collect();
    let info = old.file_metadata();
    let sum = groups.iter().map(|group| group.num_rows()).sum();
    let created_by = info.created_by().map(str::to_owned);
    let info = FileMetaData::new(info.version(), sum, created_by, None, info.schema_descr_ptr(), None);
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(info, groups)).finish().unwrap();
    [split_footer(bytes).0, &footer].concat()
}

/// The data of a file and its footer, without the length and the magic number.
fn split_footer(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (rest, tail) = bytes.split_at(bytes.len() - 8);
    let size = u32::from_le_bytes(*tail.first_chunk::<4>().unwrap());
    rest.split_at(rest.len() - size as usize)
}

#[test]
fn a_row_group_that_lies_about_its_rows_is_a_fault() {
    for name in ["nested_snappy", "nested_zstd_v2", "flat_none", "flat_index"] {
        let (bytes, column) = (file(name), if name.starts_with("flat") { "audio_data" } else { "audio.bytes" });
        for form in [WantedForm::Address, WantedForm::Text] {
            let column = if form == WantedForm::Text { "text" } else { column };
            rows(&with_claimed_rows(&bytes, 0, 40), &[wanted(column, form)]).unwrap();
            for claimed in [0, 1, 39, 41, 1_000_000_000_000] {
                match rows(&with_claimed_rows(&bytes, 0, claimed), &[wanted(column, form)]) {
                    Err(ShardFault::Damaged { reason, .. }) => assert!(reason.contains("claims"), "{reason}"),
                    other => panic!("{name} {column} with {claimed}: {:?}", other.map(|(rows, _)| rows.len())),
                }
            }
        }
    }
}

/// Does everything with a file that may be damaged. Nothing outside it is read or pointed to.
fn check_anything(bytes: &[u8]) -> Result<(), TestCaseError> {
    let num_bytes = bytes.len() as u64;
    let reader = Watched::new(bytes);
    let Ok(table) = ParquetTable::open(reader.clone()) else { return Ok(()) };
    prop_assert!(table.num_rows() <= num_bytes);
    let mut pages = PageTable::default();
    let mut places = Vec::new();
    for column in table.columns() {
        for form in [WantedForm::Text, WantedForm::Number, WantedForm::Address] {
            let mut num_rows = 0;
            let _ = table.rows(&[wanted(&column.name, form)], &mut pages, &mut |_, cells| {
                num_rows += 1;
                if let [Cell::Bytes(address)] = cells {
                    places.push(*address);
                }
                ControlFlow::Continue(())
            });
            prop_assert!(num_rows <= table.num_rows());
        }
    }
    prop_assert!(pages.check(num_bytes).is_ok());
    prop_assert_eq!(&PageTable::decode(&pages.encode()).unwrap(), &pages);
    let mut out = Vec::new();
    for place in places {
        prop_assert!(pages.span(place.position).is_some_and(|span| span.end <= num_bytes), "{place:?}");
        let _ = pages.read_value(&*reader, place, &mut out);
    }
    prop_assert!(reader.reads().iter().all(|read| read.end <= num_bytes));
    Ok(())
}

/// The name of a file.
fn any_file() -> impl Strategy<Value = &'static str> {
    let names = NESTED.iter().chain(&FLAT).chain(&REPEATED).chain(&["numbers", "numbers_v2"]);
    prop::sample::select(names.copied().collect::<Vec<_>>())
}

fn any_file_with_bytes() -> impl Strategy<Value = &'static str> {
    any_file().prop_filter("it has no byte column", |name| !name.starts_with("numbers"))
}

/// All pages of all byte columns.
fn pages_of(bytes: &[u8]) -> PageTable {
    let table = ParquetTable::open(Arc::new(bytes.to_vec())).unwrap();
    let mut pages = PageTable::default();
    for column in table.columns() {
        let _ =
            table.rows(&[wanted(&column.name, WantedForm::Address)], &mut pages, &mut |_, _| ControlFlow::Continue(()));
    }
    pages
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn a_damaged_file_gives_only_pages_inside_it(name in any_file(), other in any_file(), changes in changes()) {
        check_anything(&damaged(&file(name), &file(other), &changes))?;
    }

    /// The footer is where sizes and counts are claimed. Its length stays right.
    #[test]
    fn a_damaged_footer_gives_only_pages_inside_the_file(name in any_file(), other in any_file(), changes in changes()) {
        let (bytes, other) = (file(name), file(other));
        let (data, footer) = split_footer(&bytes);
        let footer = damaged(footer, split_footer(&other).1, &changes);
        check_anything(&[data, &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat())?;
    }

    /// A page has about thirty bytes of header and, if it is not of version 2, its levels behind it.
    #[test]
    fn a_damaged_page_header_gives_only_pages_inside_the_file(name in any_file_with_bytes(), page: Index, other in any_file(), changes in changes()) {
        let (bytes, other) = (file(name), file(other));
        let pages = pages_of(&bytes);
        let start = pages.span(page.index(pages.num_pages() as usize) as u64).unwrap().start as usize;
        let end = bytes.len().min(start + 40);
        let header = damaged(&bytes[start..end], &other[4..44], &changes);
        let mut changed = bytes.clone();
        // Positions in the footer stay right: only as many bytes change as there were.
        let size = header.len().min(end - start);
        changed[start..start + size].copy_from_slice(&header[..size]);
        check_anything(&changed)?;
    }

    #[test]
    fn a_damaged_page_table_is_another_one_or_a_fault(
        name in any_file(),
        changes in changes(),
        place in (0_u64..40, 0_u32..40),
    ) {
        let bytes = file(name);
        let encoded = damaged(&pages_of(&bytes).encode(), b"TPT1", &changes);
        let Ok(table) = PageTable::decode(&encoded) else { return Ok(()) };
        prop_assert_eq!(&table.encode(), &encoded);
        let num_bytes = bytes.len() as u64;
        let is_inside = (0..table.num_pages()).all(|page| {
            let spans = [table.span(page), table.dictionary_span(page)];
            spans.into_iter().flatten().all(|span| span.start <= span.end && span.end <= num_bytes)
        });
        prop_assert!(is_inside || table.check(num_bytes).is_err());
        // The file is not that of the table, as far as the table knows.
        let reader = Watched::new(&bytes);
        let _ = table.read_value(&*reader, ValueAddress { position: place.0, extent: place.1 }, &mut Vec::new());
        prop_assert!(reader.reads().iter().all(|read| read.end <= num_bytes));
    }

    #[test]
    fn a_page_table_of_any_bytes_is_a_table_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for bytes in [bytes.clone(), [b"TPT1\x01\0\0\0\x01\0\0\0".as_slice(), &bytes].concat()] {
            let Ok(table) = PageTable::decode(&bytes) else { continue };
            prop_assert_eq!(&table.encode(), &bytes);
        }
    }
}
