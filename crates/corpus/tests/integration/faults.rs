//! Metadata and manifests with everything that can be wrong with them: each fault is named with its line, and nothing
//! else is.

use crate::fixture::CorpusFolder;
use tandem_corpus::ProblemKind::{self, *};
use tandem_corpus::{CorpusError, Dataset, Format, MAX_LINE_BYTES, OpenOptions, SpeakerPattern, Subset};

fn open(folder: &CorpusFolder, name: &str) -> Dataset {
    Dataset::open(folder.path().join(name), &OpenOptions::default()).unwrap()
}

fn ids(dataset: &Dataset) -> Vec<&str> {
    dataset.samples().ids().collect()
}

fn found(dataset: &Dataset) -> Vec<(Option<u32>, ProblemKind)> {
    dataset.problems().iter().map(|problem| (problem.line, problem.kind)).collect()
}

/// Reads `metadata` beside recordings of `a` to `f`, and compares ids and problems.
fn check(metadata: &[u8], expected_ids: &[&str], expected: &[(Option<u32>, ProblemKind)]) {
    let folder = CorpusFolder::new("metadata");
    for id in ["a", "b", "c", "d", "e", "f"] {
        folder.write(&format!("wavs/{id}.wav"), "");
    }
    folder.write("metadata.csv", metadata);
    let dataset = open(&folder, "");
    let shown = String::from_utf8_lossy(&metadata[..metadata.len().min(80)]).into_owned();
    assert_eq!(ids(&dataset), expected_ids, "{shown}");
    assert_eq!(found(&dataset), expected, "{shown}");
    assert!(
        dataset.problems().iter().all(|problem| problem.detail.len() < 500 && problem.file.ends_with("metadata.csv"))
    );
}

#[test]
fn metadata_as_people_write_it() {
    check(b"a|x|y\nb|x|y\n", &["a", "b"], &[]);
    check(b"\xef\xbb\xbfid|text|normalized\r\na|x|y\r\n\r\nb|\"x\"|\"y\" z\r\n", &["a", "b"], &[]);
    check(b"a.wav|x\nb|x|y|sp\nc|x|y|sp|en", &["a", "b", "c"], &[]);
    check("a|سلام|سلام|زهرا|fa\n".as_bytes(), &["a"], &[]);
}

#[test]
fn metadata_with_faults() {
    check(b"", &[], &[(None, NoRows)]);
    check(b"\n \n\r\n", &[], &[(None, NoRows)]);
    check(b"\xef\xbb\xbf", &[], &[(None, NoRows)]);
    check(b"id|text\n", &[], &[(None, HeaderOnly)]);
    check(b"id|speaker|text\na|x|y\n", &["a"], &[(Some(1), HeaderOrder)]);
    check(b"a|x\nonly a line\nb|x\n", &["a", "b"], &[(Some(2), MissingColumn)]);
    check(b"a|x|y|s|en|more\nb|x\n", &["b"], &[(Some(1), TooManyColumns)]);
    check(b"a|x\nb|\xff\xfe\nc|x\n", &["a", "c"], &[(Some(2), InvalidUtf8)]);
    check(b"a|x\nb|x\n\na|y\na|z\n", &["a", "b"], &[(Some(4), DuplicateId), (Some(5), DuplicateId)]);
    check(b"|x\na| \nb|x\n", &["b"], &[(Some(1), EmptyId), (Some(2), EmptyText)]);
    check(b"a|x\nnone|x\nnone|y\n", &["a"], &[(Some(2), MissingAudio), (Some(3), DuplicateId)]);
    check(b"a|x\0y\nb|\x1b[31m\n", &["a", "b"], &[]);

    let mut long = b"a|x\nb|".to_vec();
    long.resize(10_000_000, b'x');
    long.extend_from_slice(b"\nc|x\n");
    check(&long, &["a", "c"], &[(Some(2), LineTooLong)]);
    let mut longest = b"a|".to_vec();
    longest.resize(MAX_LINE_BYTES, b'x');
    check(&longest, &["a"], &[]);
}

#[test]
fn both_lines_of_a_duplicate_are_named() {
    let folder = CorpusFolder::new("duplicates");
    folder.write("wavs/a.ogg", "");
    folder.write("wavs/b.ogg", "");
    folder.write("metadata_train.csv", "a|x\nb|x\n");
    folder.write("metadata_eval.csv", "id|text\nb|x\n");
    let dataset = open(&folder, "");
    let [problem] = dataset.problems() else { panic!("{:?}", dataset.problems()) };
    assert!(
        problem
            .to_string()
            .ends_with("metadata_eval.csv:2: duplicate id: `b` is on line 2 of metadata_train.csv already")
    );
}

#[test]
fn which_lists_are_read() {
    let check = |present: &[&str], train: &[&str], eval: &[&str], problems: &[ProblemKind]| {
        let folder = CorpusFolder::new("lists");
        for (file, id) in [("metadata", "m"), ("metadata_train", "t"), ("metadata_eval", "e")] {
            folder.write(&format!("wavs/{id}.wav"), "");
            if present.contains(&file) {
                folder.write(&format!("{file}.csv"), format!("{id}|x\n"));
            }
        }
        let dataset = open(&folder, "");
        let names = |rows: Vec<tandem_corpus::SampleIndex>| {
            rows.into_iter().map(|row| dataset.get(row).unwrap().id.to_owned()).collect::<Vec<_>>()
        };
        let split = dataset.split(1);
        assert_eq!(
            (names(split.train), names(split.eval)),
            (
                names(dataset.train_rows()),
                names(dataset.eval_rows()).into_iter().filter(|_| dataset.has_eval()).collect()
            )
        );
        assert_eq!(names(dataset.train_rows()), train, "{present:?}");
        assert_eq!(names(dataset.eval_rows()), eval, "{present:?}");
        assert_eq!(dataset.problems().iter().map(|problem| problem.kind).collect::<Vec<_>>(), problems, "{present:?}");
    };
    check(&["metadata"], &["m"], &["m"], &[]);
    check(&["metadata_train", "metadata_eval"], &["t"], &["e"], &[]);
    check(&["metadata", "metadata_train", "metadata_eval"], &["t"], &["e"], &[]);
    check(&["metadata_train"], &["t"], &["t"], &[]);
    check(&["metadata_eval"], &[], &["e"], &[]);
    check(&["metadata", "metadata_eval"], &["m"], &["m"], &[UnusedFile]);
}

#[test]
fn manifests_with_faults() {
    let folder = CorpusFolder::new("manifest");
    let good = |name: &str| format!("{{\"audio_filepath\":\"{name}.wav\",\"text\":\"x\",\"duration\":1.5}}\n");
    let check = |content: Vec<u8>, expected_ids: &[&str], expected: &[(Option<u32>, ProblemKind)]| {
        folder.write("list.jsonl", content);
        let dataset = open(&folder, "list.jsonl");
        assert_eq!(dataset.format(), Format::Manifest);
        assert_eq!((ids(&dataset), found(&dataset)), (expected_ids.to_vec(), expected.to_vec()));
    };
    check(Vec::new(), &[], &[(None, NoRows)]);
    check(format!("\u{feff}{}\r\n\n{}", good("a").trim(), good("b")).into(), &["a", "b"], &[]);
    check(
        format!("{}not json\n{}{}", good("a"), good("b"), good("a")).into(),
        &["a", "b"],
        &[(Some(2), BadJson), (Some(4), DuplicateId)],
    );
    let mut bytes = good("a").into_bytes();
    bytes.extend_from_slice(b"{\"text\":\"\xff\"}\n{\"text\":\"");
    bytes.resize(10_000_000, b'x');
    bytes.extend_from_slice(format!("\"}}\n{}", good("b")).as_bytes());
    check(bytes, &["a", "b"], &[(Some(2), InvalidUtf8), (Some(3), LineTooLong)]);
    // Two cuts of one recording are two rows; the same cut twice is one too many.
    let cut = |offset: &str| format!("{{\"audio_filepath\":\"a.wav\",\"text\":\"x\",\"offset\":{offset}}}\n");
    let cuts = format!("{}{}{}{}", good("a"), cut("0"), cut("2.5"), cut("2.50"));
    check(cuts.into(), &["a", "a@0", "a@2.5"], &[(Some(4), DuplicateId)]);
}

#[test]
fn a_manifest_finds_its_recordings() {
    let folder = CorpusFolder::new("places");
    folder.write("audio/here.wav", "RIFF");
    folder.write("else.wav", "RIFF");
    let absolute = folder.path().join("else.wav");
    let row = |path: &str| format!("{{\"audio_filepath\":\"{path}\",\"text\":\"x\"}}\n");
    folder.write("list.jsonl", row("audio/here.wav") + &row(absolute.to_str().unwrap()) + &row("gone.wav"));
    let dataset = open(&folder, "list.jsonl");
    let opened: Vec<bool> = dataset.samples().iter().map(|(_, sample)| sample.audio.open().is_ok()).collect();
    assert_eq!(opened, [true, true, false]);
    let missing = dataset.missing_audio();
    assert_eq!((missing.len(), missing[0].line, missing[0].kind), (1, Some(3), MissingAudio));
    assert!(missing[0].detail.ends_with("gone.wav"), "{}", missing[0].detail);
    let error = dataset.get(tandem_corpus::SampleIndex(2)).unwrap().audio.open().unwrap_err();
    assert!(matches!(&error, CorpusError::Audio { path, .. } if path.ends_with("gone.wav")), "{error}");
}

#[test]
fn utterances_to_be_left_out() {
    let folder = CorpusFolder::new("exclude");
    let rows: String = ["x/a", "x/b", "y/b", "c", "d"]
        .map(|id| format!("{{\"audio_filepath\":\"{id}.wav\",\"text\":\"t\"}}\n"))
        .concat();
    folder.write("list.jsonl", rows);
    folder.write("exclude.txt", "\u{feff}x/a\r\nb\n\nc.wav|with the rest of its row\nnobody\n");
    let options = OpenOptions { exclude_ids: Some(folder.path().join("exclude.txt")), ..OpenOptions::default() };
    let dataset = Dataset::open(folder.path().join("list.jsonl"), &options).unwrap();
    let left: Vec<&str> = dataset
        .samples()
        .iter()
        .filter(|(_, sample)| sample.part != Subset::Excluded)
        .map(|(_, sample)| sample.id)
        .collect();
    assert_eq!((left, dataset.num_excluded()), (vec!["d"], 4));
    assert_eq!((dataset.split(1).train.len(), dataset.split(1).eval.len()), (1, 0));
    assert_eq!(found(&dataset), [(Some(5), UnknownExcluded)]);

    let gone = OpenOptions { exclude_ids: Some(folder.path().join("gone.txt")), ..OpenOptions::default() };
    assert!(matches!(Dataset::open(folder.path().join("list.jsonl"), &gone), Err(CorpusError::Read { .. })));
}

#[test]
fn speakers_by_column_by_pattern_or_not_at_all() {
    let folder = CorpusFolder::new("speakers");
    for id in ["p248_065", "p225_001", "odd"] {
        folder.write(&format!("wavs/{id}.flac"), "");
    }
    folder.write("metadata.csv", "p248_065|x\np225_001|x|x|given\nodd|x\n");
    let pattern = Some(SpeakerPattern::parse("{speaker}_*").unwrap());
    let dataset =
        Dataset::open(folder.path(), &OpenOptions { speaker_pattern: pattern, ..OpenOptions::default() }).unwrap();
    let speakers: Vec<Option<&str>> = dataset.samples().iter().map(|(_, sample)| sample.speaker).collect();
    assert_eq!(speakers, [Some("p248"), Some("given"), None]);
    assert_eq!(found(&dataset), [(Some(3), NoSpeaker)]);
}

#[test]
fn what_is_no_corpus_is_refused_by_name() {
    let folder = CorpusFolder::new("refused");
    folder.write("empty/readme.txt", "");
    for (name, part) in [("gone", "found nothing"), ("empty", "found a folder with readme.txt")] {
        let error = Dataset::open(folder.path().join(name), &OpenOptions::default()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(&format!("/{name}\n")), "{error}");
    }
    // A list given by name is read as what it is.
    folder.write("wavs/a.wav", "");
    folder.write("some.csv", "a|x\n");
    assert_eq!(open(&folder, "some.csv").format(), Format::LjSpeech);
}

#[test]
fn a_faulty_line_of_the_excluded_ids_is_no_rejected_row() {
    let folder = CorpusFolder::new("excluded");
    folder.write("wavs/a.wav", "");
    folder.write("metadata.csv", "a|x\nonly a line\n");
    folder.write("excluded.txt", b"b\n\xff\n");
    let options = OpenOptions { exclude_ids: Some(folder.path().join("excluded.txt")), ..OpenOptions::default() };
    let dataset = Dataset::open(folder.path(), &options).unwrap();
    assert_eq!(found(&dataset), [(Some(2), MissingColumn), (Some(2), InvalidUtf8), (Some(1), UnknownExcluded)]);
    assert_eq!(dataset.rejected().values().sum::<usize>(), 1);
}
