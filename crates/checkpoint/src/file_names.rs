//! The file names of a run folder and of a checkpoint, in one place.
//!
//! A run folder:
//!
//! | name | contents |
//! |---|---|
//! | `run.json` | the identity of the run |
//! | `.tandem.lock` | locked by the process that trains, for as long as it lives |
//! | `checkpoint-00001000/` | a checkpoint |
//! | `run.jsonl`, `run-1.jsonl`, … | the run log, and the logs of earlier processes |
//! | `samples/`, `tensorboard/`, `bad_samples.jsonl` | written by others |
//! | `audio-cache/` | decoded audio, with `--cache disk`; stays with `--reset-training` |
//! | `previous-1/`, … | earlier runs, moved there by `--reset-training` |
//! | `.tmp-…` | unfinished, left by a killed process; removed by the next open |
//!
//! A checkpoint:
//!
//! | file | contents |
//! |---|---|
//! | `weights.safetensors` | parameters by name, and their EMA under [`EMA_PREFIX`] |
//! | `optimizer.safetensors` | optimizer state: the AdamW moments |
//! | `model.json` | the model contract: everything needed to run the model elsewhere |
//! | `state.json` | step, score, training state; size and checksum of the other three files, and its own checksum |

use std::path::Path;

/// The identity of the run.
pub const RUN_FILE: &str = "run.json";
/// The run log.
pub const RUN_LOG: &str = "run.jsonl";
/// A folder: synthesised samples and their spectrograms.
pub const SAMPLES: &str = "samples";
/// The folder of the files of ranks other than 0, one folder for each.
pub const RANKS: &str = "ranks";
/// A folder: TensorBoard event files.
pub const TENSORBOARD: &str = "tensorboard";
/// Recordings that could not be used.
pub const BAD_SAMPLES: &str = "bad_samples.jsonl";
/// Hashes of the recordings, in a run folder.
pub const RECORDING_HASHES: &str = "recording_hashes.txt";

/// Parameters and their EMA.
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// Optimizer state.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// The model contract.
pub const MODEL_FILE: &str = "model.json";
/// Step, score and training state; sizes and checksums. Written last.
pub const STATE_FILE: &str = "state.json";

/// The prefix of the EMA of a parameter: `ema.` and the name of the parameter.
pub const EMA_PREFIX: &str = "ema.";

/// Logs of earlier processes: `run-1.jsonl`, `run-2.jsonl`, …
const EARLIER_LOG_PREFIX: &str = "run-";
const LOG_ENDING: &str = ".jsonl";
const CHECKPOINT_PREFIX: &str = "checkpoint-";
/// Unfinished files and folders.
pub(crate) const TEMPORARY_PREFIX: &str = ".tmp-";
/// `run.json` while it is written.
pub(crate) const TEMPORARY_RUN_FILE: &str = ".tmp-run.json";
/// Hidden, because only this crate uses it; never removed, because a removed file can still be locked.
pub(crate) const LOCK_FILE: &str = ".tandem.lock";

/// Inside a temporary name: a checkpoint that is being removed. A half-removed checkpoint must not look like one.
const REMOVED: &str = "removed-";
/// Inside a temporary name: a checkpoint that waits while another takes its name.
const REPLACED: &str = "replaced-";

/// What a temporary name of a checkpoint stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover<'a> {
    /// Half written or half removed.
    Unfinished,
    /// Intact, and waiting while another takes the name `checkpoint`.
    Replaced {
        /// The name to restore if the other never came.
        checkpoint: &'a str,
    },
}

/// The name of a step's checkpoint. Names sort like steps up to 99 999 999; the code compares numbers.
pub(crate) fn checkpoint_name(step: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step:08}")
}

/// The step of the checkpoint in the folder at `path`, by its name.
pub fn checkpoint_step(path: &Path) -> Option<u64> {
    step_of(path.file_name()?.to_str()?)
}

/// The step in a checkpoint's name; `None` for other names.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(CHECKPOINT_PREFIX)?.parse().ok()?;
    (checkpoint_name(step) == name).then_some(step)
}

/// The name under which a checkpoint is written.
pub(crate) fn temporary_name(step: u64) -> String {
    format!("{TEMPORARY_PREFIX}{}", checkpoint_name(step))
}

/// The name under which a checkpoint is removed.
pub(crate) fn removed_name(step: u64) -> String {
    format!("{TEMPORARY_PREFIX}{REMOVED}{}", checkpoint_name(step))
}

/// The name under which a checkpoint waits while another takes its place.
pub(crate) fn replaced_name(step: u64) -> String {
    format!("{TEMPORARY_PREFIX}{REPLACED}{}", checkpoint_name(step))
}

/// What the temporary name `name` stands for; `None` if it is not one of a checkpoint.
pub(crate) fn leftover(name: &str) -> Option<Leftover<'_>> {
    let rest = name.strip_prefix(TEMPORARY_PREFIX)?;
    if let Some(checkpoint) = rest.strip_prefix(REPLACED) {
        return step_of(checkpoint).map(|_| Leftover::Replaced { checkpoint });
    }
    step_of(rest.strip_prefix(REMOVED).unwrap_or(rest)).map(|_| Leftover::Unfinished)
}

/// The name of the log of an earlier process, counted from 1.
pub(crate) fn earlier_log(number: u64) -> String {
    format!("{EARLIER_LOG_PREFIX}{number}{LOG_ENDING}")
}

/// Whether a run writes this name. Temporary names and `previous-…` do not count.
pub(crate) fn belongs_to_a_run(name: &str) -> bool {
    let is_fixed = [RUN_FILE, RUN_LOG, SAMPLES, RANKS, TENSORBOARD, BAD_SAMPLES, RECORDING_HASHES].contains(&name);
    let is_earlier_log = name.starts_with(EARLIER_LOG_PREFIX) && name.ends_with(LOG_ENDING);
    is_fixed || is_earlier_log || step_of(name).is_some()
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
            check(&checkpoint_name(step), Some(step));
        }
    }

    #[test]
    fn temporary_names_are_read_back() {
        assert_eq!(leftover(&temporary_name(7)), Some(Leftover::Unfinished));
        assert_eq!(leftover(&removed_name(7)), Some(Leftover::Unfinished));
        let replaced = Leftover::Replaced { checkpoint: "checkpoint-00000007" };
        assert_eq!(leftover(&replaced_name(7)), Some(replaced));
        for name in ["checkpoint-00000007", ".tmp-checkpoint-7", ".tmp-replaced-work", ".tmp-work", TEMPORARY_RUN_FILE]
        {
            assert_eq!(leftover(name), None, "{name}");
        }
    }
}
