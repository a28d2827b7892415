//! `tandem train`: trains, writes checkpoints, resumes exactly after a kill, and refuses impossible requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, in_order};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

/// A run of a few seconds.
const SHORT: &str = "--model-size nano --batch-size 4 --mode cpu --buffer-size 6 --num-workers 2";

fn command(line: &str, folder: &Path) -> TandemCommand {
    TandemCommand::new(&format!("train {line}")).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(folder)
}

#[track_caller]
fn trained(line: &str, folder: &Path) -> Ran {
    let ran = command(line, folder).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran
}

/// The events of one kind in every log of a run, oldest first.
pub(crate) fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let mut logs: Vec<PathBuf> =
        (1..).map(|n| folder.join(format!("run-{n}.jsonl"))).take_while(|p| p.exists()).collect();
    logs.push(folder.join("run.jsonl"));
    let lines =
        logs.iter().flat_map(|log| fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
    // A killed process may have left an incomplete line.
    lines
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .filter(|record| record["event"] == kind)
        .collect()
}

/// The losses of every step, as logged. A repeated step must have the same losses.
pub(crate) fn losses(folder: &Path) -> BTreeMap<u64, String> {
    let mut steps: BTreeMap<u64, String> = BTreeMap::new();
    for event in events(folder, "step_metrics") {
        let logged = format!("{} {} {}", event["losses"], event["gradient_norm"], event["lr"]);
        let before = steps.insert(event["step"].as_u64().unwrap(), logged.clone());
        assert!(before.is_none_or(|before| before == logged), "{event}");
    }
    steps
}

/// The tensors of the checkpoint of `step`, byte for byte.
pub(crate) fn tensors(folder: &Path, step: u64) -> [Vec<u8>; 2] {
    let checkpoint = folder.join(format!("checkpoint-{step:08}"));
    ["weights.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
}

#[test]
fn a_run_reports_its_progress_and_writes_checkpoints() {
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
            "Training on ",
            "validating on ",
            "   12 steps: 2.4 epochs of 5 steps (--max-steps)",
            "Estimated time: ",
            "Wrote checkpoint-00000005",
            "Step 12/12  loss ",
            "Validation after step 12: mel L1 ",
            "(baseline ",
            "every token aligned",
            "✅ Training finished: 12 steps",
            "Next:",
            "--max-steps 24",
        ],
    );
    let losses = losses(&dir);
    assert_eq!(losses.keys().copied().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    let exist: Vec<bool> = [5, 10, 12].iter().map(|step| dir.join(format!("checkpoint-{step:08}")).is_dir()).collect();
    assert_eq!(exist, [true; 3]);
    let model: Value = serde_json::from_slice(&fs::read(dir.join("checkpoint-00000012/model.json")).unwrap()).unwrap();
    assert_eq!((&model["architecture"]["name"], &model["features"]["n_mels"]), (&"nano".into(), &80.into()));
    let state: Value = serde_json::from_slice(&fs::read(dir.join("checkpoint-00000012/state.json")).unwrap()).unwrap();
    assert!(model["duration_scale"].as_f64().is_some_and(|scale| scale > 0.0), "{model}");
    assert!(state.to_string().contains(&format!("\"duration_scale\":{}", model["duration_scale"])), "{state}");
    // A run that has reached its last step finishes at once.
    let again = trained(&format!("{SHORT} --max-steps 12"), &dir);
    contains(&again.out, &["Resuming from step 12", "✅ Training finished: 12 steps"]);
}

#[test]
fn an_interrupted_run_writes_a_checkpoint_and_ends_with_the_signals_exit_code() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 20 --checkpoint-every 100");
    let uninterrupted = folder.path("uninterrupted");
    trained(&line, &uninterrupted);
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let stopped = folder.path(signal);
        let mut child = command(&line, &stopped).into_std().stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Model training starting now")));
        let asked = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{rest:?}");
        contains(
            &rest.join("\n"),
            &["Stopping: writing a checkpoint", "Stopped after step ", "resume: type the same command again"],
        );
        assert_eq!(events(&stopped, "run_ended").last().unwrap()["reason"], "stopped");
        contains(&trained(&line, &stopped).out, &["Resuming from step "]);
        assert_eq!(tensors(&uninterrupted, 20), tensors(&stopped, 20));
        assert_eq!(losses(&uninterrupted), losses(&stopped));
    }
}

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 14 --checkpoint-every 3");
    let (uninterrupted, killed) = (folder.path("uninterrupted"), folder.path("killed"));
    trained(&line, &uninterrupted);
    // Killed during start-up, during steps, and right after the line of a checkpoint.
    for last_line in ["Creating model", "Wrote checkpoint-00000003", "Wrote checkpoint-00000009"] {
        let mut child = command(&line, &killed).into_std().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).any(|line| line.contains(last_line));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen, "{last_line}");
    }
    let ran = trained(&line, &killed);
    contains(&ran.out, &["Resuming from step "]);
    assert_eq!(tensors(&uninterrupted, 14), tensors(&killed, 14));
    assert_eq!(losses(&uninterrupted), losses(&killed));
}

#[test]
fn simulated_cards_train_to_the_same_bits_as_the_cpu() {
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

/// Eight utterances, each of another speaker and shorter than a voice reference, in one list; and one for validation. A
/// batch of eight is the whole corpus, however it is divided, and every row is its own reference.
fn corpus_of_one_batch() -> TempFolder {
    let folder = TempFolder::new();
    let lines = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let short = lines.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let (id, text) = (fields.next()?, fields.next()?);
        let wav = fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap();
        // 16 bits at 22 050 Hz: 390 frames of 256 samples.
        (wav.len() < 390 * 256 * 2).then(|| {
            folder.file(&format!("wavs/{id}.wav"), wav);
            format!("{id}|{text}|{text}|speaker of {id}\n")
        })
    });
    let rows: Vec<String> = short.take(9).collect();
    assert_eq!(rows.len(), 9);
    folder.file("metadata_train.csv", rows[..8].concat());
    folder.file("metadata_eval.csv", &rows[8]);
    folder
}

#[test]
fn micro_batches_accumulate_the_gradient_of_the_whole_batch() {
    let corpus = corpus_of_one_batch();
    let line = "train --model-size nano --mode cpu --max-steps 3 --batch-size 8 --buffer-size 6 --no-mixed-precision \
                --max-mel-frames 400 --max-text-length 400";
    let steps = |grad_accum: u32| {
        let run = corpus.path(&format!("run-{grad_accum}"));
        let command = TandemCommand::new(&format!("{line} --grad-accum {grad_accum}")).without_gpu();
        let ran = command.arg("--train-data").arg(corpus.path("")).arg("--checkpoint-dir").arg(&run).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        let numbers = |event: &Value| {
            ["loss", "norm"].map(|what| match what {
                "loss" => event["losses"]["loss"].as_f64().unwrap(),
                _ => event["gradient_norm"].as_f64().unwrap(),
            })
        };
        events(&run, "step_metrics").iter().map(numbers).collect::<Vec<_>>()
    };
    let whole = steps(1);
    assert_eq!(whole.len(), 3);
    for grad_accum in [2, 4, 8] {
        for (step, (parts, whole)) in steps(grad_accum).iter().zip(&whole).enumerate() {
            for (part, whole) in parts.iter().zip(whole) {
                // Sums in another order; after an update also of slightly other weights.
                let bound = if step == 0 { 1e-5 } else { 1e-2 };
                assert!((part - whole).abs() <= bound * whole.abs(), "{grad_accum}, step {step}: {parts:?} {whole}");
            }
        }
    }
}

#[test]
fn micro_batches_make_one_step() {
    let folder = TempFolder::new();
    let line = "--model-size nano --mode cpu --max-steps 3 --batch-size 8 --buffer-size 6";
    trained(&format!("{line} --grad-accum 4"), &folder.path("parts"));
    let steps = losses(&folder.path("parts"));
    assert_eq!(steps.len(), 3);
    // Another number of micro-batches has other batches, so the run cannot resume.
    let other = command(&format!("{line} --grad-accum 2"), &folder.path("parts")).run();
    assert_eq!(other.code, 2, "{other:?}");
    contains(&other.err, &["holds another run", "grad_accum"]);
}

#[test]
fn bf16_on_a_simulated_card_trains() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 4 --max-steps 3 --buffer-size 6 --sim 1x24GiB";
    trained(line, &folder.path("run"));
    let finite = events(&folder.path("run"), "step_metrics").iter().all(|event| event["losses"]["loss"].is_f64());
    assert!(finite);
}

#[test]
fn impossible_resumes_are_refused_and_nothing_is_lost() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained(&format!("{SHORT} --max-steps 4 --checkpoint-every 2"), &dir);
    let before = tensors(&dir, 4);

    let other = command("--model-size tiny --batch-size 4 --mode cpu --max-steps 4", &dir).run();
    assert_eq!(other.code, 2, "{other:?}");
    contains(&other.err, &["holds another run", "model", "--checkpoint-dir OTHER", "--reset-training"]);

    let missing = command(&format!("{SHORT} --max-steps 6 --resume nowhere"), &dir).run();
    assert_eq!(missing.code, 2, "{missing:?}");
    contains(&missing.err, &["--resume", "nowhere"]);
    assert_eq!(tensors(&dir, 4), before);

    // The newest checkpoint is truncated: the previous one is used, with a warning.
    let weights = dir.join("checkpoint-00000004/weights.safetensors");
    fs::write(&weights, &before[0][..before[0].len() / 2]).unwrap();
    let ran = trained(&format!("{SHORT} --max-steps 4 --checkpoint-every 2"), &dir);
    contains(&ran.both(), &["skipping a damaged checkpoint", "checkpoint-00000004", "Resuming from step 2"]);
    assert_eq!(tensors(&dir, 4), before);

    let reset = trained(&format!("{SHORT} --max-steps 2 --reset-training"), &dir);
    contains(&reset.out, &["Moved the earlier run to", "previous-1"]);
    assert!(dir.join("previous-1/checkpoint-00000004").is_dir() && dir.join("checkpoint-00000002").is_dir());
}

#[test]
fn a_run_resumes_from_the_given_checkpoint() {
    let folder = TempFolder::new();
    let (dir, other) = (folder.path("run"), folder.path("other"));
    // In bf16: the compute parameters are rebuilt from the master weights.
    let line = "--model-size nano --batch-size 4 --max-steps 4 --checkpoint-every 2 --buffer-size 6 --sim 1x24GiB";
    trained(line, &dir);
    let (before, before_losses) = (tensors(&dir, 4), losses(&dir));

    // A checkpoint of a run with another seed is refused, and no file is moved.
    trained(&line.replace("--max-steps 4", "--max-steps 2 --seed 7"), &other);
    let refused = command(line, &dir).arg("--resume").arg(other.join("checkpoint-00000002")).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["--seed 7", "checkpoint-00000002"]);
    assert!(!dir.join("previous-1").exists() && tensors(&dir, 4) == before);

    let ran = command(line, &dir).arg("--resume").arg(dir.join("checkpoint-00000002")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Resuming from step 2"]);
    assert!(dir.join("previous-1/checkpoint-00000004").is_dir());
    assert_eq!((tensors(&dir, 4), losses(&dir)), (before, before_losses));
}

#[test]
fn every_checkpoint_has_its_score_and_none_changes_the_losses() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 10 --mode cpu --buffer-size 4 --epochs 3";
    let often = folder.path("often");
    trained(&format!("{line} --checkpoint-every 1"), &often);
    let steps: Vec<u64> = events(&often, "checkpoint").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    let last = *steps.last().unwrap();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    let validated: Vec<u64> =
        events(&often, "validation").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    assert_eq!(validated, steps, "once per checkpoint, also at the end of an epoch");
    for step in steps.iter().filter(|step| often.join(format!("checkpoint-{step:08}")).is_dir()) {
        let state = fs::read(often.join(format!("checkpoint-{step:08}/state.json"))).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        assert!(state["record"]["score"].is_f64(), "step {step}: {state}");
    }
    let seldom = folder.path("seldom");
    trained(&format!("{line} --checkpoint-every 100"), &seldom);
    assert_eq!(events(&seldom, "validation").len(), 3, "after every epoch");
    assert_eq!((losses(&often), tensors(&often, last)), (losses(&seldom), tensors(&seldom, last)));
}

#[test]
fn the_length_of_a_run_and_advice_are_printed_after_the_start() {
    let folder = TempFolder::new();
    let check = |name: &str, line: &str, parts: &[&str]| {
        let ran = trained(&format!("--model-size nano --buffer-size 4 {line}"), &folder.path(name));
        in_order(&ran.out, parts);
        assert!(ran.out.matches("Advice: ").count() <= 3, "{ran:?}");
    };
    let sooner = ["Model training starting now", "Plan: data ", "(--epochs; --epochs 50 reaches --max-steps 100)"];
    check("cpu", "--mode cpu --batch-size 10 --epochs 1 --max-steps 100", &sooner);
    let sim = "--sim 2x24GiB --max-steps 1 --no-mixed-precision";
    let better =
        ["Model training starting now", "Plan: data ", "   Hint: 2 GPUs found", "   Advice: --mixed-precision saves"];
    check("sim", sim, &better);
}

/// Tiny corpora train, or are refused with the reason.
#[test]
fn tiny_corpora_train_or_are_refused() {
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
    let check = |corpus: &TempFolder, flags: &str, code: i32, part: &str| {
        let line = format!("train --model-size nano --mode cpu --buffer-size 2 --max-steps 1 {flags}");
        let run = TempFolder::new();
        let ran = TandemCommand::new(&line)
            .arg("--train-data")
            .arg(corpus.path(""))
            .arg("--checkpoint-dir")
            .arg(run.path("run"))
            .run();
        assert_eq!(ran.code, code, "{flags}: {ran:?}");
        contains(&ran.both(), &[part]);
    };
    let (one, two, three) = (corpus(&lines[..1]), corpus(&lines[..2]), corpus(&lines[..3]));
    check(&one, "", 0, "Training on 1 utterances, validating on 0");
    check(&two, "--epochs 1", 0, "Training finished: 1 steps");
    check(&three, "", 0, "Training finished: 1 steps");
    check(&three, "--batch-size 8", 2, "--batch-size");
    check(&three, "--grad-accum 2", 0, "Training finished: 1 steps");
    check(&three, "--grad-accum 3", 2, "--batch-size 2 --grad-accum 1");

    // One symbol, and recordings of less than a frame.
    let id = lines[0].split('|').next().unwrap();
    for (seconds, code, part) in
        [(2.0, 0, "Training finished: 1 steps"), (0.005, 2, "No usable utterances"), (0.0, 2, "too short")]
    {
        one.file(&format!("wavs/{id}.wav"), wav_of(&tone(22_050, seconds)));
        one.file("metadata.csv", format!("{id}|a|a\n"));
        check(&one, "", code, part);
    }
}
