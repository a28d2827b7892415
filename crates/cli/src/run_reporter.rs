//! Reports a training run on the screen and in the log while it runs, and decides when it has to stop early.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_checkpoint::WrittenCheckpoint;
use tandem_device::bytes::mib_ceil;
use tandem_device::{Isolation, IsolationError};
use tandem_diagnosis::StepWarmUp;
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
use crate::live_line::LiveLine;
use crate::rate_limit::{LINE_EVERY, RateLimit};
use crate::run_progress::{REQUIRED_FIELDS, RunProgress};
use crate::run_totals::RunTotals;
use crate::screen::Screen;

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
    /// The first epoch in which every recording is already in the cache.
    pub(crate) cached_from_epoch: Option<u64>,
    /// Print the estimate before the first progress line, however short: on the CPU, where runs are slow.
    pub(crate) always_estimates: bool,
    pub(crate) hashes: RecordingCheck,
    pub(crate) samples: SampleWriter,
    pub(crate) stop: StopCheck,
}

/// Reports steps, validations and checkpoints.
pub(crate) struct RunReporter<'a> {
    parts: ReporterParts<'a>,
    progress: RunProgress,
    /// Where the output is a terminal.
    live: Option<LiveLine>,
    /// Epochs of a small corpus are short: the log has every validation, the screen one in ten seconds.
    validations: RateLimit,
    has_estimated: bool,
    last_checkpoint: Option<SavedCheckpoint>,
    totals: RunTotals,
}

/// What is left of a reporter after the run.
pub(crate) struct ReportedRun {
    pub(crate) samples: SampleWriter,
    pub(crate) stop: StopCheck,
    pub(crate) last_checkpoint: Option<SavedCheckpoint>,
    pub(crate) totals: RunTotals,
}

/// A checkpoint this run has written.
pub(crate) struct SavedCheckpoint {
    pub(crate) step: u64,
    pub(crate) path: PathBuf,
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
        let live = parts.screen.live_line();
        let warm_up = StepWarmUp::new(parts.cached_from_epoch, 0);
        let progress = RunProgress::new(parts.first_step, parts.total_steps, live.is_some(), warm_up, Instant::now());
        let validations = RateLimit::from_now_on(LINE_EVERY);
        RunReporter {
            parts,
            progress,
            live,
            validations,
            has_estimated: false,
            last_checkpoint: None,
            totals: RunTotals::default(),
        }
    }

    /// Ends the reports.
    pub(crate) fn finish(self) -> ReportedRun {
        self.parts.hashes.report(self.parts.screen);
        // Ranks that write no checkpoints have not saved them before.
        self.parts.hashes.save(self.parts.screen);
        let ReporterParts { samples, stop, .. } = self.parts;
        ReportedRun { samples, stop, last_checkpoint: self.last_checkpoint, totals: self.totals }
    }

    /// Prints a line of progress.
    fn print_progress(&mut self, report: &StepReport, num_bad: usize, now: Instant) {
        let used_mb = |role| mib_ceil(self.parts.roles.partition(role).arena.memory().used_bytes);
        let line = self.progress.line(report, Role::BOTH.map(used_mb), num_bad, now);
        self.parts.screen.progress_nonblocking(&line);
    }

    /// Redraws the live line.
    fn draw_live(&self, step: u64, now: Instant) {
        let Some(live) = &self.live else { return };
        let [data, model] = self.parts.roles.memory_stats();
        let (progress, fields) = self.progress.live_fields(step, format!("{data}, {model}"), now);
        live.show(progress, &fields, REQUIRED_FIELDS);
    }

    /// Estimates the time of the run once, from its first steps. Where estimates are always printed, at the latest before
    /// the first progress line.
    fn estimate(&mut self, step: u64, is_progress_due: bool, now: Instant) {
        let done = step - self.parts.first_step;
        let has_enough = done >= TIMED_STEPS || (is_progress_due && self.parts.always_estimates);
        if self.has_estimated || !has_enough || step >= self.parts.total_steps {
            return;
        }
        let Some(remaining) = self.progress.remaining(step, now) else { return };
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
        self.totals.step(report);
        self.parts.memory.step(report.step, self.parts.roles, trainer.feed(), self.parts.emitter);
        if report.skipped {
            self.parts.screen.warn(&format!("step {} skipped: non-finite gradient", report.step));
        }
        let now = Instant::now();
        let stopping = self.parts.stop.check();
        let due = self.progress.step(report, stopping.is_some(), now);
        self.estimate(report.step, due.line, now);
        if due.line || due.live {
            self.parts.hashes.report(self.parts.screen);
        }
        if due.live {
            self.draw_live(report.step, now);
        }
        if due.line {
            self.print_progress(report, trainer.feed().num_bad(), now);
        }
        if due.memory {
            let [data, model] = self.parts.roles.memory_stats();
            self.parts.screen.progress_nonblocking(&format!("[Step {}] {data}, {model}", report.step));
        }
        if let Some(line) = stopping {
            self.parts.screen.progress_nonblocking(&line);
        }
    }

    fn validation(&mut self, report: &ValidationReport) {
        if report.step == self.parts.total_steps || self.validations.is_due(Instant::now()) {
            self.parts.screen.progress_nonblocking(&format!(
                "Validation after step {}: {}, {} utterances; {}",
                report.step,
                mel_score(report),
                report.utterances,
                alignment_text(&report.alignment.unwrap_or_default()),
            ));
        }
        step_events::validation(report, self.parts.emitter);
        self.totals.validation(report);
    }

    fn checkpoint(&mut self, step: u64, written: &WrittenCheckpoint, took: Duration) {
        let screen = self.parts.screen;
        let name = written.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        step_events::checkpoint(step, written, took, self.parts.emitter);
        self.totals.checkpoint(&written.path);
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

#[cfg(test)]
mod tests {
    use tandem_device::{ArenaSpec, Machine, RoleSetup, SimSpec};

    use super::*;

    #[test]
    fn a_process_over_its_limits_stops_the_run_with_one_line() {
        let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
        // The limits leave no room for the driver.
        let spec = |role| {
            let arena_bytes = 64 << 20;
            let arena = ArenaSpec { capped: true, ..ArenaSpec::new(role, arena_bytes) };
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
