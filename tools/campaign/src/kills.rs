//! SIGKILL at random moments: a killed run resumes to the bytes of an undisturbed one, and a killed corpus command can be
//! repeated.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::audio_files::wav;
use crate::case::CaseContext;
use crate::checkpoints::checkpoints;
use crate::command::{CommandSpec, HowEnded, RunningCommand};
use crate::fixtures::{TrainingVariant, VARIANTS};
use crate::tree;
use crate::verdict::Expectation;

const SIGKILL: i32 = 9;

/// When a process is disturbed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DisturbTime {
    /// This long after the start.
    After(Duration),
    /// This long after the nth temporary checkpoint folder has appeared.
    InCheckpoint(usize, Duration),
}

impl DisturbTime {
    /// Any time of a run that takes `wall`, start-up included; or one while a checkpoint is written.
    pub(crate) fn choose(case: &mut CaseContext<'_>, wall: Duration) -> DisturbTime {
        if case.choices.one_in(3) {
            let delay = Duration::from_secs_f64(case.choices.fraction() * 0.04);
            DisturbTime::InCheckpoint(case.choices.between(1, 3), delay)
        } else {
            DisturbTime::After(wall.mul_f64(case.choices.fraction() * 1.1))
        }
    }

    /// Waits for it. False if the process has ended before.
    pub(crate) fn wait(self, running: &mut RunningCommand<'_>, run: &Path) -> anyhow::Result<bool> {
        match self {
            DisturbTime::After(time) => running.wait_until(|elapsed| elapsed >= time),
            DisturbTime::InCheckpoint(nth, delay) => {
                let (mut seen, mut writing) = (0, false);
                let appeared = running.wait_until(|_| {
                    let now = is_writing_checkpoint(run);
                    seen += usize::from(now && !writing);
                    writing = now;
                    seen >= nth
                })?;
                let at = running.elapsed() + delay;
                Ok(appeared && running.wait_until(|elapsed| elapsed >= at)?)
            }
        }
    }
}

/// Whether a temporary checkpoint folder exists.
fn is_writing_checkpoint(run: &Path) -> bool {
    let Ok(entries) = fs::read_dir(run) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-checkpoint-"))
}

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    match case.choices.below(10) {
        0 => kill_demo(case),
        1 => kill_index(case),
        _ => kill_training(case),
    }
}

fn kill_training(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let reference = case.reference(variant)?;
    case.copy_corpus()?;
    let before = tree::digest(&case.path("corpus"))?;
    for _ in 0..case.choices.between(1, 4) {
        let time = DisturbTime::choose(case, reference.wall);
        let mut running = case.spawn(&variant.command())?;
        let hit = time.wait(&mut running, &case.path("run"))?;
        running.signal(Signal::KILL)?;
        let outcome = running.wait()?;
        case.judge(&outcome, &Expectation::code(0).or_signal(SIGKILL));
        if outcome.ended == HowEnded::Signalled(SIGKILL) {
            case.counts.inputs += 1;
            case.count(if hit && matches!(time, DisturbTime::InCheckpoint(..)) {
                "kills while a checkpoint was written"
            } else {
                "kills at any time"
            });
        }
        complete_or_absent(case)?;
    }
    if case.choices.one_in(5) {
        case.run(&CommandSpec::new("monitor --once run"))?;
    }
    finish(case, variant)?;
    case.unchanged("corpus", &before)
}

/// Trains to the end and compares.
pub(crate) fn finish(case: &mut CaseContext<'_>, variant: TrainingVariant) -> anyhow::Result<()> {
    let reference = case.reference(variant)?;
    case.run_expecting(&variant.command(), &Expectation::code(0))?;
    case.same_bytes("run", &reference);
    let left: Vec<String> = fs::read_dir(case.path("run"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(".tmp-"))
        .collect();
    if !left.is_empty() {
        case.fail(format!("left in the run folder: {}", left.join(", ")));
    }
    Ok(())
}

/// A checkpoint has all its files, or does not exist.
pub(crate) fn complete_or_absent(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    for name in checkpoints(&case.path("run"))? {
        for file in ["weights.safetensors", "optimizer.safetensors", "model.json", "state.json"] {
            if !case.path(&format!("run/{name}/{file}")).is_file() {
                case.fail(format!("{name} lacks {file}"));
            }
        }
    }
    Ok(())
}

/// Kills a command after `wall`, unless it has ended by then. Kills are counted as `what`.
fn kill_after(
    case: &mut CaseContext<'_>,
    spec: &CommandSpec,
    wall: Duration,
    what: &'static str,
) -> anyhow::Result<()> {
    let mut running = case.spawn(spec)?;
    running.wait_until(|elapsed| elapsed >= wall)?;
    running.signal(Signal::KILL)?;
    let outcome = running.wait()?;
    case.judge(&outcome, &Expectation::code(0).or_signal(SIGKILL));
    if outcome.ended == HowEnded::Signalled(SIGKILL) {
        case.counts.inputs += 1;
        case.count(what);
    }
    Ok(())
}

/// Kills `corpus demo`. The same command then succeeds, or says what to do, and the result is that of an undisturbed one.
fn kill_demo(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let spec = |folder: &str| CommandSpec::new(&format!("corpus demo --minutes 6 -o {folder}"));
    let clean = case.run_expecting(&spec("clean"), &Expectation::code(0))?;
    let expected = tree::digest(&case.path("clean"))?;
    for _ in 0..6 {
        let wall = clean.wall.mul_f64(case.choices.fraction());
        kill_after(case, &spec("killed"), wall, "kills of corpus demo")?;
        // An incomplete corpus must not pass for a complete one.
        if case.path("killed").exists() {
            let found = tree::digest(&case.path("killed"))?;
            let checked = case.run(&CommandSpec::new("corpus check killed -q"))?;
            if checked.succeeded() && found != expected {
                case.fail("an incomplete demo corpus passes the check");
            }
        }
        let again = case.run(&spec("killed"))?;
        if !again.succeeded() {
            case.remove("killed");
            case.run_expecting(&spec("killed"), &Expectation::code(0))?;
        }
        let differences = tree::differences(&expected, &tree::digest(&case.path("killed"))?);
        if !differences.is_empty() {
            case.fail(format!("the repeated demo corpus differs: {}", differences.join(", ")));
        }
        case.remove("killed");
    }
    Ok(())
}

/// Kills commands that measure lengths and save them: `corpus check`, and a plan for a run folder. The next plan and the
/// next check are those of undisturbed commands.
fn kill_index(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let mut list = String::new();
    let bytes = wav(1, 1, 8_000, 16, 0.35);
    for row in 0..1500 {
        case.write(&format!("corpus/wavs/r{row}.wav"), &bytes)?;
        list += &format!("r{row}|Hi.\n");
    }
    case.write("corpus/metadata.csv", list)?;
    fs::create_dir_all(case.path("run"))?;
    let plan = "plan --mode cpu --model-size nano --batch-size 2 --json --train-data corpus --checkpoint-dir run";
    let specs = [CommandSpec::new(plan), CommandSpec::new("corpus check corpus --json")];
    let mut clean = Vec::new();
    for spec in &specs {
        let outcome = case.run_expecting(spec, &Expectation::code(0))?;
        let Some(document) = case.document(&outcome) else { return Ok(()) };
        clean.push((outcome.wall, document));
    }
    for _ in 0..8 {
        // Measured again: what was saved is gone.
        case.remove("home/.cache");
        case.remove("run");
        fs::create_dir_all(case.path("run"))?;
        let killed = case.choices.below(specs.len());
        let wall = clean[killed].0.mul_f64(case.choices.fraction());
        kill_after(case, &specs[killed], wall, "kills while lengths were measured")?;
        for (spec, (_, expected)) in specs.iter().zip(&clean) {
            let again = case.run_expecting(spec, &Expectation::code(0))?;
            let Some(found) = case.document(&again) else { continue };
            // A plan also names the memory that is free now.
            let same =
                if expected["corpus"].is_null() { found == *expected } else { found["corpus"] == expected["corpus"] };
            if !same {
                case.fail("after a kill the result differs from that of an undisturbed command");
            }
        }
    }
    Ok(())
}
