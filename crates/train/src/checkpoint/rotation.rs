//! Which checkpoints stay: the last three and the best.

use std::fs;
use std::path::{Path, PathBuf};

use super::NewCheckpoint;
use super::listing::{list, name_of, removed_name_of};
use super::record::StateFile;
use super::write::{remove_folder, write};
use crate::disk::{sync_folder, unusable};
use crate::error::TrainError;

/// How many of the newest checkpoints stay. The best stays as well.
pub const CHECKPOINTS_TO_KEEP: usize = 3;

/// A checkpoint is on the disk.
#[derive(Debug)]
pub struct WrittenCheckpoint {
    /// Where.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether its score is the lowest of all that are there.
    pub is_best: bool,
    /// Older ones that were removed for it.
    pub removed: Vec<PathBuf>,
    /// An older one could not be removed: worth telling, since the disk fills up. The new one is safe.
    pub left_behind: Option<TrainError>,
}

/// The most a run's folder holds in checkpoints of `checkpoint_bytes` each: those kept, the best, and the one being
/// written.
pub fn folder_bytes(checkpoint_bytes: u64) -> u64 {
    checkpoint_bytes.saturating_mul(CHECKPOINTS_TO_KEEP as u64 + 2)
}

/// Writes a checkpoint, then removes those that are no longer kept. The caller holds the lock of `dir`.
pub(crate) fn save(dir: &Path, new: &NewCheckpoint<'_>) -> Result<WrittenCheckpoint, TrainError> {
    let (path, bytes) = write(dir, new)?;
    let mut written = WrittenCheckpoint { path, bytes, is_best: false, removed: Vec::new(), left_behind: None };
    // From here on nothing fails: the checkpoint is there.
    written.left_behind = rotate(dir, new.step, &mut written).err();
    Ok(written)
}

fn rotate(dir: &Path, step: u64, written: &mut WrittenCheckpoint) -> Result<(), TrainError> {
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

/// Those that look whole, by rising step. Others neither count nor are removed: three damaged ones must not push out
/// the last good one, and what a newer program wrote is not ours to delete.
fn usable(dir: &Path) -> Result<Vec<Candidate>, TrainError> {
    let candidate = |(step, path): (u64, PathBuf)| {
        let record = StateFile::read(&path).ok()?;
        record.lengths_hold(&path).then_some(Candidate { step, score: record.score })
    };
    Ok(list(dir)?.into_iter().filter_map(candidate).collect())
}

/// The lowest score; of equal ones the earliest.
fn best(candidates: &[Candidate]) -> Option<u64> {
    let scored = candidates.iter().filter_map(|candidate| Some((candidate.score?, candidate.step)));
    scored.min_by(|(a, a_step), (b, b_step)| a.total_cmp(b).then(a_step.cmp(b_step))).map(|(_, step)| step)
}

/// What is neither among the newest nor the best; `candidates` are by rising step.
fn outdated(candidates: &[Candidate]) -> Vec<u64> {
    let best = best(candidates);
    let num_older = candidates.len().saturating_sub(CHECKPOINTS_TO_KEEP);
    candidates[..num_older].iter().map(|candidate| candidate.step).filter(|step| Some(*step) != best).collect()
}

/// First out of sight, in one step; then file by file.
fn remove(dir: &Path, step: u64) -> Result<PathBuf, TrainError> {
    let [path, removed] = [name_of(step), removed_name_of(step)].map(|name| dir.join(name));
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
        /// Saving any sequence of scores one by one, as a run does, with rotation after each.
        #[test]
        fn whatever_the_scores(scores in prop::collection::vec(prop::option::of(-3_i8..3), 1..40)) {
            let mut kept: Vec<Candidate> = Vec::new();
            for (step, score) in (0_u64..).zip(&scores) {
                kept.push(Candidate { step, score: score.map(f64::from) });
                let removed = outdated(&kept);
                kept.retain(|candidate| !removed.contains(&candidate.step));

                let steps: Vec<_> = kept.iter().map(|candidate| candidate.step).collect();
                prop_assert!(kept.len() <= CHECKPOINTS_TO_KEEP + 1);
                for newest in step.saturating_sub(CHECKPOINTS_TO_KEEP as u64 - 1)..=step {
                    prop_assert!(steps.contains(&newest), "{steps:?} at {step}");
                }
                // Against all that ever were, not only those that are left.
                let seen = scores[..=step as usize].iter().zip(0_u64..);
                let best = seen.filter_map(|(score, step)| Some(((*score)?, step))).min();
                prop_assert!(best.is_none_or(|(_, step)| steps.contains(&step)), "{best:?} not in {steps:?}");
            }
        }
    }
}
