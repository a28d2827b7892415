//! Reports a training run on the screen and in the log while it runs, and decides when it has to stop early.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_checkpoint::WrittenCheckpoint;
use tandem_device::bytes::mib_ceil;
use tandem_device::{Isolation, IsolationError};
use tandem_events::{Emitter, Role};
use tandem_feed::RecordingHashes;
use tandem_launch::samples::SampleWriter;
use tandem_launch::step_events;
use tandem_launch::{MemoryWatch, Sampler};
use tandem_pipeline::StopFlag;
use tandem_train::{AlignmentReport, RunListener, StepLoop, StepReport, ValidationReport};

use crate::duration::short_duration;
use crate::farewell::mel_score;
use crate::interrupts::{Interrupt, Interrupts};
use crate::screen::Screen;

/// A progress line is printed after this long, or after this many steps, whichever comes first.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
const PROGRESS_STEPS: u64 = 50;
/// A memory line is printed every this many steps.
const MEMORY_STEPS: u64 = 100;
/// The remaining time is estimated from this many steps.
const TIMED_STEPS: u64 = 5;
/// Changed recordings named in one report.
const MAX_NAMED: usize = 5;
/// Off the CPU, a shorter estimate is not printed.
const MIN_ESTIMATE: Duration = Duration::from_secs(20);

/// What a [`RunReporter`] watches.
pub(crate) struct ReporterParts<'a> {
    pub(crate) screen: &'a Screen,
    pub(crate) emitter: &'a Emitter,
    pub(crate) roles: &'a Isolation,
    pub(crate) memory: MemoryWatch,
    /// Steps done before this start of the run.
    pub(crate) first_step: u64,
    pub(crate) total_steps: u64,
    /// Print the estimate before the first progress line, however short: on the CPU, where runs are slow.
    pub(crate) always_estimates: bool,
    pub(crate) hashes: RecordingCheck,
    pub(crate) samples: SampleWriter,
    pub(crate) stop: StopCheck,
}

/// Reports steps, validations and checkpoints.
pub(crate) struct RunReporter<'a> {
    parts: ReporterParts<'a>,
    started: Instant,
    last_progress: Instant,
    window: ProgressWindow,
    /// When a validation line was last printed.
    last_validation: Option<Instant>,
    has_estimated: bool,
    last_checkpoint: Option<SavedCheckpoint>,
}

/// What is left of a reporter after the run.
pub(crate) struct ReportedRun {
    pub(crate) samples: SampleWriter,
    pub(crate) stop: StopCheck,
    pub(crate) last_checkpoint: Option<SavedCheckpoint>,
}

/// A checkpoint this run has written.
pub(crate) struct SavedCheckpoint {
    pub(crate) step: u64,
    pub(crate) path: PathBuf,
}

/// Sums over the steps since the last progress line.
#[derive(Default)]
struct ProgressWindow {
    steps: u64,
    wall_ns: u64,
    wait_ns: u64,
    mel_loss: f64,
    loss: f64,
}

/// Why a run stops before its last step.
pub(crate) enum StopCause {
    Interrupted(Interrupt),
    OverLimit(IsolationError),
}

/// Checks after every step whether the run has to stop early.
pub(crate) struct StopCheck {
    pub(crate) flag: StopFlag,
    pub(crate) interrupts: Interrupts,
    /// None on the CPU, which has no process limit.
    pub(crate) sampler: Option<Sampler>,
    pub(crate) cause: Option<StopCause>,
}

impl StopCheck {
    /// Raises the stop flag when the run has to stop. Returns the line to print, once.
    fn check(&mut self) -> Option<String> {
        if self.cause.is_some() {
            return None;
        }
        let over_limit = self.sampler.as_ref().and_then(|sampler| sampler.check().err());
        let (cause, line) = match (over_limit, self.interrupts.seen()) {
            (Some(error), _) => {
                let line = format!("⚠️ {error}. Stopping: writing a checkpoint");
                (StopCause::OverLimit(error), line)
            }
            (None, Some(interrupt)) => {
                let again = if interrupt == Interrupt::CtrlC { " (press Ctrl-C again to quit at once)" } else { "" };
                (StopCause::Interrupted(interrupt), format!("Stopping: writing a checkpoint{again}"))
            }
            (None, None) => return None,
        };
        self.cause = Some(cause);
        self.flag.raise();
        Some(line)
    }
}

/// Hashes of the recordings, and the file that keeps them.
pub(crate) struct RecordingCheck {
    pub(crate) hashes: Arc<RecordingHashes>,
    pub(crate) path: PathBuf,
}

impl RecordingCheck {
    /// Names recordings that differ from those of the earlier part of the run.
    fn report(&self, screen: &Screen) {
        let changed = self.hashes.take_changed();
        for recording in changed.iter().take(MAX_NAMED) {
            screen.warn(&format!("the recording has changed since the run read it last: {recording}"));
        }
        let more = changed.len().saturating_sub(MAX_NAMED);
        if more > 0 {
            screen.warn(&format!("{more} more recordings have changed since the run read them last"));
        }
    }

    fn save(&self, screen: &Screen) {
        if let Err(error) = self.hashes.save(&self.path) {
            screen.warn(&format!("cannot write hashes of the recordings ({error}): {}", self.path.display()));
        }
    }
}

impl<'a> RunReporter<'a> {
    pub(crate) fn new(parts: ReporterParts<'a>) -> RunReporter<'a> {
        let now = Instant::now();
        RunReporter {
            parts,
            started: now,
            last_progress: now,
            window: ProgressWindow::default(),
            last_validation: None,
            has_estimated: false,
            last_checkpoint: None,
        }
    }

    /// Ends the reports.
    pub(crate) fn finish(self) -> ReportedRun {
        self.parts.hashes.report(self.parts.screen);
        let ReporterParts { samples, stop, .. } = self.parts;
        ReportedRun { samples, stop, last_checkpoint: self.last_checkpoint }
    }

    /// Prints one line of `name value` fields, two spaces apart.
    fn print_progress(&mut self, report: &StepReport, num_bad: usize) {
        let ProgressWindow { steps, wall_ns, wait_ns, mel_loss, loss } = std::mem::take(&mut self.window);
        let mean = |sum: f64| sum / steps.max(1) as f64;
        let seconds = wall_ns as f64 / 1e9;
        let used_mb = |role| mib_ceil(self.parts.roles.partition(role).arena.memory().used_bytes);
        let eta = match self.remaining(report.step) {
            Some(remaining) => format!("  ETA {}", short_duration(remaining)),
            None => String::new(),
        };
        let bad = if num_bad == 0 { String::new() } else { format!("  replaced {num_bad}") };
        self.parts.screen.progress_nonblocking(&format!(
            "Step {}/{}  loss {:.3}  mel {:.3}  lr {:.1e}  {:.2} steps/s  stall {:.1} %  \
             data memory {} MB  model memory {} MB{bad}{eta}",
            report.step,
            self.parts.total_steps,
            mean(loss),
            mean(mel_loss),
            report.lr,
            steps as f64 / seconds.max(1e-9),
            100.0 * wait_ns as f64 / (wall_ns as f64).max(1.0),
            used_mb(Role::Data),
            used_mb(Role::Model),
        ));
        self.last_progress = Instant::now();
    }

    /// The time to the last step at the mean speed of this run so far, validations and checkpoints included. None after the
    /// last step.
    fn remaining(&self, step: u64) -> Option<Duration> {
        let done = step.checked_sub(self.parts.first_step).filter(|done| *done > 0)?;
        let left = self.parts.total_steps.checked_sub(step).filter(|left| *left > 0)?;
        Duration::try_from_secs_f64(self.started.elapsed().as_secs_f64() / done as f64 * left as f64).ok()
    }

    /// Estimates the time of the run once, from its first steps. Where estimates are always printed, at the latest before
    /// the first progress line.
    fn estimate(&mut self, step: u64, is_progress_due: bool) {
        let done = step - self.parts.first_step;
        let has_enough = done >= TIMED_STEPS || (is_progress_due && self.parts.always_estimates);
        if self.has_estimated || !has_enough {
            return;
        }
        let Some(remaining) = self.remaining(step) else { return };
        self.has_estimated = true;
        if self.parts.always_estimates || remaining > MIN_ESTIMATE {
            let time = short_duration(remaining);
            let measured = if done == 1 { "the first step".to_owned() } else { format!("the first {done} steps") };
            self.parts.screen.progress_nonblocking(&format!("Estimated time: {time} (from {measured})"));
        }
    }
}

impl RunListener for RunReporter<'_> {
    fn step(&mut self, report: &StepReport, trainer: &StepLoop) {
        step_events::step(report, self.parts.emitter);
        self.parts.memory.step(report.step, self.parts.roles, trainer.feed(), self.parts.emitter);
        if report.skipped {
            self.parts.screen.warn(&format!("step {} skipped: non-finite gradient", report.step));
        }
        self.window.steps += 1;
        self.window.wall_ns += report.wall_ns;
        self.window.wait_ns += report.wait_ns;
        self.window.loss += report.loss();
        self.window.mel_loss += report.losses.get("mel").unwrap_or_default();
        let is_last = report.step == self.parts.total_steps;
        let is_due = is_last || self.window.steps >= PROGRESS_STEPS || self.last_progress.elapsed() >= PROGRESS_EVERY;
        self.estimate(report.step, is_due);
        if is_due {
            self.parts.hashes.report(self.parts.screen);
            self.print_progress(report, trainer.feed().num_bad());
        }
        if report.step.is_multiple_of(MEMORY_STEPS) {
            let [data, model] = self.parts.roles.memory_stats();
            self.parts.screen.progress_nonblocking(&format!("[Step {}] {data}, {model}", report.step));
        }
        if let Some(line) = self.parts.stop.check() {
            self.parts.screen.progress_nonblocking(&line);
        }
    }

    fn validation(&mut self, report: &ValidationReport) {
        // Epochs of a small corpus are short: the log has every validation, the screen one in ten seconds.
        let now = Instant::now();
        if report.step == self.parts.total_steps || is_due(self.last_validation, now) {
            self.last_validation = Some(now);
            self.parts.screen.progress_nonblocking(&format!(
                "Validation after step {}: {}, {} utterances; {}",
                report.step,
                mel_score(report),
                report.utterances,
                alignment_text(&report.alignment.unwrap_or_default()),
            ));
        }
        step_events::validation(report, self.parts.emitter);
    }

    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration) {
        let screen = self.parts.screen;
        let name = written.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        step_events::checkpoint(step, written, took, self.parts.emitter);
        let (mb, seconds) = (mib_ceil(written.bytes), took.as_secs_f64());
        screen.progress_nonblocking(&format!("Wrote {name} ({mb} MB in {seconds:.1} s)"));
        if let Some(error) = &written.not_removed {
            screen.warn(&format!("cannot remove an old checkpoint: {error}"));
        }
        self.last_checkpoint = Some(SavedCheckpoint { step, path: written.path.clone() });
        self.parts.hashes.save(screen);
        // The samples of the last checkpoint are synthesised after the run.
        if step < self.parts.total_steps
            && let Some(problem) = self.parts.samples.checkpoint(step, &written.path)
        {
            screen.warn(&format!("cannot synthesise a sample: {problem}"));
        }
    }

    fn note(&mut self, text: &str) {
        self.parts.screen.progress_nonblocking(text);
    }
}

fn alignment_text(alignment: &AlignmentReport) -> String {
    if alignment.is_complete() {
        return "every token aligned".to_owned();
    }
    format!(
        "alignment broken: {} of {} tokens have no frame, the durations of {} utterances do not sum to their length",
        alignment.tokens_without_frames, alignment.tokens, alignment.wrong_duration_sums
    )
}

/// Whether a validation line is due again.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= PROGRESS_EVERY)
}

#[cfg(test)]
mod tests {
    use tandem_device::{ArenaSpec, Machine, RoleSetup, SimSpec};

    use super::*;

    #[test]
    fn validation_lines_are_printed_every_ten_seconds() {
        let start = Instant::now();
        let check = |seconds: f64, expected| {
            let now = start + Duration::from_secs_f64(seconds);
            assert_eq!(is_due(Some(start), now), expected, "after {seconds} s");
        };
        assert!(is_due(None, start), "the first always is");
        check(0.0, false);
        check(9.9, false);
        check(10.0, true);
    }

    #[test]
    fn a_process_over_its_limits_stops_the_run_with_one_line() {
        let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
        // The limits leave no room for the driver.
        let spec = |role| {
            let arena_bytes = 64 << 20;
            let arena = ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true };
            RoleSetup { card: 0, arena }
        };
        let roles = Isolation::set_up(&machine, spec(Role::Data), spec(Role::Model)).unwrap();
        let sampler = Sampler::start(&machine, &roles, &Emitter::none()).unwrap();
        while sampler.check().is_ok() {
            std::thread::yield_now();
        }
        let (flag, interrupts) = (StopFlag::new(), Interrupts::listen().unwrap());
        let mut stop = StopCheck { flag: flag.clone(), interrupts, sampler: Some(sampler), cause: None };
        assert!(stop.check().unwrap().contains("Stopping: writing a checkpoint"));
        assert!(flag.is_raised() && matches!(stop.cause, Some(StopCause::OverLimit(_))));
        assert_eq!(stop.check(), None);
    }
}
