//! `corpus check`, `plan` and `train` skip the same utterances for the same reasons, and their figures make sense.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, tone, wav_of};

/// The text after `name:` in an output.
fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().map(|line| line.trim_start_matches("[simulated] ")).find(|line| line.starts_with(name));
    let found = found.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    found[name.len()..].trim()
}

/// Checks the corpus, plans for it and trains on it, and compares what each of them leaves out. Returns the counts.
#[track_caller]
fn agreed(path: &Path, flags: &str) -> Value {
    let command = |command: &str| TandemCommand::new(&format!("{command} {flags}"));
    let checked = command("corpus check --json").arg(path).run().json();
    let planned = command("plan --sim 1x24GiB --batch-size 2 --json").arg("--train-data").arg(path).run().json();
    let (training, corpus) = (&checked["training"], &planned["corpus"]);
    for key in ["utterances", "hours", "validation", "rejected", "left_out"] {
        assert_eq!(training[key], corpus[key], "{key}: {training} {corpus}");
    }
    assert_eq!(
        (&checked["excluded"], &checked["shapes"]["max_frames"]),
        (&corpus["excluded"], &planned["max_mel_frames"])
    );
    assert_eq!(checked["shapes"]["max_symbols"], planned["max_text_length"]);

    let checked = command("corpus check").arg(path).run().out;
    let planned = command("plan --sim 1x24GiB --batch-size 2").arg("--train-data").arg(path).run().out;
    let usage = line(&planned, "Corpus:");
    assert_eq!(Some(line(&checked, "Training:")), usage.strip_suffix(&format!(": {}", path.display())), "{usage}");
    let reasons = line(&checked, "Skipped:");
    let skipped = line(&planned, "Skipped:");
    // The plan adds what the long ones would cost.
    assert_eq!(reasons, skipped.split("; without this limit").next().unwrap());

    let folder = TempFolder::new();
    let ran =
        command("train --mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 1 --max-steps 1 --max-bad-fraction 1")
            .arg("--train-data")
            .arg(path)
            .arg("--checkpoint-dir")
            .arg(folder.path("run"))
            .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let not_trained = line(&ran.out, "   Not trained on:");
    assert!(not_trained.starts_with(reasons), "{not_trained}\n{reasons}");
    training.clone()
}

#[test]
fn check_plan_and_train_agree_on_what_is_left_out() {
    let (corpus, lines) = copy_of_demo();
    let id = |at: usize| lines[at].split('|').next().unwrap();
    let recording = |at: usize| format!("wavs/{}.wav", id(at));
    // Recordings that are gone, no audio, empty, cut off, too short for their text, and far too long.
    fs::remove_file(corpus.path(&recording(0))).unwrap();
    corpus.file(&recording(1), "no audio at all, but as many bytes as a header has, and more");
    corpus.file(&recording(2), "");
    let whole = fs::read(corpus.path(&recording(3))).unwrap();
    corpus.file(&recording(3), &whole[..whole.len() / 2]);
    corpus.file(&recording(4), wav_of(&tone(22_050, 0.15)));
    corpus.file(&recording(5), wav_of(&tone(8_000, 60.0)));
    let mut rows = lines.clone();
    // Texts that say nothing, nothing that can be spoken, what no symbol stands for, and too much.
    rows[6] = format!("{}||", id(6));
    rows[7] = format!("{}|\u{200E}|", id(7));
    rows[8] = format!("{}|中文|", id(8));
    rows[9] = format!("{}|{}|", id(9), "word ".repeat(60));
    rows.extend([lines[10].clone(), "only a name".to_owned(), lines[10].replace(id(10), "gone")]);
    corpus.file("metadata.csv", rows.join("\n"));
    let excluded = corpus.file("excluded.txt", format!("{}\n{}\n", id(11), id(12)));
    let counts = agreed(&corpus.path(""), "");
    assert_eq!(
        counts["rejected"],
        json!({ "duplicate id": 1, "empty text": 1, "missing audio": 2, "missing column": 1 })
    );
    let left_out = &counts["left_out"];
    for reason in ["undecodable_audio", "too_short"] {
        assert!(left_out[reason].as_u64().unwrap() >= 1, "{left_out}");
    }
    agreed(&corpus.path(""), &format!("--exclude-ids {}", excluded.display()));
}

#[test]
fn rows_of_a_manifest_are_left_out_with_the_reason_that_the_check_gives() {
    let (corpus, lines) = copy_of_demo();
    let mut rows: Vec<String> = lines
        .iter()
        .map(|line| {
            let (id, text) = (line.split('|').next().unwrap(), line.split('|').nth(1).unwrap());
            json!({ "audio_filepath": format!("wavs/{id}.wav"), "text": text }).to_string()
        })
        .collect();
    corpus.file("broken.wav", "no audio");
    for number in 0..30 {
        rows.push(json!({ "audio_filepath": format!("gone{number}.wav"), "text": "hello" }).to_string());
        // One recording, many rows: an offset past its end, and a part that is broken.
        let file = format!("wavs/{}.wav", lines[0].split('|').next().unwrap());
        rows.push(json!({ "audio_filepath": file, "text": "hello", "offset": 900 + number }).to_string());
        rows.push(json!({ "audio_filepath": "broken.wav", "text": "hello", "offset": number }).to_string());
    }
    let list = corpus.file("list.jsonl", rows.join("\n"));
    let counts = agreed(&list, "");
    let left_out = &counts["left_out"];
    for reason in ["missing_audio", "bad_number", "undecodable_audio"] {
        // Some of the thirty are for validation.
        assert!((20..=30).contains(&left_out[reason].as_u64().unwrap()), "{reason}: {left_out}");
    }
    assert_eq!(left_out["no_length"].as_u64().unwrap(), 90 - validation_of(&counts, &lines), "{counts}");
}

/// How many of the ninety faulty rows are for validation: those that neither train nor are left out.
fn validation_of(counts: &Value, lines: &[String]) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap();
    let left_out = &counts["left_out"];
    let rest = ["too_long", "too_short", "bad_text"].map(|key| number(&left_out[key])).iter().sum::<u64>();
    let good_training = number(&counts["utterances"]) + rest;
    let good_validation = lines.len() as u64 - good_training;
    number(&counts["validation"]) - good_validation
}

#[test]
fn figures_are_neither_negative_nor_the_same_twice() {
    let folder = TempFolder::new();
    folder.file("metadata.csv", "");
    let ran = TandemCommand::new("corpus check").arg(folder.path("")).run();
    contains(&ran.out, &["Utterances:  0, 0.00 hours\n", "Training:    0 utterances, 0.00 hours; 0 for validation\n"]);
    let report = TandemCommand::new("corpus check --json").arg(folder.path("")).run();
    assert!(!ran.out.contains(" -0") && !report.out.contains(" -0"), "{}\n{}", ran.out, report.out);

    // Slots are as large with the recordings that are too long as without them, or almost.
    for longest in [2.01, 2.05, 2.3, 9.0] {
        let row = |(at, seconds): (usize, f64)| {
            json!({ "audio_filepath": format!("{at}.wav"), "text": "hello", "duration": seconds }).to_string()
        };
        let seconds = (0..600).map(|_| 2.0).chain([longest; 3]);
        let list = folder.file("list.jsonl", seconds.enumerate().map(row).collect::<Vec<_>>().join("\n"));
        let ran = TandemCommand::new("plan --sim 1x24GiB --max-mel-frames 172 --train-data").arg(&list).run();
        let skipped = line(&ran.out, "Skipped:");
        if let Some((_, cost)) = skipped.split_once("slots would need up to ") {
            let (then, now) = cost.split_once(" instead of ").unwrap();
            assert_ne!(then, now, "{skipped}");
        }
        assert_eq!(skipped.contains("without this limit"), longest > 2.05, "{longest}: {skipped}");
    }
}
