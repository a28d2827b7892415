//! Cuts as Lhotse writes them, and lines that are none.

use std::fs::File;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::problem::Problem;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lhotse");

fn read_all(input: impl BufRead, pattern: Option<&SpeakerPattern>) -> (Samples, Vec<Problem>) {
    let mut samples = Samples::new(Default::default());
    let mut list = Vec::new();
    samples.begin_file(Path::new("cuts.jsonl").into());
    read(input, pattern, &mut samples, &mut Findings { file: Path::new("cuts.jsonl").into(), list: &mut list })
        .unwrap();
    (samples, list)
}

/// A cut with some of its keys replaced; `null` takes a key away.
fn cut(changes: &[(&str, &str)]) -> String {
    let line = r#"{"id": "c1", "start": 0, "duration": 2.5, "channel": 0, "type": "MonoCut",
        "supervisions": [{"id": "s", "recording_id": "r", "start": 0, "duration": 2.5, "channel": 0, "text": "Hello.",
            "language": "en", "speaker": "ada", "custom": {"text": "no"}}],
        "recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "wavs/a.wav"}],
            "sampling_rate": 16000, "num_samples": 40000, "duration": 2.5, "channel_ids": [0]}}"#;
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    for (path, json) in changes {
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = value.pointer_mut(parent).unwrap();
        let new = serde_json::from_str(json).unwrap();
        match parent {
            serde_json::Value::Array(items) => items[key.parse::<usize>().unwrap()] = new,
            parent => parent[key] = new,
        }
    }
    value.to_string()
}

#[test]
fn cuts_that_lhotse_wrote_are_rows() {
    let input = open_lines(Box::new(File::open(Path::new(DATA).join("cuts.jsonl.gz")).unwrap()), true);
    let (samples, problems) = read_all(input, None);
    assert_eq!(problems, []);
    let found: Vec<String> = samples
        .iter()
        .map(|(_, row)| {
            let (speaker, lang) = (row.speaker.unwrap_or("-"), row.lang.unwrap_or("-"));
            assert_eq!((row.audio.key, row.audio.range), (format!("wavs/{}.wav", row.id).as_str(), None));
            assert!(row.duration_s.is_some_and(|seconds| seconds > 0.2));
            format!("{}|{1}|{1}|{speaker}|{lang}\n", row.id, row.text)
        })
        .collect();
    assert_eq!(found.concat(), std::fs::read_to_string(Path::new(DATA).join("metadata.csv")).unwrap());
}

#[test]
fn cuts_of_one_recording_have_offsets() {
    let input = open_lines(Box::new(File::open(Path::new(DATA).join("part_cuts.jsonl.gz")).unwrap()), true);
    let (samples, problems) = read_all(input, None);
    assert_eq!(problems, []);
    // The same pieces as a manifest in the form of NeMo.
    let parts = std::fs::read_to_string(Path::new(DATA).join("parts.jsonl")).unwrap();
    let mut num_rows = 0;
    for ((_, row), line) in samples.iter().zip(parts.lines()) {
        let part: serde_json::Value = serde_json::from_str(line).unwrap();
        let range = row.audio.range.unwrap();
        assert_eq!(part["offset"].as_f64(), Some(range.offset_s));
        assert_eq!(part["duration"].as_f64(), range.duration_s);
        assert_eq!((part["audio_filepath"].as_str(), part["text"].as_str()), (Some(row.audio.key), Some(row.text)));
        num_rows += 1;
    }
    assert_eq!((samples.len(), num_rows), (parts.lines().count(), samples.len()));
}

#[test]
fn rows() {
    let check = |changes: &[(&str, &str)], expected: (&str, &str, Option<&str>, Option<f64>)| {
        let line = cut(changes);
        let (samples, problems) = read_all(line.as_bytes(), None);
        assert_eq!(problems, [], "{line}");
        let row = samples.iter().next().unwrap().1;
        let offset_s = row.audio.range.map(|range| range.offset_s);
        assert_eq!((row.id, row.text, row.speaker, offset_s), expected, "{line}");
        assert_eq!(row.line, 1);
    };
    check(&[], ("c1", "Hello.", Some("ada"), None));
    check(&[("/type", "\"Cut\"")], ("c1", "Hello.", Some("ada"), None));
    check(&[("/type", "\"MultiCut\""), ("/channel", "[0]")], ("c1", "Hello.", Some("ada"), None));
    check(&[("/recording/transforms", "null")], ("c1", "Hello.", Some("ada"), None));
    check(&[("/recording/transforms", r#"[{"name": "Resample"}]"#)], ("c1", "Hello.", Some("ada"), None));
    check(&[("/id", "7"), ("/supervisions/0/speaker", "12")], ("7", "Hello.", Some("12"), None));
    // Half a microsecond is rounding, a millisecond is a part.
    check(&[("/duration", "2.4999995")], ("c1", "Hello.", Some("ada"), None));
    check(&[("/duration", "2.499")], ("c1", "Hello.", Some("ada"), Some(0.0)));
    check(&[("/start", "0.5"), ("/duration", "2")], ("c1", "Hello.", Some("ada"), Some(0.5)));
    check(&[("/recording/duration", "null")], ("c1", "Hello.", Some("ada"), None));
    let supervisions = r#"[{"start": 1.5, "text": " world. "}, {"start": 0.1}, {"start": 0.2, "text": " "},
        {"start": 0.5, "text": "Hello", "speaker": "ben"}]"#;
    check(&[("/supervisions", supervisions)], ("c1", "Hello world.", Some("ben"), None));
    let all = [("/type", "\"MultiCut\""), ("/channel", "[0, 1]"), ("/recording/sources/0/channels", "[0, 1]")];
    check(&all, ("c1", "Hello.", Some("ada"), None));
    check(&[("/recording/sources/0/channels", "[0, 1]")], ("c1", "Hello.", Some("ada"), None));
}

#[test]
fn urls_are_keys() {
    let source = r#"{"type": "url", "channels": [0], "source": "s3://bucket/a.flac"}"#;
    let (samples, problems) = read_all(cut(&[("/recording/sources/0", source)]).as_bytes(), None);
    assert_eq!((problems, samples.iter().next().unwrap().1.audio.key), (vec![], "s3://bucket/a.flac"));
}

#[test]
fn cuts_that_are_no_rows() {
    let check = |changes: &[(&str, &str)], kind: ProblemKind, part: &str| {
        let line = cut(changes);
        let (samples, problems) = read_all(line.as_bytes(), None);
        assert!(samples.is_empty() && problems.len() == 1, "{line}: {problems:?}");
        assert!(problems[0].kind == kind && problems[0].detail.contains(part), "{line}: {problems:?}");
        assert_eq!(problems[0].line, Some(1));
    };
    use ProblemKind::*;
    check(&[("/type", "null")], MissingKey, "lhotse cut simple");
    check(&[("/type", "\"MixedCut\"")], WrongType, "found MixedCut");
    check(&[("/type", "\"PaddingCut\"")], WrongType, "found PaddingCut");
    check(&[("/type", "1")], WrongType, "`type` must be a string, found a number");
    check(&[("/recording", "null")], MissingKey, "`recording` is missing");
    check(&[("/recording", "\"a.wav\"")], WrongType, "`recording` must be an object, found a string");
    check(&[("/recording/sources", "[]")], WrongType, "one source, found 0");
    check(&[("/recording/sources", "[{}, {}]")], WrongType, "one source, found 2");
    check(&[("/recording/sources", "[4]")], WrongType, "`recording.sources[0]` must be an object, found a number");
    check(&[("/recording/sources", "{}")], WrongType, "`recording.sources` must be a list, found an object");
    let found = "expected a source of type file or url, found memory";
    check(&[("/recording/sources/0/type", "\"memory\"")], WrongType, found);
    check(&[("/recording/sources/0/type", "\"shar\"")], WrongType, "found shar");
    check(&[("/recording/sources/0/type", "null")], MissingKey, "`type`");
    check(&[("/recording/sources/0/source", "\"\"")], EmptyId, "`source`");
    check(&[("/recording/transforms", r#"[{"name": "Speed"}]"#)], WrongType, "the transform Speed");
    check(&[("/id", "null")], EmptyId, "`id`");
    check(&[("/id", "\" \"")], EmptyId, "`id`");
    check(&[("/start", "null")], MissingKey, "`start`");
    check(&[("/start", "-1")], BadNumber, "`start`");
    check(&[("/start", "\"0\"")], WrongType, "`start` must be a number");
    check(&[("/duration", "null")], MissingKey, "`duration`");
    check(&[("/duration", "0")], BadNumber, "`duration`");
    check(&[("/supervisions", "null")], EmptyText, "`c1`");
    check(&[("/supervisions", "[]")], EmptyText, "`c1`");
    check(&[("/supervisions", "[null]")], WrongType, "`supervisions[0]` must be an object, found nothing");
    check(&[("/supervisions/0/text", "null")], EmptyText, "`c1`");
    check(&[("/supervisions/0/text", "\" \"")], EmptyText, "`c1`");
    check(&[("/supervisions/0/text", "[]")], WrongType, "`text`");
    check(&[("/supervisions/0/start", "null")], MissingKey, "`supervisions.start`");
    let some = [("/type", "\"MultiCut\""), ("/channel", "[0, 1]"), ("/recording/sources/0/channels", "[0, 1, 2]")];
    check(&some, WrongType, "all 3, found 2");
}

#[test]
fn lines_that_are_no_cuts() {
    let lines = b"[1]\n\n{\"id\": NaN}\n{\"id\": \xff}\n{\n";
    let (samples, problems) = read_all(&lines[..], None);
    let found: Vec<_> = problems.iter().map(|problem| (problem.line, problem.kind)).collect();
    let expected = [
        (Some(1), ProblemKind::BadJson),
        (Some(3), ProblemKind::BadNumber),
        (Some(4), ProblemKind::InvalidUtf8),
        (Some(5), ProblemKind::BadJson),
    ];
    assert_eq!((samples.len(), found.as_slice()), (0, &expected[..]));
    let (_, problems) = read_all(&b"\n"[..], None);
    assert_eq!((problems.len(), problems[0].kind), (1, ProblemKind::NoRows));
}

#[test]
fn a_pattern_finds_the_speaker_that_a_cut_lacks() {
    let pattern = SpeakerPattern::parse("{speaker}_*").unwrap();
    let changes = [("/id", "\"ben_1\""), ("/supervisions/0/speaker", "null")];
    let lines = [cut(&[]), cut(&changes), cut(&[changes[1]])].join("\n");
    let (samples, problems) = read_all(lines.as_bytes(), Some(&pattern));
    let speakers: Vec<_> = samples.iter().map(|(_, row)| row.speaker).collect();
    assert_eq!(speakers, [Some("ada"), Some("ben"), None]);
    assert_eq!((problems.len(), problems[0].kind), (1, ProblemKind::NoSpeaker));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A row or a problem for each line, whatever its bytes are.
    #[test]
    fn changed_lines_are_rows_or_problems(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = cut(&[]).into_bytes();
        for (at, byte) in changes {
            // A line end would make two lines.
            let at = at.index(bytes.len());
            bytes[at] = if byte == b'\n' { b' ' } else { byte };
        }
        let (samples, problems) = read_all(&bytes[..], None);
        prop_assert_eq!(samples.len() + problems.len(), 1);
    }

    /// Values of other types in any place.
    #[test]
    fn changed_values_are_rows_or_problems(
        path in prop::sample::select(vec![
            "/id", "/start", "/duration", "/channel", "/type", "/supervisions", "/supervisions/0", "/recording",
            "/supervisions/0/text", "/supervisions/0/start", "/supervisions/0/speaker", "/recording/sources",
            "/recording/sources/0", "/recording/sources/0/type", "/recording/duration", "/recording/transforms",
            "/recording/sources/0/source", "/recording/sources/0/channels",
        ]),
        json in prop::sample::select(vec![
            "null", "true", "-3", "1e300", "\"\"", "\"x\"", "[]", "[[[]]]", "[{}]", "{}", "{\"a\": [{}]}", "[null, 1]",
        ]),
    ) {
        let (samples, problems) = read_all(cut(&[(path, json)]).as_bytes(), None);
        prop_assert_eq!(samples.len() + problems.len(), 1);
    }
}
