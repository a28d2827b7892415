//! `train --json` and `monitor --json`: one document each, with the values of the run log.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::command::{TandemCommand, contains, texts};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo};

const SHORT: &str = "--model-size nano --batch-size 4 --buffer-size 6 --num-workers 2";

fn train(line: &str, data: &Path, dir: &Path) -> TandemCommand {
    let command = TandemCommand::new(&format!("train --json {SHORT} {line}")).without_gpu();
    command.arg("--train-data").arg(data).arg("--checkpoint-dir").arg(dir)
}

/// The events of one kind in the log of a run.
fn events(dir: &Path, kind: &str) -> Vec<Value> {
    let log = fs::read_to_string(dir.join("run.jsonl")).unwrap();
    let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["event"] == kind).collect()
}

#[track_caller]
fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap_or_else(|| panic!("{found} is no number"));
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found} is not {expected}");
}

fn sum(events: &[Value], field: &str) -> f64 {
    events.iter().map(|event| event[field].as_f64().unwrap()).sum()
}

/// The event with the lowest value, the first of several.
fn lowest(events: &[Value], value: impl Fn(&Value) -> f64) -> &Value {
    let mut best = &events[0];
    for event in events {
        if value(event) < value(best) {
            best = event;
        }
    }
    best
}

#[test]
fn the_document_of_a_run_has_the_values_of_its_log() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let ran = train("--max-steps 14 --checkpoint-every 3 --mode cpu", demo(), &dir).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    let (steps, learned) = (events(&dir, "step"), events(&dir, "step_metrics"));
    let last = learned.last().unwrap();
    assert_eq!((&document["step"], &document["total_steps"], &document["steps"]), (&json!(14), &json!(14), &json!(14)));
    assert_eq!((&document["epoch"], &document["losses"]), (&last["epoch"], &last["losses"]));
    let best = lowest(&learned, |event| event["losses"]["loss"].as_f64().unwrap());
    assert_eq!(document["best_loss"], json!({ "step": best["step"], "loss": best["losses"]["loss"] }));
    close(&document["steps_per_s"], 14.0 * 1e9 / sum(&steps, "wall_ns"));
    close(&document["stall_share"], sum(&steps, "wait_ns") / sum(&steps, "wall_ns"));
    let validations = events(&dir, "validation");
    let (shown, logged) = (&document["validation"], validations.last().unwrap());
    assert_eq!((&shown["step"], &shown["utterances"]), (&logged["step"], &logged["utterances"]));
    for (name, value) in shown["metrics"].as_object().unwrap() {
        assert_eq!(value, &logged["metrics"][name], "{name}");
    }
    let best = lowest(&validations, |event| event["metrics"]["mel"].as_f64().unwrap());
    assert_eq!(shown["best"], json!({ "step": best["step"], "score": best["metrics"]["mel"] }));
    // All that still exist, oldest first: the last three and perhaps the best.
    let mut names: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| path.contains("checkpoint-"))
        .collect();
    names.sort();
    assert_eq!(texts(&document["checkpoints"]), names);
    let ended = events(&dir, "run_ended");
    assert_eq!((&document["exit_code"], &document["exit_reason"]), (&ended[0]["exit_code"], &ended[0]["reason"]));
    assert_eq!(document["run_log"], json!(dir.join("run.jsonl").display().to_string()));
    let ids: usize = events(&dir, "training_set").iter().map(|event| event["ids"].as_array().unwrap().len()).sum();
    assert_eq!((&document["utterances"]["trained"], &document["utterances"]["replaced"]), (&json!(ids), &json!([])));
    assert_eq!((&document["warnings"], &document["resumed_from"]), (&json!([]), &Value::Null));
    contains(&ran.err, &["✅ Training finished: 14 steps"]);

    let again = train("--max-steps 14 --mode cpu", demo(), &dir).run().json();
    assert_eq!((&again["step"], &again["steps"], &again["losses"]), (&json!(14), &json!(0), &Value::Null));
    contains(again["resumed_from"].as_str().unwrap(), &["checkpoint-00000014"]);
}

#[test]
fn what_was_left_out_and_every_warning_are_in_the_document() {
    let (corpus, lines) = copy_of_demo();
    // A manifest with durations: a broken recording is noticed only when it is loaded.
    let mut list = String::new();
    for (at, line) in lines.iter().enumerate() {
        let (id, text) = (line.split('|').next().unwrap(), line.split('|').nth(1).unwrap());
        let file = format!("wavs/{id}.wav");
        let seconds = (fs::metadata(corpus.path(&file)).unwrap().len() - 44) as f64 / 2.0 / 22_050.0;
        list += &format!("{}\n", json!({ "audio_filepath": file, "text": text, "duration": seconds }));
        if at % 4 == 0 {
            corpus.file(&file, "no recording");
        }
    }
    let manifest = corpus.file("list.jsonl", list);
    let dir = corpus.path("run");
    let line = "--sim 1x24GiB --epochs 1 --max-bad-fraction 1 --max-mel-frames 300 --prefetch-buffer-size 2";
    let ran = train(line, &manifest, &dir).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    assert_eq!(document["simulated"], json!(true));
    let bad = fs::read_to_string(dir.join("bad_samples.jsonl")).unwrap();
    let replaced = texts(&document["utterances"]["replaced"]);
    assert!(!replaced.is_empty() && bad.lines().count() >= replaced.len(), "{document}");
    for entry in bad.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        assert!(replaced.iter().any(|line| line.starts_with(entry["id"].as_str().unwrap())), "{entry} {replaced:?}");
    }
    assert!(document["utterances"]["skipped"]["too_long"].as_u64().unwrap() > 0, "{document}");
    let warnings = texts(&document["warnings"]).join("\n");
    contains(&warnings, &["--prefetch-buffer-size 2 raised to 3", "unusable and replaced by others"]);
}

#[test]
fn a_stopped_run_has_a_document_and_a_refused_one_the_refusal() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let command = train("--max-steps 100000 --mode cpu", demo(), &dir);
    let mut child = command.into_std().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Model training starting now")));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let _rest: Vec<String> = lines.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["exit_code"], &document["exit_reason"]), (&json!(130), &json!("stopped")));
    assert!(document["step"].as_u64() < document["total_steps"].as_u64(), "{document}");

    let refused = train("--sim 1x24GiB --data-gpu 0 --model-gpu 1", demo(), &folder.path("other")).run();
    let planned = TandemCommand::new(&format!("plan --json {SHORT} --sim 1x24GiB --data-gpu 0 --model-gpu 1")).run();
    assert_eq!((refused.code, refused.json()), (2, planned.json()), "the refusal of plan");
    let missing = train("--mode cpu", Path::new("nowhere"), &folder.path("other")).run();
    assert_eq!((missing.code, &missing.json()["code"]), (2, &json!(2)), "{missing:?}");
    let failed = train("--sim 1x24GiB,lose-card=60 --share-gpu --max-steps 100", demo(), &folder.path("lost")).run();
    assert_eq!((failed.code, &failed.json()["code"]), (1, &json!(1)), "{failed:?}");
    contains(failed.json()["error"].as_str().unwrap(), &["lost"]);
}

#[test]
fn the_monitor_prints_one_document_with_the_figures_of_its_screen() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let ran = train("--max-steps 40 --checkpoint-every 20 --mode cpu", demo(), &dir).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = TandemCommand::new("monitor --json").arg(&dir).run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let document = ran.json();
    let text = TandemCommand::new("monitor --once").arg(&dir).run().out;
    let (learned, steps) = (events(&dir, "step_metrics"), events(&dir, "step"));
    let last = learned.last().unwrap();
    assert_eq!((&document["step"], &document["max_steps"]), (&json!(40), &json!(40)));
    for name in ["losses", "lr", "gradient_norm", "epoch"] {
        assert_eq!(document[name], last[name], "{name}");
    }
    close(&document["steps_per_s"], 40.0 * 1e9 / sum(&steps, "wall_ns"));
    contains(&text, &[&format!("{:.2} steps/s", document["steps_per_s"].as_f64().unwrap())]);
    contains(&text, &[&format!("stall {:.1} %", 100.0 * document["stall_share"].as_f64().unwrap())]);
    let status = &document["status"];
    assert_eq!(
        (&status["state"], &status["exit_code"], &status["reason"]),
        (&json!("ended"), &json!(0), &json!("done"))
    );
    let memory = events(&dir, "memory");
    for role in ["data", "model"] {
        let logged = memory.iter().rfind(|event| event["role"] == role).unwrap();
        for field in ["used_bytes", "peak_bytes", "limit_bytes"] {
            assert_eq!(document["roles"][role][field], logged[field], "{role} {field}");
        }
    }
    let names: Vec<&str> =
        document["stages"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["load", "upload", "features", "transfer", "train"]);
    let validation = events(&dir, "validation").pop().unwrap();
    assert_eq!(
        (&document["validation"]["step"], &document["validation"]["metrics"]),
        (&validation["step"], &validation["metrics"])
    );
    assert_eq!(
        (&document["checkpoint_step"], &document["command"], &document["mode"]),
        (&json!(40), &json!("train"), &json!("cpu"))
    );
    assert_eq!(document["loss_curve"].as_array().unwrap().len(), 40);

    let empty = TandemCommand::new("monitor --json").arg(folder.file("empty.jsonl", "")).run().json();
    assert_eq!((&empty["status"]["state"], &empty["steps_per_s"]), (&json!("not_started"), &Value::Null));
    let refused = TandemCommand::new("monitor --json nowhere").inside(&folder).run();
    assert_eq!((refused.code, &refused.json()["code"]), (2, &json!(2)), "{refused:?}");
}
