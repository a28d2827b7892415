//! A training run as a library sees it: built from a plan, run to the end or step by step.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tandem_checkpoint::{BAD_SAMPLES, Checkpoint, Fingerprint, OpenMode, RunFolder, WrittenCheckpoint, latest_intact};
use tandem_device::{DeviceError, DeviceKind, Isolation, IsolationError, Machine, RoleMemory};
use tandem_events::Emitter;
use tandem_feed::Warm;
use tandem_model::Model;
use tandem_pipeline::StopFlag;
use tandem_train::{RunListener, RunOutcome, RunSchedule, StepReport, ValidationReport};

use crate::inventory::Resolved;
use crate::launch::{Corpora, LaunchError, LaunchProgress, Launched, Setup, identity};
use crate::memory_watch::MemoryWatch;
use crate::sampler::{Sampler, SamplerError};
use crate::step_events;

/// A training run: the step loop, the memory of both roles, and the run folder. Dropping it frees everything.
pub struct Trainer {
    launched: Launched,
    warm: Warm,
    machine: Machine,
    emitter: Emitter,
    folder: Option<RunFolder>,
}

/// The options of a run beside its plan.
pub struct TrainerBuilder<'a> {
    resolved: &'a Resolved,
    model: Option<Arc<dyn Model>>,
    resume: Option<PathBuf>,
    init_from: Option<PathBuf>,
    folder: Option<PathBuf>,
    emitter: Emitter,
    on_message: Option<&'a mut dyn FnMut(&str)>,
}

impl Trainer {
    /// A run of this plan on its machine. Defaults: the speech model, from step 0, no run folder, no events.
    pub fn builder(plan: &Resolved) -> TrainerBuilder<'_> {
        TrainerBuilder {
            resolved: plan,
            model: None,
            resume: None,
            init_from: None,
            folder: None,
            emitter: Emitter::none(),
            on_message: None,
        }
    }

    /// The memory of each role, data first: device, limit, used, peak, and bytes by owner.
    pub fn memory_stats(&self) -> [RoleMemory; 2] {
        self.launched.roles.memory_stats()
    }

    /// Both roles' devices and arenas.
    pub fn roles(&self) -> &Isolation {
        &self.launched.roles
    }

    /// Steps queued so far.
    pub fn step(&self) -> u64 {
        self.launched.trainer.step()
    }

    /// When validation and checkpoints are due.
    pub fn schedule(&self) -> RunSchedule {
        self.launched.schedule
    }

    /// Number of trained parameters.
    pub fn num_parameters(&self) -> u64 {
        self.launched.num_parameters
    }

    /// How full the feed was when the run was built.
    pub fn warm(&self) -> Warm {
        self.warm
    }

    /// The run folder, if any.
    pub fn folder(&self) -> Option<&RunFolder> {
        self.folder.as_ref()
    }

    /// Trains until the plan's steps are done or `stop` is raised. The last step is always in a checkpoint.
    ///
    /// Fails without a run folder. If the process exceeds its limits on a card, the run ends with a checkpoint and that error.
    pub fn run(&mut self, stop: &StopFlag, listener: &mut dyn RunListener) -> Result<RunOutcome, LaunchError> {
        let folder = self.folder.as_ref().ok_or(LaunchError::NoFolder)?;
        let Launched { trainer, roles, schedule, model, .. } = &mut self.launched;
        // The CPU has no per-process limit.
        let on_cards = self.machine.kind() != DeviceKind::Cpu;
        let sampler = on_cards.then(|| Sampler::start(&self.machine, roles, &self.emitter)).transpose()?;
        let memory = MemoryWatch::new()?;
        let mut emitting =
            EmittingListener { listener, emitter: &self.emitter, roles, memory, stop, sampler, breach: None };
        let ended = tandem_train::run(trainer, Some(folder), model, schedule, stop, &mut emitting);
        let EmittingListener { sampler, breach, .. } = emitting;
        let outcome = ended?;
        if let Some(breach) = breach {
            return Err(DeviceError::from(breach).into());
        }
        sampler.map(Sampler::finish).transpose()?;
        Ok(outcome)
    }

    /// Queues one step and returns the report of a finished one, once enough are in flight. Writes no checkpoint.
    pub fn advance(&mut self) -> Result<Option<StepReport>, LaunchError> {
        let report = self.launched.trainer.advance()?;
        report.iter().for_each(|report| step_events::step(report, &self.emitter));
        Ok(report)
    }

    /// Waits for all queued steps and returns their reports.
    pub fn drain(&mut self) -> Result<Vec<StepReport>, LaunchError> {
        let reports = self.launched.trainer.drain()?;
        reports.iter().for_each(|report| step_events::step(report, &self.emitter));
        Ok(reports)
    }

    /// Validates; `None` if there is no validation set. Call [`drain`](Trainer::drain) first.
    pub fn validate(&mut self) -> Result<Option<ValidationReport>, LaunchError> {
        let report = self.launched.trainer.validate()?;
        report.iter().for_each(|report| step_events::validation(report, &self.emitter));
        Ok(report)
    }

    /// Ends the run: finishes every queued step, joins every thread, frees all memory. Returns an error that dropping would
    /// hide.
    pub fn stop(self) -> Result<(), LaunchError> {
        // The folder stays locked until all memory is freed.
        let Trainer { folder: _folder, launched, .. } = self;
        let Launched { roles: _roles, trainer, .. } = launched;
        Ok(trainer.stop()?)
    }
}

impl<'a> TrainerBuilder<'a> {
    /// Trains `model` in place of the speech model. The plan was made for it: see
    /// [`CustomModel`](tandem_plan::CustomModel) and [`Inventory::resolve_for`](crate::inventory::Inventory::resolve_for).
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.model = Some(model);
        self
    }

    /// Writes checkpoints to `dir`, and resumes from the newest intact one there. A folder of another run, or one that
    /// another process trains in, is an error of [`build`](TrainerBuilder::build).
    pub fn folder(mut self, dir: impl Into<PathBuf>) -> Self {
        self.folder = Some(dir.into());
        self
    }

    /// Resumes from the checkpoint at `path` instead of the newest of the folder: newer ones there are moved away.
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        self.resume = Some(path.into());
        self
    }

    /// Sends every event to `emitter`. Without this no events are emitted; limits are enforced either way.
    pub fn monitor(mut self, emitter: &Emitter) -> Self {
        self.emitter = emitter.clone();
        self
    }

    /// Calls `on_message` with each start-up line once it is true, and with a line for each damaged checkpoint of the folder.
    pub fn on_message(mut self, on_message: &'a mut dyn FnMut(&str)) -> Self {
        self.on_message = Some(on_message);
        self
    }

    /// Starts from the weights of this checkpoint (fine-tuning), not from random ones. A run that resumes ignores it.
    pub fn init_from(mut self, checkpoint: impl Into<PathBuf>) -> Self {
        self.init_from = Some(checkpoint.into());
        self
    }

    /// Sets everything up: both roles' memory, the feed, the model, and its state on a resume. Waits for the feed to warm up,
    /// at most as long as the plan says. On an error nothing is left behind.
    pub fn build(self, corpora: &Corpora) -> Result<Trainer, LaunchError> {
        let TrainerBuilder { resolved, model, resume, init_from, folder, emitter, on_message } = self;
        let identity = identity_of(resolved, corpora, model.as_deref());
        let open = |dir| RunFolder::open(dir, &identity, OpenMode::Resume);
        let folder = folder.map(open).transpose()?;
        let init = init_from.map(Checkpoint::open).transpose()?;
        let mut ignore = |_: &str| {};
        let on_message = on_message.unwrap_or(&mut ignore);
        let checkpoint = match (&resume, &folder) {
            (Some(path), _) => {
                let checkpoint = Checkpoint::open(path)?;
                checkpoint.check_run(&identity)?;
                Some(checkpoint)
            }
            (None, Some(folder)) => newest(folder, on_message)?,
            (None, None) => None,
        };
        let bad_samples = folder.as_ref().map(|folder| folder.path().join(BAD_SAMPLES));
        let setup = Setup::new(resolved, corpora, checkpoint.as_ref(), bad_samples, &emitter)?;
        let setup = match model {
            Some(model) => setup.with_model(model)?,
            None => setup,
        };
        let setup = match &init {
            Some(init) => setup.with_initial_weights(init)?,
            None => setup,
        };
        let (launched, warm) = setup.launch(&mut |progress| {
            if let LaunchProgress::Line(line) = progress {
                on_message(line);
            }
        })?;
        if let (Some(_), Some(checkpoint), Some(folder)) = (resume, &checkpoint, &folder) {
            // Only now: a checkpoint that cannot be resumed changes nothing in the folder.
            folder.move_aside_after(checkpoint.step)?;
        }
        Ok(Trainer { launched, warm, machine: resolved.machine.clone(), emitter, folder })
    }
}

/// The newest intact checkpoint. Reports those it skipped.
fn newest(folder: &RunFolder, on_message: &mut dyn FnMut(&str)) -> Result<Option<Checkpoint>, LaunchError> {
    let found = latest_intact(folder.path())?;
    found.skipped.iter().for_each(|damaged| on_message(&format!("skipped damaged checkpoint: {}", damaged.reason)));
    Ok(found.checkpoint)
}

/// The facts that identify a run; for a custom model also its parameters' names and shapes.
fn identity_of(resolved: &Resolved, corpora: &Corpora, model: Option<&dyn Model>) -> tandem_checkpoint::RunIdentity {
    let identity = identity(&resolved.plan, corpora);
    let Some(model) = model else { return identity };
    let mut parameters = Fingerprint::new();
    model.parameters().iter().for_each(|(_, one)| parameters.take(&[&one.name, &one.shape.to_string()]));
    identity.with("parameters", parameters.hex())
}

impl From<SamplerError> for LaunchError {
    fn from(error: SamplerError) -> LaunchError {
        match error {
            SamplerError::Device(error) => error.into(),
            other => LaunchError::Watching(other),
        }
    }
}

/// Emits an event for each call of the listener, and stops the run once a limit is exceeded.
struct EmittingListener<'a> {
    listener: &'a mut dyn RunListener,
    emitter: &'a Emitter,
    roles: &'a Isolation,
    memory: MemoryWatch,
    stop: &'a StopFlag,
    sampler: Option<Sampler>,
    breach: Option<IsolationError>,
}

impl RunListener for EmittingListener<'_> {
    fn step(&mut self, report: &StepReport, trainer: &tandem_train::StepLoop) {
        step_events::step(report, self.emitter);
        self.memory.step(report.step, self.roles, trainer.feed(), self.emitter);
        if let Some(Err(breach)) = self.sampler.as_ref().map(Sampler::check) {
            self.breach = Some(breach);
            self.stop.raise();
        }
        self.listener.step(report, trainer);
    }

    fn validation(&mut self, report: &ValidationReport) {
        step_events::validation(report, self.emitter);
        self.listener.validation(report);
    }

    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration) {
        step_events::checkpoint(step, written, took, self.emitter);
        self.listener.checkpoint(step, written, took);
    }

    fn note(&mut self, text: &str) {
        self.listener.note(text);
    }
}

/// A listener of steps only.
pub struct EachStep<F>(pub F);

impl<F: FnMut(&StepReport)> RunListener for EachStep<F> {
    fn step(&mut self, report: &StepReport, _: &tandem_train::StepLoop) {
        (self.0)(report);
    }

    fn validation(&mut self, _: &ValidationReport) {}

    fn checkpoint(&mut self, _: u64, _: &WrittenCheckpoint, _: Duration) {}

    fn note(&mut self, _: &str) {}
}
