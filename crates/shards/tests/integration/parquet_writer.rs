//! What `ParquetShardWriter` writes.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

use std::io::{self, Write};
use std::sync::Arc;

use tandem_shards::{ParquetRow, ParquetShardWriter, ParquetTable, ShardFault, WantedForm};

use crate::parquet::{addresses, metadata, rows, value, wanted};
use crate::support::OwnedCell;

/// Row `i` of a shard; every third one has a speaker.
fn with_row<T>(i: usize, audio: &[u8], use_row: impl FnOnce(&ParquetRow<'_>) -> T) -> T {
    let (id, text, path) = (format!("id{i}"), format!("text {i}"), format!("{i}.wav"));
    use_row(&ParquetRow {
        id: &id,
        text: &text,
        speaker: i.is_multiple_of(3).then_some("anna"),
        language: (i > 5).then_some("de"),
        duration_s: i as f64 / 8.0,
        audio,
        path: &path,
    })
}

fn write(recordings: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = ParquetShardWriter::new(Vec::new()).unwrap();
    for (i, audio) in recordings.iter().enumerate() {
        with_row(i, audio, |row| writer.append(row)).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let recordings: Vec<Vec<u8>> = (0..250).map(value).collect();
    let bytes = write(&recordings);
    assert_eq!(bytes, write(&recordings), "the same rows make the same bytes");
    let columns = [
        wanted("id", WantedForm::Text),
        wanted("text", WantedForm::Text),
        wanted("speaker", WantedForm::Text),
        wanted("language", WantedForm::Text),
        wanted("duration", WantedForm::Number),
        wanted("audio.path", WantedForm::Text),
        wanted("audio.bytes", WantedForm::Address),
    ];
    let (rows, pages) = rows(&bytes, &columns).unwrap();
    assert_eq!(rows.len(), 250);
    let mut out = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let optional = |value: &str, is_there| if is_there { OwnedCell::Text(value.into()) } else { OwnedCell::Null };
        let expected = [
            OwnedCell::Text(format!("id{i}")),
            OwnedCell::Text(format!("text {i}")),
            optional("anna", i.is_multiple_of(3)),
            optional("de", i > 5),
            OwnedCell::Number(i as f64 / 8.0),
            OwnedCell::Text(format!("{i}.wav")),
        ];
        assert_eq!(row[..6], expected);
        let OwnedCell::Bytes(address) = row[6] else { panic!("{row:?}") };
        pages.read_value(&bytes, address, &mut out).unwrap();
        assert_eq!(out, recordings[i]);
    }
}

#[test]
fn row_groups_are_small_and_large_recordings_have_their_own_pages() {
    let many = metadata(&write(&vec![vec![7; 10]; 250]));
    assert_eq!(many.row_groups().iter().map(|group| group.num_rows()).collect::<Vec<_>>(), [100, 100, 50]);

    let large = write(&vec![vec![7; 3 << 20]; 30]);
    let groups = metadata(&large);
    assert_eq!(groups.row_groups().iter().map(|group| group.num_rows()).collect::<Vec<_>>(), [21, 9]);
    let (places, pages) = addresses(&large, "audio.bytes");
    assert_eq!(pages.num_pages(), 30);
    assert!(places.iter().all(|place| place.is_some_and(|place| place.extent == 0)));

    let (_, pages) = addresses(&write(&vec![vec![7; 300_000]; 80]), "audio.bytes");
    let sizes = (0..pages.num_pages()).map(|page| pages.span(page).unwrap()).map(|span| span.end - span.start);
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.iter().all(|size| *size < 1_400_000), "a page ends after a mebibyte: {sizes:?}");

    let keys = groups.file_metadata().key_value_metadata().unwrap();
    let features = keys.iter().find(|pair| pair.key == "huggingface").unwrap();
    assert!(features.value.as_ref().unwrap().contains(r#""audio": {"_type": "Audio"}"#));
}

#[test]
fn a_shard_without_rows_is_a_file_without_rows() {
    let table = ParquetTable::open(Arc::new(write(&[]))).unwrap();
    assert_eq!(table.num_rows(), 0);
    assert_eq!(table.columns().len(), 7);
}

/// Takes `left` bytes, then is full.
struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_of_its_own_kind() {
    let write = |left| {
        let mut writer = ParquetShardWriter::new(Full { left })?;
        (0..150).try_for_each(|i| with_row(i, &[1; 100_000], |row| writer.append(row)))?;
        writer.finish().map(drop)
    };
    write(20_000_000).unwrap();
    for left in [0, 1_000_000, 14_000_000] {
        match write(left) {
            Err(ShardFault::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error:?}"),
            other => panic!("{left}: {other:?}"),
        }
    }
}
