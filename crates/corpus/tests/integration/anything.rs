//! Any bytes at all as metadata, manifest, list or text: no panic, and every line is a sample or a problem.

use std::collections::BTreeSet;

use crate::fixture::CorpusFolder;
use proptest::prelude::*;
use tandem_corpus::{Dataset, OpenOptions, SpeakerPattern};

/// Bytes that look enough like a list to get past the first check: pieces of lists, glued together, and noise.
fn list() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "|",
        "\n",
        "\r\n",
        "a",
        "b",
        "a|x",
        "id|text",
        "{",
        "}",
        "\"",
        ":",
        ",",
        "\\",
        "\u{feff}",
        "é",
        "../",
        ".wav",
        " ",
        "{\"audio_filepath\":\"",
        "\",\"text\":\"",
        "\",\"duration\":",
        "-1}",
        "1e308}",
        "NaN}",
        "1.5}\n",
        "\",\"offset\":",
        "{\"audio_filepath\":\"a.wav\",\"text\":\"x\",\"duration\":2}\n",
        "[[[[",
        "\\ud800",
        "\0",
    ])
    .prop_map(|piece| piece.as_bytes().to_vec());
    let noise = prop::collection::vec(any::<u8>(), 0..20);
    prop::collection::vec(prop_oneof![4 => pieces, 1 => noise], 0..60).prop_map(|pieces| pieces.concat())
}

/// Lines that are not blank, by number. Blank is what is white space, after a mark at the very beginning.
fn lines_with_content(bytes: &[u8]) -> BTreeSet<u32> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let blank = |line: &[u8]| str::from_utf8(line).is_ok_and(|line| line.trim().is_empty());
    (1..).zip(bytes.split(|byte| *byte == b'\n')).filter(|(_, line)| !blank(line)).map(|(number, _)| number).collect()
}

/// Reads `bytes` as the list `name`, beside a folder of recordings.
fn check(name: &str, audio: &str, bytes: &[u8], may_have_header: bool) -> Result<(), TestCaseError> {
    let folder = CorpusFolder::new("anything");
    folder.write(&format!("{audio}/a.wav"), "");
    folder.write(name, bytes);
    folder.write("exclude.txt", bytes);
    let options = OpenOptions {
        speaker_pattern: Some(SpeakerPattern::parse("{speaker}_*").unwrap()),
        exclude_ids: Some(folder.path().join("exclude.txt")),
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(folder.path().join(name), &options).unwrap();
    let samples = dataset.samples().iter().map(|(_, sample)| sample.line);
    let own = dataset.problems().iter().filter(|problem| problem.file.ends_with(name));
    let reported: BTreeSet<u32> = samples.chain(own.clone().filter_map(|problem| problem.line)).collect();
    let expected = lines_with_content(bytes);
    let silent: Vec<u32> = expected.difference(&reported).copied().collect();
    let header: Vec<u32> = expected.first().copied().into_iter().filter(|_| may_have_header).collect();
    prop_assert!(silent.is_empty() || silent == header, "lines {silent:?} are neither");
    prop_assert!(reported.is_subset(&expected));
    prop_assert!(!reported.is_empty() || own.count() == 1, "a file without rows is a problem");
    prop_assert!(dataset.problems().iter().all(|problem| problem.detail.len() < 1000));
    for (_, sample) in dataset.samples().iter() {
        prop_assert!(!sample.id.is_empty() && !sample.text.is_empty() && !sample.audio.key.is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn metadata(bytes in list()) {
        let begins_with_header = String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').trim_start().starts_with("id|text");
        check("metadata.csv", "wavs", &bytes, begins_with_header)?;
        check("metadata.csv", "wav", &bytes, begins_with_header)?;
    }

    #[test]
    fn manifest(bytes in list()) {
        check("list.jsonl", "wavs", &bytes, false)?;
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check("metadata.csv", "wavs", &bytes, false)?;
        check("list.jsonl", "wavs", &bytes, false)?;
    }

    #[test]
    fn common_voice(bytes in list(), noise in prop::collection::vec(any::<u8>(), 0..500)) {
        for rows in [bytes, noise] {
            let list = [b"path\tsentence\tlocale\n", &rows[..]].concat();
            let tabs: Vec<u8> = list.iter().map(|byte| if *byte == b'|' { b'\t' } else { *byte }).collect();
            check("list.tsv", "clips", &tabs, true)?;
        }
    }

    #[test]
    fn text_files(bytes in list(), noise in prop::collection::vec(any::<u8>(), 0..500)) {
        for text in [bytes, noise] {
            for names in [["a.wav", "a.txt"], ["ada/a.wav", "ada/a.txt"], ["wav48/ada/a_mic2.flac", "txt/ada/a.txt"]] {
                let folder = CorpusFolder::new("anything");
                folder.write(names[0], "");
                folder.write(names[1], &text);
                let dataset = Dataset::open(folder.path(), &OpenOptions::default()).unwrap();
                prop_assert_eq!(dataset.samples().len() + dataset.problems().len(), 1);
                for (_, sample) in dataset.samples().iter() {
                    prop_assert!(!sample.text.is_empty() && sample.audio.key == names[0] && sample.line == 1);
                }
            }
        }
    }

    #[test]
    fn patterns(pattern in "[a*_é{}/]{0,6}(\\{speaker\\})?[a*_é]{0,6}", id in "[a_é/]{0,12}") {
        if let Ok(pattern) = SpeakerPattern::parse(&pattern) {
            let speaker = pattern.find(&id);
            prop_assert!(speaker.is_none_or(|speaker| !speaker.is_empty() && id.contains(speaker)));
        }
    }
}
