//! Which checkpoints a run has, and the newest and the best that can be used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::read::Checkpoint;
use super::record::StateFile;
use crate::disk::unusable;
use crate::error::TrainError;

const PREFIX: &str = "checkpoint-";

/// The first checkpoint that can be used, and what was passed over on the way to it.
#[derive(Debug)]
pub struct Usable {
    /// `None`: there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Those that came before it and cannot be used. Worth telling: a run that resumes without them loses steps.
    pub passed_over: Vec<PassedOver>,
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct PassedOver {
    /// Where it is.
    pub path: PathBuf,
    /// Why not.
    pub reason: TrainError,
}

/// The newest checkpoint in the run's folder `dir` whose files are all as they were written. Needs no lock. A folder
/// that is not there has none. Cost: reading each candidate once.
pub fn latest_usable(dir: impl AsRef<Path>) -> Result<Usable, TrainError> {
    let newest_first = list(dir.as_ref())?.into_iter().rev().map(|(_, path)| path);
    let mut passed_over = Vec::new();
    let checkpoint = first_usable(newest_first, &mut passed_over);
    Ok(Usable { checkpoint, passed_over })
}

/// The checkpoint with the lowest score in the run's folder `dir`, the earliest of equals; the newest where none has a
/// score. Needs no lock. Cost: reading each candidate once.
pub fn best_usable(dir: impl AsRef<Path>) -> Result<Usable, TrainError> {
    let mut passed_over = Vec::new();
    let mut known = Vec::new();
    for (step, path) in list(dir.as_ref())? {
        match StateFile::read(&path) {
            Ok(record) => known.push((record.score.unwrap_or(f64::INFINITY), step, path)),
            Err(reason) => passed_over.push(PassedOver { path, reason }),
        }
    }
    // Newest first among those without a score, earliest first among equals.
    known.sort_by(|(a_score, a_step, _), (b_score, b_step, _)| {
        let by_step = if a_score.is_finite() { a_step.cmp(b_step) } else { b_step.cmp(a_step) };
        a_score.total_cmp(b_score).then(by_step)
    });
    let checkpoint = first_usable(known.into_iter().map(|(_, _, path)| path), &mut passed_over);
    Ok(Usable { checkpoint, passed_over })
}

/// The name of a step's checkpoint. Names sort like steps up to a hundred million of them; we compare numbers.
pub(super) fn name_of(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// Under which it is written.
pub(super) fn temporary_name_of(step: u64) -> String {
    format!(".tmp-{}", name_of(step))
}

/// Under which it goes: a checkpoint that is half removed is none.
pub(super) fn removed_name_of(step: u64) -> String {
    format!(".tmp-removed-{}", name_of(step))
}

/// Under which one waits while another takes its place.
pub(super) fn replaced_name_of(step: u64) -> String {
    format!(".tmp-replaced-{}", name_of(step))
}

/// The step a checkpoint's name says; `None` for other names.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

/// Checkpoints of a run by rising step, usable or not.
pub(super) fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, TrainError> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.collect::<io::Result<Vec<_>>>()),
    };
    let entries = listed.map_err(unusable("list", dir))?;
    let step = |entry: &fs::DirEntry| Some((entry.file_name().to_str().and_then(step_of)?, entry.path()));
    let mut checkpoints: Vec<_> = entries.iter().filter_map(step).collect();
    checkpoints.sort_unstable();
    Ok(checkpoints)
}

fn first_usable(paths: impl Iterator<Item = PathBuf>, passed_over: &mut Vec<PassedOver>) -> Option<Checkpoint> {
    for path in paths {
        match Checkpoint::open(&path) {
            Ok(checkpoint) => return Some(checkpoint),
            Err(reason) => passed_over.push(PassedOver { path, reason }),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_steps() {
        let check = |name: &str, step: Option<u64>| assert_eq!(step_of(name), step, "{name}");
        check("checkpoint-00001000", Some(1000));
        check("checkpoint-00000000", Some(0));
        check("checkpoint-123456789", Some(123_456_789));
        check("checkpoint-1000", None);
        check("checkpoint-000001000", None);
        check("checkpoint-+0001000", None);
        check("checkpoint-99999999999999999999", None);
        check("checkpoint-", None);
        check("checkpoint", None);
        check(".tmp-checkpoint-00001000", None);
        for step in [0, 7, 99_999_999, 100_000_000, u64::MAX] {
            check(&name_of(step), Some(step));
        }
    }
}
