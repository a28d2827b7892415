//! The arithmetic of the features: the card chooses it at the first start, the plan says which and why, and the checkpoint
//! keeps it on any card.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command::{Ran, SMALL, TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::speech::demo;

fn command(run: &Path, more: &str) -> TandemCommand {
    let command = TandemCommand::new(&format!("train {SMALL} {more}"));
    command.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(run)
}

fn train(run: &Path, more: &str) -> Ran {
    let ran = command(run, more).run();
    assert_eq!(ran.code, 0, "{more}: {ran:?}");
    ran
}

/// The losses of all steps of the last log.
fn losses(run: &Path) -> Vec<f64> {
    let log = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps = events.filter(|event| event["event"] == "step_metrics");
    steps.map(|event| event["losses"]["loss"].as_f64().unwrap()).collect()
}

fn stored(run: &Path, step: u32) -> Value {
    let model = fs::read(run.join(format!("checkpoint-{step:08}/model.json"))).unwrap();
    serde_json::from_slice::<Value>(&model).unwrap()["features"]["arithmetic"].clone()
}

#[test]
fn the_plan_says_which_arithmetic_and_why() {
    for (capability, arithmetic, why) in [
        ("8.6", "two-float", "GPU 0 has few f64 units: compute capability 8.6"),
        ("8.9", "two-float", "GPU 0 has few f64 units: compute capability 8.9"),
        ("12.0", "two-float", "GPU 0 has few f64 units: compute capability 12.0"),
        ("8.0", "f64", "GPU 0 computes f64 fast: compute capability 8.0"),
        ("9.0", "f64", "GPU 0 computes f64 fast: compute capability 9.0"),
    ] {
        let plan = format!("plan --sim 2x24GiB,cc={capability} --data-gpu 0 --model-gpu 1");
        contains(&tandem(&plan).out, &[&format!("Features:    {arithmetic} ({why})\n")]);
        let json: Value = serde_json::from_str(&tandem(&format!("{plan} --json")).out).unwrap();
        assert_eq!((&json["feature_arithmetic"], &json["feature_arithmetic_why"]), (&arithmetic.into(), &why.into()));
    }
    contains(&tandem("plan --mode cpu").out, &["Features:    f64 (the CPU computes f64 fast)\n"]);
}

#[test]
fn a_checkpoint_keeps_the_arithmetic_on_any_card() {
    let folder = TempFolder::new();
    let [moved, stayed] = ["moved", "stayed"].map(|name| folder.path(name));
    let old = "--sim 1x24GiB,cc=8.6";
    train(&stayed, &format!("{old} --max-steps 4"));
    train(&moved, &format!("{old} --max-steps 4 --checkpoint-every 2"));
    fs::remove_dir_all(moved.join("checkpoint-00000004")).unwrap();
    assert_eq!((stored(&moved, 2), stored(&stayed, 4)), ("two-float".into(), "two-float".into()));

    // Typed again on another card: the plan and the run say so, and the steps are the same to the bit.
    let note =
        "features stay in two-float, as in the checkpoint; a new run here would use f64: GPU 0 computes f64 fast";
    let new = "--sim 1x24GiB,cc=9.0 --max-steps 4";
    let plan = TandemCommand::new(&format!("plan {SMALL} {new} --train-data")).arg(demo()).arg("--checkpoint-dir");
    contains(&plan.arg(&moved).run().out, &["Features:    two-float (as in the checkpoint; ", note]);
    contains(&train(&moved, new).out, &["Resuming from step 2", note]);
    let (after, whole) = (losses(&moved), losses(&stayed));
    assert!(after.len() == 2 && after == whole[2..], "{after:?} {whole:?}");
    let weights = |run: &Path| fs::read(run.join("checkpoint-00000004/weights.safetensors")).unwrap();
    assert!(weights(&moved) == weights(&stayed), "other weights");
    assert_eq!(stored(&moved, 4), "two-float");

    // The CPU has both.
    let synthesized =
        TandemCommand::new("synthesize --mode cpu --text Yes. --checkpoint").arg(&moved).arg("--reference");
    let wav = fs::read_dir(demo().join("wavs")).unwrap().next().unwrap().unwrap().path();
    let ran = synthesized.arg(&wav).arg("-o").arg(folder.path("out.wav")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_flag_that_contradicts_the_checkpoint_is_refused_with_what_works() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    let line = "--mode cpu --max-steps 1";
    train(&run, line);
    let refused = command(&run, &format!("{line} --feature-arithmetic two-float")).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(
        &refused.err,
        &[
            "--feature-arithmetic two-float: the run was started with f64",
            "--reset-training",
            "--feature-arithmetic auto",
        ],
    );
    train(&run, &format!("{line} --feature-arithmetic auto"));
    train(&run, &format!("{line} --feature-arithmetic two-float --reset-training"));
    assert_eq!(stored(&run, 1), "two-float");
}
