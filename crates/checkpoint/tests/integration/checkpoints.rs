//! Checkpoints read back as written, the right ones stay, and every kind of bad input has its own error.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tandem_checkpoint::{
    Checkpoint, CheckpointError, Dtype, Mismatch, NewCheckpoint, OpenMode, RunFolder, RunIdentity, TensorRef,
    TensorSpec, WrittenCheckpoint, best_intact, checkpoint_bytes, folder_bytes, latest_intact,
};
use tempfile::TempDir;

use crate::support::custom_model;

const FILES: [&str; 4] = ["weights.safetensors", "optimizer.safetensors", "model.json", "state.json"];

fn run() -> (TempDir, RunFolder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::open(dir.path(), &RunIdentity::new(), OpenMode::Resume).unwrap();
    (dir, folder)
}

/// A checkpoint whose every file depends on the step.
fn save(folder: &RunFolder, step: u64, score: Option<f64>) -> WrittenCheckpoint {
    let bytes: Vec<u8> = (0..1000_u32).flat_map(|index| (index as f32 + step as f32).to_le_bytes()).collect();
    let weights = [
        TensorRef { name: "linear", dtype: Dtype::F32, shape: &[10, 100], bytes: &bytes },
        TensorRef { name: "ema.linear", dtype: Dtype::F32, shape: &[10, 100], bytes: &bytes },
    ];
    let moments = [TensorRef { name: "m.linear", dtype: Dtype::Bf16, shape: &[2000], bytes: &bytes }];
    let (state, model) = (json!({ "epoch": step / 10, "rng": step }), &custom_model(&format!("after {step}")));
    folder.write(&NewCheckpoint { step, weights: &weights, optimizer: &moments, state, model, score }).unwrap()
}

fn steps(dir: &Path) -> Vec<u64> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<_> = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_checkpoint_reads_back_as_written() {
    let (dir, folder) = run();
    let written = save(&folder, 1000, Some(0.1 + 0.2));
    assert_eq!(written.path, dir.path().join("checkpoint-00001000"));
    let on_disk: u64 = FILES.iter().map(|name| fs::metadata(written.path.join(name)).unwrap().len()).sum();
    assert_eq!((written.bytes, written.is_best, written.removed.len()), (on_disk, true, 0));

    let read = latest_intact(dir.path()).unwrap().checkpoint.unwrap();
    assert_eq!((read.step, read.score), (1000, Some(0.1 + 0.2)));
    assert_eq!((&read.state["rng"], read.model), (&json!(1000), custom_model("after 1000")));
    let mut out = vec![0; 4000];
    read.weights.read_into("ema.linear", &mut out).unwrap();
    assert_eq!(out[..4], 1000_f32.to_le_bytes());
    assert_eq!(read.optimizer.read("m.linear").unwrap(), out);
}

#[test]
fn the_size_is_known_beforehand() {
    let (_dir, folder) = run();
    let weights = ["linear", "ema.linear"].map(|name| TensorSpec { name, dtype: Dtype::F32, shape: &[10, 100] });
    let moments = [TensorSpec { name: "m.linear", dtype: Dtype::Bf16, shape: &[2000] }];
    let (planned, written) = (checkpoint_bytes(&weights, &moments), save(&folder, 1, None));
    assert!(written.bytes <= planned && planned <= written.bytes + (64 << 10), "{planned}, {}", written.bytes);
    assert_eq!(folder_bytes(planned), 5 * planned);
}

#[test]
fn the_last_three_and_the_best_are_kept() {
    let (dir, folder) = run();
    let check = |step, score, is_best, removed: &[u64], left: &[u64]| {
        let written = save(&folder, step, score);
        assert_eq!(written.is_best, is_best, "{step}");
        assert!(written.not_removed.is_none(), "{written:?}");
        let paths: Vec<_> = removed.iter().map(|step| dir.path().join(format!("checkpoint-{step:08}"))).collect();
        assert_eq!(written.removed, paths);
        assert_eq!(steps(dir.path()), left);
    };
    check(1, None, false, &[], &[1]);
    check(2, Some(0.5), true, &[], &[1, 2]);
    check(3, Some(f64::NAN), false, &[], &[1, 2, 3]);
    check(4, Some(0.5), false, &[1], &[2, 3, 4]);
    check(5, None, false, &[], &[2, 3, 4, 5]);
    check(6, Some(f64::NEG_INFINITY), false, &[3], &[2, 4, 5, 6]);
    check(7, Some(0.4), true, &[2, 4], &[5, 6, 7]);
    assert_eq!(best_intact(dir.path()).unwrap().checkpoint.unwrap().step, 7);
    assert_eq!(latest_intact(dir.path()).unwrap().checkpoint.unwrap().step, 7);
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let (dir, folder) = run();
    save(&folder, 5, Some(1.0));
    let held = latest_intact(dir.path()).unwrap().checkpoint.unwrap();
    let written = save(&folder, 5, Some(2.0));
    assert!(written.is_best);
    assert_eq!(latest_intact(dir.path()).unwrap().checkpoint.unwrap().score, Some(2.0));
    assert_eq!(held.weights.read("linear").unwrap().len(), 4000, "an open checkpoint stays readable");
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 3, "lock, run.json and one checkpoint");
}

/// Damages the newest and best of three checkpoints; it must be skipped for a reason that contains `part`.
#[track_caller]
fn check_damage(damage: impl Fn(&Path), part: &str) {
    let (dir, folder) = run();
    for step in [10, 20, 30] {
        save(&folder, step, Some(1.0 / step as f64));
    }
    let newest = dir.path().join("checkpoint-00000030");
    damage(&newest);
    for found in [latest_intact(dir.path()).unwrap(), best_intact(dir.path()).unwrap()] {
        let skipped: Vec<_> = found.skipped.iter().map(|it| (it.path.clone(), it.reason.to_string())).collect();
        let [(path, reason)] = &skipped[..] else { panic!("{skipped:?}") };
        assert!(*path == newest && reason.contains(part), "{reason}");
        assert_eq!(found.checkpoint.unwrap().step, 20);
    }
    let error = Checkpoint::open(&newest).unwrap_err().to_string();
    assert!(error.contains(part) && error.contains(&newest.display().to_string()), "{error}");
}

#[test]
fn damaged_checkpoints_are_skipped_with_the_reason() {
    let cut = |name: &'static str| {
        move |path: &Path| {
            let bytes = fs::read(path.join(name)).unwrap();
            fs::write(path.join(name), &bytes[..bytes.len() / 2]).unwrap();
        }
    };
    let flip = |name: &'static str, at: usize| {
        move |path: &Path| {
            let mut bytes = fs::read(path.join(name)).unwrap();
            bytes[at] ^= 0x10;
            fs::write(path.join(name), bytes).unwrap();
        }
    };
    check_damage(cut("weights.safetensors"), "bytes, found");
    check_damage(cut("optimizer.safetensors"), "bytes, found");
    check_damage(cut("model.json"), "bytes, found");
    check_damage(cut("state.json"), "the state is not valid JSON");
    check_damage(flip("weights.safetensors", 3), "expected checksum");
    check_damage(flip("weights.safetensors", 20), "expected checksum");
    check_damage(flip("weights.safetensors", 5000), "expected checksum");
    check_damage(flip("optimizer.safetensors", 2000), "expected checksum");
    check_damage(flip("model.json", 5), "expected checksum");
    check_damage(|path| fs::remove_file(path.join("optimizer.safetensors")).unwrap(), "the file is missing");
    check_damage(|path| fs::write(path.join("state.json"), "").unwrap(), "the state is not valid JSON");
    check_damage(
        |path| {
            let text = fs::read_to_string(path.join("state.json")).unwrap();
            fs::write(path.join("state.json"), text.replace("\"rng\": 30", "\"rng\": 31")).unwrap();
        },
        "expected checksum",
    );
    check_damage(
        |path| {
            let text = fs::read_to_string(path.join("state.json")).unwrap();
            fs::write(path.join("state.json"), text.replace("\"version\": 2", "\"version\": 3")).unwrap();
        },
        "newer version",
    );
}

#[test]
fn damaged_checkpoints_never_displace_a_good_one() {
    let (dir, folder) = run();
    for step in [10, 20, 30] {
        save(&folder, step, None);
    }
    for step in [20, 30] {
        fs::write(dir.path().join(format!("checkpoint-{step:08}/state.json")), "").unwrap();
    }
    // As a run does that resumed from 10, the newest intact one.
    for step in [11, 12] {
        save(&folder, step, None);
    }
    assert_eq!(steps(dir.path()), [10, 11, 12, 20, 30]);
    save(&folder, 13, None);
    assert_eq!(steps(dir.path()), [11, 12, 13, 20, 30]);
    let found = latest_intact(dir.path()).unwrap();
    assert_eq!((found.checkpoint.unwrap().step, found.skipped.len()), (13, 2));
    save(&folder, 30, None);
    assert_eq!(latest_intact(dir.path()).unwrap().checkpoint.unwrap().step, 30, "the damaged one is replaced");
}

#[test]
fn a_path_that_is_not_a_checkpoint_is_refused_with_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let place = |files: &[&str]| {
        let folder = tempfile::tempdir_in(dir.path()).unwrap().keep();
        files.iter().for_each(|name| fs::write(folder.join(name), b"PK\x03\x04").unwrap());
        folder
    };
    let check = |path: PathBuf, part: &str| {
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(
            matches!(error, CheckpointError::NotACheckpoint { .. } | CheckpointError::ForeignCheckpoint { .. }),
            "{error:?}"
        );
        let error = error.to_string();
        assert!(error.contains(part) && error.ends_with(&format!(": {}", path.display())), "{error}");
    };
    check(dir.path().join("none"), "found nothing");
    check(place(&[]), "found a folder without state.json");
    check(place(&["run.json"]), "the folder of a run");
    check(place(&["x.safetensors"]).join("x.safetensors"), "found a file");
    check(place(&["checkpoint", "c-1.index"]), "`checkpoint` is a checkpoint of TensorFlow");
    check(place(&["saved_model.pb"]), "`saved_model.pb` is a checkpoint of TensorFlow");
    check(place(&["c-1.index", "c-1.data-00000-of-00001"]).join("c-1"), "`c-1.index` is a checkpoint of TensorFlow");
    check(place(&["c-1.index"]).join("c-1.index"), "`c-1.index` is a checkpoint of TensorFlow");
    check(place(&["best.pt"]), "`best.pt` is a checkpoint of PyTorch");
    check(place(&["best.pth"]).join("best.pth"), "`best.pth` is a checkpoint of PyTorch");
}

#[test]
fn a_folder_without_checkpoints_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("none")] {
        for found in [latest_intact(&path).unwrap(), best_intact(&path).unwrap()] {
            assert!(found.checkpoint.is_none() && found.skipped.is_empty());
        }
    }
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(latest_intact(&file), Err(CheckpointError::Unusable { .. })));
}

#[test]
fn a_checkpoint_of_another_model_reports_every_difference() {
    let (_dir, folder) = run();
    let checkpoint = Checkpoint::open(save(&folder, 1, None).path).unwrap();
    let wanted = [
        TensorSpec { name: "linear", dtype: Dtype::Bf16, shape: &[10, 100] },
        TensorSpec { name: "embedding", dtype: Dtype::F32, shape: &[40, 8] },
    ];
    let error = checkpoint.weights.expect(&wanted).unwrap_err();
    let CheckpointError::WrongTensors { mismatches, path } = &error else { panic!("{error}") };
    let dtype = Mismatch::Dtype { name: "linear".into(), expected: Dtype::Bf16, found: "F32".into() };
    let missing = Mismatch::Missing { name: "embedding".into(), dtype: Dtype::F32, shape: vec![40, 8] };
    let extra = Mismatch::Unexpected { name: "ema.linear".into(), dtype: "F32".into(), shape: vec![10, 100] };
    assert_eq!(mismatches, &[dtype, missing, extra]);
    assert_eq!(*path, checkpoint.path.join("weights.safetensors"));
    assert!(error.to_string().contains("`linear`: expected BF16, found F32; `embedding` F32 [40, 8] is missing"));
}

#[test]
fn a_failed_write_changes_nothing() {
    let (dir, folder) = run();
    save(&folder, 1, Some(1.0));
    // A file with the name of the temporary folder.
    let in_the_way = dir.path().join(".tmp-checkpoint-00000002");
    fs::write(&in_the_way, "").unwrap();
    let new = NewCheckpoint {
        step: 2,
        weights: &[],
        optimizer: &[],
        state: Value::Null,
        model: &custom_model("new"),
        score: Some(0.0),
    };
    let error = folder.write(&new).unwrap_err();
    assert!(matches!(error, CheckpointError::Unusable { .. }), "{error}");
    assert_eq!(steps(dir.path()), [1]);
    fs::remove_file(in_the_way).unwrap();
    assert!(folder.write(&new).unwrap().is_best);
}
