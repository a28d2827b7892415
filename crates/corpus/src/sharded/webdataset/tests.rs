//! Archives as `webdataset` writes them, and others.

use std::io::Read;

use proptest::prelude::*;

use super::fixture::{FoundRow, ScanOutcome, outcome_of, recording_of, tar_of};
use super::*;
use crate::index::Length;
use crate::lines::MAX_LINE_BYTES;
use crate::problem::ProblemKind;
use crate::recording_reader::RecordingReader;
use crate::sharded::scan::{LengthProbe, ProbedLength};

fn scan_of(members: &[(&str, &str)]) -> ScanOutcome {
    outcome_of(&tar_of(members), None, scan)
}

#[test]
fn members_with_one_key_are_a_row() {
    let archive = tar_of(&[
        ("set/a.wav", "RIFF a"),
        ("set/a.json", r#"{"text":"from json","speaker":3,"lang":"en","duration":1.5}"#),
        ("set/b.FLAC", "flac b"),
        ("set/b.txt", " two\r\nlines \n"),
        ("set/b.cls", "7"),
        ("c.audio.mp3", "mp3 c"),
        ("c.json", r#"{"text":"raw","speaker_id":"p1"}"#),
        ("c.txt", "from txt"),
    ]);
    let found = outcome_of(&archive, None, scan);
    let expected = [
        (1, "set/a", "from json", "set/a.wav"),
        (2, "set/b", "two lines", "set/b.FLAC"),
        (3, "c", "from txt", "c.audio.mp3"),
    ];
    assert_eq!(found.brief(), expected);
    assert!(found.problems.is_empty() && found.fault.is_none(), "{found:?}");
    let recordings: Vec<&[u8]> = found.rows.iter().map(|row| recording_of(&archive, row)).collect();
    assert_eq!(recordings, [&b"RIFF a"[..], b"flac b", b"mp3 c"]);
    let speakers: Vec<_> = found.rows.iter().map(|row| row.speaker.as_deref()).collect();
    assert_eq!(speakers, [Some("3"), None, Some("p1")]);
    assert_eq!((found.rows[0].lang.as_deref(), found.rows[0].duration_s), (Some("en"), Some(1.5)));
    assert_eq!((found.rows[1].offset_s, found.rows[1].duration_s), (None, None));
}

#[test]
fn a_key_ends_at_the_first_dot_of_the_last_part() {
    let check = |name: &str, expected: Option<(&str, &str)>| {
        let found = split_name(name);
        assert_eq!(found.as_ref().map(|(key, extension)| (*key, extension.as_str())), expected, "{name}");
    };
    check("a.wav", Some(("a", "wav")));
    check("v1.2/a.Normalized.TXT", Some(("v1.2/a", "normalized.txt")));
    check("./a.wav", Some(("./a", "wav")));
    check("a.", Some(("a", "")));
    check("README", None);
    check("v1.2/README", None);
    check(".hidden.wav", None);
    check("d/._a.wav", None);
    check("__meta__/a.json", None);
    check("__index__", None);
    check("__a.wav", Some(("__a", "wav")));
}

#[test]
fn the_best_text_that_says_something_counts() {
    let check = |texts: &[(&str, &str)], expected: &str| {
        let found = scan_of(&[&[("a.wav", "x")], texts].concat());
        assert_eq!(found.brief(), [(1, "a", expected, "a.wav")], "{texts:?}");
        assert!(found.problems.is_empty(), "{found:?}");
    };
    check(&[("a.txt", "raw"), ("a.normalized.txt", "said")], "said");
    check(&[("a.normalized.txt", "said"), ("a.txt", "raw")], "said");
    check(&[("a.normalized.txt", " "), ("a.lab", "label")], "label");
    check(&[("a.lab", "label"), ("a.normalized.txt", "")], "label");
    check(&[("a.text", "one"), ("a.transcript", "two")], "one");
    check(&[("a.txt", "first"), ("a.txt", "second")], "first");
    check(&[("a.txt", ""), ("a.json", r#"{"text":"object"}"#)], "object");
    check(&[("a.txt", "file"), ("a.json", r#"{"text":["tok","ens"]}"#)], "file");
    check(&[("a.txt", "\u{feff}marked")], "marked");
}

#[test]
fn a_sample_that_is_no_row_is_a_problem() {
    let check = |members: &[(&str, &str)], kind: ProblemKind, part: &str| {
        let all = [members, &[("z.wav", "z"), ("z.txt", "after it")]].concat();
        let found = scan_of(&all);
        found.assert_problem(Some(1), kind, part);
        assert_eq!(found.brief(), [(2, "z", "after it", "z.wav")], "{members:?}");
    };
    check(&[("a.wav", "x"), ("a.cls", "1")], ProblemKind::MissingText, "`a.wav`, `a.cls`");
    check(&[("a.wav", "x"), ("a.json", "{}")], ProblemKind::MissingText, "`a.json`");
    check(&[("a.txt", "x")], ProblemKind::MissingAudio, "`a.txt`");
    check(
        &[("a.txt", "x"), ("a.opus", "x")],
        ProblemKind::MissingAudio,
        ".wav, .flac, .ogg or .mp3, found `a.txt`, `a.opus`",
    );
    check(&[("a.json", r#"{"text":"x"}"#)], ProblemKind::MissingAudio, "`a.json`");
    check(&[("a.wav", "x"), ("a.txt", " \n")], ProblemKind::EmptyText, "`a`");
    check(
        &[("a.wav", "x"), ("a.txt", "t"), ("a.json", "[1]")],
        ProblemKind::BadJson,
        "`a.json`: expected a JSON object",
    );
    check(&[("a.wav", "x"), ("a.json", "{\"text\":")], ProblemKind::BadJson, "EOF");
    check(&[("a.wav", "x"), ("a.json", r#"{"text":1}"#)], ProblemKind::WrongType, "`text`");
    check(&[("a.wav", "x"), ("a.json", r#"{"text":"t","duration":-1}"#)], ProblemKind::BadNumber, "-1");
    let large = "y".repeat(MAX_LINE_BYTES + 1);
    check(&[("a.wav", "x"), ("a.txt", &large)], ProblemKind::LineTooLong, "found 1048577");
    check(&[("a.wav", "x"), ("a.txt", "t"), ("a.json", &large)], ProblemKind::LineTooLong, "`a.json`");
}

#[test]
fn a_text_that_is_no_utf8_is_a_problem() {
    let archive = tar_of(&[("a.wav", &b"x"[..]), ("a.txt", b"caf\xe9"), ("b.wav", b"x"), ("b.txt", b"ok")]);
    let found = outcome_of(&archive, None, scan);
    found.assert_problem(Some(1), ProblemKind::InvalidUtf8, "`a.txt`: byte 4");
    assert_eq!(found.brief(), [(2, "b", "ok", "b.wav")]);
}

#[test]
fn of_two_recordings_the_one_preferred_first_is_read() {
    for recordings in [["a.mp3", "a.wav"], ["a.wav", "a.mp3"]] {
        let found = scan_of(&[(recordings[0], "x"), (recordings[1], "x"), ("a.txt", "t")]);
        assert_eq!(found.brief(), [(1, "a", "t", "a.wav")]);
        found.assert_problem(Some(1), ProblemKind::UnusedFile, "`a.mp3` is not read: `a.wav` is");
    }
    let found = scan_of(&[("a.left.wav", "x"), ("a.right.wav", "x"), ("a.txt", "t")]);
    assert_eq!(found.brief(), [(1, "a", "t", "a.left.wav")]);
}

#[test]
fn members_apart_are_samples_apart() {
    let found =
        scan_of(&[("a.wav", "x"), ("a.txt", "one"), ("b.wav", "x"), ("b.txt", "two"), ("a.wav", "x"), ("a.txt", "3")]);
    let expected = [(1, "a", "one", "a.wav"), (2, "b", "two", "b.wav"), (3, "a", "3", "a.wav")];
    assert_eq!(found.brief(), expected);
    let found = scan_of(&[("a.wav", "x"), ("README", "x"), ("._a.txt", "x"), ("a.txt", "one"), ("index.npy", "x")]);
    assert_eq!(found.brief(), [(1, "a", "one", "a.wav")]);
    assert!(found.problems.is_empty(), "{found:?}");
}

#[test]
fn a_sample_of_too_many_members_is_said_once() {
    let mut members = vec![("LJ.txt".to_owned(), "t"), ("LJ.wav".to_owned(), "x")];
    members.extend((0..500).map(|number| (format!("LJ.{number}.txt"), "ignored")));
    let found = outcome_of(&tar_of(&members), None, scan);
    assert_eq!(found.brief(), [(1, "LJ", "t", "LJ.wav")]);
    found.assert_problem(Some(1), ProblemKind::UnusedFile, "`LJ` has 502 members, of which 64 are read");
}

/// Every size is the sum of all bytes: shows which bytes were read.
struct ByteSum;

impl LengthProbe for ByteSum {
    fn length(&self, mut recording: RecordingReader) -> Result<ProbedLength, String> {
        let mut bytes = Vec::new();
        recording.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let num_samples = bytes.iter().map(|byte| u64::from(*byte)).sum();
        Ok(ProbedLength { length: Length { num_samples, rate_hz: 1 }, is_decoded: false })
    }
}

#[test]
fn a_recording_is_measured_unless_its_object_says_how_long_it_is() {
    let archive = tar_of(&[
        ("a.wav", &[1, 2, 3][..]),
        ("a.txt", b"t"),
        ("b.wav", &[9]),
        ("b.json", br#"{"text":"t","duration":0.5}"#),
    ]);
    let found = outcome_of(&archive, Some(&ByteSum), scan);
    let durations: Vec<_> = found.rows.iter().map(|row| row.duration_s).collect();
    assert_eq!((durations, found.num_measured), (vec![Some(6.0), Some(0.5)], 1));
}

/// Makes the member whose header is at `at` a symbolic link.
fn make_link(archive: &mut [u8], at: usize) {
    let header = &mut archive[at..at + 512];
    header[156] = b'2';
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn a_member_that_cannot_be_read_costs_itself_only() {
    // Links have no data: an empty member has the same form.
    let mut archive = tar_of(&[("a.wav", "x"), ("l.wav", ""), ("a.txt", "one")]);
    make_link(&mut archive, 1024);
    let found = outcome_of(&archive, None, scan);
    assert_eq!(found.brief(), [(1, "a", "one", "a.wav")]);
    found.assert_problem(None, ProblemKind::UnusedFile, "`l.wav` is a symbolic link");
    assert!(found.fault.is_none());

    let mut archive = tar_of(&[("a.wav", "x"), ("a.txt", "one"), ("l.wav", "")]);
    make_link(&mut archive, 2048);
    let found = outcome_of(&archive, None, scan);
    assert_eq!(found.brief(), [(1, "a", "one", "a.wav")]);
    found.assert_problem(None, ProblemKind::UnusedFile, "`l.wav`");
    assert!(found.fault.is_none());
}

#[test]
fn what_is_no_tar_archive_is_a_fault() {
    let check = |bytes: &[u8], part: &str| {
        let found = outcome_of(bytes, None, scan);
        assert!(found.rows.is_empty() && found.problems.is_empty(), "{found:?}");
        let fault = found.fault.unwrap().to_string();
        assert!(fault.contains(part), "{fault}");
    };
    check(b"", "empty file");
    check(&[b'x'; 2000], "no tar header");
    check(&[&b"\x1f\x8b"[..], &[7; 2000]].concat(), "gzip");
}

#[test]
fn a_damaged_header_keeps_the_rows_before_it() {
    let mut archive = tar_of(&[("a.wav", "x"), ("a.txt", "one"), ("b.wav", "x"), ("b.txt", "two")]);
    // The header of `b.txt`: what `b` lacks is behind the damage, and no problem of its own.
    archive[3 * 1024] ^= 0xff;
    let found = outcome_of(&archive, None, scan);
    assert_eq!(found.brief(), [(1, "a", "one", "a.wav")]);
    assert!(
        found.problems.is_empty() && matches!(found.fault, Some(ShardFault::Damaged { offset: 3072, .. })),
        "{found:?}"
    );
}

/// Names that make samples, most of them. No part is empty or dots, which the writer refuses.
fn any_members() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let extension = prop_oneof![
        3 => prop::sample::select(vec![".wav", ".flac", ".mp3", ".audio.ogg"]),
        3 => prop::sample::select(vec![".txt", ".normalized.txt", ".json", ".lab"]),
        1 => prop::sample::select(vec![".cls", "", ".", ".é"]),
    ];
    let stem = prop_oneof![6 => "[ab]", 1 => "(d/|__m__/)[aé_-]"];
    let name = (stem, extension).prop_map(|(stem, extension)| format!("{stem}{extension}"));
    let odd_name = "[a-c.é_/ -]{1,150}"
        .prop_filter("a name of a file", |name| name.split('/').all(|part| !matches!(part, "" | "." | "..")));
    let json = prop::sample::select(vec![
        &b"{}"[..],
        br#"{"text":"said","speaker":1,"duration":2}"#,
        br#"{"text":"","sentence":"s"}"#,
        br#"{"speaker":[]}"#,
        b"{",
        b"\xff",
    ]);
    let content =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..700), json.prop_map(<[u8]>::to_vec), Just(b"said".to_vec())];
    prop::collection::vec((prop_oneof![4 => name, 1 => odd_name], content), 0..24)
}

proptest! {
    #[test]
    fn any_archive_is_read_to_its_end(members in any_members()) {
        let archive = tar_of(&members);
        let found = outcome_of(&archive, Some(&ByteSum), scan);
        prop_assert!(found.fault.is_none(), "{:?}", found.fault);
        for row in &found.rows {
            let contents = recording_of(&archive, row);
            prop_assert!(members.iter().any(|(name, bytes)| *name == row.key && bytes == contents));
            prop_assert!(row.key.starts_with(&row.id));
        }
        prop_assert!(found.rows.is_sorted_by(|a, b| a.number < b.number));
    }

    #[test]
    fn a_cut_archive_keeps_the_rows_before_the_cut(members in any_members(), cut in any::<prop::sample::Index>()) {
        let archive = tar_of(&members);
        let whole = outcome_of(&archive, None, scan);
        let at = cut.index(archive.len());
        let found = outcome_of(&archive[..at], None, scan);
        // The last row may lack members that are behind the cut.
        let sure = found.rows.len().saturating_sub(1);
        prop_assert_eq!(&found.rows[..sure], &whole.rows[..sure]);
        // A row is lost only if the sample after it, and with it the end of its own, is behind the cut.
        let header_of = |row: &FoundRow| row.address.position as usize;
        let num_kept = whole.rows.windows(2).take_while(|pair| header_of(&pair[1]) < at).count();
        prop_assert!(found.rows.len() >= num_kept, "{} {num_kept}", found.rows.len());
        for row in &found.rows {
            prop_assert!(row.address.position + u64::from(row.address.extent) <= at as u64);
        }
    }

    #[test]
    fn any_bytes_are_an_archive_or_a_fault(
        members in any_members(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
    ) {
        let mut archive = tar_of(&members);
        for (at, byte) in damage {
            let at = at.index(archive.len());
            archive[at] = byte;
        }
        let found = outcome_of(&archive, Some(&ByteSum), scan);
        for row in &found.rows {
            prop_assert!(row.address.position + u64::from(row.address.extent) <= archive.len() as u64);
        }
    }
}
