//! A run of an earlier version of Tandem resumes and speaks.
//!
//! `crates/checkpoint/tests/data/format-1/` is a run folder that Tandem wrote at commit 8691fa8, the last one with format 1
//! of `model.json` and version 1 of `state.json`:
//!
//! 1. One line of that commit was changed, the dims of the preset `nano` in `crates/model/src/preset.rs`:
//!    `[8, 1, 1], 8, 8, [8, 1, 1]` instead of `[128, 2, 2], 64, 128, [128, 2, 2]`. A nano checkpoint has 30 MB, this one
//!    0.3 MB.
//! 2. `tandem corpus demo --minutes 1 -o speech`; every row of its `metadata.csv` got the speaker `ada`, because a
//!    checkpoint stores 128 kB per voice.
//! 3. The command of [`train`] with `--max-steps 3` wrote the run. `run.json` and the checkpoint were copied.
//! 4. The same command with `--max-steps 6` resumed it at that commit and logged [`LOSSES`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::copy_of_demo;

const CHECKPOINT: &str = "checkpoint-00000003";
/// The losses of the steps 4 to 6, as the earlier version logged them.
const LOSSES: [(u64, f64); 3] = [(4, 3.202_453_4), (5, 3.400_252_8), (6, 3.063_102_7)];
/// CPUs with other vector units add up in another order.
const TOLERANCE: f64 = 1e-3;

/// A copy of the old run.
fn old_run(folder: &TempFolder) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/data/format-1");
    folder.file("run/run.json", fs::read(data.join("run.json")).unwrap());
    for entry in fs::read_dir(data.join(CHECKPOINT)).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        folder.file(&format!("run/{CHECKPOINT}/{name}"), fs::read(entry.path()).unwrap());
    }
    folder.path("run")
}

/// The corpus of the old run: the demo corpus with one speaker.
fn one_speaker() -> TempFolder {
    let (corpus, lines) = copy_of_demo();
    let with_ada = |line: &String| {
        let mut columns: Vec<&str> = line.split('|').collect();
        columns[3] = "ada";
        columns.join("|")
    };
    corpus.file("metadata.csv", lines.iter().map(with_ada).collect::<Vec<_>>().join("\n"));
    corpus
}

fn train(corpus: &TempFolder, run: &Path) -> TandemCommand {
    train_on("--mode cpu", corpus, run)
}

fn train_on(device: &str, corpus: &TempFolder, run: &Path) -> TandemCommand {
    let line = "train --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 300 --max-steps 6";
    TandemCommand::new(&format!("{line} {device}"))
        .arg("--train-data")
        .arg(corpus.path(""))
        .arg("--checkpoint-dir")
        .arg(run)
}

/// The loss of every step in the run log.
fn losses(run: &Path) -> BTreeMap<u64, f64> {
    let log = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter_map(|record| Some((record["step"].as_u64()?, record["losses"]["loss"].as_f64()?))).collect()
}

#[track_caller]
fn speaks(checkpoint: &Path, folder: &TempFolder) {
    let out = folder.path("out.wav");
    let call = TandemCommand::new("synthesize --mode cpu").arg("--text").arg("A cat arrived.");
    let ran = call.arg("--checkpoint").arg(checkpoint).arg("-o").arg(&out).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let wav = fs::read(&out).unwrap();
    assert!(wav.starts_with(b"RIFF") && wav.len() > 5_000, "{} bytes", wav.len());
}

#[test]
fn a_checkpoint_of_format_1_speaks() {
    let folder = TempFolder::new();
    speaks(&old_run(&folder).join(CHECKPOINT), &folder);
}

#[test]
fn a_run_of_format_1_resumes_as_in_the_version_that_wrote_it() {
    let (folder, corpus) = (TempFolder::new(), one_speaker());
    let run = old_run(&folder);
    let ran = train(&corpus, &run).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let found = losses(&run);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), LOSSES.map(|(step, _)| step), "{ran:?}");
    for (step, expected) in LOSSES {
        assert!((found[&step] - expected).abs() < TOLERANCE, "step {step}: {}, expected {expected}", found[&step]);
    }

    // The next checkpoint has today's format, and the dims of the old one.
    let model = fs::read(run.join("checkpoint-00000006/model.json")).unwrap();
    let model: Value = serde_json::from_slice(&model).unwrap();
    assert_eq!((&model["format"], &model["architecture"]["dims"]["text_width"]), (&3.into(), &8.into()));
    let english = serde_json::json!({ "tag": "en", "phonemizer": "dictionary", "script": "Latn" });
    assert_eq!((&model["text"]["languages"][0], &model["text"]["language_embedding"]), (&english, &false.into()));
    speaks(&run.join("checkpoint-00000006"), &folder);
}

/// It was trained on features in f64, whatever a new run on that card would get.
#[test]
fn a_run_of_format_1_keeps_f64_on_a_card_with_few_f64_units() {
    let (folder, corpus) = (TempFolder::new(), one_speaker());
    let run = old_run(&folder);
    let ran = train_on("--sim 1x24GiB,cc=8.6 --no-mixed-precision", &corpus, &run).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["features stay in f64, as in the checkpoint; a new run here would use two-float"]);
    for (step, expected) in LOSSES {
        let found = losses(&run)[&step];
        assert!((found - expected).abs() < TOLERANCE, "step {step}: {found}, expected {expected}");
    }
    let model: Value = serde_json::from_slice(&fs::read(run.join("checkpoint-00000006/model.json")).unwrap()).unwrap();
    assert_eq!(model["features"]["arithmetic"], "f64");
}
