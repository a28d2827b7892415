//! `--run-log`: every event of a validation in one file; the validation does not depend on it.

use serde_json::{Value, json};

use crate::command::{SMALL, TandemCommand, contains, tandem, tandem_json};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Runs with a log. Returns the exit code and the log's records.
fn logged(line: &str) -> (i32, Vec<Value>) {
    let folder = TempFolder::new();
    let path = folder.path("run.jsonl");
    let ran = TandemCommand::new(&format!("validate {line} {SMALL}")).arg("--run-log").arg(&path).run();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.ends_with('\n') && !ran.err.contains("run log"), "{ran:?}");
    (ran.code, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The log of `line` is complete: a start, an end with `code`, numbered records, none dropped.
#[track_caller]
fn check(line: &str, code: i32) -> Vec<Value> {
    let (exit, records) = logged(line);
    assert_eq!(exit, code, "{line}");
    let (first, last) = (&records[0], &records[records.len() - 1]);
    assert_eq!((&first["event"], &first["command"]), (&json!("run_started"), &json!("validate")));
    assert_eq!((&last["event"], &last["exit_code"]), (&json!("run_ended"), &json!(code)));
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record["seq"], json!(number), "{record}");
        // Not sorted by time: threads race for their sequence numbers, as the page on the log explains.
        assert!(record["v"].is_u64() && record["t_ns"].is_u64(), "{record}");
        assert!(record["dropped"].is_null() || record["dropped"] == 0, "{record}");
    }
    records
}

fn of_kind<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["event"] == kind).collect()
}

#[test]
fn every_check_of_a_good_run_is_in_its_log() {
    let line = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    let records = check(line, 0);
    let document = tandem_json(&format!("validate {line} {SMALL}")).1;
    let checks = of_kind(&records, "check");
    assert_eq!(checks.len(), document["checks"].as_array().unwrap().len());
    for (logged, printed) in checks.iter().zip(document["checks"].as_array().unwrap()) {
        assert_eq!((&logged["number"], &logged["passed"]), (&printed["number"], &printed["passed"]));
        // Two runs: the texts are the same up to the first number.
        let words =
            |text: &Value| text.as_str().unwrap().split(|c: char| c.is_ascii_digit()).next().unwrap().to_owned();
        assert!(words(&printed["text"]).starts_with(&words(&logged["name"])), "{logged} {printed}");
    }
    let roles = |kind: &str| of_kind(&records, kind).iter().map(|record| record["role"].clone()).collect::<Vec<_>>();
    assert_eq!(roles("arena_reserved"), [json!("data"), json!("model")]);
    assert_eq!(roles("refused"), [json!("data"), json!("model")]);
    assert_eq!(of_kind(&records, "transfer").len(), 1);
    for process in of_kind(&records, "process_memory") {
        assert!(process["bytes"].as_u64() <= process["limit_bytes"].as_u64(), "{process}");
    }
}

#[test]
fn the_log_holds_the_plan_it_ran_with() {
    // The free host memory changes between runs, and the cache with it.
    let line = format!("--sim 1x24GiB --share-gpu --cache none --train-data {}", demo().display());
    let records = check(&line, 0);
    let mut plan = tandem_json(&format!("plan {line} {SMALL}")).1;
    plan.as_object_mut().unwrap().remove("cards");
    let mut logged: Value = serde_json::from_str(records[0]["plan_json"].as_str().unwrap()).unwrap();
    // Other programs write to the disk meanwhile.
    for plan in [&mut plan, &mut logged] {
        plan["checkpoints"]["free_bytes"].take();
    }
    assert_eq!(logged, plan);
}

#[test]
fn a_failed_run_ends_its_log_with_its_exit_code() {
    for fault in ["fail-copy=0", "fail-copy=20", "lose-card=100", "refuse-allocation=2"] {
        let records = check(&format!("--sim 2x24GiB,{fault} --data-gpu 0 --model-gpu 1"), 1);
        assert!(of_kind(&records, "check").iter().any(|check| check["passed"] == false), "{fault}");
    }
}

#[test]
fn a_full_disk_for_the_log_is_only_a_warning() {
    let ran = tandem(&format!("validate --sim 1x24GiB {SMALL} --run-log /dev/full"));
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["🎉 All validation checks passed!"]);
    contains(&ran.err, &["⚠️", "the run log is incomplete", "No space left"]);
}

#[test]
fn a_log_that_cannot_be_created_is_an_error_before_anything_runs() {
    let folder = TempFolder::new();
    for path in [folder.path("absent/run.jsonl"), folder.path("")] {
        let ran = TandemCommand::new(&format!("validate --sim 1x24GiB {SMALL}")).arg("--run-log").arg(&path).run();
        assert!([1, 2].contains(&ran.code), "{ran:?}");
        assert_eq!(ran.out, "");
        contains(&ran.err, &["❌", "run log", path.to_str().unwrap()]);
    }
}

#[test]
fn a_refused_plan_does_not_overwrite_an_earlier_log() {
    let folder = TempFolder::new();
    let path = folder.file("run.jsonl", "an earlier run\n");
    let ran = TandemCommand::new("validate --sim 2x24GiB --data-gpu 0 --model-gpu 7").arg("--run-log").arg(&path).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "an earlier run\n");
}
