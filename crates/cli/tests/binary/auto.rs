//! `--mode auto`: the modes are tried, the table is shown, and the run is the one that would have been asked for. Never how
//! fast: on simulated cards the clock is theirs.

use serde_json::Value;

use crate::call::{Ran, SMALL, TandemCall, contains, in_order, tandem};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Calls with the demo corpus, or with nothing.
#[track_caller]
fn ok(line: &str) -> Ran {
    let ran = TandemCall::new(&format!("{line} {SMALL}")).arg("--train-data").arg(demo()).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran
}

/// What `line` settles on: the plan's mode, and the cards of its roles.
#[track_caller]
fn plan(line: &str) -> (Ran, Value) {
    let ran = ok(&format!("plan --mode auto --json {line}"));
    let document = ran.json();
    (ran, document)
}

#[test]
fn the_modes_are_timed_and_the_table_says_which_is_taken() {
    let ran = ok("plan --mode auto --sim 4x24GiB,nvlink");
    in_order(
        &ran.out,
        &[
            "--mode auto: timing 3 modes",
            "   single, GPU 0: ",
            "   dual, GPU 1 to GPU 0: ",
            "steps/s",
            "÷ best",
            "single, GPU 0",
            "shared, GPU 0",
            "dual, GPU 1 to GPU 0",
            "GPU 2, 3 like GPU 0: not timed",
            " here: ",
        ],
    );
    contains(&ran.out, &["is taken; without timing: --", "(--mode auto)"]);
    // What is taken is within 3 % of the best of the table.
    let row = ran.out.lines().find(|line| line.trim_end().ends_with("taken")).unwrap();
    let of_best: f64 = row.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    assert!(of_best >= 0.97, "{row}");
}

#[test]
fn one_gpu_is_taken_where_the_link_is_slow_and_that_is_said() {
    let call = TandemCall::new(&format!("plan --mode auto --sim 2x24GiB {SMALL}")).arg("--train-data").arg(demo());
    let ran = call.env("TANDEM_FAULT", "slow:transfer:300").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["One GPU beats two here: ", "Single-GPU Buffered Mode (--mode auto)"]);
}

#[test]
fn the_run_is_the_one_that_was_taken_and_nothing_else_is_left() {
    let folder = TempFolder::new();
    let train = |line: &str, name: &str| {
        let dir = folder.path(name);
        let call = TandemCall::new(&format!("train {line} --sim 2x24GiB --max-steps 1 {SMALL}"));
        let ran = call.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&dir).run();
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
        let log = std::fs::read_to_string(dir.join("run.jsonl")).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let learned = events.iter().find(|event| event["event"] == "learned").unwrap()["losses"].to_string();
        let plan: Value = serde_json::from_str(events[0]["plan_json"].as_str().unwrap()).unwrap();
        (ran, plan["mode"].clone(), learned, files)
    };
    let (ran, mode, learned, files) = train("--mode auto", "auto");
    let flags = ran.out.lines().find_map(|line| line.split_once("without timing: ")).unwrap().1.to_owned();
    in_order(&ran.out, &["--mode auto", "without timing: ", "Creating model", "✅ Trained to step 1"]);
    // The same by hand.
    let (_, by_hand, learned_by_hand, files_by_hand) = train(&flags, "by-hand");
    assert_eq!((mode, learned, files), (by_hand, learned_by_hand, files_by_hand));
    // A run that goes on is told to measure again, as it was typed.
    in_order(&ran.out, &["Next:", "tandem train ", "--mode auto"]);
}

#[test]
fn a_pair_that_is_asked_for_is_taken_when_it_runs() {
    let (ran, plan) = plan("--sim 2x24GiB --data-gpu 1 --model-gpu 0");
    assert_eq!((&plan["mode"], &plan["roles"]["data"]["gpu"]), (&"multi".into(), &1.into()));
    contains(&ran.err, &["trying dual, GPU 1 to GPU 0, as asked for"]);
    assert!(!ran.err.contains("single"), "nothing else is timed: {}", ran.err);
}

#[test]
fn a_pair_that_cannot_be_is_replaced_aloud() {
    let check = |line: &str, parts: &[&str]| {
        let (ran, plan) = plan(line);
        // Both are as fast.
        assert!(["single", "shared"].contains(&plan["mode"].as_str().unwrap()), "{line}: {plan}");
        contains(&ran.err, parts);
    };
    let pair = "--data-gpu 0 --model-gpu 1";
    let instead = "(in place of what the GPU flags ask for)";
    let too_few = "⚠️ --mode auto: not as asked for: Multi-GPU requires at least 2 GPUs, found 1";
    check(&format!("--sim 1x24GiB {pair}"), &[too_few, instead, " --gpu 0"]);
    check("--sim 1x24GiB --gpu 3", &["not as asked for: Invalid gpu=3, must be 0-0", instead]);
    // It can be placed, and is lost when it runs.
    let (ran, _) = plan(&format!("--sim 2x24GiB,nvlink,corrupt-peer {pair}"));
    contains(&ran.err, &["dual, GPU 0 to GPU 1"]);
}

#[test]
fn without_cards_and_where_none_is_large_enough_it_is_the_cpu_and_said() {
    let none = TandemCall::new(&format!("plan --mode auto {SMALL}")).without_gpu().run();
    assert_eq!(none.code, 0, "{none:?}");
    contains(&none.out, &["--mode auto: no GPU to try", "cpu is taken; without timing: --mode cpu", "CPU Mode"]);
    let small = tandem("plan --mode auto --sim 1x1GiB --model-size small --batch-size 2");
    assert_eq!(small.code, 0, "{small:?}");
    contains(&small.out, &["The plan does not fit at batch size 2", "CPU Mode (--mode auto)"]);
    contains(&small.err, &["⚠️ --mode auto: cpu is taken", "(single, GPU 0: The plan does not fit"]);
    // Hard limits are never dropped.
    let hard = "plan --mode auto --sim 1x1GiB --model-size small --batch-size 2 --enable-memory-isolation";
    let refused = tandem(&format!("{hard} --json"));
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(refused.json()["error"].as_str().unwrap(), &["no mode is possible here", "shared, GPU 0, isolated"]);
}

#[test]
fn flags_that_contradict_each_other_are_refused_before_anything_is_made() {
    let folder = TempFolder::new();
    for (line, part) in [
        ("--data-gpu 0", "--data-gpu and --model-gpu go together"),
        ("--share-gpu --data-gpu 0 --model-gpu 1", "--share-gpu puts both roles on one card"),
        ("--data-gpu-memory 4096", "add --enable-memory-isolation"),
    ] {
        let dir = folder.path("run");
        let call =
            TandemCall::new(&format!("train --mode auto --sim 2x24GiB {line}")).arg("--checkpoint-dir").arg(&dir);
        let ran = call.run();
        assert_eq!(ran.code, 2, "{line}: {ran:?}");
        contains(&ran.err, &[part]);
        assert!(!dir.exists(), "{line}");
    }
}
