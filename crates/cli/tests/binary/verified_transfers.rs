//! `--verify-transfers`: batches that change on their way between the cards end the run before a step trains on them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Ran, TandemCommand, contains, tandem, tandem_json};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Ten steps of the smallest model on two linked cards, over peer access, with a checkpoint after every second step.
const RUN: &str = "--data-gpu 0 --model-gpu 1 --model-size nano --batch-size 4 --buffer-size 12 --prefetch-buffer-size 3 \
                   --num-workers 1 --max-steps 10 --checkpoint-every 2";
const LINKED: &str = "2x24GiB,nvlink";
/// Copies between the cards before the first batch. When the route is tried, and again in the slots of the run, five copies are
/// timed; before that, one is compared, then one for each of six slots.
const PROOF_COPIES: u64 = (1 + 5) + (6 + 5);

fn train(cards: &str, dir: &Path, line: &str) -> Ran {
    let command = TandemCommand::new(&format!("train --sim {cards} {RUN} {line}"));
    command.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(dir).run()
}

/// Cards whose link flips a bit of each batch from batch `first` on.
fn failing_link(first: u64) -> String {
    format!("{LINKED},corrupt-after={}", PROOF_COPIES + first)
}

fn weights(dir: &Path, step: u64) -> Vec<u8> {
    fs::read(dir.join(format!("checkpoint-{step:08}/weights.safetensors"))).unwrap()
}

fn events(dir: &Path, kind: &str) -> Vec<Value> {
    let log = fs::read_to_string(dir.join("run.jsonl")).unwrap();
    log.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] == kind)
        .collect()
}

/// Batches that a run verified, and bytes of its checksums on both cards.
fn verified(dir: &Path, line: &str) -> (Option<u64>, Vec<u64>) {
    let ran = train(LINKED, dir, &format!("{line} --json"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let owners = events(dir, "memory_owners").into_iter().take(2);
    (
        ran.json()["verified_batches"].as_u64(),
        owners.filter_map(|e| e["owners"]["transfer checksums"].as_u64()).collect(),
    )
}

#[test]
pub(super) fn one_in_n_batches_is_verified() {
    let folder = TempFolder::new();
    let [every, third, none] = ["every", "third", "none"].map(|name| folder.path(name));
    // Ten batches are trained on, and the model side has three slots.
    assert_eq!(verified(&every, "--verify-transfers 1"), (Some(10), vec![3 * 256; 2]));
    assert_eq!(verified(&third, "--verify-transfers 3"), (Some(4), vec![256; 2]));
    assert_eq!(verified(&none, ""), (None, vec![]));
    let text = "Verified 10 batches: all arrived unchanged";
    assert!(events(&every, "note").iter().any(|note| note["text"] == text));
    // The weights do not depend on it.
    assert_eq!(weights(&every, 10), weights(&none, 10));
    assert_eq!(weights(&third, 10), weights(&none, 10));
}

#[test]
fn a_batch_that_changed_ends_the_run_and_the_last_checkpoint_is_from_before_it() {
    let folder = TempFolder::new();
    let [intact, ended] = ["intact", "ended"].map(|name| folder.path(name));
    assert_eq!(train(LINKED, &intact, "").code, 0);
    // Seven steps train on seven good batches; the eighth batch is corrupt.
    let ran = train(&failing_link(7), &ended, "--transfer peer --verify-transfers 1");
    assert_eq!(ran.code, 1, "{ran:?}");
    let last = ended.join("checkpoint-00000006");
    contains(
        &ran.err,
        &[
            "batch 7 changed on its way from GPU 0 to GPU 1 (peer, slot ",
            "To resume over another route, type the same command with --transfer bounce",
            "No step was trained on it",
            &format!("The last checkpoint is {}", last.display()),
        ],
    );
    // No checkpoint of the seventh step, and those before are of good batches.
    assert!(!ended.join("checkpoint-00000007").exists() && weights(&ended, 6) == weights(&intact, 6));
    // What the message says to type.
    let resumed = train(&failing_link(7), &ended, "--transfer bounce --verify-transfers 1");
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step 6", "Verified 4 batches: all arrived unchanged"]);
    assert_eq!(weights(&ended, 10), weights(&intact, 10));
}

#[test]
fn without_verification_the_run_trains_on_changed_batches() {
    let folder = TempFolder::new();
    let [intact, corrupt] = ["intact", "corrupt"].map(|name| folder.path(name));
    assert_eq!(train(LINKED, &intact, "").code, 0);
    let ran = train(&failing_link(7), &corrupt, "--transfer peer");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(weights(&corrupt, 6), weights(&intact, 6));
    assert_ne!(weights(&corrupt, 10), weights(&intact, 10));
}

#[test]
fn validate_and_profile_verify_too() {
    let line = "--data-gpu 0 --model-gpu 1 --model-size nano --batch-size 4 --buffer-size 12 --verify-transfers 1";
    let (ran, validated) = tandem_json(&format!("validate --sim {LINKED} {line}"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let checks = validated["checks"].to_string();
    contains(&checks, &["verified batches arrived unchanged"]);
    let profiled = tandem(&format!("profile --sim {LINKED} {line} --num-steps 3"));
    assert_eq!(profiled.code, 0, "{profiled:?}");
    contains(&profiled.out, &["Verified "]);
}

#[test]
fn on_one_device_there_is_nothing_to_verify_and_the_plan_says_so() {
    for cards in ["--mode cpu", "--sim 1x24GiB", "--sim 1x24GiB --share-gpu"] {
        let (ran, plan) = tandem_json(&format!("plan {cards} --verify-transfers 4"));
        assert_eq!((ran.code, &plan["verify_transfers"]), (0, &json!(4)), "{ran:?}");
        contains(&plan["notes"].to_string(), &["--verify-transfers has no effect: both roles are on one device"]);
    }
    let plan = tandem(&format!("plan --sim {LINKED} --data-gpu 0 --model-gpu 1 --verify-transfers 4"));
    contains(&plan.out, &[", one in 4 batches verified\n", "256 bytes    0.0 %  transfer checksums\n"]);
    let refused = tandem("plan --sim 1x24GiB --verify-transfers 0");
    assert_eq!(refused.code, 2, "{refused:?}");
}
