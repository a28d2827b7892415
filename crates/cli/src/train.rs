//! `tandem train`: plans a run, opens its folder and its log, trains, and prints the result.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tandem_checkpoint::{
    BAD_SAMPLES, Checkpoint, CheckpointError, OpenMode, RECORDING_HASHES, RankFolder, RunFolder, RunIdentity, SAMPLES,
};
use tandem_device::DeviceKind;
use tandem_events::{Emitter, RunEvent};
use tandem_feed::{FromFiles, RecordingHashes};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::{Corpora, LaunchError, LaunchProgress, Launched, Setup, agree, identity};
use tandem_launch::samples::{SampleSentence, SampleWriter};
use tandem_launch::{MemoryWatch, Sampler};
use tandem_pipeline::StopFlag;
use tandem_plan::setting::Id;
use tandem_plan::speech::millions;
use tandem_plan::{
    Mode, Origin, Placement, Plan, StartupPhase, buffer_line, num_ranks, plan_json, show_short, startup_lines,
};
use tandem_ranks::{Group, World};
use tandem_runlog::RunLog;
use tandem_train::{RunOutcome, TrainError};

use crate::alarms::AlarmLog;
use crate::args::PlanArgs;
use crate::auto::{self, AutoScope};
use crate::corpus::demo;
use crate::data;
use crate::exit::Exit;
use crate::exports;
use crate::farewell::{farewell, replaced_text, result_lines, text_to_synthesize, verified_text};
use crate::interrupts::{Interrupt, Interrupts};
use crate::output_guard::{OutputGuard, OutputKind};
use crate::pair_checks;
use crate::ranks::{self, RunPart, exit_of_ranks};
use crate::run_log;
use crate::run_reporter::{
    RecordingCheck, ReportedRun, ReporterParts, RunReporter, SavedCheckpoint, StopCause, StopCheck,
};
use crate::run_totals::{RunEnd, RunTotals};
use crate::screen::{self, Screen};
use crate::start_from::{describe_init, describe_languages, init_checkpoint, named_checkpoint, newest_checkpoint};
use crate::supervisor::{MAX_RESTARTS, Supervisor, own_words};
use crate::warm_up::WarmUp;

/// The generated corpus of a run without data: large enough for validation sentences that training has not seen.
const DEMO_MINUTES: f64 = 30.0;
const DEMO_FOLDER: &str = "demo-corpus";
const DEMO_STEPS: &str = "300";
/// Utterance ids in one event.
const IDS_PER_EVENT: usize = 1000;
/// Off CUDA, synthesis takes CPU time from training: samples are at least this far apart. The last checkpoint always
/// gets them.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

/// A run that ended without an error.
struct FinishedRun {
    outcome: RunOutcome,
    /// The signal that stopped it early, if any.
    interrupt: Option<Interrupt>,
    /// `id: reason` of every recording that could not be used and was replaced.
    replaced: Vec<String>,
    /// Batches that were verified after their transfer, if any are.
    verified: Option<u64>,
    totals: RunTotals,
    total_steps: u64,
    /// Utterances of the validation set that are validated on.
    num_validated: usize,
}

/// What a run starts from, besides random weights.
#[derive(Clone, Copy)]
struct StartPoint<'a> {
    /// The checkpoint it resumes from.
    resume: Option<&'a Checkpoint>,
    /// The checkpoint of `--init-from`.
    init: Option<&'a Checkpoint>,
}

/// The files that this process writes.
struct RunFiles {
    /// The run folder; `None` on ranks other than 0, which write no checkpoints.
    folder: Option<RunFolder>,
    /// Where its other files are: the run folder, or a folder of the rank in it.
    dir: PathBuf,
    log: PathBuf,
}

/// How a process of a run ended.
enum RunEnded {
    /// With this exit code.
    Done(ExitCode),
    /// `--mode auto` chose these GPUs, which train together: the run is to be started as ranks.
    Ranks { gpus: String, count: u32 },
}

pub(crate) fn run(typed: &PlanArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let args = &ranks::arguments_of_rank(typed)?;
    let inventory = pair_checks::survey(args).context("cannot read the GPUs")?;
    let supervise = |ranks, gpus: Option<String>| {
        let (words, max_restarts) = (own_words(), MAX_RESTARTS);
        Supervisor { ranks, words, max_restarts, command: "train", gpus }.run(screen)
    };
    let group = match ranks::part(args, &inventory)? {
        RunPart::Supervisor(ranks) => return supervise(ranks, None),
        RunPart::Rank(group) => Some(group),
        RunPart::Alone => None,
    };
    let ended = run_to_the_end(args, typed, inventory, group.as_ref(), screen);
    if let (Some(group), Err(exit)) = (&group, &ended) {
        // The others would wait for this rank.
        group.abort(&exit.to_string());
    }
    match ended {
        Ok(RunEnded::Done(code)) => Ok(code),
        Ok(RunEnded::Ranks { gpus, count }) => supervise(count, Some(gpus)),
        // A pipeline that stops reading ends other commands early. Of training nothing would be left.
        Err(Exit::Closed) => Err(Exit::Failed(anyhow!("standard output was closed before training started"))),
        Err(exit) => Err(exit),
    }
}

/// `shown` are the arguments as they were typed, for messages.
fn run_to_the_end(
    typed: &PlanArgs,
    shown: &PlanArgs,
    inventory: Inventory,
    group: Option<&Arc<Group>>,
    screen: &Screen,
) -> Result<RunEnded, Exit> {
    let world = group.map_or(World::ALONE, |group| group.world());
    let inventory = inventory.with_world(world);
    // What is wrong with the settings and the corpus is wrong on every rank: rank 0 says it.
    screen.set_silent(world.rank > 0);
    typed.warnings.iter().for_each(|warning| screen.warn(warning));
    check_placement(typed, &inventory)?;
    exports::check(typed.settings.text(Id::Prometheus).as_deref())?;
    check_outputs(typed)?;
    let prepared = ranks::first_rank_first(group.map(Arc::as_ref), || prepare(typed, inventory, screen))?;
    let (args, resolved, corpora) = match prepared {
        Prepared::Run(run) => *run,
        Prepared::Ranks { gpus, count } => return Ok(RunEnded::Ranks { gpus, count }),
    };
    let (args, plan) = (&args, &resolved.plan);
    let identity = identity(plan, &corpora);
    let init = init_checkpoint(plan, screen)?;
    if let Some(group) = group {
        // Before anything is moved aside.
        agree(group, plan, &corpora).map_err(exit_of_launch)?;
    }
    let (files, checkpoint) = open_files(args, plan, &corpora, &identity, group, screen)?;
    if let (Some(checkpoint), Some(_)) = (&checkpoint, &init) {
        screen
            .progress(&format!("   --init-from was used at step 0; this run resumes from step {}", checkpoint.step))?;
    }
    let alarm_log = AlarmLog::default();
    let exporters = exports::start(&plan.training, files.folder.as_ref(), screen, alarm_log.clone())?;
    let console = screen.console();
    let on_error = move |error: &str| console.warn(&format!("the run log is incomplete: {error}. Training continues"));
    let log = RunLog::create_with_listener(&files.log, exporters.listener(), on_error);
    let (log, emitter) = log.context("cannot write the run log")?;
    alarm_log.open(&emitter);
    let plan_text = plan_json(plan, &resolved.hardware).to_string();
    emitter.emit(RunEvent::RunStarted {
        command: "train".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_text),
    });
    log_training_ids(&corpora, &emitter);
    let start = StartPoint { resume: checkpoint.as_ref(), init: init.as_ref() };
    let trained = train(&resolved, &corpora, start, &files, group, &emitter, screen);
    let (code, reason) = match &trained {
        Ok(FinishedRun { interrupt: None, .. }) => (0, "done"),
        Ok(FinishedRun { interrupt: Some(interrupt), .. }) => (interrupt.code(), "stopped"),
        Err(exit) => (exit.code(), "failed"),
    };
    run_log::close(Some(log), code, reason, screen);
    exports::finish(exporters, screen);
    let FinishedRun { outcome, replaced, verified, totals, total_steps, num_validated, .. } = trained?;
    if !replaced.is_empty() {
        screen.warn(&replaced_text(&replaced, &files.dir.join(BAD_SAMPLES)));
    }
    let Some(folder) = files.folder else { return Ok(RunEnded::Done(ExitCode::from(code))) };
    // The run is saved: a closed output is no failure any more.
    let _ = screen.print(&result_lines(&outcome, &folder, verified));
    let _ = screen.progress(&farewell(&outcome, plan, shown, &text_to_synthesize(&corpora)));
    if typed.json {
        let end = RunEnd {
            exit_code: code,
            reason,
            step: outcome.step,
            total_steps,
            resumed_from: checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_path()),
            folder: folder.path(),
            run_log: &files.log,
            num_trained: corpora.train.rows().len(),
            num_validated,
            replaced: &replaced,
            verified,
            warnings: plan.notes.iter().cloned().chain(screen.warnings()).collect(),
        };
        let _ = screen::write_json(&totals.document(&end, plan));
    }
    Ok(RunEnded::Done(ExitCode::from(code)))
}

/// What a run needs before its folder is opened.
enum Prepared {
    /// Its arguments with those of the demo and of `--mode auto`, the plan, the corpus.
    Run(Box<(PlanArgs, Resolved, Corpora)>),
    /// `--mode auto` chose these GPUs, which train together.
    Ranks { gpus: String, count: u32 },
}

fn prepare(typed: &PlanArgs, inventory: Inventory, screen: &Screen) -> Result<Prepared, Exit> {
    let demo_args = with_demo_corpus(typed, screen)?;
    let args = demo_args.as_ref().unwrap_or(typed);
    let auto_args = auto::choose_mode(args, AutoScope::Ranks, screen)?;
    let args = auto_args.as_ref().unwrap_or(args);
    let chosen = auto_args.as_ref().and_then(|args| args.settings.given_gpus(Id::Gpus));
    if let Some(gpus) = chosen {
        let count = num_ranks(&args.settings, &inventory.hardware);
        let count = count.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
        return Ok(Prepared::Ranks { gpus: gpus.to_string(), count });
    }
    let (resolved, corpora) = resolve(args, inventory, screen)?;
    Ok(Prepared::Run(Box::new((args.clone(), resolved, corpora))))
}

/// Opens the run folder and chooses the checkpoint to resume from. Of several ranks, rank 0 does, and the others follow.
fn open_files(
    args: &PlanArgs,
    plan: &Plan,
    corpora: &Corpora,
    identity: &RunIdentity,
    group: Option<&Arc<Group>>,
    screen: &Screen,
) -> Result<(RunFiles, Option<Checkpoint>), Exit> {
    let run = PathBuf::from(&plan.training.checkpoint_dir);
    let Some(group) = group.filter(|group| group.world().rank > 0) else {
        let named = named_checkpoint(plan, corpora, identity)?;
        let mode = if plan.training.reset { OpenMode::Reset } else { OpenMode::Resume };
        let folder = RunFolder::open(run, identity, mode).map_err(|error| exit_of("--checkpoint-dir", error))?;
        if let Some(path) = folder.moved_aside() {
            screen.progress(&format!("Moved the earlier run to {}", path.display()))?;
        }
        let checkpoint = match named {
            Some(named) => Some(named),
            None => newest_checkpoint(plan, &folder, screen)?,
        };
        let checkpoint = match group {
            Some(group) => ranks::same_checkpoint(group, checkpoint)?,
            None => checkpoint,
        };
        let log = match &args.run_log {
            Some(path) => path.clone(),
            None => folder.new_log().context("cannot write the run log")?,
        };
        let dir = folder.path().to_owned();
        return Ok((RunFiles { folder: Some(folder), dir, log }, checkpoint));
    };
    // After the broadcast: the folder of the run is there, and an earlier run in it is moved aside.
    let checkpoint = ranks::same_checkpoint(group, None)?;
    let rank = group.world().rank;
    let rank_folder = RankFolder::create(&run, rank).map_err(|error| exit_of("--checkpoint-dir", error))?;
    let log = match &args.run_log {
        // A device or a pipe is not one of several files.
        Some(path) if !path.exists() || path.is_file() => path.with_extension(format!("rank{rank}.jsonl")),
        _ => rank_folder.new_log().context("cannot write the run log")?,
    };
    Ok((RunFiles { folder: None, dir: rank_folder.into_path(), log }, checkpoint))
}

/// Refuses outputs that would destroy something, before anything is created.
fn check_outputs(args: &PlanArgs) -> Result<(), Exit> {
    let guard = OutputGuard::of(args);
    if let Some(path) = &args.run_log {
        guard.check("--run-log", path, OutputKind::RunLog)?;
    }
    match args.settings.text(Id::Trace) {
        Some(path) => guard.check("--trace", path.as_ref(), OutputKind::Trace),
        None => Ok(()),
    }
}

/// Logs the ids of the training set, so that `--exclude-ids` can be verified from the log.
fn log_training_ids(corpora: &Corpora, emitter: &Emitter) {
    let (rows, dataset) = (corpora.train.rows(), corpora.train.dataset());
    for chunk in rows.chunks(IDS_PER_EVENT) {
        let ids =
            chunk.iter().filter_map(|(index, _)| dataset.get(*index)).map(|sample| sample.id.to_owned()).collect();
        emitter.emit(RunEvent::TrainingSet { utterances: rows.len() as u64, ids });
    }
}

/// The arguments of a run without data: a generated corpus, a small model, a few hundred steps. None when data was given.
fn with_demo_corpus(args: &PlanArgs, screen: &Screen) -> Result<Option<PlanArgs>, Exit> {
    if args.settings.text(Id::TrainData).is_some() {
        return Ok(None);
    }
    let folder = PathBuf::from(args.settings.text(Id::CheckpointDir).unwrap_or_default()).join(DEMO_FOLDER);
    if !folder.join("metadata.csv").is_file() {
        let path = folder.display();
        screen.progress(&format!(
            "No --train-data given: generating {DEMO_MINUTES:.0} minutes of synthetic speech in {path}"
        ))?;
        demo::write(&folder, DEMO_MINUTES, screen)?;
    }
    let mut args = args.clone();
    for (id, value) in [(Id::ModelSize, "nano"), (Id::MaxSteps, DEMO_STEPS)] {
        if args.settings.given(id).is_none() {
            args.settings.set(id.setting().flag, value, Origin::Flag)?;
        }
    }
    let folder = folder.to_str().context("the name of the checkpoint folder is not UTF-8")?;
    args.settings.set(Id::TrainData.setting().flag, folder, Origin::Flag)?;
    Ok(Some(args))
}

/// Refuses contradicting flags before anything is created or measured.
fn check_placement(args: &PlanArgs, inventory: &Inventory) -> Result<(), Exit> {
    if auto::is_requested(&args.settings) {
        let world = inventory.hardware.world;
        if world.size > 1 {
            return Err(Exit::Usage(format!("❌ --mode auto is for one process, and this is {world}: remove it")));
        }
        return auto::candidates_of(args, inventory).map(drop);
    }
    let placement = Placement::choose(&args.settings, &inventory.hardware);
    placement.map(drop).map_err(|refusal| Exit::Refused(Box::new(refusal)))
}

fn resolve(args: &PlanArgs, inventory: Inventory, screen: &Screen) -> Result<(Resolved, Corpora), Exit> {
    let Some(corpus) = data::open(args, screen)? else { unreachable!("a run without data has a generated corpus") };
    let writes = inventory.hardware.world.rank == 0;
    let inventory = inventory.with_run_folder(&args.settings, writes);
    let resolved = inventory.resolve(&args.settings, Some(&corpus.facts));
    let mut resolved = resolved.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    resolved.try_transfer().context("the transfer test between the roles failed")?;
    Ok((resolved, corpus.corpora))
}

fn exit_of_launch(error: LaunchError) -> Exit {
    match error {
        LaunchError::Train(error @ TrainError::ForeignInit { .. }) => exit_of("--init-from", error),
        LaunchError::Train(TrainError::Ranks(error)) => exit_of_ranks(error),
        LaunchError::Train(error) => exit_of("the run cannot start", error),
        other => Exit::Failed(other.into()),
    }
}

/// Wrong usage (exit code 2) or a failure (exit code 1).
pub(crate) fn exit_of(flag: &str, error: impl Into<TrainError>) -> Exit {
    let error = error.into();
    match error {
        TrainError::Checkpoint(
            CheckpointError::Locked { .. }
            | CheckpointError::AnotherRun { .. }
            | CheckpointError::OfAnotherRun { .. }
            | CheckpointError::InTheWay { .. }
            | CheckpointError::ForeignCheckpoint { .. }
            | CheckpointError::NotACheckpoint { .. }
            | CheckpointError::NewerFormat { .. }
            | CheckpointError::WrongTensors { .. },
        )
        | TrainError::ForeignInit { .. }
        | TrainError::ForeignState { .. } => Exit::Usage(format!("❌ {flag}: {error}")),
        other => Exit::Failed(anyhow::Error::new(other).context(flag.to_owned())),
    }
}

fn train(
    resolved: &Resolved,
    corpora: &Corpora,
    start: StartPoint<'_>,
    files: &RunFiles,
    group: Option<&Arc<Group>>,
    emitter: &Emitter,
    screen: &Screen,
) -> Result<FinishedRun, Exit> {
    let (plan, checkpoint) = (&resolved.plan, start.resume);
    let interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
    let bad_samples = files.dir.join(BAD_SAMPLES);
    let (mut printed, mut warm_up) = (Ok(()), WarmUp::new(screen));
    let mut on_progress = |progress: LaunchProgress<'_>| {
        let line = match progress {
            LaunchProgress::Line(line) => Some(line.to_owned()),
            LaunchProgress::WarmUp { ready, of } => warm_up.show(ready, of),
        };
        if let (Ok(()), Some(line)) = (&printed, line) {
            printed = screen.progress(&line);
        }
    };
    let hashes_path = files.dir.join(RECORDING_HASHES);
    let hashes = Arc::new(RecordingHashes::load(&hashes_path).unwrap_or_else(|error| {
        screen.warn(&format!("recordings that have changed are not noticed ({error}): {}", hashes_path.display()));
        RecordingHashes::default()
    }));
    let launched = Setup::new(resolved, corpora, checkpoint, Some(bad_samples), emitter)
        .and_then(|setup| match start.init {
            Some(init) => setup.with_initial_weights(init),
            None => Ok(setup),
        })
        .map(|setup| setup.with_recordings(hashes.wrap(Arc::new(FromFiles))).with_ranks(group.cloned()))
        .and_then(|setup| setup.launch(&mut on_progress));
    printed?;
    let (launched, warm) = launched.map_err(exit_of_launch)?;
    let cached_from_epoch = launched.cached_from_epoch(plan);
    // The trainer is bound last, so that it is dropped before the arenas it uses.
    let Launched { roles, schedule, model, num_parameters, validation, init, mut trainer } = launched;
    screen.progress(&buffer_line(warm.ready, warm.of, warm.waited))?;
    startup_lines(plan, StartupPhase::Starting).iter().try_for_each(|line| screen.progress(line))?;
    screen.progress(&show_short(plan))?;
    plan.notes.iter().try_for_each(|note| screen.note(note))?;
    let hints = plan.hints.iter().map(|hint| format!("   Hint: {hint}"));
    hints
        .chain(plan.advice.iter().map(|advice| format!("   Advice: {advice}")))
        .try_for_each(|line| screen.progress(&line))?;
    screen.progress(&format!(
        "   {} model, {} million parameters; {}",
        plan.model_size.name(),
        millions(num_parameters),
        plan.training.describe()
    ))?;
    if let Some(line) = ranks::describe(plan) {
        screen.progress(&line)?;
    }
    let (num_validation, num_too_long) = (validation.count, validation.too_long);
    let too_long =
        if num_too_long == 0 { String::new() } else { format!(" (and not on {num_too_long} that no bucket holds)") };
    screen.progress(&format!(
        "   Training on {} utterances, validating on {num_validation}{too_long}",
        corpora.train.rows().len()
    ))?;
    if let Some(languages) = describe_languages(&corpora.train) {
        screen.progress(&format!("   {languages}"))?;
    }
    let mut skipped = plan.skipped_utterances();
    let num_excluded = plan.corpus.as_ref().map_or(0, |corpus| corpus.num_excluded);
    if num_excluded > 0 {
        skipped.push(format!("{num_excluded} excluded by --exclude-ids"));
    }
    if !skipped.is_empty() {
        screen.note(&format!("Not trained on: {}", skipped.join("; ")))?;
    }
    screen.progress(&format!("   {}", plan.training.describe_length(schedule.steps_per_epoch)))?;
    if let Some((checkpoint, report)) = start.init.zip(init.as_ref()) {
        describe_init(checkpoint, report, plan).iter().try_for_each(|line| screen.progress(line))?;
    }
    if let Some(checkpoint) = checkpoint {
        screen.progress(&format!("   Resuming from step {}: {}", checkpoint.step, checkpoint.path.display()))?;
        if checkpoint.step >= schedule.total_steps {
            let total = schedule.total_steps;
            screen.progress(&format!(
                "   Nothing to train: the run ends at step {total}. --max-steps or --epochs extends it"
            ))?;
        }
    }
    let goes_on = checkpoint.filter(|checkpoint| checkpoint.step < schedule.total_steps);
    if let (true, Some(checkpoint), Some(folder)) = (plan.training.resume.is_some(), goes_on, &files.folder) {
        // Only now: a checkpoint that cannot be resumed from leaves the folder unchanged, and so does one without steps left.
        folder.move_aside_after(checkpoint.step).map_err(|error| exit_of("--resume", error))?;
    }
    let sampler = match resolved.machine.kind() {
        DeviceKind::Cpu => None,
        _ => Some(Sampler::start(&resolved.machine, &roles, emitter).context("cannot sample the process's memory")?),
    };
    if let Some(folder) = &files.folder {
        ranks::note_start(folder.path());
    }
    screen.set_silent(false);
    if let Some(group) = group {
        group.set_collective_timeout(Duration::from_secs(plan.rank_timeout_s));
    }
    let flag = StopFlag::new();
    let interval = if resolved.machine.kind() == DeviceKind::Cuda { Duration::ZERO } else { SAMPLE_INTERVAL };
    // Rank 0 synthesises: the others hold the same weights.
    let sentences = if files.folder.is_some() { SampleSentence::from_validation(corpora) } else { Vec::new() };
    let mut reporter = RunReporter::new(ReporterParts {
        screen,
        emitter,
        roles: &roles,
        memory: MemoryWatch::new().context("cannot watch memory")?,
        first_step: trainer.step(),
        total_steps: schedule.total_steps,
        cached_from_epoch,
        always_estimates: plan.mode == Mode::Cpu,
        hashes: RecordingCheck { hashes, path: hashes_path },
        samples: SampleWriter::new(files.dir.join(SAMPLES), sentences, interval, emitter),
        stop: StopCheck { flag: flag.clone(), interrupts, sampler, cause: None },
    });
    let outcome = tandem_train::run(&mut trainer, files.folder.as_ref(), &model, &schedule, &flag, &mut reporter);
    let outcome = outcome.map_err(anyhow::Error::new).context("training stopped")?;
    let ReportedRun { samples, stop, last_checkpoint, totals } = reporter.finish();
    let (replaced, verified) = (trainer.feed().bad_samples(), trainer.feed().verified());
    if let Some(verified) = verified {
        emitter.emit(RunEvent::Note { text: verified_text(verified) });
    }
    trainer.stop().map_err(anyhow::Error::new).context("the run did not end cleanly")?;
    if let Some(Err(error)) = stop.sampler.map(Sampler::finish) {
        screen.warn(&format!("some samples of the process's memory are missing: {error}"));
    }
    let interrupt = match (stop.cause, last_checkpoint) {
        (Some(StopCause::OverLimit(error)), _) => {
            let stopped = format!("training stopped after step {}; its checkpoint is saved", outcome.step);
            return Err(Exit::Failed(anyhow::Error::new(error).context(stopped)));
        }
        (Some(StopCause::Interrupted(interrupt)), _) => Some(interrupt),
        // Another rank received a signal, and all ranks stop with it.
        (None, _) if outcome.stopped => Some(Interrupt::Terminated),
        (None, Some(checkpoint)) => synthesize_last(samples, &checkpoint, &stop.interrupts, screen),
        (None, None) => None,
    };
    let (total_steps, num_validated) = (schedule.total_steps, num_validation);
    Ok(FinishedRun { outcome, interrupt, replaced, verified, totals, total_steps, num_validated })
}

/// Synthesises the samples of the last checkpoint and waits for them, unless a signal arrives, which is returned.
fn synthesize_last(
    samples: SampleWriter,
    checkpoint: &SavedCheckpoint,
    interrupts: &Interrupts,
    screen: &Screen,
) -> Option<Interrupt> {
    let (count, folder) = (samples.num_sentences(), samples.folder().display().to_string());
    if count > 0 {
        let sentences = if count == 1 { "a validation sentence" } else { "validation sentences" };
        // A closed output does not fail the run.
        let _ = screen.progress(&format!("Synthesising {sentences} with the last checkpoint into {folder}"));
    }
    let problem = samples.finish(checkpoint.step, &checkpoint.path, &mut || interrupts.seen().is_some());
    if let Some(problem) = problem {
        screen.warn(&format!("cannot synthesise a sample: {problem}"));
    }
    interrupts.seen()
}
