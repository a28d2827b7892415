//! A checkpoint to the disk, whole or not at all.
//!
//! Files go into a folder with a temporary name and are synced one by one, the state last. Then that folder is synced,
//! renamed, and the run's folder synced. Whatever ends the process leaves a temporary folder, which the next opening
//! removes, or a whole checkpoint.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use super::listing::{name_of, replaced_name_of, step_of, temporary_name_of};
use super::record::{FileFacts, StateFile};
use super::tensor::TensorSpec;
use super::tensor_file::{self, tensor_file_bytes};
use super::{MODEL_FILE, NewCheckpoint, OPTIMIZER_FILE, STATE_FILE, WEIGHTS_FILE};
use crate::disk::{free_bytes, is_no_room, sync_folder, unusable, write_synced};
use crate::error::TrainError;

/// Room for the two JSON files in what a plan shows; they have a few kilobytes.
const JSON_BYTES: u64 = 64 << 10;

/// Bytes of a checkpoint with these tensors: the tensor files exactly, and 64 KiB for the JSON beside them.
pub fn checkpoint_bytes(weights: &[TensorSpec<'_>], optimizer: &[TensorSpec<'_>]) -> u64 {
    tensor_file_bytes(weights) + tensor_file_bytes(optimizer) + JSON_BYTES
}

/// Writes the checkpoint into the run's folder `dir`; the caller holds its lock. A checkpoint of the same step is
/// replaced. Returns its path and bytes. On failure nothing is left of it, and all others are as they were.
pub(super) fn write(dir: &Path, new: &NewCheckpoint<'_>) -> Result<(PathBuf, u64), TrainError> {
    let [weights, optimizer] = [new.weights, new.optimizer].map(|t| t.iter().map(|t| t.spec()).collect::<Vec<_>>());
    let needed_bytes = checkpoint_bytes(&weights, &optimizer);
    check_room(dir, needed_bytes, free_bytes(dir))?;
    let names = [name_of(new.step), temporary_name_of(new.step), replaced_name_of(new.step)];
    let [target, temporary, replaced] = names.each_ref().map(|name| dir.join(name));
    let written = remove_folder(&temporary).and_then(|()| write_files(&temporary, new)).and_then(|bytes| {
        put_in_place(&temporary, &target, &replaced)?;
        sync_folder(dir)?;
        Ok(bytes)
    });
    // After a failure there is what was written of the new one, otherwise the one it replaced. What cannot be cleared
    // up now is at the next opening.
    let _ = finish(dir, &names[1]).and_then(|_| finish(dir, &names[2]));
    written.map(|bytes| (target, bytes)).map_err(|source| failed(dir, needed_bytes, source))
}

/// Ends what was begun under the temporary name `name`, if it is one of a checkpoint: it goes, unless it waits to be
/// replaced by one that never came. Says whether the name is ours.
pub(crate) fn finish(dir: &Path, name: &str) -> io::Result<bool> {
    let path = dir.join(name);
    let Some(rest) = name.strip_prefix(".tmp-") else { return Ok(false) };
    let replaced = rest.strip_prefix("replaced-");
    let checkpoint = replaced.or(rest.strip_prefix("removed-")).unwrap_or(rest);
    let target = dir.join(checkpoint);
    if step_of(checkpoint).is_none() {
        return Ok(false);
    }
    let goes_back = replaced.is_some() && path.exists() && !target.exists();
    let done = if goes_back { fs::rename(&path, &target) } else { remove_folder(&path) };
    done.map(|()| true)
}

/// Removes a folder and what is in it, if it is there.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Before the first byte: a disk that is filled to the brim hurts more than this run.
fn check_room(dir: &Path, needed_bytes: u64, free_bytes: Option<u64>) -> Result<(), TrainError> {
    match free_bytes {
        Some(free) if free < needed_bytes => Err(TrainError::NoRoom {
            needed_bytes,
            free_bytes,
            why: "looked up before writing".into(),
            path: dir.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn failed(dir: &Path, needed_bytes: u64, source: io::Error) -> TrainError {
    if is_no_room(&source) {
        let (free_bytes, why) = (free_bytes(dir), source.to_string());
        return TrainError::NoRoom { needed_bytes, free_bytes, why, path: dir.to_owned() };
    }
    unusable("write a checkpoint", dir)(source)
}

fn write_files(folder: &Path, new: &NewCheckpoint<'_>) -> io::Result<u64> {
    fs::create_dir(folder)?;
    let weights = tensor_file::write(&folder.join(WEIGHTS_FILE), new.weights)?;
    let optimizer = tensor_file::write(&folder.join(OPTIMIZER_FILE), new.optimizer)?;
    let model = write_json(&folder.join(MODEL_FILE), &new.model)?;
    let facts = [(WEIGHTS_FILE, weights), (OPTIMIZER_FILE, optimizer), (MODEL_FILE, model)];
    let files: BTreeMap<_, _> = facts.into_iter().map(|(name, facts)| (name.to_owned(), facts)).collect();
    let bytes: u64 = files.values().map(|facts| facts.bytes).sum();
    let score = new.score.filter(|score| score.is_finite());
    let state = StateFile { step: new.step, score, files, state: new.state.clone() }.to_json()?;
    write_synced(&folder.join(STATE_FILE), &state)?;
    sync_folder(folder)?;
    Ok(bytes + state.len() as u64)
}

fn write_json(path: &Path, value: &Value) -> io::Result<FileFacts> {
    let mut json = serde_json::to_vec_pretty(value)?;
    json.push(b'\n');
    write_synced(path, &json)?;
    Ok(FileFacts::of(&json))
}

/// Gives the folder its name. Where there is one of that name already, the two exchange theirs in one step.
fn put_in_place(temporary: &Path, target: &Path, replaced: &Path) -> io::Result<()> {
    if !target.exists() {
        return fs::rename(temporary, target);
    }
    match renameat_with(CWD, temporary, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Some file systems cannot.
        Err(_) => put_in_place_of(temporary, target, replaced),
    }
}

/// The same in two steps. Between them the old one waits under a name by which the next opening knows it.
fn put_in_place_of(temporary: &Path, target: &Path, replaced: &Path) -> io::Result<()> {
    remove_folder(replaced)?;
    fs::rename(target, replaced)?;
    fs::rename(temporary, target).inspect_err(|_| {
        // If this fails too, the next opening does it.
        let _ = fs::rename(replaced, target);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_known_before_anything_is_written() {
        let check = |needed, free, expected: Option<&str>| {
            let error = check_room(Path::new("run"), needed, free).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected);
        };
        check(1000, Some(1000), None);
        check(1000, None, None);
        check(
            3 << 20,
            Some(999),
            Some(
                "no room for a checkpoint: 3145728 bytes (3 MB) needed, 999 bytes free (looked up before writing); \
                 earlier checkpoints are untouched. Free some space, or give another folder with --checkpoint-dir: run",
            ),
        );
    }

    #[test]
    fn one_replaces_another_where_names_cannot_be_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old, waits] = ["new", "old", "waits"].map(|name| dir.path().join(name));
        let make = |path: &Path, text| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("text"), text).unwrap();
        };
        let read = |path: &Path| fs::read_to_string(path.join("text")).unwrap();
        make(&old, "old");
        assert!(put_in_place_of(&new, &old, &waits).is_err(), "there is no new one");
        assert!(read(&old) == "old" && !waits.exists());
        make(&new, "new");
        put_in_place_of(&new, &old, &waits).unwrap();
        assert_eq!((read(&old), read(&waits), new.exists()), ("new".into(), "old".into(), false));
    }

    #[test]
    fn what_was_begun_is_ended() {
        let check = |rest: &str, others: &[&str], ours: bool, left: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(format!(".tmp-{rest}"))).unwrap();
            others.iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
            assert_eq!(finish(dir.path(), &format!(".tmp-{rest}")).unwrap(), ours);
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            assert_eq!(names, left, "{rest}");
        };
        let step = "checkpoint-00000007";
        check("checkpoint-00000007", &[step], true, &[step]);
        check("removed-checkpoint-00000007", &[], true, &[]);
        check("replaced-checkpoint-00000007", &[], true, &[step]);
        check("replaced-checkpoint-00000007", &[step], true, &[step]);
        assert!(finish(tempfile::tempdir().unwrap().path(), ".tmp-replaced-checkpoint-00000007").unwrap());
        check("checkpoint-7", &[], false, &[".tmp-checkpoint-7"]);
        check("replaced-work", &[], false, &[".tmp-replaced-work"]);
    }

    #[test]
    fn errors_of_the_disk_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let no_room = failed(dir.path(), 10, io::Error::from_raw_os_error(28));
        assert!(matches!(no_room, TrainError::NoRoom { needed_bytes: 10, free_bytes: Some(_), .. }), "{no_room}");
        let no_rights = failed(dir.path(), 10, io::Error::from_raw_os_error(13));
        assert!(matches!(no_rights, TrainError::Unusable { .. }), "{no_rights}");
    }
}
