//! `tandem train`: learns, keeps what it learnt, goes on exactly where it was killed, and refuses what it cannot do.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::call::{Ran, TandemCall, contains, in_order};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

/// A run of a few seconds.
const SHORT: &str = "--model-size nano --batch-size 4 --mode cpu --buffer-size 6 --num-workers 2";

fn call(line: &str, folder: &Path) -> TandemCall {
    TandemCall::new(&format!("train {line}")).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(folder)
}

#[track_caller]
fn trained(line: &str, folder: &Path) -> Ran {
    let ran = call(line, folder).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran
}

/// The events of one kind in every log of a run, oldest first.
fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let mut logs: Vec<PathBuf> =
        (1..).map(|n| folder.join(format!("run-{n}.jsonl"))).take_while(|p| p.exists()).collect();
    logs.push(folder.join("run.jsonl"));
    let lines =
        logs.iter().flat_map(|log| fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
    // A killed process may have left half a line.
    lines
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .filter(|record| record["event"] == kind)
        .collect()
}

/// What every step learnt, as it is written. A step that was done twice must say the same twice.
fn losses(folder: &Path) -> BTreeMap<u64, String> {
    let mut steps: BTreeMap<u64, String> = BTreeMap::new();
    for event in events(folder, "learned") {
        let told = format!("{} {} {}", event["losses"], event["gradient_norm"], event["lr"]);
        let before = steps.insert(event["step"].as_u64().unwrap(), told.clone());
        assert!(before.is_none_or(|before| before == told), "{event}");
    }
    steps
}

/// The tensors of the checkpoint of `step`, byte for byte.
fn tensors(folder: &Path, step: u64) -> [Vec<u8>; 2] {
    let checkpoint = folder.join(format!("checkpoint-{step:08}"));
    ["weights.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
}

#[test]
fn a_run_says_what_it_does_and_keeps_what_it_learnt() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let ran = trained(&format!("{SHORT} --max-steps 12 --checkpoint-every 5"), &dir);
    in_order(
        &ran.out,
        &[
            "🚀 Intelligent GPU Pipeline: CPU Mode",
            "Creating model on device: /CPU:0",
            "Waiting up to 2.0s for data pipeline to warm up",
            "✅ Model training starting now",
            "Plan: data ",
            "nano model, ",
            "held out",
            "   12 steps: 2.4 epochs of 5 (--max-steps)",
            " to go, by the first ",
            "Checkpoint checkpoint-00000005",
            "Step 12/12  loss ",
            "Held out after step 12: mel ",
            "every token has its frames",
            "✅ Trained to step 12",
            "Next:",
            "--max-steps 24",
        ],
    );
    let losses = losses(&dir);
    assert_eq!(losses.keys().copied().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    let kept: Vec<bool> = [5, 10, 12].iter().map(|step| dir.join(format!("checkpoint-{step:08}")).is_dir()).collect();
    assert_eq!(kept, [true; 3]);
    let model: Value = serde_json::from_slice(&fs::read(dir.join("checkpoint-00000012/model.json")).unwrap()).unwrap();
    assert_eq!((&model["preset"], &model["features"]["n_mels"]), (&"nano".into(), &80.into()));
    let state: Value = serde_json::from_slice(&fs::read(dir.join("checkpoint-00000012/state.json")).unwrap()).unwrap();
    assert!(model["duration_scale"].as_f64().is_some_and(|scale| scale > 0.0), "{model}");
    assert!(state.to_string().contains(&format!("\"duration_scale\":{}", model["duration_scale"])), "{state}");
    // A run that has reached its last step has nothing left to do, and says so.
    let again = trained(&format!("{SHORT} --max-steps 12"), &dir);
    contains(&again.out, &["Going on from step 12", "✅ Trained to step 12"]);
}

#[test]
fn a_run_that_is_asked_to_stop_keeps_what_it_learnt_and_says_so_to_the_shell() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 20 --checkpoint-every 100");
    let whole = folder.path("whole");
    trained(&line, &whole);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let stopped = folder.path(signal);
        let mut child = call(&line, &stopped).into_command().stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Model training starting now")));
        let asked = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{rest:?}");
        contains(&rest.join("\n"), &["Stopping, with a checkpoint", "Stopped after step ", "The same command goes on"]);
        assert_eq!(events(&stopped, "run_ended").last().unwrap()["reason"], "stopped");
        contains(&trained(&line, &stopped).out, &["Going on from step "]);
        assert_eq!(tensors(&whole, 20), tensors(&stopped, 20));
        assert_eq!(losses(&whole), losses(&stopped));
    }
}

#[test]
fn a_run_that_is_killed_goes_on_as_if_it_had_not_been() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 14 --checkpoint-every 3");
    let (whole, killed) = (folder.path("whole"), folder.path("killed"));
    trained(&line, &whole);
    // Killed while it starts, in the middle of steps, and right behind a checkpoint's line: whatever is under way then.
    for moment in ["Creating model", "Checkpoint checkpoint-00000003", "Checkpoint checkpoint-00000009"] {
        let mut child = call(&line, &killed).into_command().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).any(|line| line.contains(moment));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen, "{moment}");
    }
    let ran = trained(&line, &killed);
    contains(&ran.out, &["Going on from step "]);
    assert_eq!(tensors(&whole, 14), tensors(&killed, 14));
    assert_eq!(losses(&whole), losses(&killed));
}

#[test]
fn simulated_cards_learn_the_same_bits_as_the_cpu() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 4 --max-steps 4 --buffer-size 6 --no-mixed-precision";
    let pair = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    trained(&format!("{line} --mode cpu"), &folder.path("cpu"));
    let mut all = vec![(losses(&folder.path("cpu")), tensors(&folder.path("cpu"), 4))];
    for (name, mode) in [("pair", pair.to_owned()), ("isolated", format!("{pair} --enable-memory-isolation"))] {
        let ran = trained(&format!("{line} {mode}"), &folder.path(name));
        contains(&ran.out, &["[simulated] 🎯 Multi-GPU Mode: Model will be placed on /GPU:1"]);
        all.push((losses(&folder.path(name)), tensors(&folder.path(name), 4)));
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_batch_in_pieces_is_one_step() {
    let folder = TempFolder::new();
    let line = "--model-size nano --mode cpu --max-steps 3 --batch-size 8 --buffer-size 6";
    trained(&format!("{line} --grad-accum 4"), &folder.path("parts"));
    let steps = losses(&folder.path("parts"));
    assert_eq!(steps.len(), 3);
    // Other pieces are other batches: what comes next would not be what would have come.
    let other = call(&format!("{line} --grad-accum 2"), &folder.path("parts")).run();
    assert_eq!(other.code, 2, "{other:?}");
    contains(&other.err, &["holds another run", "grad_accum"]);
}

#[test]
fn bf16_on_a_simulated_card_learns_too() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 4 --max-steps 3 --buffer-size 6 --sim 1x24GiB";
    trained(line, &folder.path("run"));
    let finite = events(&folder.path("run"), "learned").iter().all(|event| event["losses"]["loss"].is_f64());
    assert!(finite);
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_lost() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained(&format!("{SHORT} --max-steps 4 --checkpoint-every 2"), &dir);
    let before = tensors(&dir, 4);

    let other = call("--model-size tiny --batch-size 4 --mode cpu --max-steps 4", &dir).run();
    assert_eq!(other.code, 2, "{other:?}");
    contains(&other.err, &["holds another run", "model", "--checkpoint-dir OTHER", "--reset-training"]);

    let missing = call(&format!("{SHORT} --max-steps 6 --resume nowhere"), &dir).run();
    assert_eq!(missing.code, 2, "{missing:?}");
    contains(&missing.err, &["--resume", "nowhere"]);
    assert_eq!(tensors(&dir, 4), before);

    // The newest checkpoint is cut short: the one before it is used, and that is said.
    let weights = dir.join("checkpoint-00000004/weights.safetensors");
    fs::write(&weights, &before[0][..before[0].len() / 2]).unwrap();
    let ran = trained(&format!("{SHORT} --max-steps 4 --checkpoint-every 2"), &dir);
    contains(&ran.both(), &["passed over", "checkpoint-00000004", "Going on from step 2"]);
    assert_eq!(tensors(&dir, 4), before);

    let reset = trained(&format!("{SHORT} --max-steps 2 --reset-training"), &dir);
    contains(&reset.out, &["The earlier run was moved to", "previous-1"]);
    assert!(dir.join("previous-1/checkpoint-00000004").is_dir() && dir.join("checkpoint-00000002").is_dir());
}

#[test]
fn a_run_goes_on_from_the_checkpoint_it_is_told_to() {
    let folder = TempFolder::new();
    let (dir, other) = (folder.path("run"), folder.path("other"));
    // In bf16: what GEMMs read is made again from the weights.
    let line = "--model-size nano --batch-size 4 --max-steps 4 --checkpoint-every 2 --buffer-size 6 --sim 1x24GiB";
    trained(line, &dir);
    let (before, learnt) = (tensors(&dir, 4), losses(&dir));

    // Of a run with another seed: refused, and nothing is moved for it.
    trained(&line.replace("--max-steps 4", "--max-steps 2 --seed 7"), &other);
    let refused = call(line, &dir).arg("--resume").arg(other.join("checkpoint-00000002")).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["--seed 7", "checkpoint-00000002"]);
    assert!(!dir.join("previous-1").exists() && tensors(&dir, 4) == before);
    let ended = events(&dir, "run_ended").pop().unwrap();
    assert_eq!(ended["exit_code"], 2, "{ended}");

    let ran = call(line, &dir).arg("--resume").arg(dir.join("checkpoint-00000002")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Going on from step 2"]);
    assert!(dir.join("previous-1/checkpoint-00000004").is_dir());
    assert_eq!((tensors(&dir, 4), losses(&dir)), (before, learnt));
}

#[test]
fn every_checkpoint_has_its_score_and_none_changes_what_is_learnt() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 10 --mode cpu --buffer-size 4 --epochs 3";
    let often = folder.path("often");
    trained(&format!("{line} --checkpoint-every 1"), &often);
    let steps: Vec<u64> = events(&often, "checkpoint").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    let last = *steps.last().unwrap();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    let validated: Vec<u64> = events(&often, "validated").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    assert_eq!(validated, steps, "once at each of them, also where an epoch ends");
    for step in steps.iter().filter(|step| often.join(format!("checkpoint-{step:08}")).is_dir()) {
        let state = fs::read(often.join(format!("checkpoint-{step:08}/state.json"))).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        assert!(state["record"]["score"].is_f64(), "step {step}: {state}");
    }
    let seldom = folder.path("seldom");
    trained(&format!("{line} --checkpoint-every 100"), &seldom);
    assert_eq!(events(&seldom, "validated").len(), 3, "after every epoch");
    assert_eq!((losses(&often), tensors(&often, last)), (losses(&seldom), tensors(&seldom, last)));
}

#[test]
fn what_ends_a_run_and_what_could_be_better_is_said_after_the_start() {
    let folder = TempFolder::new();
    let check = |name: &str, line: &str, parts: &[&str]| {
        let ran = trained(&format!("--model-size nano --buffer-size 4 {line}"), &folder.path(name));
        in_order(&ran.out, parts);
        assert!(ran.out.matches("Advice: ").count() <= 3, "{ran:?}");
    };
    let sooner = ["Model training starting now", "Plan: data ", "(--epochs; --epochs 50 to reach --max-steps 100)"];
    check("cpu", "--mode cpu --batch-size 10 --epochs 1 --max-steps 100", &sooner);
    let sim = "--sim 2x24GiB --max-steps 1 --no-mixed-precision";
    let better =
        ["Model training starting now", "Plan: data ", "   Hint: 2 GPUs found", "   Advice: --mixed-precision would"];
    check("sim", sim, &better);
}

/// Corpora as small as they come: they train, or say why they cannot.
#[test]
fn little_data_is_no_accident() {
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let corpus = |lines: &[String]| {
        let folder = TempFolder::new();
        for line in lines {
            let id = line.split('|').next().unwrap();
            folder.file(&format!("wavs/{id}.wav"), fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap());
        }
        folder.file("metadata.csv", lines.join("\n"));
        folder
    };
    let lines: Vec<String> = metadata.lines().map(str::to_owned).collect();
    let check = |corpus: &TempFolder, flags: &str, code: i32, said: &str| {
        let line = format!("train --model-size nano --mode cpu --buffer-size 2 --max-steps 1 {flags}");
        let run = TempFolder::new();
        let ran = TandemCall::new(&line)
            .arg("--train-data")
            .arg(corpus.path(""))
            .arg("--checkpoint-dir")
            .arg(run.path("run"))
            .run();
        assert_eq!(ran.code, code, "{flags}: {ran:?}");
        contains(&ran.both(), &[said]);
    };
    let (one, two, three) = (corpus(&lines[..1]), corpus(&lines[..2]), corpus(&lines[..3]));
    check(&one, "", 0, "1 utterances to train on, 0 held out");
    check(&two, "--epochs 1", 0, "Trained to step 1");
    check(&three, "", 0, "Trained to step 1");
    check(&three, "--batch-size 8", 2, "--batch-size");
    check(&three, "--grad-accum 2", 0, "Trained to step 1");
    check(&three, "--grad-accum 3", 2, "--batch-size 2 --grad-accum 1");

    // One symbol, and recordings of less than a frame.
    let id = lines[0].split('|').next().unwrap();
    for (seconds, code, said) in
        [(2.0, 0, "Trained to step 1"), (0.005, 2, "No utterance can train"), (0.0, 2, "too short")]
    {
        one.file(&format!("wavs/{id}.wav"), wav_of(&tone(22_050, seconds)));
        one.file("metadata.csv", format!("{id}|a|a\n"));
        check(&one, "", code, said);
    }
}
