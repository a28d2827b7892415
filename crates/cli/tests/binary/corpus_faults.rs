//! Faulty datasets: the check names every fault with file and line, names nothing else, and never stops early.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tandem_audio::Clip;

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

fn check(path: &Path, more: &str) -> (Ran, Value) {
    let ran = TandemCommand::new(&format!("corpus check --json {more}")).arg(path).run();
    let report = ran.json();
    (ran, report)
}

/// Problems as `line kind`, each of them in `list`.
#[track_caller]
fn problems(report: &Value, list: &Path) -> Vec<String> {
    let problems = report["problems"].as_array().unwrap();
    let shown = problems.iter().map(|problem| {
        assert_eq!(problem["file"].as_str().unwrap(), list.to_str().unwrap(), "{problem}");
        format!("{} {}", problem["line"].as_u64().unwrap_or(0), problem["kind"].as_str().unwrap())
    });
    shown.collect()
}

fn louder(clip: &Clip) -> Clip {
    Clip { samples: clip.samples.iter().map(|x| x.saturating_mul(20)).collect(), ..clip.clone() }
}

#[test]
fn twelve_injected_faults_are_named_and_only_those() {
    let (corpus, mut lines) = copy_of_demo();
    let id = |lines: &[String], at: usize| lines[at].split('|').next().unwrap().to_owned();
    let recording = |lines: &[String], at: usize| format!("wavs/{}.wav", id(lines, at));
    // Each at another utterance, with good ones in between.
    let intact = fs::read(corpus.path(&recording(&lines, 1))).unwrap();
    fs::remove_file(corpus.path(&recording(&lines, 0))).unwrap();
    corpus.file(&recording(&lines, 1), &intact[..intact.len() / 2]);
    corpus.file(&recording(&lines, 3), "");
    corpus.file(&recording(&lines, 4), "This is a letter, and no sound at all. ".repeat(50));
    corpus.file(&recording(&lines, 5), wav_of(&tone(22_050, 0.0)));
    corpus.file(&recording(&lines, 7), wav_of(&louder(&tone(22_050, 2.0))));
    corpus.file(&recording(&lines, 8), wav_of(&tone(22_050, 0.1)));
    corpus.file(&recording(&lines, 9), wav_of(&tone(22_050, 31.0)));
    lines[10] = format!("{}||", id(&lines, 10));
    lines[12] = format!("{}|One more 中 here.", id(&lines, 12));
    lines[13] = id(&lines, 13);
    lines.push(lines[14].clone());
    let last = lines.len();
    let list = corpus.file("metadata.csv", lines.join("\n"));

    let (ran, report) = check(&corpus.path(""), "");
    assert_eq!(ran.code, 1, "{ran:?}");
    let expected = [
        "1 missing-audio".to_owned(),
        "2 undecodable-audio".to_owned(),
        "4 undecodable-audio".to_owned(),
        "5 undecodable-audio".to_owned(),
        "6 undecodable-audio".to_owned(),
        "8 clipping".to_owned(),
        "9 too-short".to_owned(),
        "10 too-long".to_owned(),
        "11 empty-text".to_owned(),
        "13 unknown-symbol".to_owned(),
        "14 missing-column".to_owned(),
        format!("{last} duplicate-id"),
    ];
    assert_eq!(problems(&report, &list), expected, "{report:#}");
    let reasons = [
        (1, "cut off"),
        (2, "empty"),
        (3, "not an audio file"),
        (4, "no samples"),
        (5, "full scale"),
        (6, "0.100 s"),
        (7, "31.0 s"),
        (9, "U+4E2D"),
        (11, "line 15"),
    ];
    for (at, part) in reasons {
        let detail = report["problems"][at]["detail"].as_str().unwrap();
        contains(detail, &[part]);
        if at < 9 {
            contains(
                detail,
                &[&recording(&lines, expected[at].split(' ').next().unwrap().parse::<usize>().unwrap() - 1)],
            );
        }
    }

    // The text report is the same for any number of workers.
    let shown =
        |workers: &str| TandemCommand::new(&format!("corpus check --num-workers {workers}")).arg(corpus.path("")).run();
    let (one, many) = (shown("1"), shown("5"));
    assert_eq!((one.code, &one.out, one.err.as_str()), (1, &many.out, ""));
    contains(
        &one.out,
        &["❌ 12 problems in ", "undecodable audio (4)", "too long (1)", &format!("{}:8: ", list.display())],
    );
    // The original is unchanged.
    assert_eq!(TandemCommand::new("corpus check").arg(demo()).run().code, 0);
}

#[test]
fn usual_audio_formats_are_read() {
    let folder = TempFolder::new();
    let sine = tone(16_000, 1.0).samples;
    let eight_bit: Vec<u8> = sine.iter().map(|x| ((x >> 8) + 128) as u8).collect();
    let float: Vec<u8> = sine.iter().flat_map(|x| (f32::from(*x) / 32_768.0).to_le_bytes()).collect();
    let five: Vec<u8> = sine.iter().flat_map(|x| [*x; 5]).flat_map(i16::to_le_bytes).collect();
    folder.file("wavs/eight.wav", tandem_test_support::raw_wav(1, 1, 16_000, 8, &eight_bit));
    folder.file("wavs/float.wav", tandem_test_support::raw_wav(3, 1, 16_000, 32, &float));
    folder.file("wavs/five.wav", tandem_test_support::raw_wav(1, 5, 16_000, 16, &five));
    folder.file("wavs/high.wav", wav_of(&tone(192_000, 1.0)));
    folder.file("wavs/misnamed.mp3", wav_of(&tone(22_050, 1.0)));
    folder.file("wavs/voice.ogg", include_bytes!("../../../audio/tests/data/voice.ogg"));
    folder.file("wavs/tape.wav", include_bytes!("../../../audio/tests/data/voice.mp3"));
    // As a spreadsheet saves it: byte order mark, header, CRLF, quotes.
    let rows = ["eight", "float", "five", "high", "misnamed", "voice", "tape"]
        .map(|id| format!("{id}|\"Hello,\" said {id}.\r\n"));
    folder.file("metadata.csv", format!("\u{feff}id|text\r\n{}", rows.concat()));
    let (ran, report) = check(&folder.path(""), "");
    assert_eq!((ran.code, report["problems"].as_array().unwrap().len()), (0, 0), "{report:#}");
    assert_eq!(report["utterances"], 7);
}

#[test]
fn unreadable_files_are_named_and_the_rest_is_checked() {
    let folder = TempFolder::new();
    fs::create_dir_all(folder.path("wavs/folder.wav")).unwrap();
    // Listed with the folder, gone when it is opened.
    symlink(folder.path("nothing"), folder.path("wavs/vanished.wav")).unwrap();
    symlink("/dev/null", folder.path("wavs/nothing.wav")).unwrap();
    // Opening a pipe would block until another process writes.
    assert!(Command::new("mkfifo").arg(folder.path("wavs/pipe.wav")).status().unwrap().success());
    folder.file(
        "wavs/noise.wav",
        (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>(),
    );
    folder.file("wavs/good.wav", wav_of(&tone(22_050, 1.0)));
    let list = folder.file("metadata.csv", "folder|a\nvanished|b\nnothing|c\nnoise|d\ngood|e\npipe|f\n");
    let (ran, report) = check(&folder.path(""), "");
    let undecodable = |line: u32| format!("{line} undecodable-audio");
    let expected = [undecodable(1), "2 missing-audio".to_owned(), undecodable(3), undecodable(4), undecodable(6)];
    assert_eq!((ran.code, problems(&report, &list)), (1, expected.to_vec()), "{report:#}");
    assert_eq!(report["seconds"]["max"], 1.0);
}

#[test]
fn faulty_lists() {
    let long = format!("a|hello\nb|{}\n", "x".repeat(10_000_000));
    let cases: [(&[u8], &str); 8] = [
        (b"", "0 no-rows"),
        (b"\r\n\r\n", "0 no-rows"),
        (b"id|text|normalized\n", "0 header-only"),
        (b"a|hello\nb|caf\xe9\n", "2 invalid-utf8"),
        (b"a|hello\na|again\n", "2 duplicate-id"),
        (b"a|hello\n|nobody\n", "2 empty-id"),
        (b"a|b|c|d|e|f\n", "1 too-many-columns"),
        (long.as_bytes(), "2 line-too-long"),
    ];
    for (bytes, expected) in cases {
        let folder = TempFolder::new();
        folder.file("wavs/a.wav", wav_of(&tone(22_050, 1.0)));
        let list = folder.file("metadata.csv", bytes);
        let (ran, report) = check(&folder.path(""), "");
        assert_eq!((ran.code, problems(&report, &list)), (1, vec![expected.to_owned()]), "{report:#}");
        assert!(!ran.err.contains("panicked"), "{ran:?}");
    }
}

#[test]
fn manifests_are_checked_against_their_recordings() {
    let folder = TempFolder::new();
    folder.file("a.wav", wav_of(&tone(22_050, 2.0)));
    let list = folder.file(
        "list.jsonl",
        "{\"audio_filepath\":\"a.wav\",\"text\":\"hello\",\"duration\":2.0}\n\
         {\"audio_filepath\":\"a.wav\",\"text\":\"hello\",\"offset\":1.5,\"duration\":2}\n\
         {\"audio_filepath\":\"b.wav\",\"text\":\"hello\"}\n\
         not json\n\
         {\"audio_filepath\":\"./a.wav\",\"text\":\"hello\",\"duration\":9}\n",
    );
    let (ran, report) = check(&list, "");
    let expected = ["2 bad-number", "3 missing-audio", "4 bad-json", "5 bad-number"];
    assert_eq!((ran.code, problems(&report, &list)), (1, expected.map(str::to_owned).to_vec()), "{report:#}");
}

#[test]
fn limits_and_languages_can_be_given() {
    let folder = TempFolder::new();
    folder.file("wavs/a.wav", wav_of(&tone(22_050, 3.0)));
    let list = folder.file("metadata.csv", "a|سلام دنیا، ۱۲ کتاب می\u{200c}خواهم\n");
    let (ran, report) = check(&folder.path(""), "");
    assert_eq!((ran.code, problems(&report, &list)), (1, vec!["1 unknown-symbol".to_owned()]), "{report:#}");
    contains(report["hints"][0].as_str().unwrap(), &["--lang fa"]);
    let (ran, _) = check(&folder.path(""), "--lang fa");
    assert_eq!(ran.code, 0, "{ran:?}");
    let (ran, report) = check(&folder.path(""), "--lang fa --max-seconds 2.5");
    assert_eq!((ran.code, problems(&report, &list)), (1, vec!["1 too-long".to_owned()]), "{report:#}");
}
