//! The folder of a run: one process at a time, one run at a time, nothing of anybody's deleted.
//!
//! | name | what |
//! |---|---|
//! | `run.json` | which run this is |
//! | `.tandem.lock` | locked by the process that trains, for as long as it lives |
//! | `checkpoint-00001000/` | checkpoints |
//! | `run.jsonl`, `run-1.jsonl`, …, `samples/`, `tensorboard/`, `bad_samples.jsonl` | what others write beside them |
//! | `previous-1/`, … | earlier runs, moved aside by `--reset-training` |
//! | `.tmp-…` | unfinished, from a process that was killed; cleared up at the next opening |
//!
//! A folder without `run.json` is used when nothing in it has a name of that list; what else is there stays there.

mod lock;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::lock::Lock;
use crate::checkpoint::{NewCheckpoint, WrittenCheckpoint, finish, foreign_in, save, step_of};
use crate::disk::{replace, sync_folder, unusable};
use crate::error::TrainError;
use crate::run_identity::RunIdentity;

/// The run log.
pub const RUN_LOG: &str = "run.jsonl";
/// Spoken samples and their pictures, a folder.
pub const SAMPLES: &str = "samples";
/// Event files of TensorBoard, a folder.
pub const TENSORBOARD: &str = "tensorboard";
/// Recordings that could not be used.
pub const BAD_SAMPLES: &str = "bad_samples.jsonl";

/// Logs of earlier processes begin with this.
const EARLIER_LOG: &str = "run-";
const RUN_JSON: &str = "run.json";
const RUN_JSON_BEING_WRITTEN: &str = ".tmp-run.json";
const VERSION: u64 = 1;

/// What is to become of a run that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It goes on; where there is none, one begins.
    Resume,
    /// It is moved aside, and one begins.
    Reset,
}

/// Holding one of these means that the folder is this run's and no other process trains in it. The lock goes with it,
/// and with the process however it ends.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    moved_aside: Option<PathBuf>,
    _lock: Lock,
}

#[derive(Serialize, Deserialize)]
struct RunFile {
    version: u64,
    facts: RunIdentity,
}

impl RunFolder {
    /// Makes or opens the folder at `dir` for the run of that identity, and clears up what a killed process
    /// left unfinished.
    ///
    /// Fails when another process trains there ([`TrainError::Locked`]); when the folder holds another run
    /// ([`TrainError::AnotherRun`]), something with a name a run uses ([`TrainError::InTheWay`]) or another program's
    /// checkpoint ([`TrainError::ForeignCheckpoint`]), none of them with [`Opening::Reset`]; and when it cannot be
    /// written to.
    pub fn open(dir: impl Into<PathBuf>, identity: &RunIdentity, opening: Opening) -> Result<RunFolder, TrainError> {
        let dir = dir.into();
        // Before the lock: a folder that is refused for this stays as it was, without a file of ours.
        if opening == Opening::Resume {
            refuse_foreign(&dir)?;
        }
        fs::create_dir_all(&dir).map_err(unusable("create", &dir))?;
        let lock = Lock::take(&dir)?;
        finish_leftovers(&dir)?;
        let moved_aside = match opening {
            Opening::Resume => None,
            Opening::Reset => move_aside(&dir, &ours(&dir)?)?,
        };
        claim(&dir, identity)?;
        Ok(RunFolder { dir, moved_aside, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where the run that was there is now, after [`Opening::Reset`].
    pub fn moved_aside(&self) -> Option<&Path> {
        self.moved_aside.as_deref()
    }

    /// Writes a checkpoint and removes older ones: the last three and the best stay. One of the same step is replaced.
    /// Cost: writing all bytes and waiting for the disk.
    ///
    /// On failure nothing is left of the new one and all others are as they were. [`TrainError::NoRoom`] says how
    /// much was missing.
    pub fn write(&self, checkpoint: &NewCheckpoint<'_>) -> Result<WrittenCheckpoint, TrainError> {
        save(&self.dir, checkpoint)
    }

    /// Where this process writes its log. That of an earlier one is kept beside it, as `run-1.jsonl`, `run-2.jsonl`, …
    pub fn fresh_log(&self) -> Result<PathBuf, TrainError> {
        let log = self.dir.join(RUN_LOG);
        if log.exists() {
            let mut names = (1_u64..).map(|number| self.dir.join(format!("{EARLIER_LOG}{number}.jsonl")));
            if let Some(free) = names.find(|path| !path.exists()) {
                fs::rename(&log, &free).map_err(unusable("rename", &log))?;
            }
        }
        Ok(log)
    }

    /// Moves checkpoints of later steps aside and says where to: for a run that goes on from an earlier one, whose
    /// own later checkpoints would otherwise be mixed with theirs.
    pub fn move_aside_after(&self, step: u64) -> Result<Option<PathBuf>, TrainError> {
        let mut names = ours(&self.dir)?;
        names.retain(|name| step_of(name).is_some_and(|found| found > step));
        move_aside(&self.dir, &names)
    }
}

fn refuse_foreign(dir: &Path) -> Result<(), TrainError> {
    if dir.join(RUN_JSON).exists() {
        return Ok(());
    }
    match foreign_in(dir).map_err(unusable("list", dir))? {
        Some(found) => {
            let (program, name) = (found.program, found.name);
            Err(TrainError::ForeignCheckpoint { program, name, path: dir.to_owned() })
        }
        None => Ok(()),
    }
}

/// Says whose the folder is, or finds out that it is another's.
fn claim(dir: &Path, identity: &RunIdentity) -> Result<(), TrainError> {
    if let Some(found) = read_identity(dir)? {
        let differences = identity.differences(&found);
        if differences.is_empty() {
            return Ok(());
        }
        return Err(TrainError::AnotherRun { differences, path: dir.to_owned() });
    }
    if let Some(name) = ours(dir)?.into_iter().next() {
        return Err(TrainError::InTheWay { name, path: dir.to_owned() });
    }
    let path = dir.join(RUN_JSON);
    let run = RunFile { version: VERSION, facts: identity.clone() };
    let json = serde_json::to_vec_pretty(&run).map_err(|error| unusable("write", &path)(error.into()))?;
    replace(&path, &dir.join(RUN_JSON_BEING_WRITTEN), &json).map_err(unusable("write", &path))
}

fn read_identity(dir: &Path) -> Result<Option<RunIdentity>, TrainError> {
    let path = dir.join(RUN_JSON);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(unusable("read", &path))?,
    };
    let damaged = |error| TrainError::Damaged {
        reason: format!(
            "what run the folder holds cannot be read ({error}); give another folder with --checkpoint-dir OTHER, or \
             move that run aside with --reset-training"
        ),
        path: path.clone(),
    };
    let whole: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
    if let Some(found) = whole["version"].as_u64().filter(|found| *found > VERSION) {
        return Err(TrainError::NewerFormat { found, known: VERSION, path });
    }
    let run: RunFile = serde_json::from_value(whole).map_err(damaged)?;
    Ok(Some(run.facts))
}

/// What is in the folder under a name of ours, `run.json` first.
fn ours(dir: &Path) -> Result<Vec<String>, TrainError> {
    let is_ours = |name: &String| {
        let fixed = [RUN_JSON, RUN_LOG, SAMPLES, TENSORBOARD, BAD_SAMPLES].contains(&name.as_str());
        let earlier_log = name.starts_with(EARLIER_LOG) && name.ends_with(".jsonl");
        fixed || earlier_log || step_of(name).is_some()
    };
    let mut names: Vec<_> = names_in(dir)?.into_iter().filter(is_ours).collect();
    names.sort_unstable_by_key(|name| (name != RUN_JSON, name.clone()));
    Ok(names)
}

/// Moves those to a folder `previous-N` of their own inside `dir`: on the same file system always, with no rights on
/// the folder above, and with the lock where it is.
///
/// `run.json` goes first. A move that is cut short leaves a folder that will not be taken for a run, and the next one
/// moves the rest.
fn move_aside(dir: &Path, names: &[String]) -> Result<Option<PathBuf>, TrainError> {
    if names.is_empty() {
        return Ok(None);
    }
    let aside = make_previous(dir)?;
    for name in names {
        fs::rename(dir.join(name), aside.join(name)).map_err(unusable("move aside", &dir.join(name)))?;
        if name == RUN_JSON {
            sync_folder(dir).map_err(unusable("write", dir))?;
        }
    }
    [&*aside, dir].into_iter().try_for_each(sync_folder).map_err(unusable("write", dir))?;
    Ok(Some(aside))
}

fn make_previous(dir: &Path) -> Result<PathBuf, TrainError> {
    let mut number = 1_u64;
    loop {
        let path = dir.join(format!("previous-{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| path.clone()).map_err(unusable("create", &path)),
        }
    }
}

/// Ends what was being written or removed when a process was killed. Only names we make: others may use `.tmp-` too.
fn finish_leftovers(dir: &Path) -> Result<(), TrainError> {
    for name in names_in(dir)? {
        let path = dir.join(&name);
        let done = if name == RUN_JSON_BEING_WRITTEN { fs::remove_file(&path) } else { finish(dir, &name).map(|_| ()) };
        done.map_err(unusable("clear up what was left unfinished", &path))?;
    }
    Ok(())
}

/// Names that are no text are nobody's we know.
fn names_in(dir: &Path) -> Result<Vec<String>, TrainError> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(unusable("list", dir))?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests;
