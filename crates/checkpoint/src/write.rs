//! Writes a checkpoint atomically.
//!
//! The files go into a folder with a temporary name and are synced one by one, the state last. Then that folder is
//! synced and renamed, and the run folder is synced. A process killed at any time leaves a complete checkpoint, or a
//! temporary folder that the next open removes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use crate::contract::ModelContract;
use crate::disk::{free_bytes, is_no_room, sync_folder, unusable, write_synced};
use crate::error::CheckpointError;
use crate::file_names::{
    Leftover, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, WEIGHTS_FILE, checkpoint_name, leftover, replaced_name,
    temporary_name,
};
use crate::run_identity::RunIdentity;
use crate::state_file::{FileDigest, StateFile};
use crate::tensor::{TensorRef, TensorSpec};
use crate::tensor_file::{self, tensor_file_bytes};

/// A checkpoint to write.
#[derive(Clone, Debug)]
pub struct NewCheckpoint<'a> {
    /// Optimizer steps done.
    pub step: u64,
    /// Parameters, and their EMA under [`EMA_PREFIX`](crate::EMA_PREFIX).
    pub weights: &'a [TensorRef<'a>],
    /// Optimizer state.
    pub optimizer: &'a [TensorRef<'a>],
    /// Whatever else an exact resume needs: epoch, cursor, seed, replacements. Floats read back bit-exactly; JSON has
    /// no form for non-finite ones.
    pub state: Value,
    /// What the model is.
    pub model: &'a ModelContract,
    /// The validation score; the lowest is the best. `None` and non-finite scores are never the best.
    pub score: Option<f64>,
}

/// Folder and size of a written checkpoint.
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// Room for the two JSON files in what a plan shows; they take a few kilobytes.
const JSON_BYTES: u64 = 64 << 10;

/// Bytes of a checkpoint with these tensors: the exact size of the tensor files, plus 64 KiB for the JSON files.
pub fn checkpoint_bytes(weights: &[TensorSpec<'_>], optimizer: &[TensorSpec<'_>]) -> u64 {
    tensor_file_bytes(weights) + tensor_file_bytes(optimizer) + JSON_BYTES
}

/// Writes the checkpoint of `run` into its folder `dir`; the caller holds its lock. A checkpoint of the same step is
/// replaced. On failure nothing of the new one remains, and all others are unchanged.
pub(crate) fn write(dir: &Path, run: &RunIdentity, new: &NewCheckpoint<'_>) -> Result<Written, CheckpointError> {
    let [weights, optimizer] = [new.weights, new.optimizer].map(|t| t.iter().map(|t| t.spec()).collect::<Vec<_>>());
    // A lexicon is the only large part of the JSON files.
    let lexicon =
        new.model.text.as_ref().and_then(|text| text.lexicon.as_ref()).map_or(0, |text| 2 * text.len() as u64);
    let needed_bytes = checkpoint_bytes(&weights, &optimizer) + lexicon;
    check_room(dir, needed_bytes, free_bytes(dir))?;
    let names = [checkpoint_name(new.step), temporary_name(new.step), replaced_name(new.step)];
    let [target, temporary, replaced] = names.each_ref().map(|name| dir.join(name));
    let written = remove_folder(&temporary).and_then(|()| write_files(&temporary, run, new)).and_then(|bytes| {
        put_in_place(&temporary, &target, &replaced)?;
        sync_folder(dir)?;
        Ok(bytes)
    });
    // After a failure these are parts of the new one, otherwise the one it replaced. What cannot be removed now is
    // removed by the next open.
    let _ = clean_up(dir, &names[1]).and_then(|_| clean_up(dir, &names[2]));
    written.map(|bytes| Written { path: target, bytes }).map_err(|source| failed(dir, needed_bytes, source))
}

/// Removes a leftover of a checkpoint with the temporary name `name`, or restores it if it waited for a replacement
/// that never came. Returns whether the name is one of ours.
pub(crate) fn clean_up(dir: &Path, name: &str) -> io::Result<bool> {
    let path = dir.join(name);
    let done = match leftover(name) {
        None => return Ok(false),
        Some(Leftover::Replaced { checkpoint }) if path.exists() && !dir.join(checkpoint).exists() => {
            fs::rename(&path, dir.join(checkpoint))
        }
        Some(_) => remove_folder(&path),
    };
    done.map(|()| true)
}

/// Removes a folder and its contents, if it exists.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Checked before the first byte: a full disk hurts more than this run.
pub(crate) fn check_room(dir: &Path, needed_bytes: u64, free_bytes: Option<u64>) -> Result<(), CheckpointError> {
    match free_bytes {
        Some(free) if free < needed_bytes => Err(CheckpointError::NoRoom {
            needed_bytes,
            free_bytes,
            why: "checked before writing".into(),
            path: dir.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn failed(dir: &Path, needed_bytes: u64, source: io::Error) -> CheckpointError {
    if is_no_room(&source) {
        let (free_bytes, why) = (free_bytes(dir), source.to_string());
        return CheckpointError::NoRoom { needed_bytes, free_bytes, why, path: dir.to_owned() };
    }
    unusable("write a checkpoint", dir)(source)
}

fn write_files(folder: &Path, run: &RunIdentity, new: &NewCheckpoint<'_>) -> io::Result<u64> {
    fs::create_dir(folder)?;
    let weights = tensor_file::write(&folder.join(WEIGHTS_FILE), new.weights)?;
    let optimizer = tensor_file::write(&folder.join(OPTIMIZER_FILE), new.optimizer)?;
    let model = new.model.to_json()?;
    write_synced(&folder.join(MODEL_FILE), &model)?;
    let digests = [(WEIGHTS_FILE, weights), (OPTIMIZER_FILE, optimizer), (MODEL_FILE, FileDigest::of(&model))];
    let files: BTreeMap<_, _> = digests.into_iter().map(|(name, digest)| (name.to_owned(), digest)).collect();
    let bytes: u64 = files.values().map(|digest| digest.bytes).sum();
    let score = new.score.filter(|score| score.is_finite());
    let state = StateFile { step: new.step, run: Some(run.clone()), score, files, state: new.state.clone() };
    let state = state.to_json()?;
    write_synced(&folder.join(STATE_FILE), &state)?;
    sync_folder(folder)?;
    Ok(bytes + state.len() as u64)
}

/// Renames the folder. If `target` exists, the two exchange their names in one step.
fn put_in_place(temporary: &Path, target: &Path, replaced: &Path) -> io::Result<()> {
    if !target.exists() {
        return fs::rename(temporary, target);
    }
    match renameat_with(CWD, temporary, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Some file systems cannot.
        Err(_) => replace_in_two_steps(temporary, target, replaced),
    }
}

/// The same in two steps. Between them the old one waits under a name from which the next open restores it.
fn replace_in_two_steps(temporary: &Path, target: &Path, replaced: &Path) -> io::Result<()> {
    remove_folder(replaced)?;
    fs::rename(target, replaced)?;
    fs::rename(temporary, target).inspect_err(|_| {
        // If this fails too, the next open does it.
        let _ = fs::rename(replaced, target);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_found_before_anything_is_written() {
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
                "no room for a checkpoint: 3145728 bytes (3 MB) needed, 999 bytes free (checked before writing); \
                 earlier checkpoints are untouched. Free some space, or give another folder with --checkpoint-dir OTHER: run",
            ),
        );
    }

    #[test]
    fn a_checkpoint_is_replaced_even_if_names_cannot_be_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old, replaced] = ["new", "old", "replaced"].map(|name| dir.path().join(name));
        let make = |path: &Path, text| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("text"), text).unwrap();
        };
        let read = |path: &Path| fs::read_to_string(path.join("text")).unwrap();
        make(&old, "old");
        assert!(replace_in_two_steps(&new, &old, &replaced).is_err(), "the new one does not exist");
        assert!(read(&old) == "old" && !replaced.exists());
        make(&new, "new");
        replace_in_two_steps(&new, &old, &replaced).unwrap();
        assert_eq!((read(&old), read(&replaced), new.exists()), ("new".into(), "old".into(), false));
    }

    #[test]
    fn leftovers_are_removed_or_restored() {
        let check = |rest: &str, others: &[&str], ours: bool, left: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(format!(".tmp-{rest}"))).unwrap();
            others.iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
            assert_eq!(clean_up(dir.path(), &format!(".tmp-{rest}")).unwrap(), ours);
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            assert_eq!(names, left, "{rest}");
        };
        let step = "checkpoint-00000007";
        check("checkpoint-00000007", &[step], true, &[step]);
        check("removed-checkpoint-00000007", &[], true, &[]);
        check("replaced-checkpoint-00000007", &[], true, &[step]);
        check("replaced-checkpoint-00000007", &[step], true, &[step]);
        assert!(clean_up(tempfile::tempdir().unwrap().path(), ".tmp-replaced-checkpoint-00000007").unwrap());
        check("checkpoint-7", &[], false, &[".tmp-checkpoint-7"]);
        check("replaced-work", &[], false, &[".tmp-replaced-work"]);
    }

    #[test]
    fn a_full_disk_and_missing_rights_are_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let no_room = failed(dir.path(), 10, io::Error::from_raw_os_error(28));
        assert!(matches!(no_room, CheckpointError::NoRoom { needed_bytes: 10, free_bytes: Some(_), .. }), "{no_room}");
        let no_permission = failed(dir.path(), 10, io::Error::from_raw_os_error(13));
        assert!(matches!(no_permission, CheckpointError::Unusable { .. }), "{no_permission}");
    }
}
