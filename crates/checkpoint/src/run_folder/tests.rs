//! Folders that are used, refused and moved aside.

use serde_json::json;

use super::*;
use crate::file_names::SAMPLES;
use crate::listing::latest_intact;
use crate::test_model::custom_model;

fn identity() -> RunIdentity {
    RunIdentity::new().with("data", "6d0c").with("model", "nano").with("hop_samples", 256)
}

fn open(dir: &Path, mode: OpenMode) -> Result<RunFolder, CheckpointError> {
    RunFolder::open(dir, &identity(), mode)
}

fn save(folder: &RunFolder, step: u64) -> WrittenCheckpoint {
    let (state, model) = (json!({ "cursor": step }), &custom_model());
    folder.write(&NewCheckpoint { step, weights: &[], optimizer: &[], state, model, score: None }).unwrap()
}

/// Names in a folder without the lock, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names = names_in(dir).unwrap();
    names.retain(|name| name != ".tandem.lock");
    names.sort_unstable();
    names
}

#[test]
fn a_second_open_is_refused_until_the_first_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), OpenMode::Resume).unwrap();
    for mode in [OpenMode::Resume, OpenMode::Reset] {
        let error = open(dir.path(), mode).unwrap_err();
        let us = format!("process {}", std::process::id());
        assert!(matches!(&error, CheckpointError::Locked { owner, .. } if owner.starts_with(&us)), "{error}");
    }
    drop(first);
    open(dir.path(), OpenMode::Resume).unwrap();
}

#[test]
fn an_owner_that_has_not_written_its_number_owns_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let file = fs::File::create(dir.path().join(".tandem.lock")).unwrap();
    file.lock().unwrap();
    let error = open(dir.path(), OpenMode::Resume).unwrap_err();
    assert!(matches!(&error, CheckpointError::Locked { owner, .. } if owner.contains("not written")), "{error}");
}

#[test]
fn another_run_is_refused_with_what_differs_and_what_to_type() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), OpenMode::Resume).unwrap());
    let check = |identity: &RunIdentity, expected: &[&str]| {
        let error = RunFolder::open(dir.path(), identity, OpenMode::Resume).unwrap_err();
        assert!(matches!(error, CheckpointError::AnotherRun { .. }), "{error}");
        let error = error.to_string();
        let wanted = ["--checkpoint-dir OTHER", "--reset-training", &dir.path().display().to_string()];
        for part in expected.iter().chain(&wanted) {
            assert!(error.contains(part), "{part} not in: {error}");
        }
    };
    check(&identity().with("model", "tiny"), &["another run: model: expected tiny, found nano. Give"]);
    check(&identity().with("data", "0"), &["data: expected 0, found 6d0c"]);
    check(
        &identity().with("speakers", 2).with("data", "0"),
        &["data: expected 0", "; speakers: expected 2, found none"],
    );
    let many = (0..10).fold(identity(), |identity, index| identity.with(format!("fact {index}"), index));
    check(&many, &["fact 5: expected 5, found none; and 4 more. Give"]);
    drop(open(dir.path(), OpenMode::Resume).unwrap());
}

#[test]
fn a_folder_without_a_newer_fact_still_resumes() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), OpenMode::Resume).unwrap());
    let newer = identity().with_newer("recording_lengths", "a");
    drop(RunFolder::open(dir.path(), &newer, OpenMode::Resume).unwrap());
    drop(RunFolder::open(dir.path(), &newer, OpenMode::Reset).unwrap());
    let other = identity().with_newer("recording_lengths", "b");
    let error = RunFolder::open(dir.path(), &other, OpenMode::Resume).unwrap_err().to_string();
    assert!(error.contains("another run: recording_lengths: expected b, found a. Give"), "{error}");
}

#[test]
fn an_unreadable_run_json_is_refused_and_kept() {
    let check = |text: &str, part: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.json"), text).unwrap();
        let error = open(dir.path(), OpenMode::Resume).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("run.json")).unwrap(), text);
        let aside = open(dir.path(), OpenMode::Reset).unwrap().moved_aside().unwrap().join("run.json");
        assert_eq!(fs::read_to_string(aside).unwrap(), text);
    };
    check("", "cannot read which run");
    check("{\"version\": 1", "--reset-training");
    check("{\"version\": 1}", "missing field `facts`");
    check("{\"version\": 2, \"new\": []}", "newer version of Tandem: expected format 1 or older, found 2");
}

#[test]
fn a_folder_with_other_files_is_used_if_none_is_in_the_way() {
    let check = |files: &[&str], folders: &[&str], in_the_way: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|name| fs::write(dir.path().join(name), "mine").unwrap());
        folders.iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        let before = names(dir.path());
        match (open(dir.path(), OpenMode::Resume), in_the_way) {
            (Ok(_), None) => assert_eq!(names(dir.path()).len(), before.len() + 1),
            (Err(CheckpointError::InTheWay { name, .. }), Some(expected)) => {
                assert_eq!(name, expected);
                assert_eq!(names(dir.path()), before);
            }
            (other, _) => panic!("{files:?} {folders:?}: {other:?}"),
        }
        let after = open(dir.path(), OpenMode::Reset).unwrap();
        assert!(after.moved_aside().is_some() && after.path().join("run.json").is_file());
        files.iter().for_each(|name| {
            let [here, aside] = [dir.path().join(name), after.moved_aside().unwrap().join(name)];
            assert!(here.is_file() || aside.is_file(), "{name} is gone");
        });
    };
    check(&[], &[], None);
    check(&["notes.txt", ".tmp-notes", "checkpoint-final"], &["wavs", "previous-1", ".tmp-checkpoint"], None);
    check(&["run.jsonl"], &[], Some("run.jsonl"));
    check(&[], &["samples"], Some("samples"));
    check(&["notes.txt"], &["checkpoint-00000100"], Some("checkpoint-00000100"));
}

#[test]
fn another_programs_checkpoint_is_refused_by_name_and_unchanged() {
    let check = |files: &[&str], program: &str| {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|name| fs::write(dir.path().join(name), "theirs").unwrap());
        let before = names_in(dir.path()).unwrap().len();
        let error = open(dir.path(), OpenMode::Resume).unwrap_err().to_string();
        assert!(error.contains(&format!("is a checkpoint of {program}")), "{error}");
        assert_eq!(names_in(dir.path()).unwrap().len(), before, "not even a lock");
        let folder = open(dir.path(), OpenMode::Reset).unwrap();
        assert_eq!(folder.moved_aside(), None);
        files.iter().for_each(|name| assert!(dir.path().join(name).is_file(), "{name}"));
        drop(folder);
        drop(open(dir.path(), OpenMode::Resume).unwrap());
    };
    check(&["checkpoint", "ckpt-9.index", "ckpt-9.data-00000-of-00001"], "TensorFlow");
    check(&["saved_model.pb"], "TensorFlow");
    check(&["model_best.pth"], "PyTorch");
}

#[test]
fn resetting_moves_every_run_to_its_own_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    for round in 1..=3 {
        let folder = open(dir.path(), OpenMode::Reset).unwrap();
        let aside = (round > 1).then(|| dir.path().join(format!("previous-{}", round - 1)));
        assert_eq!(folder.moved_aside(), aside.as_deref());
        assert!(latest_intact(dir.path()).unwrap().checkpoint.is_none());
        save(&folder, round);
        fs::create_dir(dir.path().join(SAMPLES)).unwrap();
    }
    assert_eq!(
        names(dir.path()),
        ["checkpoint-00000003", "notes.txt", "previous-1", "previous-2", "run.json", "samples"]
    );
    for round in 1..=2 {
        let aside = dir.path().join(format!("previous-{round}"));
        assert_eq!(names(&aside), [&format!("checkpoint-{round:08}"), "run.json", "samples"]);
        assert_eq!(latest_intact(&aside).unwrap().checkpoint.unwrap().step, round);
    }
}

#[test]
fn an_interrupted_reset_is_not_mistaken_for_a_run_and_can_be_finished() {
    for num_moved in 1..=3 {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(dir.path(), OpenMode::Resume).unwrap();
        (7..=9).for_each(|step| _ = save(&folder, step));
        drop(folder);
        // As a kill after `num_moved` moves leaves it.
        let aside = make_previous(dir.path()).unwrap();
        for name in &names_of_a_run(dir.path()).unwrap()[..num_moved] {
            fs::rename(dir.path().join(name), aside.join(name)).unwrap();
        }
        let error = open(dir.path(), OpenMode::Resume).unwrap_err();
        assert!(matches!(&error, CheckpointError::InTheWay { name, .. } if name.starts_with("checkpoint-")), "{error}");
        let folder = open(dir.path(), OpenMode::Reset).unwrap();
        assert_eq!(latest_intact(folder.moved_aside().unwrap()).unwrap().checkpoint.unwrap().step, 9);
        assert_eq!(names(&aside).len() + names(folder.moved_aside().unwrap()).len(), 4);
    }
}

#[test]
fn leftovers_of_a_killed_process_are_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    save(&open(dir.path(), OpenMode::Resume).unwrap(), 7);
    for name in [".tmp-checkpoint-00000008", ".tmp-removed-checkpoint-00000001", ".tmp-work", ".tmp-checkpoint-8"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("weights.safetensors"), "half").unwrap();
    }
    fs::write(dir.path().join(".tmp-run.json"), "{").unwrap();
    drop(open(dir.path(), OpenMode::Resume).unwrap());
    assert_eq!(names(dir.path()), [".tmp-checkpoint-8", ".tmp-work", "checkpoint-00000007", "run.json"]);
}

#[test]
fn later_checkpoints_are_moved_aside_for_a_run_that_resumes_from_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(dir.path(), OpenMode::Resume).unwrap();
    for step in [10, 20, 30] {
        save(&folder, step);
    }
    assert_eq!(folder.move_aside_after(30).unwrap(), None);
    let aside = folder.move_aside_after(10).unwrap().unwrap();
    assert_eq!(names(&aside), ["checkpoint-00000020", "checkpoint-00000030"]);
    assert_eq!(names(dir.path()), ["checkpoint-00000010", "previous-1", "run.json"]);
}

#[test]
fn a_folder_that_cannot_be_created_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = open(&dir.path().join("file/run"), OpenMode::Resume).unwrap_err();
    assert!(matches!(error, CheckpointError::Unusable { .. }), "{error}");
}
