//! The checkpoints of a run: the newest and the best that are intact.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tandem_audio::FeatureSettings;

use crate::contract::ModelContract;
use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::step_of;
use crate::read::Checkpoint;
use crate::state_file::StateFile;

/// The first intact checkpoint of a search, and those that were skipped.
#[derive(Debug)]
pub struct CheckpointSearch {
    /// `None` if no checkpoint is intact.
    pub checkpoint: Option<Checkpoint>,
    /// Damaged ones that would have come first. Worth a warning: a run that resumes without them repeats steps.
    pub skipped: Vec<SkippedCheckpoint>,
}

/// A damaged checkpoint.
#[derive(Debug)]
pub struct SkippedCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: CheckpointError,
}

/// The newest intact checkpoint in the run folder `dir`. Needs no lock. A missing folder has none. Cost: reading each
/// candidate once.
pub fn latest_intact(dir: impl AsRef<Path>) -> Result<CheckpointSearch, CheckpointError> {
    let newest_first = list(dir.as_ref())?.into_iter().rev().map(|listed| listed.path);
    let mut skipped = Vec::new();
    let checkpoint = first_usable(newest_first, &mut skipped);
    Ok(CheckpointSearch { checkpoint, skipped })
}

/// The intact checkpoint with the lowest score in the run folder `dir`, the earliest of equals; the newest if none has
/// a score. Needs no lock. Cost: reading each candidate once.
pub fn best_intact(dir: impl AsRef<Path>) -> Result<CheckpointSearch, CheckpointError> {
    let mut skipped = Vec::new();
    let mut known = Vec::new();
    for ListedCheckpoint { step, path } in list(dir.as_ref())? {
        match StateFile::read(&path) {
            Ok(record) => known.push(Scored { score: record.score.unwrap_or(f64::INFINITY), step, path }),
            Err(reason) => skipped.push(SkippedCheckpoint { path, reason }),
        }
    }
    // Newest first among those without a score, earliest first among equals.
    known.sort_by(|a, b| {
        let by_step = if a.score.is_finite() { a.step.cmp(&b.step) } else { b.step.cmp(&a.step) };
        a.score.total_cmp(&b.score).then(by_step)
    });
    let checkpoint = first_usable(known.into_iter().map(|scored| scored.path), &mut skipped);
    Ok(CheckpointSearch { checkpoint, skipped })
}

/// The features of the newest checkpoint in the run folder `dir` whose step is at most `last_step`. `None` without one that
/// can be read: resuming fails later, with the reason. Cost: one small file.
pub fn stored_features(dir: impl AsRef<Path>, last_step: u64) -> Option<FeatureSettings> {
    let listed = list(dir.as_ref()).unwrap_or_default();
    let newest_first = listed.iter().rev().filter(|listed| listed.step <= last_step);
    newest_first.filter_map(|listed| ModelContract::read(&listed.path).ok()).map(|model| model.features).next()
}

/// A checkpoint by its name, intact or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedCheckpoint {
    pub(crate) step: u64,
    pub(crate) path: PathBuf,
}

struct Scored {
    score: f64,
    step: u64,
    path: PathBuf,
}

/// Checkpoints of a run by rising step, intact or not.
pub(crate) fn list(dir: &Path) -> Result<Vec<ListedCheckpoint>, CheckpointError> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.collect::<io::Result<Vec<_>>>()),
    };
    let entries = listed.map_err(unusable("list", dir))?;
    let listed = |entry: &fs::DirEntry| {
        let step = entry.file_name().to_str().and_then(step_of)?;
        Some(ListedCheckpoint { step, path: entry.path() })
    };
    let mut checkpoints: Vec<_> = entries.iter().filter_map(listed).collect();
    checkpoints.sort_unstable();
    Ok(checkpoints)
}

fn first_usable(paths: impl Iterator<Item = PathBuf>, skipped: &mut Vec<SkippedCheckpoint>) -> Option<Checkpoint> {
    for path in paths {
        match Checkpoint::open(&path) {
            Ok(checkpoint) => return Some(checkpoint),
            Err(reason) => skipped.push(SkippedCheckpoint { path, reason }),
        }
    }
    None
}
