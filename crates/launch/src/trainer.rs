//! A training run in a program of one's own: built from a plan, gone through from its first step to its last, or step by
//! step.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tandem_device::{DeviceError, DeviceKind, Isolation, IsolationError, Machine, RoleMemory};
use tandem_events::Emitter;
use tandem_feed::Warm;
use tandem_model::Model;
use tandem_pipeline::StopFlag;
use tandem_train::{
    BAD_SAMPLES, Checkpoint, Fingerprint, Opening, RunFolder, RunOutcome, RunSchedule, StepReport, ValidationReport,
    Watcher, WrittenCheckpoint, latest_usable,
};

use crate::inventory::Resolved;
use crate::launch::{Corpora, LaunchError, LaunchProgress, Launched, Setup, identity};
use crate::memory_watch::MemoryWatch;
use crate::sampler::{Sampler, SamplerError};
use crate::step_events;

/// A run that is set up: the step loop, the memory of both roles, and the folder it is kept in. Dropping it gives
/// everything back.
pub struct Trainer {
    launched: Launched,
    warm: Warm,
    machine: Machine,
    emitter: Emitter,
    folder: Option<RunFolder>,
}

/// Collects what a run is to be, beside what its plan says.
pub struct TrainerBuilder<'a> {
    resolved: &'a Resolved,
    model: Option<Arc<dyn Model>>,
    resume: Option<PathBuf>,
    folder: Option<PathBuf>,
    emitter: Emitter,
    say: Option<&'a mut dyn FnMut(&str)>,
}

impl Trainer {
    /// A run of this plan, on the machine it is for. Without further ado: the speech model, from its first step, kept
    /// nowhere, and nobody listens.
    pub fn builder(plan: &Resolved) -> TrainerBuilder<'_> {
        TrainerBuilder { resolved: plan, model: None, resume: None, folder: None, emitter: Emitter::none(), say: None }
    }

    /// What each role holds now, data first: which device, the limit, used, the peak, and who holds how much of it.
    pub fn memory_stats(&self) -> [RoleMemory; 2] {
        self.launched.roles.memory_stats()
    }

    /// Both roles' places, to read more of them.
    pub fn roles(&self) -> &Isolation {
        &self.launched.roles
    }

    /// Steps queued so far.
    pub fn step(&self) -> u64 {
        self.launched.trainer.step()
    }

    /// When things are due.
    pub fn schedule(&self) -> RunSchedule {
        self.launched.calendar
    }

    /// What is learnt.
    pub fn num_parameters(&self) -> u64 {
        self.launched.num_parameters
    }

    /// How full the feed was when the run was built.
    pub fn warm(&self) -> Warm {
        self.warm
    }

    /// The folder it is kept in, if any.
    pub fn folder(&self) -> Option<&RunFolder> {
        self.folder.as_ref()
    }

    /// Trains until the plan's steps are done or `stop` is raised. The last step is always in a checkpoint.
    ///
    /// Fails without a folder. A process that is found over its limits on a card ends the run, with a checkpoint; then
    /// that is the error.
    pub fn run(&mut self, stop: &StopFlag, watcher: &mut dyn Watcher) -> Result<RunOutcome, LaunchError> {
        let folder = self.folder.as_ref().ok_or(LaunchError::NoFolder)?;
        let Launched { trainer, roles, calendar, model, .. } = &mut self.launched;
        // On the CPU nobody counts what a process may hold.
        let on_cards = self.machine.kind() != DeviceKind::Cpu;
        let sampler = on_cards.then(|| Sampler::start(&self.machine, roles, &self.emitter)).transpose()?;
        let memory = MemoryWatch::new()?;
        let mut telling = Telling { watcher, emitter: &self.emitter, roles, memory, stop, sampler, breach: None };
        let ended = tandem_train::run(trainer, folder, model, calendar, stop, &mut telling);
        let Telling { sampler, breach, .. } = telling;
        let outcome = ended?;
        if let Some(breach) = breach {
            return Err(DeviceError::from(breach).into());
        }
        sampler.map(Sampler::finish).transpose()?;
        Ok(outcome)
    }

    /// Queues one step, and reports one that has ended, as soon as there are enough of them. Nothing is kept.
    pub fn advance(&mut self) -> Result<Option<StepReport>, LaunchError> {
        let report = self.launched.trainer.advance()?;
        report.iter().for_each(|report| step_events::step(report, &self.emitter));
        Ok(report)
    }

    /// Reports of all steps that were queued. Waits for them.
    pub fn settle(&mut self) -> Result<Vec<StepReport>, LaunchError> {
        let reports = self.launched.trainer.settle()?;
        reports.iter().for_each(|report| step_events::step(report, &self.emitter));
        Ok(reports)
    }

    /// Looks at the held-out data; none when there is none. Every queued step has been settled.
    pub fn validate(&mut self) -> Result<Option<ValidationReport>, LaunchError> {
        let report = self.launched.trainer.validate()?;
        report.iter().for_each(|report| step_events::validation(report, &self.emitter));
        Ok(report)
    }

    /// Ends it: every queued step is done, every thread joined, all memory given back. Says what went wrong with that,
    /// which dropping it does not.
    pub fn stop(self) -> Result<(), LaunchError> {
        // The folder stays this run's until its memory is home.
        let Trainer { folder: _folder, launched, .. } = self;
        let Launched { roles: _roles, trainer, .. } = launched;
        Ok(trainer.stop()?)
    }
}

impl<'a> TrainerBuilder<'a> {
    /// Trains `model` in place of the speech model. The plan was made for it: see
    /// [`OwnModel`](tandem_plan::OwnModel) and [`Inventory::resolve_for`](crate::inventory::Inventory::resolve_for).
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.model = Some(model);
        self
    }

    /// Keeps checkpoints in `dir`, and goes on from the newest there that can be used. A folder of another run, or of a
    /// process that is training in it, is an error of [`build`](TrainerBuilder::build).
    pub fn folder(mut self, dir: impl Into<PathBuf>) -> Self {
        self.folder = Some(dir.into());
        self
    }

    /// Goes on from the checkpoint at `path`, not from the newest of the folder: newer ones there are moved aside.
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        self.resume = Some(path.into());
        self
    }

    /// Monitoring on: everything that happens is told to `emitter`. Off, which it is at first, it is told to nobody; limits
    /// are enforced either way.
    pub fn monitor(mut self, emitter: &Emitter) -> Self {
        self.emitter = emitter.clone();
        self
    }

    /// Gives `say` each start-up line once it is true, and a line for each checkpoint of the folder that cannot be used.
    pub fn say(mut self, say: &'a mut dyn FnMut(&str)) -> Self {
        self.say = Some(say);
        self
    }

    /// Sets everything up: both roles' memory, the feed, the model, and its state where it goes on. Waits for the feed to be
    /// full, for as long as the plan says at most. All of it, or an error and nothing is left behind.
    pub fn build(self, corpora: &Corpora) -> Result<Trainer, LaunchError> {
        let TrainerBuilder { resolved, model, resume, folder, emitter, say } = self;
        let open = |dir| RunFolder::open(dir, &identity_of(resolved, corpora, model.as_deref()), Opening::Resume);
        let folder = folder.map(open).transpose()?;
        let mut nobody = |_: &str| {};
        let say = say.unwrap_or(&mut nobody);
        let checkpoint = match (&resume, &folder) {
            (Some(path), _) => Some(Checkpoint::open(path)?),
            (None, Some(folder)) => newest(folder, say)?,
            (None, None) => None,
        };
        let bad_samples = folder.as_ref().map(|folder| folder.path().join(BAD_SAMPLES));
        let setup = Setup::new(resolved, corpora, checkpoint.as_ref(), bad_samples, &emitter)?;
        let setup = match model {
            Some(model) => setup.with_model(model)?,
            None => setup,
        };
        let (launched, warm) = setup.launch(&mut |told| {
            if let LaunchProgress::Line(line) = told {
                say(line);
            }
        })?;
        if let (Some(_), Some(checkpoint), Some(folder)) = (resume, &checkpoint, &folder) {
            // Only now: a checkpoint that cannot be gone on from changes nothing in the folder.
            folder.move_aside_after(checkpoint.step)?;
        }
        Ok(Trainer { launched, warm, machine: resolved.machine.clone(), emitter, folder })
    }
}

/// The newest checkpoint that can be used. What was passed over is said.
fn newest(folder: &RunFolder, say: &mut dyn FnMut(&str)) -> Result<Option<Checkpoint>, LaunchError> {
    let found = latest_usable(folder.path())?;
    found.passed_over.iter().for_each(|damaged| say(&format!("passed over: {}", damaged.reason)));
    Ok(found.checkpoint)
}

/// Facts by which two runs are told apart: of a model of one's own also what it learns, by names and shapes.
fn identity_of(resolved: &Resolved, corpora: &Corpora, model: Option<&dyn Model>) -> tandem_train::RunIdentity {
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

/// Tells the log what it tells the watcher, and ends the run once a limit was broken.
struct Telling<'a> {
    watcher: &'a mut dyn Watcher,
    emitter: &'a Emitter,
    roles: &'a Isolation,
    memory: MemoryWatch,
    stop: &'a StopFlag,
    sampler: Option<Sampler>,
    breach: Option<IsolationError>,
}

impl Watcher for Telling<'_> {
    fn step(&mut self, report: &StepReport, trainer: &tandem_train::StepLoop) {
        step_events::step(report, self.emitter);
        self.memory.step(report.step, self.roles, trainer.feed(), self.emitter);
        if let Some(Err(breach)) = self.sampler.as_ref().map(Sampler::check) {
            self.breach = Some(breach);
            self.stop.raise();
        }
        self.watcher.step(report, trainer);
    }

    fn validation(&mut self, report: &ValidationReport) {
        step_events::validation(report, self.emitter);
        self.watcher.validation(report);
    }

    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration) {
        step_events::checkpoint(step, written, took, self.emitter);
        self.watcher.checkpoint(step, written, took);
    }

    fn note(&mut self, text: &str) {
        self.watcher.note(text);
    }
}

/// A watcher that looks at steps only.
pub struct EachStep<F>(pub F);

impl<F: FnMut(&StepReport)> Watcher for EachStep<F> {
    fn step(&mut self, report: &StepReport, _: &tandem_train::StepLoop) {
        (self.0)(report);
    }

    fn validation(&mut self, _: &ValidationReport) {}

    fn checkpoint(&mut self, _: u64, _: &WrittenCheckpoint, _: Duration) {}

    fn note(&mut self, _: &str) {}
}
