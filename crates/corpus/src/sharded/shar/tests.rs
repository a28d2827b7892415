//! Shards as Lhotse writes them, and shards with mistakes.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use proptest::prelude::*;
use tandem_shards::TarWriter;
use tandem_storage::{ObjectLocation, Storage};

use super::super::cuts::open_lines;
use super::*;
use crate::sample::{Sample, Samples};
use crate::shard::{ShardFile, ShardKind};

fn archive(members: &[&str]) -> Arc<dyn ReadAt> {
    let mut tar = TarWriter::new(Vec::new());
    for name in members {
        // The content says whose it is.
        let bytes = if name.ends_with(".nodata") || name.ends_with(".nometa") { b"" } else { name.as_bytes() };
        tar.append(name, bytes).unwrap();
    }
    Arc::new(tar.finish().unwrap())
}

fn cut(id: &str) -> String {
    format!(
        r#"{{"id": "{id}", "start": 0, "duration": 1.5, "channel": 0, "type": "MonoCut", "supervisions": [{{"start": 0,
            "text": "text of {id}", "speaker": "ada", "language": "en"}}], "recording": {{"id": "r", "duration": 1.5,
            "sources": [{{"type": "shar", "channels": [0], "source": ""}}]}}}}"#
    )
    .replace('\n', " ")
}

fn cuts(ids: &[&str]) -> String {
    ids.iter().map(|id| cut(id) + "\n").collect()
}

/// Line, kind and detail.
type NotedProblem = (Option<u32>, ProblemKind, String);

/// What a scan of the shard gives: its rows with the bytes at their addresses, and its problems.
fn scanned(bytes: &Arc<dyn ReadAt>, cuts: &str) -> (Vec<String>, Vec<NotedProblem>) {
    let mut found = ShardScan::new(Path::new("recording.000000.tar").into(), None);
    scan(bytes, cuts.as_bytes(), &mut found).unwrap();
    let rows = found.samples.iter().map(|(_, row)| format!("{} {} {}", row.id, row.audio.key, row.line)).collect();
    (rows, found.problems.into_iter().map(|problem| (problem.line, problem.kind, problem.detail)).collect())
}

#[test]
fn shards_that_lhotse_wrote_are_rows() {
    let check = |folder: &str, ending: &str, number: u32, expected: &[&str]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/lhotse").join(folder);
        let bytes: Arc<dyn ReadAt> = Arc::new(fs::read(folder.join(format!("recording.{number:06}.tar"))).unwrap());
        let cuts = File::open(folder.join(format!("cuts.{number:06}.jsonl.gz"))).unwrap();
        let mut found = ShardScan::new(Path::new("recording.tar").into(), None);
        scan(&bytes, open_lines(Box::new(cuts), true), &mut found).unwrap();
        assert_eq!(found.problems, []);
        let rows: Vec<Sample<'_>> = found.samples.iter().map(|(_, row)| row).collect();
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), expected);
        for row in rows {
            // Recordings are cut already.
            assert_eq!((row.audio.key, row.audio.range), (format!("{}.{ending}", row.id).as_str(), None));
            assert!(
                row.duration_s.is_some_and(|seconds| seconds > 0.1) && row.speaker.is_some() && row.lang == Some("en")
            );
        }
    };
    check("shar", "wav", 1, &["ben_00005", "ada_00006", "ben_00007"]);
    let parts = ["ada_00004-0", "ada_00004-1", "ben_00005-0", "ben_00005-1", "ada_00006-0"];
    check("part_shar", "flac", 0, &parts);
}

#[test]
fn rows_point_at_their_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let location = ObjectLocation::file(folder.path().join("recording.000000.tar"));
    let bytes = archive(&["a.flac", "a.json", "b.c/d.flac", "b.c/d.json"]);
    let mut content = vec![0; bytes.num_bytes() as usize];
    bytes.read_exact_at(0, &mut content).unwrap();
    fs::write(location.path().unwrap(), content).unwrap();
    let mut found = ShardScan::new(Path::new("s").into(), None);
    scan(&bytes, cuts(&["a", "b.c/d"]).as_bytes(), &mut found).unwrap();
    assert_eq!(found.problems, []);
    let storage = Storage::default();
    let stamp = storage.stamp(&location).unwrap();
    let shard = ShardFile::new(location, stamp, ShardKind::Tar, storage);
    let mut samples = Samples::new(Default::default());
    samples.append_shard(found.samples, Arc::new(shard), Path::new("s").into());
    let names: Vec<&str> = samples.iter().map(|(_, row)| row.audio.key).collect();
    assert_eq!(names, ["a.flac", "b.c/d.flac"]);
    for (_, row) in samples.iter() {
        let mut content = String::new();
        row.audio.open().unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, row.audio.key);
    }
}

#[test]
fn members_in_another_order_are_found_by_name() {
    let bytes = archive(&["c.flac", "c.json", "a.flac", "a.json", "b.flac", "b.json"]);
    let (rows, problems) = scanned(&bytes, &cuts(&["a", "b", "c"]));
    assert_eq!(rows, ["a a.flac 1", "b b.flac 2", "c c.flac 3"]);
    assert_eq!(problems, []);
}

#[test]
fn a_cut_without_a_recording_is_left_out() {
    let bytes = archive(&["a.flac", "a.json", "b.nodata", "b.nometa", "d.flac", "d.json"]);
    let (rows, problems) = scanned(&bytes, &cuts(&["a", "b", "c", "d"]));
    assert_eq!(rows, ["a a.flac 1", "d d.flac 4"]);
    let found: Vec<_> = problems.iter().map(|(line, kind, _)| (*line, *kind)).collect();
    assert_eq!(found, [(Some(2), ProblemKind::MissingAudio), (Some(3), ProblemKind::MissingAudio)]);
    assert!(problems[0].2.contains("written without") && problems[1].2.contains("no recording in the archive"));
}

#[test]
fn recordings_without_a_cut_are_counted() {
    let bytes = archive(&["x.flac", "x.json", "a.flac", "a.json", "y.flac", "y.json"]);
    let (rows, problems) = scanned(&bytes, &format!("{}\n{{\n", cut("a")));
    assert_eq!(rows, ["a a.flac 1"]);
    assert_eq!(problems[0].1, ProblemKind::BadJson);
    let detail = "recordings without a usable cut: 2, the first is x.flac";
    assert_eq!(problems[1..], [(None, ProblemKind::UnusedFile, detail.to_owned())]);
}

#[test]
fn of_two_recordings_the_first_is_read() {
    let bytes = archive(&["a.flac", "a.wav", "b.flac"]);
    let (rows, problems) = scanned(&bytes, &cuts(&["b", "a"]));
    assert_eq!(rows, ["b b.flac 1", "a a.flac 2"]);
    assert_eq!((problems.len(), problems[0].1), (1, ProblemKind::DuplicateId));
}

#[test]
fn a_cut_that_begins_later_has_an_offset() {
    let cut = cut("a").replace("\"start\": 0, \"duration\": 1.5", "\"start\": 0.5, \"duration\": 1");
    let mut found = ShardScan::new(Path::new("s").into(), None);
    scan(&archive(&["a.flac"]), cut.as_bytes(), &mut found).unwrap();
    let row = found.samples.iter().next().unwrap().1;
    assert_eq!((row.audio.range.map(|range| range.offset_s), row.duration_s), (Some(0.5), Some(1.0)));
}

#[test]
fn a_damaged_archive_fails_after_the_rows_before() {
    let whole = archive(&["a.flac", "a.json", "b.flac", "b.json"]);
    let mut bytes = vec![0; whole.num_bytes() as usize];
    whole.read_exact_at(0, &mut bytes).unwrap();
    // Two members of a header and a block each.
    bytes.truncate(4 * 512 + 100);
    let mut found = ShardScan::new(Path::new("s").into(), None);
    let cut_short: Arc<dyn ReadAt> = Arc::new(bytes);
    let fault = scan(&cut_short, cuts(&["a", "b"]).as_bytes(), &mut found).unwrap_err();
    assert!(matches!(fault, ShardFault::Damaged { .. }), "{fault}");
    assert_eq!(found.samples.len(), 1);
    let gzip: Arc<dyn ReadAt> = Arc::new([&b"\x1f\x8b\x08"[..], &[7; 1000]].concat());
    let fault = scan(&gzip, cuts(&["a"]).as_bytes(), &mut found).unwrap_err();
    assert!(fault.to_string().contains("gzip"), "{fault}");
}

proptest! {
    /// Every cut is a row or a problem, whatever the archive has.
    #[test]
    fn every_cut_is_a_row_or_a_problem(
        members in prop::collection::vec("[a-d][.](flac|json|nodata|wav)", 0..10),
        ids in prop::collection::vec("[a-e]", 0..8),
    ) {
        let names: Vec<&str> = members.iter().map(String::as_str).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (rows, problems) = scanned(&archive(&names), &cuts(&ids));
        let of_cuts = problems.iter().filter(|(line, ..)| line.is_some()).count();
        prop_assert_eq!(rows.len() + of_cuts, ids.len());
    }

    #[test]
    fn changed_archives_and_cuts_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let whole = archive(&["a.flac", "a.json", "b.flac", "b.json"]);
        let mut bytes = vec![0; whole.num_bytes() as usize];
        whole.read_exact_at(0, &mut bytes).unwrap();
        let mut lines = cuts(&["a", "b"]).into_bytes();
        for (at, byte) in changes {
            let target = if byte % 2 == 0 { &mut bytes } else { &mut lines };
            let at = at.index(target.len());
            target[at] = byte;
        }
        let changed: Arc<dyn ReadAt> = Arc::new(bytes);
        let mut found = ShardScan::new(Path::new("s").into(), None);
        // A fault is as good as rows; more rows than lines are not.
        let _ = scan(&changed, &lines[..], &mut found);
        let num_lines = lines.split(|byte| *byte == b'\n').count();
        prop_assert!(found.samples.len() <= num_lines);
    }
}
