//! What can go wrong with training. A variant is a different thing to do next.

use std::path::PathBuf;

use tandem_checkpoint::{Checkpoint, CheckpointError};

/// Training could not start, continue or be saved.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A checkpoint or the run folder.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),

    /// The model diverged: lower the learning rate, or check the data.
    #[error(
        "non-finite gradients in {in_a_row} steps in a row, the last at step {step}: training stopped. {}. Lower --lr, \
         or look for broken recordings with `tandem corpus check`", last_checkpoint(checkpoint.as_ref())
    )]
    NotFinite {
        /// The last of these steps.
        step: u64,
        /// How many.
        in_a_row: u32,
        /// The newest checkpoint. Skipped steps changed nothing, so it is usable.
        checkpoint: Option<PathBuf>,
    },

    /// No recording of the corpus can be read.
    #[error("no recording of the corpus can be read; `tandem corpus check` lists the reasons")]
    NothingToTrainOn,

    /// The state of the checkpoint does not fit this run: change the settings, or take another checkpoint.
    #[error("cannot resume from this checkpoint ({reason}): {}", path.display())]
    ForeignState {
        /// What does not fit.
        reason: String,
        /// The checkpoint.
        path: PathBuf,
    },

    /// The weights of `--init-from` do not fit this model: take another checkpoint, or another --model-size.
    #[error("the weights do not fit this model ({}): {}", listed(different), path.display())]
    ForeignInit {
        /// Every tensor that differs: what was expected and what was found.
        different: Vec<String>,
        /// The checkpoint.
        path: PathBuf,
    },

    /// The features of a recording could not be computed.
    #[error("cannot compute features: {0}")]
    Features(tandem_audio::AudioError),

    /// From the engine.
    #[error(transparent)]
    Engine(#[from] tandem_engine::EngineError),

    /// From the feed.
    #[error(transparent)]
    Feed(#[from] tandem_feed::FeedError),

    /// The data role failed during training; the model did not. What was trained until then is saved if possible.
    #[error("{error}\n   {}{}", saved_text(saved), without_card_text(error))]
    DataFailed {
        /// What failed.
        error: Box<tandem_feed::FeedError>,
        /// The checkpoint of the last step, or why there is none.
        saved: Result<SavedStep, String>,
    },

    /// A verified batch changed on its way between the cards. No step has trained on it. No checkpoint is written either: the
    /// batches since the newest one came the same way, and not all of them need be verified.
    #[error("{error}\n   No step was trained on it. {}", resume_text(*every, checkpoint.as_ref()))]
    CorruptBatch {
        /// What changed, and on which way.
        error: Box<tandem_feed::FeedError>,
        /// One in so many batches is verified.
        every: u64,
        /// The newest checkpoint.
        checkpoint: Option<PathBuf>,
    },

    /// Another rank of the run failed, or did not answer.
    #[error(transparent)]
    Ranks(#[from] tandem_ranks::RankError),

    /// Another rank has no batches any more. What was trained until then is saved if possible.
    #[error("rank {rank} cannot prepare batches any more; its own message says why\n   {}", saved_text(saved))]
    RankFailed {
        /// The rank.
        rank: usize,
        /// The checkpoint of the last step, or why there is none.
        saved: Result<SavedStep, String>,
    },

    /// The ranks no longer train the same model.
    #[error(
        "rank {rank} has drifted: {detail}. No checkpoint is written. To resume from the last one, type the same command \
         again; if it happens again, check the memory of that rank's GPU"
    )]
    RanksDiffer {
        /// The rank that differs.
        rank: usize,
        /// In what.
        detail: String,
    },

    /// The sum of gradients never ended, and no rank is lost.
    #[error(
        "the gradients of the other ranks did not arrive within {seconds} s: a rank hangs. `nvidia-smi` and the logs of the \
         ranks show which; --rank-timeout is the longest wait. To resume from the last checkpoint, type the same command again"
    )]
    GradientsMissing {
        /// How long this rank waited.
        seconds: u64,
    },

    /// A message of another rank could not be read: another program, or a mistake of ours.
    #[error("a message of another rank is unreadable ({0}): do all ranks run the same program?")]
    RankNotice(String),

    /// From the device.
    #[error(transparent)]
    Device(#[from] tandem_device::DeviceError),

    /// The roles could not be set up.
    #[error(transparent)]
    Isolation(#[from] tandem_device::IsolationError),
}

/// The newest checkpoint of a run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedStep {
    /// Its step.
    pub step: u64,
    /// Its path; `None` if the step was the one that the run started from.
    pub path: Option<PathBuf>,
}

/// The first few, and how many more.
fn listed(different: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = different.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    match different.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

fn saved_text(saved: &Result<SavedStep, String>) -> String {
    match saved {
        Ok(SavedStep { step: 0, path: None }) => "No step was trained".to_owned(),
        Ok(SavedStep { step, path: None }) => {
            format!("No step was trained after step {step}, which is saved. To resume, type the same command again")
        }
        Ok(SavedStep { step, path: Some(path) }) => {
            format!("Step {step} is saved: {}. To resume, type the same command again", path.display())
        }
        Err(why) => format!("The last steps are lost, because no checkpoint could be written: {why}"),
    }
}

/// What to type if the data role's card does not come back.
fn without_card_text(error: &tandem_feed::FeedError) -> String {
    let Some(tandem_device::DeviceError::Lost { card, .. }) = error.device_error() else { return String::new() };
    format!(
        "\n   If GPU {card} does not come back: --data-gpu with another card, or one card for both roles (--gpu), resumes as well"
    )
}

/// The checkpoint that a run resumes from after a corrupt batch, and how far it can be trusted.
fn resume_text(every: u64, checkpoint: Option<&PathBuf>) -> String {
    let verified = if every == 1 { "every batch".to_owned() } else { format!("one in {every} batches") };
    format!("{}; this run has verified {verified}", last_checkpoint(checkpoint))
}

fn last_checkpoint(checkpoint: Option<&PathBuf>) -> String {
    checkpoint.map_or("There is no checkpoint yet".into(), |path| format!("The last checkpoint is {}", path.display()))
}

impl TrainError {
    pub(crate) fn features(error: tandem_audio::AudioError) -> TrainError {
        TrainError::Features(error)
    }

    /// The state of `checkpoint` does not fit this run, for `reason`.
    pub fn foreign_state(checkpoint: &Checkpoint, reason: String) -> TrainError {
        TrainError::ForeignState { reason, path: checkpoint.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use tandem_feed::FeedError;

    use super::*;

    #[test]
    fn a_run_that_ends_because_of_its_data_says_what_is_saved_and_how_to_resume() {
        let text = |saved| TrainError::DataFailed { error: Box::new(FeedError::Ended), saved }.to_string();
        let saved = |step, path: Option<&str>| Ok(SavedStep { step, path: path.map(PathBuf::from) });
        let check = |saved: Result<SavedStep, String>, expected: &str| {
            assert_eq!(text(saved), format!("the feed has ended\n   {expected}"));
        };
        check(saved(7, Some("run/step_7")), "Step 7 is saved: run/step_7. To resume, type the same command again");
        check(
            saved(7, None),
            "No step was trained after step 7, which is saved. To resume, type the same command again",
        );
        check(saved(0, None), "No step was trained");
        check(
            Err("disk full".to_owned()),
            "The last steps are lost, because no checkpoint could be written: disk full",
        );
    }
}
