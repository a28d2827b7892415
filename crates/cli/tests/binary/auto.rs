//! `--mode auto`: the modes are timed, the table is printed, and the run equals one with the chosen flags. Speed is not
//! tested: simulated cards have a simulated clock.

use serde_json::Value;

use crate::command::{Ran, SMALL, TandemCommand, contains, in_order, tandem};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Runs with the demo corpus.
#[track_caller]
fn ok(line: &str) -> Ran {
    let ran = TandemCommand::new(&format!("{line} {SMALL}")).arg("--train-data").arg(demo()).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran
}

/// The plan that `--mode auto` chooses for `line`.
#[track_caller]
fn plan(line: &str) -> (Ran, Value) {
    let ran = ok(&format!("plan --mode auto --json {line}"));
    let document = ran.json();
    (ran, document)
}

#[test]
fn the_modes_are_timed_and_the_table_marks_the_chosen_one() {
    let ran = ok("plan --mode auto --sim 4x24GiB,nvlink");
    in_order(
        &ran.out,
        &[
            "--mode auto: timing 4 modes",
            "   single, GPU 0: ",
            "   dual, GPU 1 to GPU 0: ",
            "steps/s",
            "÷ best",
            "single, GPU 0",
            "shared, GPU 0",
            "dual, GPU 1 to GPU 0",
            "data parallel, GPU 0,1,2,3",
            "data parallel: the share of one rank is timed",
            " here: ",
        ],
    );
    contains(&ran.out, &["Using ", ". To skip the timing: --", "(--mode auto)"]);
    // The chosen mode is within 3 % of the best of the table.
    let row = ran.out.lines().find(|line| line.trim_end().ends_with("chosen")).unwrap();
    let of_best: f64 = row.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    assert!(of_best >= 0.97, "{row}");
}

#[test]
fn one_gpu_is_chosen_where_the_link_is_slow_with_a_message() {
    let command =
        TandemCommand::new(&format!("plan --mode auto --sim 2x24GiB {SMALL}")).arg("--train-data").arg(demo());
    let ran = command.env("TANDEM_FAULT", "slow:transfer:300").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["One GPU beats two here: ", "Single-GPU Buffered Mode (--mode auto)"]);
}

#[test]
fn the_run_equals_one_with_the_chosen_flags_and_leaves_no_other_files() {
    let folder = TempFolder::new();
    let train = |line: &str, name: &str| {
        let dir = folder.path(name);
        let command = TandemCommand::new(&format!("train {line} --sim 2x24GiB --max-steps 1 {SMALL}"));
        let ran = command.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&dir).run();
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
        let log = std::fs::read_to_string(dir.join("run.jsonl")).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let learned = events.iter().find(|event| event["event"] == "step_metrics").unwrap()["losses"].to_string();
        let plan: Value = serde_json::from_str(events[0]["plan_json"].as_str().unwrap()).unwrap();
        (ran, plan["mode"].clone(), learned, files)
    };
    let (ran, mode, learned, files) = train("--mode auto", "auto");
    let flags = ran.out.lines().find_map(|line| line.split_once("To skip the timing: ")).unwrap().1.to_owned();
    in_order(&ran.out, &["--mode auto", "To skip the timing: ", "Creating model", "✅ Training finished: 1 steps"]);
    // The same with explicit flags.
    let (_, by_hand, learned_by_hand, files_by_hand) = train(&flags, "by-hand");
    assert_eq!((mode, learned, files), (by_hand, learned_by_hand, files_by_hand));
    // The command to train longer keeps `--mode auto`.
    in_order(&ran.out, &["Next:", "tandem train ", "--mode auto"]);
}

#[test]
fn a_requested_pair_that_runs_is_used() {
    let (ran, plan) = plan("--sim 2x24GiB --data-gpu 1 --model-gpu 0");
    assert_eq!((&plan["mode"], &plan["roles"]["data"]["gpu"]), (&"multi".into(), &1.into()));
    contains(&ran.err, &["trying dual, GPU 1 to GPU 0, as requested"]);
    assert!(!ran.err.contains("single"), "nothing else is timed: {}", ran.err);
}

#[test]
fn an_impossible_pair_is_replaced_with_a_warning() {
    let check = |line: &str, parts: &[&str]| {
        let (ran, plan) = plan(line);
        // Both are equally fast.
        assert!(["single", "shared"].contains(&plan["mode"].as_str().unwrap()), "{line}: {plan}");
        contains(&ran.err, parts);
    };
    let pair = "--data-gpu 0 --model-gpu 1";
    let instead = "(instead of what the GPU flags request)";
    let too_few = "⚠️ --mode auto: the request cannot be met: Multi-GPU requires at least 2 GPUs, found 1";
    check(&format!("--sim 1x24GiB {pair}"), &[too_few, instead, " --gpu 0"]);
    check("--sim 1x24GiB --gpu 3", &["the request cannot be met: Invalid gpu=3, must be 0-0", instead]);
    // The plan accepts it, and the timed run fails.
    let (ran, _) = plan(&format!("--sim 2x24GiB,nvlink,corrupt-peer {pair}"));
    contains(&ran.err, &["dual, GPU 0 to GPU 1"]);
}

#[test]
fn without_a_large_enough_gpu_the_cpu_is_used_with_a_message() {
    let none = TandemCommand::new(&format!("plan --mode auto {SMALL}")).without_gpu().run();
    assert_eq!(none.code, 0, "{none:?}");
    contains(&none.out, &["--mode auto: no GPU found", "Using cpu. To skip the timing: --mode cpu", "CPU Mode"]);
    let small = tandem("plan --mode auto --sim 1x1GiB --model-size small --batch-size 2");
    assert_eq!(small.code, 0, "{small:?}");
    contains(&small.out, &["The plan does not fit at batch size 2", "CPU Mode (--mode auto)"]);
    contains(&small.err, &["⚠️ --mode auto: Using cpu", "(single, GPU 0: The plan does not fit"]);
    // Hard limits are never dropped.
    let hard = "plan --mode auto --sim 1x1GiB --model-size small --batch-size 2 --enable-memory-isolation";
    let refused = tandem(&format!("{hard} --json"));
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(refused.json()["error"].as_str().unwrap(), &["no mode works on this machine", "shared, GPU 0, isolated"]);
}

#[test]
fn contradicting_flags_are_refused_before_anything_is_created() {
    let folder = TempFolder::new();
    for (line, part) in [
        ("--data-gpu 0", "--data-gpu and --model-gpu go together"),
        ("--share-gpu --data-gpu 0 --model-gpu 1", "--share-gpu puts both roles on one card"),
        ("--data-gpu-memory 4096", "add --enable-memory-isolation"),
    ] {
        let dir = folder.path("run");
        let command =
            TandemCommand::new(&format!("train --mode auto --sim 2x24GiB {line}")).arg("--checkpoint-dir").arg(&dir);
        let ran = command.run();
        assert_eq!(ran.code, 2, "{line}: {ran:?}");
        contains(&ran.err, &[part]);
        assert!(!dir.exists(), "{line}");
    }
}

/// Flags of a run in which two ranks share the micro-batches of a step, and one GPU computes them one after the other.
const LONG_STEPS: &str = "--model-size nano --batch-size 8 --grad-accum 4 --buffer-size 4 --max-mel-frames 200";

#[test]
fn gpus_train_together_where_that_is_faster_and_the_run_starts_so() {
    let folder = TempFolder::new();
    let line = format!("train --mode auto --sim 2x24GiB,nvlink {LONG_STEPS} --max-steps 3");
    let run = |dir: &str| {
        let command = TandemCommand::new(&line).arg("--train-data").arg(demo());
        command.arg("--checkpoint-dir").arg(folder.path(dir)).run()
    };
    let ran = run("run");
    assert_eq!(ran.code, 0, "{ran:?}");
    in_order(
        &ran.out,
        &[
            "Using data parallel, GPU 0,1. To skip the timing: --gpus 0,1",
            "Data parallel: 2 ranks, 4 micro-batches a step, 2 on each rank",
            "Training finished: 3 steps",
        ],
    );
    assert!(folder.path("run/ranks/1/run.jsonl").exists());
}

#[test]
fn gpus_do_not_train_together_where_the_link_is_too_slow() {
    // A nano model has short steps, and its gradients cross PCIe through the host.
    let (ran, plan) = plan("--sim 2x24GiB,pcie3");
    contains(&ran.err, &["data parallel, GPU 0,1"]);
    assert_eq!(plan["ranks"]["size"], 1, "{ran:?}");
}

#[test]
fn a_run_whose_micro_batches_cannot_be_shared_stays_in_one_process() {
    let folder = TempFolder::new();
    let line = "--sim 2x24GiB,nvlink --model-size nano --batch-size 8 --buffer-size 4 --max-mel-frames 200";
    let run = |mode: &str, steps: u32| {
        let command = TandemCommand::new(&format!("train {mode} {line} --max-steps {steps} --epochs 100"));
        command.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(folder.path("run")).run()
    };
    assert_eq!(run("--gpu 0", 1).code, 0);
    let ran = run("--mode auto", 2);
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["has 1 micro-batch a step, which 2 ranks cannot share equally", "Resuming from step 1"]);
}
