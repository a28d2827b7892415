//! Retention: the last three checkpoints and the best one stay.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::{sync_folder, unusable};
use crate::error::CheckpointError;
use crate::file_names::{checkpoint_name, removed_name};
use crate::listing::{ListedCheckpoint, list};
use crate::run_identity::RunIdentity;
use crate::state_file::StateFile;
use crate::write::{NewCheckpoint, Written, remove_folder, write};

/// How many of the newest checkpoints stay. The best stays as well.
pub const CHECKPOINTS_TO_KEEP: usize = 3;

/// A checkpoint that was written.
#[derive(Debug)]
pub struct WrittenCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether its score is the lowest of all present.
    pub is_best: bool,
    /// Older checkpoints that were removed.
    pub removed: Vec<PathBuf>,
    /// An older checkpoint could not be removed: worth a warning, because the disk fills up. The new one is safe.
    pub not_removed: Option<CheckpointError>,
}

/// The most bytes of checkpoints in a run folder, at `checkpoint_bytes` each: the last three, the best, and the one
/// being written.
pub fn folder_bytes(checkpoint_bytes: u64) -> u64 {
    checkpoint_bytes.saturating_mul(CHECKPOINTS_TO_KEEP as u64 + 2)
}

/// Writes a checkpoint of `run`, then removes outdated ones. The caller holds the lock of `dir`.
pub(crate) fn save(
    dir: &Path,
    run: &RunIdentity,
    new: &NewCheckpoint<'_>,
) -> Result<WrittenCheckpoint, CheckpointError> {
    let Written { path, bytes } = write(dir, run, new)?;
    let mut written = WrittenCheckpoint { path, bytes, is_best: false, removed: Vec::new(), not_removed: None };
    // From here on nothing fails: the checkpoint is on the disk.
    written.not_removed = rotate(dir, new.step, &mut written).err();
    Ok(written)
}

fn rotate(dir: &Path, step: u64, written: &mut WrittenCheckpoint) -> Result<(), CheckpointError> {
    let usable = usable(dir)?;
    written.is_best = best(&usable) == Some(step);
    for step in outdated(&usable) {
        written.removed.push(remove(dir, step)?);
    }
    Ok(())
}

/// A checkpoint as rotation sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    step: u64,
    score: Option<f64>,
}

/// Those that look intact, by rising step. Others neither count nor are removed: three damaged ones must not displace
/// the last good one, and a newer program's files are not ours to delete.
fn usable(dir: &Path) -> Result<Vec<Candidate>, CheckpointError> {
    let candidate = |ListedCheckpoint { step, path }: ListedCheckpoint| {
        let record = StateFile::read(&path).ok()?;
        record.lengths_match(&path).then_some(Candidate { step, score: record.score })
    };
    Ok(list(dir)?.into_iter().filter_map(candidate).collect())
}

/// The lowest score; of equal ones the earliest.
fn best(candidates: &[Candidate]) -> Option<u64> {
    let scored = candidates.iter().filter_map(|candidate| Some((candidate.score?, candidate.step)));
    scored.min_by(|(a, a_step), (b, b_step)| a.total_cmp(b).then(a_step.cmp(b_step))).map(|(_, step)| step)
}

/// The steps that are neither among the newest nor the best; `candidates` are by rising step.
fn outdated(candidates: &[Candidate]) -> Vec<u64> {
    let best = best(candidates);
    let num_older = candidates.len().saturating_sub(CHECKPOINTS_TO_KEEP);
    candidates[..num_older].iter().map(|candidate| candidate.step).filter(|step| Some(*step) != best).collect()
}

/// Renames the checkpoint first, in one step; then removes it file by file.
fn remove(dir: &Path, step: u64) -> Result<PathBuf, CheckpointError> {
    let [path, removed] = [checkpoint_name(step), removed_name(step)].map(|name| dir.join(name));
    let done = remove_folder(&removed).and_then(|()| fs::rename(&path, &removed)).and_then(|()| sync_folder(dir));
    done.and_then(|()| remove_folder(&removed)).map_err(unusable("remove an old checkpoint", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_three_and_the_best_stay() {
        let check = |scores: &[Option<f64>], removed: &[u64]| {
            let candidates: Vec<_> = (0..).zip(scores).map(|(step, score)| Candidate { step, score: *score }).collect();
            assert_eq!(outdated(&candidates), removed, "{scores:?}");
        };
        let (good, bad, none) = (Some(1.0), Some(2.0), None);
        check(&[], &[]);
        check(&[none, none, none], &[]);
        check(&[none, none, none, none, none], &[0, 1]);
        check(&[bad, good, bad, bad, bad], &[0]);
        check(&[good, bad, bad, bad, good], &[1]);
        check(&[bad, bad, none, none, good], &[0, 1]);
        check(&[Some(-1.0), good, none, none, none], &[1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        /// Saves any sequence of scores one by one, as a run does, with rotation after each.
        #[test]
        fn the_last_three_and_the_best_stay_whatever_the_scores(scores in prop::collection::vec(prop::option::of(-3_i8..3), 1..40)) {
            let mut present: Vec<Candidate> = Vec::new();
            for (step, score) in (0_u64..).zip(&scores) {
                present.push(Candidate { step, score: score.map(f64::from) });
                let removed = outdated(&present);
                present.retain(|candidate| !removed.contains(&candidate.step));

                let steps: Vec<_> = present.iter().map(|candidate| candidate.step).collect();
                prop_assert!(present.len() <= CHECKPOINTS_TO_KEEP + 1);
                for newest in step.saturating_sub(CHECKPOINTS_TO_KEEP as u64 - 1)..=step {
                    prop_assert!(steps.contains(&newest), "{steps:?} at {step}");
                }
                // The best of all that ever were, not only of those that are left.
                let seen = scores[..=step as usize].iter().zip(0_u64..);
                let best = seen.filter_map(|(score, step)| Some(((*score)?, step))).min();
                prop_assert!(best.is_none_or(|(_, step)| steps.contains(&step)), "{best:?} not in {steps:?}");
            }
        }
    }
}
