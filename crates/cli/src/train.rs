//! `tandem train`: sets a run up, tells what happens in it, and says what to type next.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use tandem_device::bytes::mib_ceil;
use tandem_device::{DeviceKind, IsolationError};
use tandem_events::{Emitter, Role, RunEvent};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::{Corpora, LaunchError, LaunchProgress, Launched, identity, launch};
use tandem_launch::samples::{Listening, SampleSentence};
use tandem_launch::step_events;
use tandem_launch::{MemoryWatch, Sampler};
use tandem_pipeline::StopFlag;
use tandem_plan::setting::{Id, NEWEST};
use tandem_plan::{Mode, Origin, Placement, Plan, StartupPhase, plan_json, show_short, startup_lines};
use tandem_runlog::RunLog;
use tandem_train::{
    BAD_SAMPLES, Checkpoint, Opening, RunFolder, RunOutcome, SAMPLES, StepLoop, StepReport, TrainError,
    ValidationReport, Watcher, WrittenCheckpoint, latest_usable,
};

use crate::alarms::AlarmLog;
use crate::args::PlanCall;
use crate::auto;
use crate::corpus::demo;
use crate::data;
use crate::exit::Exit;
use crate::exports;
use crate::farewell::{farewell, words_to_say};
use crate::interrupts::{Interrupt, Interrupts};
use crate::run_log;
use crate::screen::{Screen, complain};
use crate::warm_up::WarmUp;

/// The demo corpus of a run without data: enough that held-out sentences are new ones.
const DEMO_MINUTES: f64 = 30.0;
const DEMO_FOLDER: &str = "demo-corpus";
const DEMO_STEPS: &str = "300";
/// A line of progress comes after so long, and after so many steps at most.
const EVERY: Duration = Duration::from_secs(10);
const EVERY_STEPS: u64 = 50;
/// Ids that one event lists.
const IDS_OF_AN_EVENT: usize = 1000;
/// Memory lines.
const MEMORY_STEPS: u64 = 100;
/// Where training has the CPU to itself, a checkpoint is spoken so often at most, the last one always.
const LISTENING_GAP: Duration = Duration::from_secs(60);

pub(crate) fn run(typed: &PlanCall, screen: &Screen) -> Result<ExitCode, Exit> {
    typed.warnings.iter().for_each(|warning| screen.warn(warning));
    let site = Inventory::survey(typed.sim.clone()).context("cannot read the GPUs")?;
    can_be_placed(typed, &site)?;
    exports::check(typed.settings.text(Id::Prometheus).as_deref())?;
    let demonstration = without_data(typed, screen)?;
    let call = demonstration.as_ref().unwrap_or(typed);
    let settled = auto::settle(call, screen)?;
    let call = settled.as_ref().unwrap_or(call);
    let (resolved, corpora) = resolve(call, site, screen)?;
    let plan = &resolved.plan;
    let opening = if plan.training.reset { Opening::Reset } else { Opening::Resume };
    let folder = RunFolder::open(&plan.training.checkpoint_dir, &identity(plan, &corpora), opening);
    let folder = folder.map_err(|error| ended("--checkpoint-dir", error))?;
    if let Some(aside) = folder.moved_aside() {
        screen.say(&format!("The earlier run was moved to {}", aside.display()))?;
    }
    let checkpoint = checkpoint(plan, &folder, screen)?;
    let log_path = match &call.run_log {
        Some(path) => path.clone(),
        None => folder.fresh_log().context("the run log cannot be written")?,
    };
    let alarm_log = AlarmLog::default();
    let exporters = exports::start(&plan.training, &folder, screen, alarm_log.clone())?;
    let simulated = screen.is_simulated();
    let complain =
        move |error: &str| complain(&format!("⚠️ the run log is not complete: {error}. Training goes on"), simulated);
    let log = RunLog::create_with_listener(&log_path, exporters.listener(), complain);
    let (log, emitter) = log.context("the run log cannot be written")?;
    alarm_log.open(&emitter);
    let plan_text = plan_json(plan, &resolved.hardware).to_string();
    emitter.emit(RunEvent::RunStarted {
        command: "train".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_text),
    });
    list(&corpora, &emitter);
    let trained = train(&resolved, &corpora, checkpoint.as_ref(), &folder, &emitter, screen);
    let (code, reason) = match &trained {
        Ok((_, None)) => (0, "done"),
        Ok((_, Some(interrupt))) => (interrupt.code(), "stopped"),
        Err(exit) => (exit.code(), "failed"),
    };
    run_log::close(Some(log), code, reason, screen);
    exports::finish(exporters, screen);
    let (outcome, _) = trained?;
    screen.say(&farewell(&outcome, plan, &folder, typed, &words_to_say(&corpora)))?;
    Ok(ExitCode::from(code))
}

/// Who is trained on is in the log: what was to be left out can be looked for there.
fn list(corpora: &Corpora, emitter: &Emitter) {
    let (rows, dataset) = (corpora.train.rows(), corpora.train.dataset());
    for some in rows.chunks(IDS_OF_AN_EVENT) {
        let ids = some.iter().filter_map(|(index, _)| dataset.get(*index)).map(|sample| sample.id.to_owned()).collect();
        emitter.emit(RunEvent::TrainingSet { of: rows.len() as u64, ids });
    }
}

/// Without data the run is a demonstration: a corpus made here, a small model, a few hundred steps.
fn without_data(call: &PlanCall, screen: &Screen) -> Result<Option<PlanCall>, Exit> {
    if call.settings.text(Id::TrainData).is_some() {
        return Ok(None);
    }
    let folder = PathBuf::from(call.settings.text(Id::CheckpointDir).unwrap_or_default()).join(DEMO_FOLDER);
    if !folder.join("metadata.csv").is_file() {
        let place = folder.display();
        screen.say(&format!("No --train-data: making {DEMO_MINUTES:.0} minutes of synthetic speech in {place}"))?;
        demo::write(&folder, DEMO_MINUTES, screen)?;
    }
    let mut call = call.clone();
    for (id, value) in [(Id::ModelSize, "nano"), (Id::MaxSteps, DEMO_STEPS)] {
        if call.settings.given(id).is_none() {
            call.settings.set(id.setting().flag, value, Origin::Flag)?;
        }
    }
    let folder = folder.to_str().context("the name of the checkpoint folder is not UTF-8")?;
    call.settings.set(Id::TrainData.setting().flag, folder, Origin::Flag)?;
    Ok(Some(call))
}

/// Flags that do not go together are refused before anything is made or measured.
fn can_be_placed(call: &PlanCall, site: &Inventory) -> Result<(), Exit> {
    if auto::is_asked(&call.settings) {
        return auto::field(call, site).map(drop);
    }
    let placement = Placement::choose(&call.settings, &site.hardware);
    placement.map(drop).map_err(|refusal| Exit::Refused(Box::new(refusal)))
}

fn resolve(call: &PlanCall, site: Inventory, screen: &Screen) -> Result<(Resolved, Corpora), Exit> {
    let Some(corpus) = data::open(call, screen)? else { unreachable!("a run without data makes its own") };
    let resolved = site.resolve(&call.settings, Some(&corpus.facts));
    let mut resolved = resolved.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    resolved.try_transfer().context("cannot try the transfer between the roles")?;
    Ok((resolved, corpus.corpora))
}

/// What was asked for cannot be, or what was tried went wrong: the shell is told which.
fn ended(flag: &str, error: TrainError) -> Exit {
    match error {
        TrainError::Locked { .. }
        | TrainError::AnotherRun { .. }
        | TrainError::InTheWay { .. }
        | TrainError::ForeignCheckpoint { .. }
        | TrainError::ForeignState { .. }
        | TrainError::NotACheckpoint { .. }
        | TrainError::WrongTensors { .. } => Exit::Usage(format!("❌ {flag}: {error}")),
        other => Exit::Failed(anyhow::Error::new(other).context(flag.to_owned())),
    }
}

/// Where the run goes on from, if anywhere.
fn checkpoint(plan: &Plan, folder: &RunFolder, screen: &Screen) -> Result<Option<Checkpoint>, Exit> {
    let asked = plan.training.resume.as_deref();
    if let Some(path) = asked.filter(|path| *path != NEWEST) {
        return Checkpoint::open(path).map(Some).map_err(|error| ended("--resume", error));
    }
    let found = latest_usable(folder.path()).context("the checkpoints cannot be read")?;
    for passed_over in &found.passed_over {
        screen.warn(&format!("passed over: {}", passed_over.reason));
    }
    if found.checkpoint.is_none() && !found.passed_over.is_empty() && asked.is_none() {
        screen.warn("no checkpoint is whole: the run begins anew, at step 1");
    }
    match (found.checkpoint, asked) {
        (None, Some(_)) => Err(Exit::Usage(format!(
            "❌ --resume: {} has no checkpoint to go on from; leave --resume out to begin",
            folder.path().display()
        ))),
        (checkpoint, _) => Ok(checkpoint),
    }
}

fn train(
    resolved: &Resolved,
    corpora: &Corpora,
    checkpoint: Option<&Checkpoint>,
    folder: &RunFolder,
    emitter: &Emitter,
    screen: &Screen,
) -> Result<(RunOutcome, Option<Interrupt>), Exit> {
    let plan = &resolved.plan;
    let interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
    let bad_samples = folder.path().join(BAD_SAMPLES);
    let (mut said, mut warm_up) = (Ok(()), WarmUp::new(screen));
    let mut say = |told: LaunchProgress<'_>| {
        let line = match told {
            LaunchProgress::Line(line) => Some(line.to_owned()),
            LaunchProgress::WarmUp { ready, of } => warm_up.show(ready, of),
        };
        if let (Ok(()), Some(line)) = (&said, line) {
            said = screen.say(&line);
        }
    };
    let launched = launch(resolved, corpora, checkpoint, bad_samples, emitter, &mut say);
    said?;
    let (launched, warm) = launched.map_err(|error| match error {
        LaunchError::Train(error) => ended("the run cannot start", error),
        other => Exit::Failed(other.into()),
    })?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles, calendar, model, num_parameters, held_out, mut trainer } = launched;
    if warm.ready < warm.of {
        screen.say(&format!("   {}/{} batches ready", warm.ready, warm.of))?;
    }
    startup_lines(plan, StartupPhase::Starting).iter().try_for_each(|line| screen.say(line))?;
    screen.say(&in_short(plan))?;
    screen.say(&format!(
        "   {} model, {num_parameters} parameters; {}",
        plan.model_size.name(),
        plan.training.describe()
    ))?;
    let (count, left_out) = held_out;
    let longer = if left_out == 0 { String::new() } else { format!(" ({left_out} more fit no shape)") };
    screen.say(&format!("   {} utterances to train on, {count} held out{longer}", corpora.train.rows().len()))?;
    screen.say(&format!("   {}", plan.training.describe_length(calendar.steps_of_epoch)))?;
    if let Some(checkpoint) = checkpoint {
        screen.say(&format!("   Going on from step {}: {}", checkpoint.step, checkpoint.path.display()))?;
    }
    if let (true, Some(checkpoint)) = (plan.training.resume.is_some(), checkpoint) {
        // Only now: a checkpoint that cannot be gone on from changes nothing in the folder.
        folder.move_aside_after(checkpoint.step).map_err(|error| ended("--resume", error))?;
    }
    let sampler = match resolved.machine.kind() {
        DeviceKind::Cpu => None,
        _ => Some(Sampler::start(&resolved.machine, &roles, emitter).context("cannot watch the process's memory")?),
    };
    let stop = StopFlag::new();
    let gap = if resolved.machine.kind() == DeviceKind::Cuda { Duration::ZERO } else { LISTENING_GAP };
    let listening = Listening::new(folder.path().join(SAMPLES), SampleSentence::held_out(corpora), gap, emitter);
    let end = End { stop: stop.clone(), interrupts, sampler, why: None };
    let memory = MemoryWatch::new().context("cannot watch memory")?;
    let steps = (trainer.step(), calendar.total_steps);
    let mut teller = Teller::new(screen, emitter, (&roles, memory), steps, listening, end);
    teller.always_estimates = plan.mode == Mode::Cpu;
    let outcome = tandem_train::run(&mut trainer, folder, &model, &calendar, &stop, &mut teller);
    let outcome = outcome.map_err(anyhow::Error::new).context("training stopped")?;
    let Teller { end: End { why, sampler, interrupts, .. }, listening, last_checkpoint, .. } = teller;
    trainer.stop().map_err(anyhow::Error::new).context("the run did not end cleanly")?;
    if let Some(Err(error)) = sampler.map(Sampler::finish) {
        screen.warn(&format!("the process's memory could not be read all the time: {error}"));
    }
    if let (None, Some((step, path))) = (&why, last_checkpoint) {
        let given_up = listen(listening, step, &path, &interrupts, screen);
        return Ok((outcome, given_up));
    }
    match why {
        Some(Why::Breach(error)) => {
            let kept = format!("training stopped after step {}, which is in a checkpoint", outcome.step);
            Err(Exit::Failed(anyhow::Error::new(error).context(kept)))
        }
        Some(Why::Asked(interrupt)) => Ok((outcome, Some(interrupt))),
        None => Ok((outcome, None)),
    }
}

/// The plan in short, what was said about it, and at most three lines of advice.
fn in_short(plan: &Plan) -> String {
    let mut lines = vec![show_short(plan)];
    lines.extend(plan.notes.iter().map(|note| format!("   {note}")));
    lines.extend(plan.hints.iter().map(|hint| format!("   Hint: {hint}")));
    lines.extend(plan.advice.iter().map(|advice| format!("   Advice: {advice}")));
    lines.join("\n")
}

/// Speaks the last checkpoint, and waits for it unless Ctrl-C says otherwise.
fn listen(listening: Listening, step: u64, path: &Path, interrupts: &Interrupts, screen: &Screen) -> Option<Interrupt> {
    let (count, folder) = (listening.num_sentences(), listening.folder().display().to_string());
    if count > 0 {
        let sentences = if count == 1 { "a held-out sentence" } else { "held-out sentences" };
        // A reader who went away does not make it fail.
        let _ = screen.progress(&format!("Speaking {sentences} with the last checkpoint, into {folder}"));
    }
    let complaint = listening.finish(step, path, &mut || interrupts.seen().is_some());
    if let Some(complaint) = complaint {
        screen.warn(&format!("no sample was spoken: {complaint}"));
    }
    interrupts.seen()
}

/// What may end a run before its time, looked at after every step.
struct End {
    stop: StopFlag,
    interrupts: Interrupts,
    /// None on the CPU, where nobody counts what a process may hold.
    sampler: Option<Sampler>,
    why: Option<Why>,
}

/// Why a run ends before its time.
enum Why {
    Asked(Interrupt),
    Breach(IsolationError),
}

impl End {
    /// What there is to say, once, when the end has come.
    fn look(&mut self) -> Option<String> {
        if self.why.is_some() {
            return None;
        }
        let breach = self.sampler.as_ref().and_then(|sampler| sampler.check().err());
        let (why, said) = match (breach, self.interrupts.seen()) {
            (Some(error), _) => {
                let said = format!("⚠️ {error}: stopping, with a checkpoint");
                (Why::Breach(error), said)
            }
            (None, Some(interrupt)) => {
                let again = if interrupt == Interrupt::CtrlC { "; Ctrl-C once more quits at once" } else { "" };
                (Why::Asked(interrupt), format!("Stopping, with a checkpoint{again}"))
            }
            (None, None) => return None,
        };
        self.why = Some(why);
        self.stop.raise();
        Some(said)
    }
}

/// Tells what happens, on the screen and in the log.
struct Teller<'a> {
    screen: &'a Screen,
    emitter: &'a Emitter,
    roles: &'a tandem_device::Isolation,
    memory: MemoryWatch,
    total_steps: u64,
    first_step: u64,
    begun: Instant,
    last_line: Instant,
    since: Window,
    /// When held-out figures were last shown.
    last_validation: Option<Instant>,
    estimated: bool,
    /// On the CPU, where runs take their time.
    always_estimates: bool,
    listening: Listening,
    /// The last one that was written, and its step.
    last_checkpoint: Option<(u64, PathBuf)>,
    end: End,
}

/// What happened since the last line.
#[derive(Default)]
struct Window {
    steps: u64,
    wall_ns: u64,
    wait_ns: u64,
    mel_loss: f64,
    loss: f64,
}

/// Steps after which the time of the rest is estimated.
const TIMED_STEPS: u64 = 5;

impl<'a> Teller<'a> {
    fn new(
        screen: &'a Screen,
        emitter: &'a Emitter,
        (roles, memory): (&'a tandem_device::Isolation, MemoryWatch),
        (first_step, total_steps): (u64, u64),
        listening: Listening,
        end: End,
    ) -> Teller<'a> {
        let now = Instant::now();
        Teller {
            screen,
            emitter,
            roles,
            memory,
            total_steps,
            first_step,
            begun: now,
            last_line: now,
            since: Window::default(),
            last_validation: None,
            estimated: false,
            always_estimates: false,
            listening,
            last_checkpoint: None,
            end,
        }
    }

    fn progress(&mut self, report: &StepReport) {
        let Window { steps, wall_ns, wait_ns, mel_loss, loss } = std::mem::take(&mut self.since);
        let per = |sum: f64| sum / steps.max(1) as f64;
        let seconds = wall_ns as f64 / 1e9;
        let used = |role| {
            let memory = self.roles.partition(role).arena.memory();
            mib_ceil(memory.used_bytes)
        };
        self.screen.mention(&format!(
            "Step {}/{}  loss {:.3}  mel {:.3}  lr {:.1e}  {:.2} steps/s  stall {:.1} %  data {} MB  model {} MB",
            report.step,
            self.total_steps,
            per(loss),
            per(mel_loss),
            report.lr,
            steps as f64 / seconds.max(1e-9),
            100.0 * wait_ns as f64 / (wall_ns as f64).max(1.0),
            used(Role::Data),
            used(Role::Model),
        ));
        self.last_line = Instant::now();
    }

    /// How long the rest will take, by the first steps. Where runs take their time it is told before the first line of
    /// progress, which `is_next` when it is.
    fn estimate(&mut self, step: u64, is_next: bool) {
        let done = step - self.first_step;
        let enough = done >= TIMED_STEPS || (is_next && self.always_estimates);
        if self.estimated || !enough || step == self.total_steps {
            return;
        }
        self.estimated = true;
        let left = self.begun.elapsed().as_secs_f64() / done as f64 * (self.total_steps - step) as f64;
        if self.always_estimates || left > 20.0 {
            self.screen.mention(&format!("About {} to go, by the first {done} steps", minutes(left)));
        }
    }
}

impl Watcher for Teller<'_> {
    fn step(&mut self, report: &StepReport, trainer: &StepLoop) {
        step_events::step(report, self.emitter);
        self.memory.step(report.step, self.roles, trainer.feed(), self.emitter);
        if report.skipped {
            self.screen.warn(&format!("step {} left out: a gradient was no number", report.step));
        }
        self.since.steps += 1;
        self.since.wall_ns += report.wall_ns;
        self.since.wait_ns += report.wait_ns;
        self.since.loss += report.loss();
        self.since.mel_loss += report.losses.get("mel").unwrap_or_default();
        let last = report.step == self.total_steps;
        let is_due = last || self.since.steps >= EVERY_STEPS || self.last_line.elapsed() >= EVERY;
        self.estimate(report.step, is_due);
        if is_due {
            self.progress(report);
        }
        if report.step.is_multiple_of(MEMORY_STEPS) {
            let [data, model] = self.roles.memory_stats();
            self.screen.mention(&format!("[Step {}] {data}, {model}", report.step));
        }
        if let Some(said) = self.end.look() {
            self.screen.mention(&said);
        }
    }

    fn validation(&mut self, report: &ValidationReport) {
        let found = report.alignment.unwrap_or_default();
        let alignment = match found.is_whole() {
            true => "every token has its frames".to_owned(),
            false => format!(
                "{} of {} tokens have no frame, {} utterances do not add up",
                found.tokens_without_frames, found.tokens, found.wrong_sums
            ),
        };
        // Of a small corpus epochs are short: all are in the log.
        let now = Instant::now();
        if report.step == self.total_steps || is_shown(self.last_validation, now) {
            self.last_validation = Some(now);
            self.screen.mention(&format!(
                "Held out after step {}: mel {:.3}, {:.2} of guessing the mean ({} utterances); {alignment}",
                report.step,
                report.score(),
                report.ratio().unwrap_or(f64::NAN),
                report.utterances,
            ));
        }
        step_events::validation(report, self.emitter);
    }

    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration) {
        let name = written.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        step_events::checkpoint(step, written, took, self.emitter);
        self.screen.mention(&format!(
            "Checkpoint {name}: {} MB in {:.1} s",
            mib_ceil(written.bytes),
            took.as_secs_f64()
        ));
        if let Some(error) = &written.left_behind {
            self.screen.warn(&format!("an old checkpoint could not be removed: {error}"));
        }
        self.last_checkpoint = Some((step, written.path.clone()));
        // The last one is spoken when the run is over.
        if step < self.total_steps
            && let Some(complaint) = self.listening.checkpoint(step, &written.path)
        {
            self.screen.warn(&format!("a sample could not be spoken: {complaint}"));
        }
    }

    fn note(&mut self, text: &str) {
        self.screen.mention(text);
    }
}

/// Whether held-out figures are shown again.
fn is_shown(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= EVERY)
}

fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 1.5 => "a second".to_owned(),
        s if s < 90.0 => format!("{s:.0} seconds"),
        s if s < 5400.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{:.1} hours", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{ArenaSpec, Isolation, Machine, SimSpec};

    use super::*;

    #[test]
    fn held_out_figures_are_shown_now_and_then() {
        let start = Instant::now();
        let check = |seconds: f64, shown| {
            let now = start + Duration::from_secs_f64(seconds);
            assert_eq!(is_shown(Some(start), now), shown, "after {seconds} s");
        };
        assert!(is_shown(None, start), "the first are always");
        check(0.0, false);
        check(9.9, false);
        check(10.0, true);
    }

    #[test]
    fn a_process_over_its_limits_ends_the_run_and_is_said_once() {
        let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
        // No room in the limits for what the driver takes.
        let spec = |role| {
            let arena_bytes = 64 << 20;
            ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true }
        };
        let roles = Isolation::set_up(&machine, (0, spec(Role::Data)), (0, spec(Role::Model))).unwrap();
        let sampler = Sampler::start(&machine, &roles, &Emitter::none()).unwrap();
        while sampler.check().is_ok() {
            std::thread::yield_now();
        }
        let (stop, interrupts) = (StopFlag::new(), Interrupts::listen().unwrap());
        let mut end = End { stop: stop.clone(), interrupts, sampler: Some(sampler), why: None };
        assert!(end.look().unwrap().contains("stopping, with a checkpoint"));
        assert!(stop.is_raised() && matches!(end.why, Some(Why::Breach(_))));
        assert_eq!(end.look(), None);
    }
}
