//! Settings with a few values: choices and switches. Every value is run, and its effect is seen in what the run did.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::process::{ExitCode, Stdio, Termination};

use serde_json::{Value, json};
use tandem_plan::setting::{Setting, SettingKind};

use super::file_opens::FileOpens;
use super::{Run, command, merged, run};
use crate::command::{TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::speech::demo;
use crate::terminal::eventually;

/// The result of a test that ran every value of a setting. Only [`each_value`] makes one.
pub(super) struct EachValue(());

impl Termination for EachValue {
    fn report(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

/// The flags for each value of a setting. A switch without a flag that turns it off is off without the flag.
fn values(flag: &str) -> Vec<String> {
    match Setting::of_flag(flag).unwrap().kind {
        SettingKind::Choice(words) => words.iter().map(|word| format!("--{flag} {word}")).collect(),
        SettingKind::Switch { off_flag } => {
            vec![format!("--{flag}"), off_flag.map_or(String::new(), |off| format!("--{off}"))]
        }
        kind => panic!("--{flag} has more than a few values: {kind:?}"),
    }
}

/// Fails unless `expected` has every value of the setting, the effect of each is the expected one, and no two values have
/// the same effect. Only `auto` has the effect of another value: of the one it chooses.
#[track_caller]
fn each_value<T: Debug + PartialEq>(flag: &str, expected: &[(&str, T)], effect: impl Fn(&str) -> T) -> EachValue {
    let lines: Vec<&str> = expected.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, values(flag), "this test expects an effect of every value of --{flag}");
    for (line, expected) in expected {
        assert_eq!(effect(line), *expected, "the effect of {line:?}");
    }
    let fixed: Vec<&(&str, T)> = expected.iter().filter(|(line, _)| !line.ends_with(" auto")).collect();
    for (at, (line, effect)) in fixed.iter().enumerate() {
        let same = fixed[..at].iter().find(|(_, other)| other == effect);
        assert!(same.is_none(), "{line:?} has the same effect as {same:?}");
    }
    EachValue(())
}

#[test]
#[should_panic(expected = "this test expects an effect of every value of --transfer")]
fn a_value_that_is_left_out_fails_the_test() {
    each_value("transfer", &[("--transfer auto", 0), ("--transfer peer", 1), ("--transfer bounce", 2)], |_| 0);
}

#[test]
#[should_panic(expected = "has the same effect as")]
fn two_values_with_the_same_effect_fail_the_test() {
    each_value("share-gpu", &[("--share-gpu", 1), ("--no-share-gpu", 1)], |_| 1);
}

/// How often recordings are opened for the second and third epoch, which a second process trains.
#[test]
pub(super) fn cache() -> EachValue {
    let corpus = TempFolder::new();
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let mut rows = Vec::new();
    for line in metadata.lines().take(9) {
        let (id, text) = (line.split('|').next().unwrap(), line.split('|').nth(1).unwrap());
        let wav = fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap();
        let seconds = (wav.len() - 44) as f64 / 2.0 / 22_050.0;
        let file = format!("wavs/{id}.wav");
        corpus.file(&file, wav);
        rows.push(json!({ "audio_filepath": file, "text": text, "duration": seconds }).to_string());
    }
    let val = corpus.file("val.jsonl", rows.pop().unwrap());
    let train = corpus.file("train.jsonl", rows.join("\n"));
    // Both commands open every recording once to check it.
    let checked = FileOpens::watch(&corpus.path("wavs"));
    assert_eq!(TandemCommand::new("plan --mode cpu --train-data").arg(&train).run().code, 0);
    let checked = checked.counts();
    let losses: RefCell<BTreeMap<String, Vec<f64>>> = RefCell::default();
    let opens = |line: &str| {
        let folder = TempFolder::new();
        let dir = folder.path("run");
        let go = |epochs: u32| {
            let line = format!("{line} --epochs {epochs} --max-steps 1000 --val-data {}", val.display());
            let ran = command(&merged(&line), &train, &dir).run();
            assert_eq!(ran.code, 0, "{line}: {ran:?}");
            ran
        };
        go(1);
        let opens = FileOpens::watch(&corpus.path("wavs"));
        let ran = go(3);
        let opens = opens.counts();
        losses.borrow_mut().insert(line.to_owned(), Run { ran, dir, _folder: folder }.losses());
        // More than two: batches of a fourth epoch were prefetched.
        let mut counts: Vec<u32> = checked.iter().map(|(name, checks)| (opens[name] - checks).min(2)).collect();
        counts.sort_unstable();
        // One recording is also read at the start, as the reference of the speaker.
        counts.pop();
        counts.dedup();
        counts
    };
    let expected =
        [("--cache auto", vec![1]), ("--cache none", vec![2]), ("--cache memory", vec![1]), ("--cache disk", vec![0])];
    let each = each_value("cache", &expected, opens);
    let losses = losses.into_inner();
    assert!(losses.values().all(|other| other.len() == 4 && *other == losses["--cache none"]), "{losses:?}");
    each
}

/// The copies of each batch, by the devices' clocks: none, one between the roles, or one to the host and one from it.
fn copies(run: &Run) -> usize {
    let stages = run.events("stage");
    let transfers = stages.iter().filter(|event| event["stage"] == "transfer");
    let copies: BTreeSet<usize> = transfers.map(|event| event["spans"].as_array().unwrap().len()).collect();
    assert!(copies.len() <= 1, "{copies:?}");
    copies.first().copied().unwrap_or(0)
}

#[test]
pub(super) fn transfer() -> EachValue {
    const PAIR: &str = "--data-gpu 0 --model-gpu 1";
    // Two cards: directly if they are linked, else through the host.
    assert_eq!(copies(&run(&format!("--sim 2x24GiB,nvlink {PAIR} --transfer auto"))), 1);
    assert_eq!(copies(&run(&format!("--sim 2x24GiB {PAIR} --transfer auto"))), 2);
    // Which of the driver's copies it uses: plans for linked cards with one of them broken each.
    let broken = |line: &str| {
        ["peer", "peer-copy", "staged"]
            .map(|broken| tandem(&format!("plan --sim 2x24GiB,nvlink,corrupt={broken} {PAIR} {line}")).code)
    };
    // One card: every route is possible, and the pointer may change hands.
    let expected = [
        ("--transfer auto", (0, [0, 0, 0])),
        ("--transfer peer", (1, [1, 0, 0])),
        ("--transfer peer-copy", (1, [0, 1, 0])),
        ("--transfer staged", (1, [0, 0, 1])),
        ("--transfer bounce", (2, [0, 0, 0])),
        ("--transfer handover", (0, [2, 2, 2])),
    ];
    each_value("transfer", &expected, |line| (copies(&run(&format!("--sim 1x24GiB --share-gpu {line}"))), broken(line)))
}

/// The kind of devices, the cards of the roles, and the number of modes that were timed.
#[test]
pub(super) fn mode() -> EachValue {
    let expected = [
        ("--mode single", ("simulated", 0, 0, 0)),
        ("--mode dual", ("simulated", 1, 0, 0)),
        ("--mode cpu", ("cpu", 0, 0, 0)),
        ("--mode auto", ("simulated", 0, 0, 2)),
    ];
    let refused = command(&merged("--sim 2x24GiB --mode dual"), demo(), &TempFolder::new().path("run")).run();
    assert_eq!(refused.code, 2, "dual mode needs two cards by number: {refused:?}");
    each_value("mode", &expected, |line| {
        let cards = if line == "--mode dual" { "--sim 2x24GiB --data-gpu 1 --model-gpu 0" } else { "--sim 1x24GiB" };
        let run = run(&format!("{cards} {line}"));
        let timed = run.ran.out.lines().filter(|line| line.contains(", GPU 0: ") && line.ends_with("steps/s"));
        let devices = run.events("device_clock")[0]["devices"].as_str().unwrap().to_owned();
        let devices = ["simulated", "cpu"].into_iter().find(|kind| *kind == devices).unwrap();
        (devices, run.reserved("data").card, run.reserved("model").card, timed.count())
    })
}

/// What turns English words into symbols. espeak-ng is not looked for where it may be, so that it is refused everywhere.
#[test]
pub(super) fn phonemizer() -> EachValue {
    let expected = [
        ("--phonemizer auto", Ok("dictionary".to_owned())),
        ("--phonemizer dictionary", Ok("dictionary".to_owned())),
        ("--phonemizer espeak", Err(2)),
        ("--phonemizer characters", Ok("characters".to_owned())),
    ];
    each_value("phonemizer", &expected, |line| {
        let folder = TempFolder::new();
        let dir = folder.path("run");
        let ran = command(&merged(line), demo(), &dir).env("TANDEM_ESPEAK_LIBRARY", "/nonexistent.so").run();
        if ran.code != 0 {
            return Err(ran.code);
        }
        let model = Run { ran, dir, _folder: folder }.model();
        Ok(model["text"]["languages"][0]["phonemizer"].as_str().unwrap().to_owned())
    })
}

/// The arithmetic that the checkpoint stores, and whether the weights are those of f64, bit for bit. Other last bits of the
/// features are other last bits of the weights.
#[test]
pub(super) fn feature_arithmetic() -> EachValue {
    let f64 = run("");
    let expected = [
        ("--feature-arithmetic auto", (json!("f64"), true)),
        ("--feature-arithmetic f64", (json!("f64"), true)),
        ("--feature-arithmetic two-float", (json!("two-float"), false)),
    ];
    each_value("feature-arithmetic", &expected, |line| {
        let run = run(line);
        for (found, expected) in run.losses().iter().zip(f64.losses()) {
            assert!((found - expected).abs() < 1e-4 * expected.abs(), "{line}: {found} for {expected}");
        }
        let weights = |run: &Run| run.checkpoint_file("weights.safetensors");
        (run.model()["features"]["arithmetic"].clone(), weights(&run) == weights(&f64))
    })
}

/// Whether the model keeps vowel marks.
#[test]
pub(super) fn harakat() -> EachValue {
    let expected = [("--harakat drop", json!(false)), ("--harakat keep", json!(true))];
    each_value("harakat", &expected, |line| run(line).model()["text"]["keep_harakat"].clone())
}

/// Whether spectrograms are normalised as in the other model, which was trained on other recordings of the corpus.
#[test]
pub(super) fn init_mel_statistics() -> EachValue {
    let statistics = |run: &Run| run.model()["mel_statistics"].clone();
    let source = run("--seed 7");
    let checkpoint = source.dir.join(source.checkpoints().last().unwrap());
    let expected = [("--init-mel-statistics keep", true), ("--init-mel-statistics measure", false)];
    each_value("init-mel-statistics", &expected, |line| {
        let tuned = run(&format!("{line} --init-from {}", checkpoint.display()));
        statistics(&tuned) == statistics(&source)
    })
}

/// Whether the learning rate falls, and whether averaged weights are saved.
#[test]
pub(super) fn optimization_level() -> EachValue {
    let expected = [("--optimization-level basic", (false, false)), ("--optimization-level enhanced", (true, true))];
    each_value("optimization-level", &expected, |line| {
        let run = run(&format!("{line} --max-steps 4"));
        let rates: Vec<f64> = run.events("step_metrics").iter().map(|event| event["lr"].as_f64().unwrap()).collect();
        let tensors = run.weights();
        (rates[3] < rates[2], tensors.iter().any(|name| name.starts_with("ema.")))
    })
}

/// Millions of parameters, from the memory that the run reserves. Each takes 22 bytes: weight, average, gradient and two
/// moments in f32, and the weight in bf16. About 100 MB are the same for every size.
#[test]
pub(super) fn model_size() -> EachValue {
    const MILLIONS: [u32; 5] = [2, 11, 32, 104, 468];
    let expected = [
        ("--model-size nano", Ok(2)),
        ("--model-size tiny", Ok(11)),
        ("--model-size small", Ok(32)),
        ("--model-size normal", Ok(104)),
        ("--model-size big", Ok(468)),
    ];
    each_value("model-size", &expected, |line| {
        let folder = TempFolder::new();
        let line = merged(&format!("{line} --sim 1x80GiB --batch-size 1 --buffer-size 1 --max-mel-frames 130"));
        let mut child = command(&line, demo(), &folder.path("run")).into_std().stdout(Stdio::null()).spawn().unwrap();
        let mut bytes = 0;
        // A step of the largest takes seconds, and its checkpoint 7 GB: the run is ended once its memory is reserved.
        eventually(|| {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the run was refused: the checkpoints of the largest need 29 GB of free disk");
            let log = fs::read_to_string(folder.path("run/run.jsonl")).unwrap_or_default();
            let reserved = log.lines().filter(|line| line.contains(r#""event":"arena_reserved","role":"model""#));
            let reserved = reserved.filter_map(|line| serde_json::from_str::<Value>(line).ok()).next();
            bytes = reserved.ok_or("no memory was reserved")?["bytes"].as_u64().unwrap();
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let found = (bytes as f64 - 100e6) / 22e6;
        let off = |millions: u32| (found / f64::from(millions)).ln().abs();
        MILLIONS.into_iter().find(|millions| off(*millions) < 0.5).ok_or(found)
    })
}

/// The type in which a checkpoint was computed, and whether the losses are those of the CPU, which computes in f32.
#[test]
pub(super) fn mixed_precision() -> EachValue {
    let cpu = run("").losses();
    let expected = [("--mixed-precision", (json!("bf16"), false)), ("--no-mixed-precision", (json!("f32"), true))];
    each_value("mixed-precision", &expected, |line| {
        let run = run(&format!("{line} --sim 1x24GiB"));
        (run.model()["compute_dtype"].clone(), run.losses() == cpu)
    })
}

/// The limits of both roles on one card. Without partitions there are no limits to enforce.
#[test]
pub(super) fn share_gpu() -> EachValue {
    contains(&run("--sim 1x24GiB --share-gpu").ran.out, &["partition"]);
    let expected = [("--share-gpu", Some((0, 7936, 0, 16_096))), ("--no-share-gpu", None)];
    each_value("share-gpu", &expected, |line| {
        let folder = TempFolder::new();
        let line = merged(&format!("--sim 1x24GiB --enable-memory-isolation {line}"));
        let ran = command(&line, demo(), &folder.path("run")).run();
        assert!(ran.code == 0 || ran.code == 2, "{ran:?}");
        let started = ran.code == 0;
        let run = Run { ran, dir: folder.path("run"), _folder: folder };
        started.then(|| {
            let (data, model) = (run.reserved("data"), run.reserved("model"));
            (data.card, data.limit_mb, model.card, model.limit_mb)
        })
    })
}

/// Whether the reservations have the default limits, and whether the roles have all that those allow.
#[test]
pub(super) fn enable_memory_isolation() -> EachValue {
    let expected = [("--enable-memory-isolation", (true, true)), ("--no-enable-memory-isolation", (false, false))];
    each_value("enable-memory-isolation", &expected, |line| {
        let run = run(&format!("--sim 2x24GiB --data-gpu 0 --model-gpu 1 {line}"));
        let (data, model) = (run.reserved("data"), run.reserved("model"));
        let defaults = (data.limit_mb, model.limit_mb) == (8192, 16_384);
        (defaults, data.bytes >> 20 > 7000 && model.bytes >> 20 > 15_000)
    })
}

/// Whether the losses are those of padded batches, bit for bit. Without padding, the same numbers are summed in another order.
#[test]
pub(super) fn enable_static_shapes() -> EachValue {
    // The name of the flag in other trainers.
    let padded = run("--pad-to-fixed-length --max-steps 6").losses();
    each_value(
        "enable-static-shapes",
        &[("--enable-static-shapes", true), ("--disable-static-shapes", false)],
        |line| {
            let losses = run(&format!("{line} --max-steps 6")).losses();
            for (padded, loss) in padded.iter().zip(&losses) {
                assert!((padded - loss).abs() < 1e-4 * padded.abs(), "{padded} {loss}");
            }
            losses == padded
        },
    )
}

/// The first step of a second run in the same folder, and whether the first run was moved.
#[test]
pub(super) fn reset_training() -> EachValue {
    each_value("reset-training", &[("--reset-training", (1, true)), ("", (3, false))], |line| {
        let folder = TempFolder::new();
        let dir = folder.path("run");
        for line in ["--max-steps 2", &format!("--max-steps 4 {line}")] {
            let ran = command(&merged(line), demo(), &dir).run();
            assert_eq!(ran.code, 0, "{line}: {ran:?}");
        }
        let log = fs::read_to_string(dir.join("run.jsonl")).unwrap();
        let steps = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let first = steps.filter(|event| event["event"] == "step_metrics").map(|event| event["step"].as_u64().unwrap());
        (first.min().unwrap(), dir.join("previous-1/checkpoint-00000002").is_dir())
    })
}
