//! Corpora in the formats that people have: each is checked, planned for and trained on; what lacks a part is refused with the
//! name of the part.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

/// An utterance of the demo corpus.
struct Utterance {
    text: String,
    speaker: &'static str,
    recording: Vec<u8>,
}

const SPEAKERS: [&str; 2] = ["ada", "bob"];

/// Twelve utterances, by turns of two speakers.
fn utterances() -> Vec<Utterance> {
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let utterance = |(at, line): (usize, &str)| {
        let (id, rest) = line.split_once('|').unwrap();
        Utterance {
            text: rest.split('|').next().unwrap().to_owned(),
            speaker: SPEAKERS[at % 2],
            recording: fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap(),
        }
    };
    metadata.lines().take(12).enumerate().map(utterance).collect()
}

/// A corpus whose files are named by `files`, which also gets the number of the utterance.
fn corpus(files: impl Fn(usize, &Utterance) -> Vec<(String, Vec<u8>)>) -> TempFolder {
    let folder = TempFolder::new();
    for (at, utterance) in utterances().iter().enumerate() {
        for (name, bytes) in files(at, utterance) {
            folder.file(&name, bytes);
        }
    }
    folder
}

/// A list with a line for each utterance.
fn list(line: impl Fn(usize, &Utterance) -> String) -> String {
    utterances().iter().enumerate().map(|(at, utterance)| line(at, utterance) + "\n").collect()
}

fn check_json(path: &Path) -> (Ran, Value) {
    let ran = TandemCommand::new("corpus check --json").arg(path).run();
    let report = ran.json();
    (ran, report)
}

fn plan_json(path: &Path) -> Value {
    let ran = TandemCommand::new("plan --sim 1x24GiB --batch-size 2 --json --train-data").arg(path).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()
}

/// Trains for three steps and returns the names of the voices in the checkpoint.
fn trained_voices(path: &Path) -> BTreeSet<String> {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 1 --max-steps 3";
    let ran = TandemCommand::new(line).arg("--train-data").arg(path).arg("--checkpoint-dir").arg(&dir).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Training finished: 3 steps"]);
    let file = fs::read(dir.join("checkpoint-00000003/weights.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let header: Value = serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).unwrap();
    header.as_object().unwrap().keys().filter_map(|name| name.strip_prefix("reference.")).map(str::to_owned).collect()
}

fn names(groups: &Value) -> BTreeSet<String> {
    groups.as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// What a corpus should be read as.
struct Expected<'a> {
    format: &'a str,
    shown: &'a str,
    speakers: &'a [&'a str],
    languages: &'a [&'a str],
    utterances: usize,
}

/// Checks, plans for and trains on the corpus at `path`.
#[track_caller]
fn read_as(path: &Path, expected: &Expected<'_>) {
    let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
    let (ran, report) = check_json(path);
    assert_eq!((ran.code, &report["problems"]), (0, &json!([])), "{ran:?}");
    assert_eq!((&report["format"], &report["utterances"]), (&json!(expected.format), &json!(expected.utterances)));
    assert_eq!(names(&report["speakers"]), set(expected.speakers), "{report}");
    assert_eq!(names(&report["languages"]), set(expected.languages), "{report}");
    contains(&TandemCommand::new("corpus check").arg(path).run().out, &[expected.shown]);

    let corpus = &plan_json(path)["corpus"];
    let count = |key: &str| corpus[key].as_u64().unwrap() as usize;
    let too_long = corpus["left_out"]["too_long"].as_u64().unwrap() as usize;
    assert_eq!(count("utterances") + count("validation") + too_long, expected.utterances, "{corpus}");
    assert_eq!(trained_voices(path), set(expected.speakers));
}

fn tsv(columns: &str, part: impl Fn(usize) -> bool) -> String {
    let row = |at: usize, utterance: &Utterance| {
        let field = |name: &str| match name {
            "client_id" => utterance.speaker.repeat(20),
            "path" => format!("common_voice_{at:04}.mp3"),
            "sentence" => utterance.text.clone(),
            "locale" => "en".to_owned(),
            _ => at.to_string(),
        };
        columns.split('\t').map(field).collect::<Vec<_>>().join("\t")
    };
    let all = utterances();
    let rows = all.iter().enumerate().filter(|(at, _)| part(*at)).map(|(at, utterance)| row(at, utterance) + "\n");
    format!("{columns}\n{}", rows.collect::<String>())
}

const COMMON_VOICE: &str = "client_id\tpath\tsentence_id\tsentence\tup_votes\tage\tlocale\tsegment";

#[test]
fn a_piper_folder() {
    let recordings = |at: usize, utterance: &Utterance| vec![(format!("wav/u{at}.wav"), utterance.recording.clone())];
    let folder = corpus(recordings);
    folder.file("metadata.csv", list(|at, utterance| format!("u{at}|{}|{}", utterance.speaker, utterance.text)));
    let shown = "Format:      Piper, recordings in wav/\n";
    let expected =
        Expected { format: "piper", shown, speakers: &SPEAKERS, languages: &[""], utterances: utterances().len() };
    read_as(&folder.path(""), &expected);
    // One speaker, two columns; and the columns of LJSpeech.
    folder.file("metadata.csv", list(|at, utterance| format!("u{at}|{}", utterance.text)));
    let (_, report) = check_json(&folder.path(""));
    assert_eq!((&report["format"], names(&report["speakers"])), (&json!("piper"), BTreeSet::from([String::new()])));
    folder.file("metadata.csv", list(|at, u| format!("u{at}.wav|{}|{}|{}|en", u.text, u.text, u.speaker)));
    let (_, report) = check_json(&folder.path("metadata.csv"));
    assert_eq!((&report["format"], names(&report["speakers"]).len()), (&json!("piper"), 2));
    assert_eq!((&report["problems"], names(&report["languages"])), (&json!([]), BTreeSet::from(["en".to_owned()])));
    // With both folders, that of LJSpeech is read, which is said.
    folder.file("wavs/u0.wav", wav_of(&tone(22_050, 1.0)));
    let ran = TandemCommand::new("corpus check").arg(folder.path("")).run();
    contains(
        &ran.out,
        &["Format:      LJSpeech, recordings in wavs/; not read: wav/ (wavs/ is there)\n", "missing audio (11)"],
    );
}

#[test]
fn a_vctk_folder() {
    let folder = corpus(|at, utterance| {
        let (speaker, number) = (utterance.speaker, at / 2);
        let text = (format!("txt/{speaker}/{speaker}_{number:03}.txt"), format!("\n{}\n", utterance.text).into_bytes());
        let audio = format!("wav48_silence_trimmed/{speaker}/{speaker}_{number:03}");
        // Both microphones, one of them, or a name without one.
        let endings: &[&str] = match at % 3 {
            0 => &["_mic1.flac", "_mic2.flac"],
            1 => &["_mic2.flac"],
            _ => &[".wav"],
        };
        endings.iter().map(|end| (format!("{audio}{end}"), utterance.recording.clone())).chain([text]).collect()
    });
    folder.file("speaker-info.txt", "ID AGE GENDER");
    let shown = "Format:      VCTK, recordings in wav48_silence_trimmed/\n";
    let expected = Expected { format: "vctk", shown, speakers: &SPEAKERS, languages: &[""], utterances: 12 };
    read_as(&folder.path(""), &expected);

    // Texts without a recording, and recordings without a text, of which one is counted for both microphones.
    folder.file("txt/ada/ada_900.txt", "nobody says this");
    folder.file("txt/ada/ada_901.txt", " \n");
    for name in ["bob/bob_901_mic1.flac", "bob/bob_901_mic2.flac", "eve/eve_001_mic1.flac", "ada/ada_901_mic1.flac"] {
        folder.file(&format!("wav48_silence_trimmed/{name}"), wav_of(&tone(22_050, 1.0)));
    }
    let (ran, report) = check_json(&folder.path(""));
    assert_eq!((ran.code, &report["utterances"]), (1, &json!(12)), "{ran:?}");
    let mut found: Vec<(&str, &str)> = report["problems"].as_array().unwrap().iter().map(kind_and_file).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("empty-text", "ada_901.txt"),
            ("missing-audio", "ada_900.txt"),
            ("missing-text", "bob_901_mic1.flac"),
            ("missing-text", "eve_001_mic1.flac"),
        ]
    );
    let rejected = &plan_json(&folder.path(""))["corpus"]["rejected"];
    assert_eq!(*rejected, json!({ "empty text": 1, "missing audio": 1, "missing text": 2 }));
}

fn kind_and_file(problem: &Value) -> (&str, &str) {
    let file = problem["file"].as_str().unwrap();
    (problem["kind"].as_str().unwrap(), file.rsplit('/').next().unwrap())
}

#[test]
fn a_common_voice_folder() {
    let folder = corpus(|at, u| vec![(format!("clips/common_voice_{at:04}.mp3"), u.recording.clone())]);
    folder.file("validated.tsv", tsv(COMMON_VOICE, |_| true));
    let speakers = SPEAKERS.map(|name| name.repeat(20));
    let speakers = speakers.each_ref().map(String::as_str);
    let shown = "Format:      Common Voice, recordings in clips/\n";
    let expected = Expected { format: "common-voice", shown, speakers: &speakers, languages: &["en"], utterances: 12 };
    read_as(&folder.path(""), &expected);

    // The lists of the corpus decide which rows train and which validate.
    folder.file("train.tsv", tsv(COMMON_VOICE, |at| at < 8));
    folder.file("dev.tsv", tsv(COMMON_VOICE, |at| (8..10).contains(&at)));
    let plan = plan_json(&folder.path(""));
    let corpus = &plan["corpus"];
    let trained = corpus["utterances"].as_u64().unwrap() + corpus["left_out"]["too_long"].as_u64().unwrap();
    assert_eq!((trained, &corpus["validation"]), (8, &json!(2)), "{corpus}");
    let unread = "not read: validated.tsv (train.tsv is there; to read it, give its path)";
    contains(&TandemCommand::new("corpus check").arg(folder.path("")).run().out, &[shown.trim_end(), unread]);
    contains(
        &TandemCommand::new("plan --sim 1x24GiB --batch-size 2 --train-data").arg(folder.path("")).run().err,
        &["--train-data: read as Common Voice, recordings in clips/; ", unread],
    );
    // A list is read by its path; columns may be fewer and in another order.
    folder.file("mine.tsv", tsv("sentence\tpath", |at| at < 5));
    let (ran, report) = check_json(&folder.path("mine.tsv"));
    assert_eq!((ran.code, &report["utterances"], &report["format"]), (0, &json!(5), &json!("common-voice")), "{ran:?}");
    // Rows that lack something are named by their lines.
    folder.file(
        "mine.tsv",
        "path\tsentence\ncommon_voice_0000.mp3\nmissing.mp3\thello\n\thello\ncommon_voice_0001.mp3\t \n",
    );
    let (_, report) = check_json(&folder.path("mine.tsv"));
    let found: Vec<(u64, &str)> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| (problem["line"].as_u64().unwrap(), problem["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(found, [(2, "missing-column"), (3, "missing-audio"), (4, "empty-id"), (5, "empty-text")]);
}

#[test]
fn a_folder_of_recordings_and_texts() {
    let folder = corpus(|at, utterance| {
        let extension = ["wav", "flac", "ogg", "mp3"][at % 4];
        vec![
            (format!("{}/say {at}.{extension}", utterance.speaker), utterance.recording.clone()),
            (format!("{}/say {at}.txt", utterance.speaker), utterance.text.clone().into_bytes()),
        ]
    });
    // Notes beside the speakers' folders are no texts.
    folder.file("README.txt", "recorded at home");
    let shown = "Format:      text files\n";
    let expected = Expected { format: "text-files", shown, speakers: &SPEAKERS, languages: &[""], utterances: 12 };
    read_as(&folder.path(""), &expected);

    // All in one folder: no speakers, unless a pattern finds them.
    let flat = corpus(|at, utterance| {
        let name = format!("{}_{at}", utterance.speaker);
        vec![
            (format!("{name}.wav"), utterance.recording.clone()),
            (format!("{name}.txt"), utterance.text.clone().into_bytes()),
        ]
    });
    let (ran, report) = check_json(&flat.path(""));
    assert_eq!((ran.code, names(&report["speakers"])), (0, BTreeSet::from([String::new()])), "{ran:?}");
    let ran = TandemCommand::new("corpus check --json --speaker-id-pattern {speaker}_*").arg(flat.path("")).run();
    assert_eq!(names(&ran.json()["speakers"]), SPEAKERS.map(str::to_owned).into());

    flat.file("orphan.txt", "no recording");
    flat.file("wordless.wav", wav_of(&tone(22_050, 1.0)));
    flat.file("bytes.txt", b"\xff\xfe");
    flat.file("bytes.wav", wav_of(&tone(22_050, 1.0)));
    let (ran, report) = check_json(&flat.path(""));
    let found: Vec<(&str, &str)> = report["problems"].as_array().unwrap().iter().map(kind_and_file).collect();
    assert_eq!(
        (ran.code, found),
        (1, vec![("invalid-utf8", "bytes.txt"), ("missing-audio", "orphan.txt"), ("missing-text", "wordless.wav")])
    );
}

#[test]
fn a_corpus_that_lacks_a_part_is_refused_with_its_name() {
    let wav = || wav_of(&tone(8_000, 1.0));
    let refused = |files: &[(&str, Vec<u8>)], path: &str, parts: &[&str]| {
        let folder = TempFolder::new();
        files.iter().for_each(|(name, bytes)| drop(folder.file(name, bytes)));
        for command in
            ["corpus check", "plan --sim 1x24GiB --train-data", "train --mode cpu --max-steps 1 --train-data"]
        {
            let ran = TandemCommand::new(command).arg(folder.path(path)).inside(&folder).run();
            assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{command}: {ran:?}");
            contains(&ran.err, parts);
        }
    };
    refused(&[("wavs/a.wav", wav())], "", &["wavs/ is there, metadata.csv beside it is missing"]);
    refused(&[("wav/a.wav", wav())], "", &["wav/ is there, metadata.csv beside it is missing"]);
    refused(
        &[("metadata.csv", b"a|hello\nb|world\n".to_vec())],
        "",
        &[
            "found metadata without recordings",
            "metadata.csv is there, wavs/ or wav/ with the recordings beside it is missing",
        ],
    );
    refused(&[("clips/a.mp3", wav())], "", &["clips/ is there, train.tsv or validated.tsv beside it is missing"]);
    let tsv = || b"path\tsentence\na.mp3\thello\n".to_vec();
    refused(&[("train.tsv", tsv())], "", &["train.tsv is there, clips/ beside it is missing"]);
    refused(&[("train.tsv", tsv())], "train.tsv", &["clips/ beside the list is missing"]);
    refused(
        &[("train.tsv", b"client_id\tfile\ttext\nx\ta.mp3\thello\n".to_vec()), ("clips/a.mp3", wav())],
        "",
        &[
            "expected a header with `path` and `sentence`, found `client_id file text`",
            "client_id, path, sentence and locale",
        ],
    );
    refused(&[("txt/p225/p225_001.txt", b"hello".to_vec())], "", &["txt/ is there, wav48/ or wav48_silence_trimmed/"]);
    refused(&[("wav48/p225/p225_001.wav", wav())], "", &["wav48/ is there, txt/ beside it is missing"]);
    refused(&[("a.wav", wav()), ("b.wav", wav())], "", &["2 recordings are there, a .txt of the same name"]);
    refused(&[("a.txt", b"hello".to_vec())], "", &["1 text is there, a recording of the same name"]);
    let nested = [("en/train.tsv", tsv()), ("en/clips/a.mp3", wav())];
    refused(&nested, "", &["found a folder with en/", "Did you mean ", "/en?"]);
    refused(&[("notes.md", b"x".to_vec())], "", &["found a folder with notes.md", "LJSpeech: ", "Piper: ", "VCTK: "]);
    refused(&[], "absent", &["expected a corpus, found nothing", "Common Voice: "]);
}
