//! A run from its first step to its last: steps, validations, checkpoints, in the order one would tell it.

use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_pipeline::StopFlag;

use crate::checkpoint::{NewCheckpoint, WrittenCheckpoint, latest_usable};
use crate::error::TrainError;
use crate::report::{StepReport, ValidationReport};
use crate::run_folder::RunFolder;
use crate::step_loop::StepLoop;

/// When things are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSchedule {
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Steps of an epoch: after each of them the held-out data is looked at, and before each checkpoint.
    pub steps_of_epoch: u64,
    /// Steps from one checkpoint to the next; none for every thousand steps or ten minutes.
    pub checkpoint_every: Option<u64>,
}

/// Steps and time from one checkpoint to the next, unless a number was given.
const CHECKPOINT_STEPS: u64 = 1000;
const CHECKPOINT_TIME: Duration = Duration::from_secs(600);

/// Who is told what happens.
pub trait Watcher {
    /// A step has ended.
    fn step(&mut self, report: &StepReport, trainer: &StepLoop);
    /// The held-out data was looked at.
    fn validation(&mut self, report: &ValidationReport);
    /// A checkpoint was written.
    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration);
    /// Something to say.
    fn note(&mut self, text: &str);
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// The last step.
    pub step: u64,
    /// Whether it was told to stop before its time.
    pub stopped: bool,
    /// The last look at the held-out data, if there was any.
    pub validation: Option<ValidationReport>,
}

/// Trains until the calendar ends or `stop` is raised. The last step is always in a checkpoint.
///
/// An error leaves earlier checkpoints as they are; [`TrainError::NotFinite`] names the newest.
pub fn run(
    trainer: &mut StepLoop,
    folder: &RunFolder,
    model: &Value,
    calendar: &RunSchedule,
    stop: &StopFlag,
    watcher: &mut dyn Watcher,
) -> Result<RunOutcome, TrainError> {
    let ended = train(trainer, folder, model, calendar, stop, watcher);
    ended.map_err(|error| match error {
        TrainError::NotFinite { step, in_a_row, .. } => {
            let newest = latest_usable(folder.path()).ok().and_then(|found| found.checkpoint);
            TrainError::NotFinite { step, in_a_row, checkpoint: newest.map(|checkpoint| checkpoint.path) }
        }
        other => other,
    })
}

fn train(
    trainer: &mut StepLoop,
    folder: &RunFolder,
    model: &Value,
    calendar: &RunSchedule,
    stop: &StopFlag,
    watcher: &mut dyn Watcher,
) -> Result<RunOutcome, TrainError> {
    let mut keeper = Keeper { folder, model, last: Instant::now(), last_step: trainer.step() };
    let mut validation = None;
    trainer.start_clock();
    while trainer.step() < calendar.total_steps && !stop.is_raised() {
        if let Some(report) = trainer.advance()? {
            watcher.step(&report, trainer);
        }
        trainer.take_notes().iter().for_each(|note| watcher.note(note));
        let step = trainer.step();
        let last = step == calendar.total_steps;
        let keeps = !last && keeper.is_due(step, calendar.checkpoint_every);
        let ends_epoch = step.is_multiple_of(calendar.steps_of_epoch.max(1));
        if last || ends_epoch || keeps {
            settle(trainer, watcher)?;
        }
        // Who is told to stop wants a checkpoint soon, and no score for it.
        if last || ((ends_epoch || keeps) && !stop.is_raised()) {
            validation = trainer.validate()?;
            validation.iter().for_each(|report| watcher.validation(report));
        }
        if keeps {
            keeper.write(trainer, validation.as_ref(), watcher)?;
        }
    }
    settle(trainer, watcher)?;
    let stopped = trainer.step() < calendar.total_steps;
    if keeper.last_step < trainer.step() {
        keeper.write(trainer, validation.as_ref(), watcher)?;
    }
    Ok(RunOutcome { step: trainer.step(), stopped, validation })
}

fn settle(trainer: &mut StepLoop, watcher: &mut dyn Watcher) -> Result<(), TrainError> {
    for report in trainer.settle()? {
        watcher.step(&report, trainer);
    }
    Ok(())
}

/// Writes checkpoints.
struct Keeper<'a> {
    folder: &'a RunFolder,
    model: &'a Value,
    last: Instant,
    last_step: u64,
}

impl Keeper<'_> {
    fn is_due(&self, step: u64, every: Option<u64>) -> bool {
        match every {
            Some(steps) => step.is_multiple_of(steps),
            None => step.is_multiple_of(CHECKPOINT_STEPS) || self.last.elapsed() >= CHECKPOINT_TIME,
        }
    }

    /// Writes one of now, with the score of `validation` where that was of now too.
    fn write(
        &mut self,
        trainer: &mut StepLoop,
        validation: Option<&ValidationReport>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), TrainError> {
        let begun = Instant::now();
        let score = validation.filter(|report| report.step == trainer.step()).map(ValidationReport::score);
        let (state, tensors) = trainer.snapshot()?;
        let mut model = self.model.clone();
        if let (Some(scale), Some(fields)) = (state.duration_scale, model.as_object_mut()) {
            fields.insert("duration_scale".to_owned(), scale.into());
        }
        let written = self.folder.write(&NewCheckpoint {
            step: state.step,
            weights: &tensors.weights(),
            optimizer: &tensors.optimizer(),
            state: serde_json::json!(state),
            model,
            score,
        })?;
        watcher.checkpoint(state.step, &written, begun.elapsed());
        (self.last, self.last_step) = (Instant::now(), state.step);
        trainer.start_clock();
        Ok(())
    }
}
