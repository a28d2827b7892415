//! `tandem corpus`: the demo corpus has no problems, features have the right shape, wrong usage is explained, a real voice
//! passes.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tandem_test_support::real_voice;

use crate::command::{Ran, TandemCommand, contains, in_order, tandem};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

fn check(path: &Path) -> Ran {
    TandemCommand::new("corpus check").arg(path).run()
}

#[test]
fn the_demo_corpus_has_no_problem() {
    let ran = check(demo());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let parts = [
        "✅ No problem in ",
        "Utterances:",
        "Speakers:",
        "Languages:   1 (en ",
        "Seconds:",
        " s  #",
        "Buckets:",
        "Padding:",
    ];
    in_order(&ran.out, &parts);
    let report = TandemCommand::new("corpus check --json").arg(demo()).run().json();
    assert_eq!((&report["passed"], &report["problems"]), (&json!(true), &json!([])));
    let utterances = fs::read_to_string(demo().join("metadata.csv")).unwrap().lines().count();
    assert_eq!(report["utterances"], json!(utterances));
    assert!(report["hours"].as_f64().unwrap() >= 1.0 / 60.0, "{report}");
    assert!(report["speakers"].as_array().unwrap().len() > 1, "{report}");
    let histogram = report["histogram"].as_array().unwrap();
    assert_eq!(histogram.iter().map(|bin| bin["utterances"].as_u64().unwrap()).sum::<u64>(), utterances as u64);
}

#[test]
fn a_demo_corpus_is_a_function_of_its_seed() {
    let folder = TempFolder::new();
    for (name, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        let ran =
            TandemCommand::new(&format!("corpus demo --minutes 0.1 --seed {seed} -o")).arg(folder.path(name)).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.out, &["✅ ", "tandem corpus check "]);
    }
    let list = |name: &str| fs::read(folder.path(name).join("metadata.csv")).unwrap();
    assert_eq!(list("a"), list("b"));
    assert_ne!(list("a"), list("c"));
    for entry in fs::read_dir(folder.path("a/wavs")).unwrap().map(Result::unwrap) {
        let other = folder.path("b/wavs").join(entry.file_name());
        assert_eq!(fs::read(entry.path()).unwrap(), fs::read(other).unwrap());
    }
}

#[test]
fn a_folder_with_files_is_refused() {
    let folder = TempFolder::new();
    folder.file("mine.txt", "precious");
    let refused = TandemCommand::new("corpus demo --minutes 0.1 -o").arg(folder.path("")).run();
    assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{refused:?}");
    let (_, typed) = refused.err.trim_end().split_once("Type: tandem ").unwrap();
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1);
    // The suggested command works, and the second time it names another folder.
    assert_eq!(tandem(&format!("{typed} --minutes 0.05")).code, 0, "{typed}");
    let again = TandemCommand::new("corpus demo --minutes 0.1 -o").arg(folder.path("")).run();
    assert!(!again.err.trim_end().ends_with(typed), "{again:?}");
    let file = TandemCommand::new("corpus demo -o").arg(folder.path("mine.txt")).run();
    assert_eq!(file.code, 2, "{file:?}");
}

/// The shape in the header of a `.npy` file, and its numbers.
fn array(path: &Path) -> (usize, usize, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let header_end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..header_end]).unwrap();
    let (_, shape) = header.split_once("'shape': (").unwrap();
    let (rows, columns) = shape.split_once(')').unwrap().0.split_once(", ").unwrap();
    let values = bytes[header_end..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (rows.parse().unwrap(), columns.parse().unwrap(), values)
}

#[test]
fn features_are_written_with_their_shape() {
    let folder = TempFolder::new();
    for (rate_hz, seconds) in [(22_050, 1.0), (48_000, 2.5)] {
        let file = folder.file("tone.wav", wav_of(&tone(rate_hz, seconds)));
        let ran = TandemCommand::new("corpus features")
            .arg(&file)
            .args(["-o", "mel.npy", "--pitch", "pitch.npy", "--energy", "energy.npy"])
            .inside(&folder)
            .run();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
        let frames = (22_050.0 * seconds) as usize / 256;
        contains(&ran.out, &[&format!("✅ {frames} frames of 80 bands")]);
        let (rows, bands, mel) = array(&folder.path("mel.npy"));
        assert_eq!((rows, bands, mel.len()), (frames, 80, frames * 80));
        assert!(mel.iter().all(|value| (-11.6..5.0).contains(value)));
        let (rows, _, pitch) = array(&folder.path("pitch.npy"));
        // 900 radians a second.
        let expected_hz = 900.0 / std::f32::consts::TAU;
        assert!(rows == frames && (pitch[frames / 2] - expected_hz).abs() < 1.0, "{}", pitch[frames / 2]);
        let (rows, columns, energy) = array(&folder.path("energy.npy"));
        assert!(rows == frames && columns == 1 && energy.iter().all(|value| *value > 0.0));
    }
}

#[test]
fn features_of_files_that_are_not_recordings() {
    let folder = TempFolder::new();
    let text = folder.file("notes.wav", "hello");
    let good = folder.file("good.wav", wav_of(&tone(8_000, 1.0)));
    let features =
        |file: &Path, output: &Path| TandemCommand::new("corpus features").arg(file).arg("-o").arg(output).run();
    let mel = folder.path("mel.npy");
    let not_audio = features(&text, &mel);
    assert_eq!((not_audio.code, not_audio.out.as_str()), (1, ""), "{not_audio:?}");
    contains(&not_audio.err, &["not an audio file", "notes.wav"]);
    assert!(!mel.exists());
    let absent = features(&folder.path("absent.wav"), &mel);
    assert_eq!(absent.code, 2, "{absent:?}");
    let over_itself = features(&good, &good);
    assert_eq!(over_itself.code, 2, "{over_itself:?}");
    assert_eq!(fs::read(&good).unwrap(), wav_of(&tone(8_000, 1.0)));
    let nowhere = features(&good, &folder.path("no/such/folder/mel.npy"));
    assert_eq!(nowhere.code, 1, "{nowhere:?}");
    contains(&nowhere.err, &["cannot write", "mel.npy"]);
}

#[test]
fn wrong_usage_is_explained() {
    let folder = TempFolder::new();
    let empty = folder.path("empty");
    fs::create_dir(&empty).unwrap();
    let refused = |line: &str, parts: &[&str]| {
        let command = || {
            TandemCommand::new(
                &line.replace("EMPTY", empty.to_str().unwrap()).replace("DEMO", demo().to_str().unwrap()),
            )
        };
        let ran = command().run();
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{line}: {ran:?}");
        contains(&ran.err, parts);
        if line.starts_with("corpus check ") {
            let document = command().arg("--json").run().json();
            assert_eq!(document["code"], json!(2), "{line}");
        }
    };
    refused("corpus", &["check", "demo", "features"]);
    refused("corpus chek DEMO", &["chek", "check"]);
    refused("corpus check", &["SOURCE"]);
    refused(
        "corpus check /nonexistent",
        &["expected a corpus, found nothing", "/nonexistent", "LJSpeech: a folder with "],
    );
    refused("corpus check EMPTY", &["expected a corpus, found an empty folder"]);
    refused("corpus check DEMO --batch-size 0", &["--batch-size", "whole number above 0"]);
    refused("corpus check DEMO --max-seconds -1", &["--max-seconds", "above 0"]);
    refused("corpus check DEMO --max-seconds NaN", &["--max-seconds", "above 0"]);
    refused("corpus check DEMO --num-workers x", &["--num-workers", "whole number"]);
    refused("corpus check DEMO --speaker-id-pattern *_", &["speaker pattern `*_`", "{speaker}_*"]);
    refused("corpus check DEMO --exclude-ids /nonexistent", &["--exclude-ids", "/nonexistent"]);
    refused("corpus demo", &["-o"]);
    refused("corpus demo -o EMPTY/x --minutes 0", &["--minutes", "above 0"]);
    refused("corpus features x.wav", &["-o"]);
}

#[test]
fn lengths_are_saved_in_the_cache_and_nothing_in_the_dataset() {
    let (corpus, lines) = copy_of_demo();
    let cache = TempFolder::new();
    let before = fs::read_dir(corpus.path("")).unwrap().count();
    for variable in ["XDG_CACHE_HOME", "HOME"] {
        let ran = TandemCommand::new("corpus check -q").arg(corpus.path("")).env(variable, cache.path("")).run();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    }
    for folder in ["tandem/lengths", ".cache/tandem/lengths"] {
        let saved: Vec<_> = fs::read_dir(cache.path(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        // A head, a line for each recording, a foot.
        assert_eq!(saved.len(), 1);
        assert_eq!(fs::read_to_string(&saved[0]).unwrap().lines().count(), lines.len() + 2);
    }
    assert_eq!(fs::read_dir(corpus.path("")).unwrap().count(), before);
    // A cache that cannot be written is a warning, and the result stays the same.
    let ran = TandemCommand::new("corpus check --json").arg(corpus.path("")).env("XDG_CACHE_HOME", "/dev/null").run();
    assert_eq!((ran.code, &ran.json()["passed"]), (0, &json!(true)), "{ran:?}");
    contains(&ran.err, &["cannot save the measured lengths"]);
}

#[test]
fn utterances_can_be_excluded_and_speakers_found_in_ids() {
    let (corpus, lines) = copy_of_demo();
    let without_speakers: Vec<String> =
        lines.iter().map(|line| line.split('|').take(2).collect::<Vec<_>>().join("|")).collect();
    corpus.file("metadata.csv", without_speakers.join("\n"));
    let ids = corpus.file(
        "ids.txt",
        lines.iter().take(3).map(|line| line.split('|').next().unwrap()).collect::<Vec<_>>().join("\n"),
    );
    let ran = TandemCommand::new("corpus check --json --speaker-id-pattern {speaker}_* --exclude-ids")
        .arg(&ids)
        .arg(corpus.path(""))
        .run();
    let report = ran.json();
    assert_eq!((ran.code, &report["excluded"]), (0, &json!(3)), "{ran:?}");
    assert_eq!(report["utterances"], json!(lines.len() - 3));
    assert!(report["speakers"].as_array().unwrap().iter().all(|speaker| speaker["name"].is_string()), "{report}");
    assert_eq!(report["languages"][0]["name"], Value::Null);
}

#[test]
fn a_real_voice_has_no_problem_and_pads_little() {
    let Some(path) = real_voice("the padding of a real voice") else { return };
    let ran = TandemCommand::new("corpus check --json").arg(&path).run();
    let report = ran.json();
    assert_eq!((ran.code, &report["problems"], &report["utterances"]), (0, &json!([]), &json!(1092)), "{ran:?}");
    let shapes = &report["shapes"];
    let totals: Vec<f64> =
        shapes["buckets"].as_array().unwrap().iter().map(|bucket| bucket["total_frames"].as_f64().unwrap()).collect();
    assert!(totals.len() == 2 && (totals[0] / totals[1] - 1.0).abs() < 0.03, "{totals:?}");
    let others: Vec<(u64, f64)> = shapes["by_number_of_buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|other| (other["buckets"].as_u64().unwrap(), other["padding_waste"].as_f64().unwrap()))
        .collect();
    // Written directly, because the harness captures output: these figures are the point of this test.
    let _ = writeln!(std::io::stderr(), "padding of a real voice by number of buckets: {others:.4?}");
    assert_eq!(others.iter().map(|(count, _)| *count).collect::<Vec<_>>(), [1, 2, 4, 8]);
    assert!(others.windows(2).all(|pair| pair[1].1 < pair[0].1), "{others:?}");
    assert!(others[1].1 == shapes["padding_waste"].as_f64().unwrap() && others[1].1 < 0.04, "{others:?}");
    // The goal. Eight buckets of equal rows padded 7.3 %.
    assert!(others[3].1 <= 0.05, "{others:?}");
}
