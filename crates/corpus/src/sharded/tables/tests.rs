//! Tables that pyarrow wrote, tables of our own writer, and rows with mistakes.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tandem_shards::{ParquetRow, ParquetShardWriter};
use tandem_storage::{ObjectLocation, Storage};

use super::super::scan::{LengthProbe, ProbedLength};
use super::*;
use crate::index::Length;
use crate::problem::ProblemKind;
use crate::sample::Samples;
use crate::shard::{ShardFile, ShardKind};

const PARQUET_ROWS: usize = 60;
const ARROW_ROWS: usize = 40;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shards/tests/data").join(name)
}

fn bytes_of(path: &Path) -> Arc<dyn ReadAt> {
    Arc::new(fs::read(path).unwrap())
}

/// As in `make_parquet.py`.
fn parquet_value(i: usize) -> Vec<u8> {
    (0..i * 37 % 200).map(|j| ((i * 31 + j * 7) % 256) as u8).collect()
}

/// As in `make_tar_arrow.py`.
fn arrow_value(i: usize) -> Vec<u8> {
    (0..i * 37 % 200).map(|j| ((i * 31 + j * 7) % 251) as u8).collect()
}

/// A recording has as many samples as bytes, and one more.
#[derive(Default)]
struct BytesProbe {
    measured: Mutex<Vec<Vec<u8>>>,
}

impl LengthProbe for BytesProbe {
    fn length(&self, mut recording: RecordingReader) -> Result<ProbedLength, String> {
        let mut bytes = Vec::new();
        recording.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let length = Length { num_samples: bytes.len() as u64 + 1, rate_hz: 1 };
        self.measured.lock().unwrap().push(bytes);
        Ok(ProbedLength { length, is_decoded: false })
    }
}

fn new_scan(probe: Option<&dyn LengthProbe>) -> ShardScan<'_> {
    ShardScan::new(Path::new("shard").into(), probe)
}

/// The rows with their recordings as a loader opens them.
fn opened(samples: Samples, path: &Path, kind: ShardKind) -> Vec<(String, Option<Vec<u8>>)> {
    let (location, storage) = (ObjectLocation::file(path), Storage::default());
    let shard = ShardFile::new(location.clone(), storage.stamp(&location).unwrap(), kind, storage);
    let mut all = Samples::new(Default::default());
    all.append_shard(samples, Arc::new(shard), Path::new("shard").into());
    let open = |audio: crate::locator::Locator<'_>| {
        let mut bytes = Vec::new();
        audio.open().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    all.iter().map(|(_, row)| (row.id.to_owned(), row.audio.piece.map(|_| open(row.audio)))).collect()
}

fn kinds(scan: &ShardScan<'_>) -> Vec<(Option<u32>, ProblemKind)> {
    scan.problems.iter().map(|problem| (problem.line, problem.kind)).collect()
}

#[test]
fn a_table_of_hugging_face_is_rows() {
    for name in
        ["nested_none", "nested_snappy", "nested_zstd_v2", "nested_index", "nested_fallback", "nested_delta_length"]
    {
        let path = fixture(&format!("{name}.parquet"));
        let mut scan = new_scan(None);
        let pages = scan_parquet(&bytes_of(&path), &ColumnNames::default(), "train-0.parquet", &mut scan).unwrap();
        // The file has no ids: names of recordings are. Row 0 says that it has no length.
        let mut expected = Vec::new();
        for i in 0..PARQUET_ROWS {
            expected.push(match (i % 5, i % 7) {
                (3, _) => Err(ProblemKind::MissingAudio),
                (_, 2) => Err(ProblemKind::EmptyText),
                _ if i == 0 => Err(ProblemKind::BadNumber),
                (4, _) => Ok(None),
                _ => Ok(Some(parquet_value(i))),
            });
        }
        let faults = expected
            .iter()
            .enumerate()
            .filter_map(|(i, row)| row.as_ref().err().map(|kind| (Some(i as u32 + 1), *kind)));
        assert_eq!(kinds(&scan), faults.collect::<Vec<_>>(), "{name}");
        for (_, row) in scan.samples.iter() {
            let i: usize = row.id.parse().unwrap();
            assert_eq!((row.audio.key, row.line), (format!("{i}.flac").as_str(), i as u32 + 1), "{name}");
            assert_eq!((row.text, row.duration_s), (format!("text {i} äö").as_str(), Some(i as f64 * 0.25)), "{name}");
        }
        let rows = expected.into_iter().enumerate().filter_map(|(i, row)| Some((i.to_string(), row.ok()?)));
        let rows: Vec<_> = rows.collect();
        assert_eq!(opened(scan.samples, &path, ShardKind::Parquet(pages)), rows, "{name}");
    }
}

#[test]
fn a_table_of_cosyvoice_is_rows_and_is_measured() {
    for name in ["flat_none", "flat_index", "flat_delta", "flat_large", "flat_dictionary", "flat_index_dictionary"] {
        let path = fixture(&format!("{name}.parquet"));
        let probe = BytesProbe::default();
        let mut scan = new_scan(Some(&probe));
        let pages = scan_parquet(&bytes_of(&path), &ColumnNames::default(), "x.parquet", &mut scan).unwrap();
        assert_eq!(scan.problems, [], "{name}");
        let value = |i: usize| parquet_value(if name.ends_with("dictionary") { i % 6 } else { i });
        let values: Vec<Vec<u8>> = (0..PARQUET_ROWS).map(value).collect();
        assert_eq!(*probe.measured.lock().unwrap(), values, "{name}");
        assert_eq!((scan.num_measured, scan.num_decoded), (PARQUET_ROWS as u64, 0));
        for (i, (_, row)) in scan.samples.iter().enumerate() {
            assert_eq!((row.id, row.audio.key), (format!("utt{i}").as_str(), format!("utt{i}").as_str()));
            assert_eq!(
                (row.text, row.duration_s),
                (format!("text {i} äö").as_str(), Some(values[i].len() as f64 + 1.0))
            );
        }
        let rows: Vec<_> = values.into_iter().enumerate().map(|(i, value)| (format!("utt{i}"), Some(value))).collect();
        assert_eq!(opened(scan.samples, &path, ShardKind::Parquet(pages)), rows, "{name}");
    }
}

#[test]
fn a_table_of_our_writer_is_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.parquet");
    let mut writer = ParquetShardWriter::new(Vec::new()).unwrap();
    let value = |i: usize| vec![i as u8; 1000 * i];
    for i in 0..150 {
        let (id, file, text, audio) = (format!("a/{i}"), format!("{i}.wav"), format!("Text {i}"), value(i));
        let speaker = Some("ada").filter(|_| i % 2 == 0);
        let row = ParquetRow {
            id: &id,
            text: &text,
            speaker,
            language: Some("de"),
            duration_s: 1.0 + i as f64,
            audio: &audio,
            path: &file,
        };
        writer.append(&row).unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    let probe = BytesProbe::default();
    let mut scan = new_scan(Some(&probe));
    let pages = scan_parquet(&bytes_of(&path), &ColumnNames::default(), "shard.parquet", &mut scan).unwrap();
    // The table says how long they are.
    assert_eq!((scan.num_measured, scan.problems.as_slice()), (0, &[][..]));
    for (i, (_, row)) in scan.samples.iter().enumerate() {
        let speaker = Some("ada").filter(|_| i % 2 == 0);
        assert_eq!((row.speaker, row.lang, row.duration_s), (speaker, Some("de"), Some(1.0 + i as f64)));
        assert_eq!(row.audio.key, format!("{i}.wav"));
    }
    let rows: Vec<_> = (0..150).map(|i| (format!("a/{i}"), Some(value(i)))).collect();
    assert_eq!(opened(scan.samples, &path, ShardKind::Parquet(pages)), rows);
}

#[test]
fn an_arrow_table_is_rows() {
    for name in ["speech_stream.arrow", "speech_file.arrow", "speech_legacy.arrow"] {
        let path = fixture(name);
        let mut scan = new_scan(None);
        scan_arrow(&bytes_of(&path), &ColumnNames::default(), name, &mut scan).unwrap();
        let (mut faults, mut rows) = (Vec::new(), Vec::new());
        for i in 0..ARROW_ROWS {
            match (i % 7, i % 5) {
                (5, _) => faults.push((Some(i as u32 + 1), ProblemKind::MissingAudio)),
                (_, 3) => faults.push((Some(i as u32 + 1), ProblemKind::EmptyText)),
                _ if i == 0 => faults.push((Some(1), ProblemKind::BadNumber)),
                (6, _) => rows.push((format!("utt{i}"), None)),
                _ => rows.push((format!("utt{i}"), Some(arrow_value(i)))),
            }
        }
        assert_eq!(kinds(&scan), faults, "{name}");
        for (_, row) in scan.samples.iter() {
            let i: usize = row.id[3..].parse().unwrap();
            assert_eq!((row.audio.key, row.line), (format!("{i}.wav").as_str(), i as u32 + 1), "{name}");
            // Speakers are whole numbers in this file.
            assert_eq!((row.text, row.speaker), (format!("text number {i} é").as_str(), Some(["0", "1", "2"][i % 3])));
            assert_eq!(row.duration_s, Some(i as f64 / 4.0));
        }
        assert_eq!(opened(scan.samples, &path, ShardKind::Arrow), rows, "{name}");
    }
}

#[test]
fn characters_of_f5_tts_are_a_text() {
    for column in [None, Some("large"), Some("struct.text")] {
        let columns = ColumnNames { text: column.map(str::to_owned), ..ColumnNames::default() };
        let mut scan = new_scan(None);
        scan_arrow(&bytes_of(&fixture("lists.arrow")), &columns, "raw.arrow", &mut scan).unwrap();
        // Rows without a list, and with an empty one.
        let is_empty = |i: u32| matches!(i % 6, 4 | 5) || column == Some("struct.text") && i % 4 == 1;
        let faults: Vec<_> = (0..18).filter(|i| is_empty(*i)).map(|i| (Some(i + 1), ProblemKind::EmptyText)).collect();
        assert_eq!(kinds(&scan), faults, "{column:?}");
        assert_eq!(scan.samples.len() + faults.len(), 18, "{column:?}");
        for (_, row) in scan.samples.iter() {
            let i: u32 = row.id.parse().unwrap();
            let end = if i % 6 == 3 { "end" } else { "" };
            let expected = (format!("tëxt {i} 你好😀{end}"), format!("wavs/{i}.wav"));
            assert_eq!((row.text, row.audio.key), (expected.0.as_str(), expected.1.as_str()), "{column:?}");
        }
    }
}

#[test]
fn an_arrow_table_is_measured() {
    let probe = BytesProbe::default();
    let mut scan = new_scan(Some(&probe));
    let (audio, text) = (Some("large_bytes".into()), Some("last".into()));
    let columns = ColumnNames { audio, text, ..ColumnNames::default() };
    scan_arrow(&bytes_of(&fixture("types.arrow")), &columns, "data/types.arrow", &mut scan).unwrap();
    let values: Vec<Vec<u8>> = (0..5).map(|i| format!("word {i}").into_bytes()).collect();
    assert_eq!((scan.problems.as_slice(), &*probe.measured.lock().unwrap()), (&[][..], &values));
    for (i, (_, row)) in scan.samples.iter().enumerate() {
        assert_eq!((row.id, row.text), (format!("types-00000{i}").as_str(), format!("last {i}").as_str()));
        assert_eq!((row.audio.key, row.duration_s), (row.id, Some(7.0)));
    }
}

#[test]
fn an_arrow_table_that_was_cut_off_gives_the_rows_before() {
    let mut bytes = fs::read(fixture("speech_stream.arrow")).unwrap();
    // The first batch has 20 rows, and the second ends early.
    bytes.truncate(bytes.len() * 3 / 4);
    let bytes: Arc<dyn ReadAt> = Arc::new(bytes);
    let mut scan = new_scan(None);
    let fault = scan_arrow(&bytes, &ColumnNames::default(), "x.arrow", &mut scan).unwrap_err();
    assert!(matches!(fault, ShardFault::Damaged { .. }), "{fault}");
    assert_eq!(scan.samples.len() + scan.problems.len(), 20);
}

#[test]
fn tables_that_cannot_be_read_are_refused() {
    let arrow = |name: &str| scan_arrow(&bytes_of(&fixture(name)), &ColumnNames::default(), name, &mut new_scan(None));
    assert!(arrow("types.arrow").unwrap_err().to_string().contains("expected a column with audio"));
    assert!(arrow("compressed.arrow").unwrap_err().to_string().contains("compress"));
    let parquet = |name: &str, columns: &ColumnNames| {
        scan_parquet(&bytes_of(&fixture(name)), columns, name, &mut new_scan(None)).unwrap_err().to_string()
    };
    assert!(parquet("numbers.parquet", &ColumnNames::default()).contains("expected a column with audio"));
    let words = ColumnNames { text: Some("words".into()), ..ColumnNames::default() };
    assert!(
        parquet("flat_none.parquet", &words).contains("expected a column `words`, found `utt`, `audio_data`, `text`")
    );
    let few = check_rows(101, 100).unwrap_err().to_string();
    assert!(few.contains("101 rows in 100 bytes"), "{few}");
    check_rows(100, 100).unwrap();
}

/// Counts reads.
struct Counted {
    bytes: Vec<u8>,
    num_reads: AtomicUsize,
}

impl ReadAt for Counted {
    fn num_bytes(&self) -> u64 {
        self.bytes.num_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.num_reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.read_exact_at(offset, buffer)
    }
}

#[test]
fn a_page_is_read_once_for_all_its_recordings() {
    let bytes: Arc<dyn ReadAt> = bytes_of(&fixture("flat_none.parquet"));
    let table = ParquetTable::open(Arc::clone(&bytes)).unwrap();
    let layout = TableLayout::find(table.columns(), &ColumnNames::default()).unwrap();
    let mut pages = PageTable::default();
    let (places, ids) = read_places(&table, &layout, &mut pages).unwrap();
    assert_eq!((places.len(), ids), (PARQUET_ROWS, IdSource::Column));
    assert!(pages.num_pages() < PARQUET_ROWS as u64 / 2);
    let counted = Counted { bytes: fs::read(fixture("flat_none.parquet")).unwrap(), num_reads: AtomicUsize::new(0) };
    let reader = PageReader::new(&counted, &pages);
    for (i, place) in places.iter().enumerate() {
        let mut value = Vec::new();
        reader.open(place.address().unwrap()).unwrap().read_to_end(&mut value).unwrap();
        assert_eq!(value, parquet_value(i));
    }
    assert_eq!(counted.num_reads.load(Ordering::Relaxed) as u64, pages.num_pages());
}

#[test]
fn names_that_repeat_leave_the_places_complete() {
    let mut writer = ParquetShardWriter::new(Vec::new()).unwrap();
    for (id, path) in [("a", "x.wav"), ("b", "y.wav"), ("c", "x.wav"), ("d", "z.wav")] {
        let (speaker, language) = (None, None);
        let row = ParquetRow { id, text: id, speaker, language, duration_s: 1.0, audio: path.as_bytes(), path };
        writer.append(&row).unwrap();
    }
    let bytes: Arc<dyn ReadAt> = Arc::new(writer.finish().unwrap());
    let table = ParquetTable::open(bytes).unwrap();
    let found = TableLayout::find(table.columns(), &ColumnNames::default()).unwrap();
    let layout = TableLayout { id: None, ..found };
    let (places, ids) = read_places(&table, &layout, &mut PageTable::default()).unwrap();
    assert_eq!((places.len(), ids), (4, IdSource::Number));
    // Without recordings in the table, the pass ends with the first that repeats.
    let layout = TableLayout { bytes: None, ..layout };
    let (places, ids) = read_places(&table, &layout, &mut PageTable::default()).unwrap();
    assert_eq!((places.len(), ids), (0, IdSource::Number));
    let layout = TableLayout { path: Some(layout.text.clone()), ..layout };
    let (_, ids) = read_places(&table, &layout, &mut PageTable::default()).unwrap();
    assert_eq!(ids, IdSource::Stem);
}

/// `name:kind` for each column, as in the tests of layouts.
fn layout(spec: &str) -> TableLayout {
    let columns: Vec<TableColumn> = spec
        .split_whitespace()
        .map(|column| {
            let (name, kind) = column.split_once(':').unwrap();
            let kind = match kind {
                "t" => ColumnKind::Text,
                "n" => ColumnKind::Number,
                _ => ColumnKind::Bytes,
            };
            TableColumn { name: name.to_owned(), kind, type_name: "" }
        })
        .collect();
    TableLayout::find(&columns, &ColumnNames::default()).unwrap()
}

const PLACE: Option<ValueAddress> = Some(ValueAddress { position: 0, extent: 0 });

fn unopened(_: ValueAddress) -> Result<RecordingReader, ShardFault> {
    Err(ShardFault::Unsupported { reason: "opened".into() })
}

#[test]
fn ids_and_keys() {
    let check = |spec: &str, ids: IdSource, cells: &[Cell<'_>], address, expected: (&str, &str)| {
        let layout = layout(spec);
        let mut scan = new_scan(None);
        TableRows::new(&layout, ids, "data/train-00.parquet").add(41, cells, address, &unopened, &mut scan);
        let (_, row) = scan.samples.iter().next().unwrap_or_else(|| panic!("{:?}", scan.problems));
        assert_eq!(((row.id, row.audio.key), row.line), (expected, 42), "{spec} {cells:?}");
    };
    let text = Cell::Text("said");
    let path = Cell::Text("/data/wavs/a.wav");
    check("audio:b text:t", IdSource::Number, &[text], PLACE, ("train-00-000041", "train-00-000041"));
    check("audio:b path:t text:t", IdSource::Stem, &[text, path], PLACE, ("a", "a.wav"));
    check("audio:b path:t text:t", IdSource::Number, &[text, path], PLACE, ("train-00-000041", "a.wav"));
    let numbered = ("train-00-000041", "train-00-000041");
    check("audio:b path:t text:t", IdSource::Stem, &[text, Cell::Null], PLACE, numbered);
    check("audio:b path:t text:t", IdSource::Stem, &[text, Cell::Text("")], PLACE, numbered);
    check("audio:b path:t text:t id:t", IdSource::Column, &[text, path, Cell::Text("x")], PLACE, ("x", "a.wav"));
    check("audio:b text:t id:n", IdSource::Column, &[text, Cell::Number(7.0)], PLACE, ("7", "7"));
    check("audio:b text:t id:n", IdSource::Column, &[text, Cell::Number(-7.5)], PLACE, ("-7.5", "-7.5"));
    // Files.
    check("audio_path:t text:t", IdSource::Stem, &[text, path], None, ("a", "/data/wavs/a.wav"));
    check("audio:b path:t text:t", IdSource::Stem, &[text, path], None, ("a", "/data/wavs/a.wav"));
}

#[test]
fn rows_that_are_none() {
    let check = |spec: &str, cells: &[Cell<'_>], address, kind: ProblemKind, part: &str| {
        let layout = layout(spec);
        let ids = if layout.id.is_some() { IdSource::Column } else { IdSource::Number };
        let mut scan = new_scan(None);
        TableRows::new(&layout, ids, "x.arrow").add(1, cells, address, &unopened, &mut scan);
        assert!(scan.samples.is_empty() && kinds(&scan) == [(Some(2), kind)], "{spec} {cells:?}: {:?}", scan.problems);
        assert!(scan.problems[0].detail.contains(part), "{:?}", scan.problems);
    };
    let text = Cell::Text("said");
    check("audio:b text:t", &[text], None, ProblemKind::MissingAudio, "`x-000001`");
    check("audio_path:t text:t", &[text, Cell::Text(" ")], None, ProblemKind::MissingAudio, "`x-000001`");
    check("audio:b text:t", &[Cell::Null], PLACE, ProblemKind::EmptyText, "`x-000001`");
    check("audio:b text:t", &[Cell::Text(" ")], PLACE, ProblemKind::EmptyText, "`x-000001`");
    check("audio:b text:t id:t", &[text, Cell::Null], PLACE, ProblemKind::EmptyId, "id");
    check("audio:b text:t id:n", &[text, Cell::Number(f64::NAN)], PLACE, ProblemKind::EmptyId, "id");
    let large = Cell::Number(9_007_199_254_740_992.0);
    check("audio:b text:t id:n", &[text, large], PLACE, ProblemKind::BadNumber, "9007199254740992");
    check("audio:b text:t speaker:n", &[text, large], PLACE, ProblemKind::BadNumber, "store it as text");
    check("audio:b text:t duration:n", &[text, Cell::Number(-1.0)], PLACE, ProblemKind::BadNumber, "`duration`");
    let long = "x".repeat((1 << 20) + 1);
    check("audio:b text:t", &[Cell::Text(&long)], PLACE, ProblemKind::LineTooLong, "1048577 bytes");
    check("audio:b path:t text:t", &[text, Cell::Text(&long)], PLACE, ProblemKind::LineTooLong, "1048577 bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Rows and problems are never more than the table can have, whatever the bytes are.
    #[test]
    fn changed_tables_never_panic(
        name in prop::sample::select(vec!["flat_none.parquet", "nested_snappy.parquet", "speech_stream.arrow", "lists.arrow"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = fs::read(fixture(name)).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let num_bytes = bytes.len();
        let bytes: Arc<dyn ReadAt> = Arc::new(bytes);
        let probe = BytesProbe::default();
        let mut scan = new_scan(Some(&probe));
        let columns = ColumnNames::default();
        // A fault is as good as rows.
        let _ = match name.ends_with("arrow") {
            true => scan_arrow(&bytes, &columns, name, &mut scan),
            false => scan_parquet(&bytes, &columns, name, &mut scan).map(|_| ()),
        };
        prop_assert!(scan.samples.len() <= num_bytes);
    }

    /// Every row is a row or a problem, whatever its cells are.
    #[test]
    fn every_row_is_a_row_or_a_problem(
        numbers in prop::collection::vec(any::<f64>(), 2), texts in prop::collection::vec("\\PC{0,8}", 4),
        nulls in 0_u32..256, has_place in any::<bool>(), has_id in any::<bool>(),
    ) {
        let layout = layout("audio:b path:t text:t id:t speaker:n lang:t duration:n");
        let cells = [
            Cell::Text(&texts[0]), Cell::Text(&texts[1]), Cell::Text(&texts[2]), Cell::Number(numbers[0]),
            Cell::Text(&texts[3]), Cell::Number(numbers[1]),
        ];
        let cells = cells.into_iter().enumerate();
        let cells = cells.map(|(at, cell)| if nulls >> at & 1 == 1 { Cell::Null } else { cell });
        let ids = if has_id { IdSource::Column } else { IdSource::Stem };
        let mut scan = new_scan(None);
        let cells: Vec<Cell<'_>> = cells.collect();
        TableRows::new(&layout, ids, "x").add(0, &cells, PLACE.filter(|_| has_place), &unopened, &mut scan);
        prop_assert_eq!(scan.samples.len() + scan.problems.len(), 1);
    }
}
