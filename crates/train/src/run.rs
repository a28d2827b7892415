//! A run from its first step to its last: steps, validations, checkpoints.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tandem_checkpoint::{ModelContract, NewCheckpoint, RunFolder, WrittenCheckpoint, latest_intact};
use tandem_feed::FeedError;
use tandem_pipeline::StopFlag;

use crate::error::{SavedStep, TrainError};
use crate::ranks::StepWishes;
use crate::report::{StepReport, ValidationReport};
use crate::step_loop::StepLoop;

/// When steps, validations and checkpoints are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSchedule {
    /// Steps of the run.
    pub total_steps: u64,
    /// Steps of an epoch. Validation runs after every epoch and before every checkpoint.
    pub steps_per_epoch: u64,
    /// Steps from one checkpoint to the next; `None` means every thousand steps or ten minutes.
    pub checkpoint_every: Option<u64>,
}

/// Steps and time from one checkpoint to the next by default.
const CHECKPOINT_STEPS: u64 = 1000;
const CHECKPOINT_TIME: Duration = Duration::from_secs(600);

/// Receives the events of a run.
pub trait RunListener {
    /// A step has ended.
    fn step(&mut self, report: &StepReport, step_loop: &StepLoop);
    /// A validation has ended.
    fn validation(&mut self, report: &ValidationReport);
    /// A checkpoint was written.
    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration);
    /// A message for the user.
    fn note(&mut self, text: &str);
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// The last step.
    pub step: u64,
    /// Whether the stop flag ended it before its last step.
    pub stopped: bool,
    /// The last validation, if there was one.
    pub validation: Option<ValidationReport>,
}

/// Trains until the last step of the schedule or until `stop` is raised. The last step always gets a checkpoint. Of several
/// ranks, one whose `stop` is raised is enough, and rank 0 writes; the others have no `folder`.
///
/// An error leaves earlier checkpoints unchanged; [`TrainError::NotFinite`] and [`TrainError::CorruptBatch`] name the newest.
pub fn run(
    step_loop: &mut StepLoop,
    folder: Option<&RunFolder>,
    model: &ModelContract,
    schedule: &RunSchedule,
    stop: &StopFlag,
    listener: &mut dyn RunListener,
) -> Result<RunOutcome, TrainError> {
    let ended = train(step_loop, folder, model, schedule, stop, listener);
    let newest = || latest_intact(folder?.path()).ok()?.checkpoint.map(|newest| newest.path);
    ended.map_err(|error| match error {
        TrainError::NotFinite { step, in_a_row, .. } => TrainError::NotFinite { step, in_a_row, checkpoint: newest() },
        TrainError::Feed(error @ FeedError::CorruptBatch { every, .. }) => {
            TrainError::CorruptBatch { error: Box::new(error), every, checkpoint: newest() }
        }
        other => other,
    })
}

fn train(
    step_loop: &mut StepLoop,
    folder: Option<&RunFolder>,
    model: &ModelContract,
    schedule: &RunSchedule,
    stop: &StopFlag,
    listener: &mut dyn RunListener,
) -> Result<RunOutcome, TrainError> {
    let mut writer =
        CheckpointWriter { folder, model, last: Instant::now(), last_step: step_loop.step(), last_path: None };
    let mut validation = None;
    let stops = |step_loop: &StepLoop| match step_loop.agreed_wishes() {
        Some(agreed) => agreed.stop,
        None => stop.is_raised(),
    };
    step_loop.start_clock();
    while step_loop.step() < schedule.total_steps && !stops(step_loop) {
        let wishes = StepWishes { stop: stop.is_raised(), checkpoint: writer.is_late(schedule.checkpoint_every) };
        match step_loop.advance_with(wishes) {
            Ok(report) => report.iter().for_each(|report| listener.step(report, step_loop)),
            Err(TrainError::Feed(error)) if step_loop.is_model_intact(&error) => {
                let saved = save_and_end(step_loop, &mut writer, listener).map_err(|error| error.to_string());
                return Err(TrainError::DataFailed { error: Box::new(error), saved });
            }
            Err(TrainError::RankFailed { rank, .. }) => {
                let saved = save_and_end(step_loop, &mut writer, listener).map_err(|error| error.to_string());
                return Err(TrainError::RankFailed { rank, saved });
            }
            Err(error) => return Err(error),
        }
        step_loop.take_messages().iter().for_each(|note| listener.note(note));
        let step = step_loop.step();
        let last = step == schedule.total_steps;
        let is_late = step_loop
            .agreed_wishes()
            .map_or_else(|| writer.is_late(schedule.checkpoint_every), |agreed| agreed.checkpoint);
        let is_checkpoint = !last && (is_late || is_due(step, schedule.checkpoint_every));
        let ends_epoch = step.is_multiple_of(schedule.steps_per_epoch.max(1));
        if last || ends_epoch || is_checkpoint {
            drain(step_loop, listener)?;
        }
        // A run that is stopped early writes its checkpoint at once, without a score.
        if last || ((ends_epoch || is_checkpoint) && !stops(step_loop)) {
            validation = step_loop.validate()?;
            validation.iter().for_each(|report| listener.validation(report));
        }
        if is_checkpoint {
            writer.write(step_loop, validation.as_ref(), listener)?;
        }
    }
    drain(step_loop, listener)?;
    let stopped = step_loop.step() < schedule.total_steps;
    if writer.last_step < step_loop.step() {
        writer.write(step_loop, validation.as_ref(), listener)?;
    }
    step_loop.meet_at_end()?;
    Ok(RunOutcome { step: step_loop.step(), stopped, validation })
}

/// Writes a checkpoint of the steps that have ended, for a run that cannot continue. The data role may be gone.
fn save_and_end(
    step_loop: &mut StepLoop,
    writer: &mut CheckpointWriter<'_>,
    listener: &mut dyn RunListener,
) -> Result<SavedStep, TrainError> {
    drain(step_loop, listener)?;
    let step = step_loop.step();
    if writer.last_step < step {
        writer.write(step_loop, None, listener)?;
    }
    step_loop.meet_at_end()?;
    Ok(SavedStep { step, path: writer.last_path.clone() })
}

fn drain(step_loop: &mut StepLoop, listener: &mut dyn RunListener) -> Result<(), TrainError> {
    for report in step_loop.drain()? {
        listener.step(&report, step_loop);
    }
    Ok(())
}

/// Whether a checkpoint is due after `step`, by the number of steps.
fn is_due(step: u64, every: Option<u64>) -> bool {
    step.is_multiple_of(every.unwrap_or(CHECKPOINT_STEPS).max(1))
}

/// Writes the checkpoints of a run.
struct CheckpointWriter<'a> {
    /// `None` on ranks that write nothing.
    folder: Option<&'a RunFolder>,
    model: &'a ModelContract,
    last: Instant,
    last_step: u64,
    last_path: Option<PathBuf>,
}

impl CheckpointWriter<'_> {
    /// Whether a checkpoint is due by the time since the last one. Rank 0 decides: clocks of others differ.
    fn is_late(&self, every: Option<u64>) -> bool {
        every.is_none() && self.folder.is_some() && self.last.elapsed() >= CHECKPOINT_TIME
    }

    /// Writes a checkpoint, with the score of `validation` if that was after the same step. Ranks that write nothing only
    /// take part in the comparison of weights.
    fn write(
        &mut self,
        step_loop: &mut StepLoop,
        validation: Option<&ValidationReport>,
        listener: &mut dyn RunListener,
    ) -> Result<(), TrainError> {
        let start = Instant::now();
        let score = validation.filter(|report| report.step == step_loop.step()).map(ValidationReport::score);
        let (state, tensors) = step_loop.snapshot()?;
        (self.last, self.last_step) = (Instant::now(), state.step);
        let Some(folder) = self.folder else { return Ok(()) };
        let model = ModelContract { duration_scale: state.duration_scale, ..self.model.clone() };
        let written = folder.write(&NewCheckpoint {
            step: state.step,
            weights: &tensors.weights(),
            optimizer: &tensors.optimizer(),
            state: serde_json::json!(state),
            model: &model,
            score,
        })?;
        listener.checkpoint(state.step, &written, start.elapsed());
        (self.last, self.last_path) = (Instant::now(), Some(written.path));
        step_loop.start_clock();
        Ok(())
    }
}
