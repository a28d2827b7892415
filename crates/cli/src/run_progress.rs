//! What `train` shows of its steps, and how often: on a terminal one live line, ten times a second at most; elsewhere a line
//! every ten seconds at most, and one for the last step.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tandem_diagnosis::StepWarmUp;
use tandem_train::StepReport;

use crate::duration::short_duration;
use crate::live_line::{Progress, left_text};
use crate::rate_limit::{LINE_EVERY, LIVE_EVERY, RateLimit};

/// Memory is reported at multiples of this step.
const MEMORY_STEPS: u64 = 100;
/// The live line shows means over this time.
const RECENT_NS: u64 = 5_000_000_000;
/// Fields of the live line that a narrow terminal shows, too.
pub(crate) const REQUIRED_FIELDS: usize = 5;

/// What to show after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgressDue {
    /// Redraw the live line.
    pub(crate) live: bool,
    /// Print a line.
    pub(crate) line: bool,
    /// Print the memory of both roles.
    pub(crate) memory: bool,
}

/// The steps of a run so far.
pub(crate) struct RunProgress {
    first_step: u64,
    total_steps: u64,
    started: Instant,
    is_live: bool,
    live: RateLimit,
    line: RateLimit,
    memory: RateLimit,
    warm_up: StepWarmUp,
    is_warming_up: bool,
    since_line: StepMeans,
    recent: VecDeque<StepTimes>,
    recent_ns: u64,
}

/// The part of a step that is shown.
#[derive(Clone, Copy, Debug)]
struct StepTimes {
    wall_ns: u64,
    wait_ns: u64,
    loss: f64,
    mel_loss: f64,
}

/// Sums over some steps.
#[derive(Clone, Copy, Debug, Default)]
struct StepMeans {
    steps: u64,
    loss: f64,
    mel_loss: f64,
    /// The steps whose times are summed: all, or those since the warm-up.
    timed_steps: u64,
    wall_ns: u64,
    wait_ns: u64,
}

impl StepMeans {
    fn add(&mut self, step: &StepTimes) {
        self.steps += 1;
        self.loss += step.loss;
        self.mel_loss += step.mel_loss;
        self.timed_steps += 1;
        self.wall_ns += step.wall_ns;
        self.wait_ns += step.wait_ns;
    }

    fn forget_times(&mut self) {
        (self.timed_steps, self.wall_ns, self.wait_ns) = (0, 0, 0);
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.steps.max(1) as f64
    }

    fn steps_per_s(&self) -> f64 {
        self.timed_steps as f64 * 1e9 / (self.wall_ns as f64).max(1.0)
    }

    fn stall_percent(&self) -> f64 {
        100.0 * self.wait_ns as f64 / (self.wall_ns as f64).max(1.0)
    }
}

impl RunProgress {
    /// A run that resumes after `first_step`. `is_live`: on a terminal. `warm_up`: from 0 ns, which is `now`.
    pub(crate) fn new(
        first_step: u64,
        total_steps: u64,
        is_live: bool,
        warm_up: StepWarmUp,
        now: Instant,
    ) -> RunProgress {
        RunProgress {
            warm_up,
            is_warming_up: true,
            first_step,
            total_steps,
            started: now,
            is_live,
            live: RateLimit::from_now_on(LIVE_EVERY),
            line: RateLimit::after(now, LINE_EVERY),
            memory: RateLimit::from_now_on(LINE_EVERY),
            since_line: StepMeans::default(),
            recent: VecDeque::new(),
            recent_ns: 0,
        }
    }

    /// Adds a step and decides what to show. `is_stopping`: the run ends here although more steps were planned.
    pub(crate) fn step(&mut self, report: &StepReport, is_stopping: bool, now: Instant) -> ProgressDue {
        let (wall_ns, wait_ns, loss) = (report.wall_ns, report.wait_ns, report.loss());
        let step = StepTimes { wall_ns, wait_ns, loss, mel_loss: report.losses.get("mel").unwrap_or_default() };
        let since_start = now.saturating_duration_since(self.started).as_nanos() as u64;
        let was_warming_up = self.is_warming_up;
        self.is_warming_up = self.warm_up.covers(report.epoch, since_start);
        if was_warming_up && !self.is_warming_up {
            // Speed and stall are those of the run from here on.
            self.since_line.forget_times();
            (self.recent, self.recent_ns) = (VecDeque::new(), 0);
        }
        self.since_line.add(&step);
        self.recent_ns += step.wall_ns;
        self.recent.push_back(step);
        while self.recent.len() > 1 && self.recent_ns > RECENT_NS {
            self.recent_ns -= self.recent.pop_front().map_or(0, |step| step.wall_ns);
        }
        let is_last = is_stopping || report.step == self.total_steps;
        match self.is_live {
            true => ProgressDue { live: self.live.is_due(now) && !is_last, line: is_last, memory: false },
            false => ProgressDue {
                live: false,
                line: is_last | self.line.is_due(now),
                memory: report.step.is_multiple_of(MEMORY_STEPS) && self.memory.is_due(now),
            },
        }
    }

    /// The fields of the live line.
    pub(crate) fn live_fields(&self, step: u64, memory: String, now: Instant) -> (Progress, Vec<String>) {
        let mut means = StepMeans::default();
        self.recent.iter().for_each(|step| means.add(step));
        let progress = Progress { done: step, total: self.total_steps };
        let fields = vec![
            format!("{step}/{}", self.total_steps),
            format!("loss {:.3}", means.mean(means.loss)),
            format!("{:.2} steps/s", means.steps_per_s()),
            self.stall_text(&means),
            left_text(self.remaining(step, now)),
            format!("mel {:.3}", means.mean(means.mel_loss)),
            memory,
        ];
        (progress, fields)
    }

    /// A line of `name value` fields, two spaces apart, with means since the previous one.
    pub(crate) fn line(&mut self, report: &StepReport, memory_mb: [u64; 2], num_bad: usize, now: Instant) -> String {
        let means = std::mem::take(&mut self.since_line);
        let eta = match self.remaining(report.step, now).filter(|_| report.step < self.total_steps) {
            Some(remaining) => format!("  ETA {}", short_duration(remaining)),
            None => String::new(),
        };
        let bad = if num_bad == 0 { String::new() } else { format!("  replaced {num_bad}") };
        let [data_mb, model_mb] = memory_mb;
        format!(
            "Step {}/{}  loss {:.3}  mel {:.3}  lr {:.1e}  {:.2} steps/s  {}  \
             data memory {data_mb} MB  model memory {model_mb} MB{bad}{eta}",
            report.step,
            self.total_steps,
            means.mean(means.loss),
            means.mean(means.mel_loss),
            report.lr,
            means.steps_per_s(),
            self.stall_text(&means),
        )
    }

    /// While the cache fills, the step waits for decoding: said, because it ends.
    fn stall_text(&self, means: &StepMeans) -> String {
        let warm_up = if self.is_warming_up { " (warm-up)" } else { "" };
        format!("stall {:.1} %{warm_up}", means.stall_percent())
    }

    /// The time to the last step at the mean speed of this run so far, validations and checkpoints included.
    pub(crate) fn remaining(&self, step: u64, now: Instant) -> Option<Duration> {
        let done = step.saturating_sub(self.first_step);
        let total = self.total_steps.saturating_sub(self.first_step);
        Progress { done, total }.left(now.saturating_duration_since(self.started))
    }
}

#[cfg(test)]
mod tests {
    use tandem_train::{DeviceTimes, ReportedMetrics};

    use super::*;

    fn report(step: u64, wall_ns: u64) -> StepReport {
        let names = ["loss".to_owned(), "mel".to_owned()].to_vec();
        StepReport {
            step,
            epoch: 0,
            buckets: vec![0],
            losses: ReportedMetrics::new(names.into(), vec![2.0, 0.5]),
            gradient_norm: 1.0,
            lr: 1e-3,
            skipped: false,
            wall_ns,
            wait_ns: wall_ns / 4,
            on_device: DeviceTimes { first_batch: 0, began_ns: 0, busy_ns: 0, wait_ns: 0, wall_ns },
            rank_waits_ns: Vec::new(),
            cpu_ns: None,
        }
    }

    /// What is shown in `steps` steps of which `per_s` take a second: redraws, lines, memory lines.
    fn shown(is_live: bool, steps: u64, per_s: u64) -> (usize, usize, usize) {
        let start = Instant::now();
        let mut progress = RunProgress::new(0, steps, is_live, StepWarmUp::default(), start);
        let step_ns = 1_000_000_000 / per_s;
        let due: Vec<ProgressDue> = (1..=steps)
            .map(|step| progress.step(&report(step, step_ns), false, start + Duration::from_nanos(step * step_ns)))
            .collect();
        let count = |is: fn(&ProgressDue) -> bool| due.iter().filter(|due| is(due)).count();
        (count(|due| due.live), count(|due| due.line), count(|due| due.memory))
    }

    #[test]
    fn a_pipe_gets_a_line_in_ten_seconds_at_most_and_the_last_one() {
        // A minute at 300 steps a second: 180 memory lines would be due by their step.
        assert_eq!(shown(false, 18_000, 300), (0, 6, 6));
        // Steps of 25 seconds: each is a line, and memory is due at every hundredth.
        assert_eq!(shown(false, 200, 1), (0, 20, 2));
        assert_eq!(shown(false, 12, 300), (0, 1, 0), "only the last");
    }

    #[test]
    fn a_terminal_gets_ten_redraws_a_second_at_most_and_one_line_at_the_end() {
        let (live, lines, memory) = shown(true, 18_000, 300);
        assert!((550..=601).contains(&live), "{live}");
        assert_eq!((lines, memory), (1, 0));
    }

    #[test]
    fn the_live_line_has_means_of_the_last_seconds_and_the_time_left() {
        let start = Instant::now();
        let mut progress = RunProgress::new(100, 300, true, StepWarmUp::default(), start);
        // A slow beginning, which is forgotten.
        progress.step(&report(101, 60_000_000_000), false, start + Duration::from_secs(60));
        for step in 102..=200 {
            let at = start + Duration::from_secs(60) + Duration::from_millis(400 * (step - 101));
            progress.step(&report(step, 400_000_000), false, at);
        }
        let now = start + Duration::from_secs(100);
        let (bar, fields) = progress.live_fields(200, "data 1/2 MB".to_owned(), now);
        assert_eq!((bar.done, bar.total), (200, 300));
        let expected = ["200/300", "loss 2.000", "2.50 steps/s", "stall 25.0 %", "1 min 40 s left"];
        assert_eq!(fields[..REQUIRED_FIELDS], expected);
        assert!(progress.recent.len() <= 13, "{}", progress.recent.len());
    }

    /// Ten steps an epoch; the first epoch fills the cache and takes four times as long.
    #[test]
    fn the_first_line_after_the_warm_up_has_the_speed_of_the_run() {
        for is_live in [false, true] {
            let start = Instant::now();
            let mut progress = RunProgress::new(0, 300, is_live, StepWarmUp::new(Some(1), 0), start);
            let mut at = start;
            let mut take = |step: u64, progress: &mut RunProgress| {
                let wall_ns = if step <= 10 { 400_000_000 } else { 100_000_000 };
                at += Duration::from_nanos(wall_ns);
                let report = StepReport { epoch: (step - 1) / 10, ..report(step, wall_ns) };
                progress.step(&report, false, at);
                match is_live {
                    true => progress.live_fields(step, String::new(), at).1.join("  "),
                    false => progress.line(&report, [3, 4], 0, at),
                }
            };
            let lines: Vec<String> = (1..=12).map(|step| take(step, &mut progress)).collect();
            assert!(lines[9].contains("2.50 steps/s  stall 25.0 % (warm-up)  "), "{}", lines[9]);
            assert!(lines[11].contains("10.00 steps/s  stall 25.0 %  "), "{}", lines[11]);
        }
    }

    #[test]
    fn a_run_that_is_stopped_gets_a_last_line() {
        let start = Instant::now();
        let mut progress = RunProgress::new(0, 300, false, StepWarmUp::default(), start);
        assert!(!progress.step(&report(1, 1), false, start).line);
        assert!(progress.step(&report(2, 1), true, start).line);
        let line = progress.line(&report(2, 1), [3, 4], 5, start + Duration::from_secs(2));
        assert!(line.starts_with("Step 2/300  loss 2.000  mel 0.500  lr 1.0e-3  "), "{line}");
        assert!(line.contains("stall 0.0 % (warm-up)  data memory"), "{line}");
        assert!(line.ends_with("data memory 3 MB  model memory 4 MB  replaced 5  ETA 4 min 58 s"), "{line}");
    }
}
