//! The folder of a run: one process at a time, one run at a time, and nothing is deleted but our own older checkpoints.
//!
//! `file_names.rs` lists the names. A folder without `run.json` is used if nothing in it has a name of that list; other
//! files stay where they are.

mod lock;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::lock::Lock;
use crate::disk::{create_synced, replace, sync_folder, unusable};
use crate::error::CheckpointError;
use crate::file_names::{RUN_FILE, RUN_LOG, TEMPORARY_RUN_FILE, belongs_to_a_run, earlier_log, step_of};
use crate::foreign::foreign_in;
use crate::rotation::{WrittenCheckpoint, save};
use crate::run_identity::RunIdentity;
use crate::write::{NewCheckpoint, clean_up};
use tandem_files::read_bounded;

/// The version of `run.json` that is written, and the newest that is read.
const VERSION: u64 = 1;

/// `run.json` has a few hundred bytes.
const MAX_RUN_FILE_BYTES: u64 = 1 << 20;

/// What to do with a run that is already in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Resume it; if there is none, start one.
    Resume,
    /// Move it aside, and start a new one.
    Reset,
}

/// Holding one of these means that the folder belongs to this run and no other process trains in it. Dropping it, or
/// the end of the process, releases the lock.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    identity: RunIdentity,
    moved_aside: Option<PathBuf>,
    lock: Lock,
}

#[derive(Serialize, Deserialize)]
struct RunFile {
    version: u64,
    facts: RunIdentity,
}

impl RunFolder {
    /// Creates or opens the folder at `dir` for the run with that identity, and removes what a killed process left
    /// unfinished.
    ///
    /// Fails if another process trains there ([`CheckpointError::Locked`]) or the folder cannot be written. Without
    /// [`OpenMode::Reset`] it also fails if the folder holds another run ([`CheckpointError::AnotherRun`]), a file with
    /// a name that a run writes ([`CheckpointError::InTheWay`]), or another program's checkpoint
    /// ([`CheckpointError::ForeignCheckpoint`]).
    pub fn open(dir: impl Into<PathBuf>, identity: &RunIdentity, mode: OpenMode) -> Result<RunFolder, CheckpointError> {
        let dir = dir.into();
        // Before the lock: a folder that is refused stays unchanged, without a lock file.
        if mode == OpenMode::Resume {
            refuse_foreign(&dir)?;
            refuse_another_run(&dir, identity)?;
        }
        create_synced(&dir).map_err(unusable("create", &dir))?;
        let lock = Lock::take(&dir)?;
        clean_up_leftovers(&dir)?;
        let moved_aside = match mode {
            OpenMode::Resume => None,
            OpenMode::Reset => move_aside(&dir, &names_of_a_run(&dir)?)?,
        };
        claim(&dir, identity)?;
        Ok(RunFolder { dir, identity: identity.clone(), moved_aside, lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where [`OpenMode::Reset`] moved the earlier run to.
    pub fn moved_aside(&self) -> Option<&Path> {
        self.moved_aside.as_deref()
    }

    /// Writes a checkpoint and removes older ones: the last three and the best stay. A checkpoint of the same step is
    /// replaced. Cost: writing all bytes and waiting for the disk.
    ///
    /// On failure nothing of the new one remains and all others are unchanged. [`CheckpointError::NoRoom`] says how
    /// many bytes were needed.
    ///
    /// A folder that was removed, renamed or replaced while the run went on is [`CheckpointError::FolderGone`]: the
    /// checkpoint is then written next to where the folder was, or into the temporary folder.
    pub fn write(&self, checkpoint: &NewCheckpoint<'_>) -> Result<WrittenCheckpoint, CheckpointError> {
        if self.lock.is_in(&self.dir) {
            return save(&self.dir, &self.identity, checkpoint);
        }
        Err(CheckpointError::FolderGone { rescued: self.rescue(checkpoint), path: self.dir.clone() })
    }

    /// Writes a checkpoint where the run folder was, under another name, or into the temporary folder.
    fn rescue(&self, checkpoint: &NewCheckpoint<'_>) -> Option<PathBuf> {
        let name = self.dir.file_name()?.to_string_lossy().into_owned();
        let name = format!("{name}-rescued-{}", std::process::id());
        let parents = [self.dir.parent().map(Path::to_owned), Some(std::env::temp_dir())];
        parents.into_iter().flatten().find_map(|parent| {
            let folder = parent.join(&name);
            fs::create_dir(&folder).ok()?;
            save(&folder, &self.identity, checkpoint).ok().map(|written| written.path)
        })
    }

    /// The path of this process's run log. The log of an earlier process is renamed to `run-1.jsonl`, `run-2.jsonl`, …
    pub fn new_log(&self) -> Result<PathBuf, CheckpointError> {
        new_log_in(&self.dir)
    }

    /// Moves checkpoints of later steps aside and returns where to: for a run that resumes from an earlier checkpoint,
    /// so that its later checkpoints are not mixed with the existing ones.
    pub fn move_aside_after(&self, step: u64) -> Result<Option<PathBuf>, CheckpointError> {
        let mut names = names_of_a_run(&self.dir)?;
        names.retain(|name| step_of(name).is_some_and(|found| found > step));
        move_aside(&self.dir, &names)
    }
}

/// The path of a new run log in `dir`. An earlier one is renamed.
pub(crate) fn new_log_in(dir: &Path) -> Result<PathBuf, CheckpointError> {
    let log = dir.join(RUN_LOG);
    if log.exists() {
        let mut names = (1_u64..).map(|number| dir.join(earlier_log(number)));
        if let Some(free) = names.find(|path| !path.exists()) {
            fs::rename(&log, &free).map_err(unusable("rename", &log))?;
        }
    }
    Ok(log)
}

fn refuse_foreign(dir: &Path) -> Result<(), CheckpointError> {
    if dir.join(RUN_FILE).exists() {
        return Ok(());
    }
    match foreign_in(dir).map_err(unusable("list", dir))? {
        Some(foreign) => Err(foreign.refused_at(dir)),
        None => Ok(()),
    }
}

/// Refuses a folder with another run, or with files in the way. A folder that cannot be listed is refused later.
fn refuse_another_run(dir: &Path, identity: &RunIdentity) -> Result<(), CheckpointError> {
    if !dir.is_dir() {
        return Ok(());
    }
    match read_identity(dir)? {
        Some(found) => compare(dir, identity, &found),
        None => refuse_files_in_the_way(dir),
    }
}

fn compare(dir: &Path, identity: &RunIdentity, found: &RunIdentity) -> Result<(), CheckpointError> {
    let differences = identity.differences(found);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CheckpointError::AnotherRun { differences, path: dir.to_owned() }),
    }
}

fn refuse_files_in_the_way(dir: &Path) -> Result<(), CheckpointError> {
    match names_of_a_run(dir)?.into_iter().next() {
        Some(name) => Err(CheckpointError::InTheWay { name, path: dir.to_owned() }),
        None => Ok(()),
    }
}

/// Writes the identity of the run, or compares it with the one in the folder.
fn claim(dir: &Path, identity: &RunIdentity) -> Result<(), CheckpointError> {
    if let Some(found) = read_identity(dir)? {
        return compare(dir, identity, &found);
    }
    refuse_files_in_the_way(dir)?;
    let path = dir.join(RUN_FILE);
    let run = RunFile { version: VERSION, facts: identity.clone() };
    let json = serde_json::to_vec_pretty(&run).map_err(|error| unusable("write", &path)(error.into()))?;
    replace(&path, &dir.join(TEMPORARY_RUN_FILE), &json).map_err(unusable("write", &path))
}

/// The run that the folder `dir` holds. `None` without one that can be read: opening the folder fails later, with the reason.
pub fn stored_identity(dir: impl AsRef<Path>) -> Option<RunIdentity> {
    read_identity(dir.as_ref()).ok().flatten()
}

pub(crate) fn read_identity(dir: &Path) -> Result<Option<RunIdentity>, CheckpointError> {
    let path = dir.join(RUN_FILE);
    let bytes = match read_bounded(&path, MAX_RUN_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(unusable("read", &path))?,
    };
    let damaged = |error| CheckpointError::Damaged {
        reason: format!(
            "cannot read which run the folder holds ({error}). Give another folder with --checkpoint-dir OTHER, or \
             move that run aside with --reset-training (nothing is deleted)"
        ),
        path: path.clone(),
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
    if let Some(found) = value["version"].as_u64().filter(|found| *found > VERSION) {
        return Err(CheckpointError::NewerFormat { found, known: VERSION, path });
    }
    let run: RunFile = serde_json::from_value(value).map_err(damaged)?;
    Ok(Some(run.facts))
}

/// The names in the folder that a run writes, `run.json` first.
fn names_of_a_run(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut names: Vec<_> = names_in(dir)?.into_iter().filter(|name| belongs_to_a_run(name)).collect();
    names.sort_unstable_by_key(|name| (name != RUN_FILE, name.clone()));
    Ok(names)
}

/// Moves the names to a new folder `previous-N` inside `dir`: always on the same file system, without rights on the
/// parent folder, and without moving the lock.
///
/// `run.json` goes first. An interrupted move leaves a folder that is not mistaken for a run, and the next move takes
/// the rest.
fn move_aside(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, CheckpointError> {
    if names.is_empty() {
        return Ok(None);
    }
    let aside = make_previous(dir)?;
    for name in names {
        fs::rename(dir.join(name), aside.join(name)).map_err(unusable("move aside", &dir.join(name)))?;
        if name == RUN_FILE {
            sync_folder(dir).map_err(unusable("write", dir))?;
        }
    }
    [&*aside, dir].into_iter().try_for_each(sync_folder).map_err(unusable("write", dir))?;
    Ok(Some(aside))
}

fn make_previous(dir: &Path) -> Result<PathBuf, CheckpointError> {
    let mut number = 1_u64;
    loop {
        let path = dir.join(format!("previous-{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| path.clone()).map_err(unusable("create", &path)),
        }
    }
}

/// Removes what a killed process left half written or half removed. Only names of ours: others may use `.tmp-` too.
fn clean_up_leftovers(dir: &Path) -> Result<(), CheckpointError> {
    for name in names_in(dir)? {
        let path = dir.join(&name);
        let done = if name == TEMPORARY_RUN_FILE { fs::remove_file(&path) } else { clean_up(dir, &name).map(|_| ()) };
        done.map_err(unusable("remove a leftover", &path))?;
    }
    Ok(())
}

/// The names in a folder. Names that are not UTF-8 are not ours, and are ignored.
fn names_in(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(unusable("list", dir))?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests;
