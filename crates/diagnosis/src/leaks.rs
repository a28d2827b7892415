//! Leak detection: memory that grows steadily, its owner, its rate, and the time until it reaches the limit.
//!
//! Takes records one by one and returns a [`Leak`] once per owner. Records before the first step are warm-up and do not count.
//! The rules, and why:
//!
//! 1. **Slope**: Theil–Sen slope over the last 400 steps if readings do not jump, or over the last 100 readings (at least 900
//!    steps) if they do. Single peaks are removed first.
//! 2. **One step up is not a leak**: the slope is computed again with the window cut at several points, without pairs across
//!    the cut. The smallest slope counts.
//! 3. **Significance**: growth of 3¼ MiB in the window, 6 MiB if readings jump, and four times the error from the residuals.
//! 4. **Owners or the role**: if the log has owners, slopes are per owner. In the sum of a role, one step up of two owners
//!    would be two steps.
//! 5. **Thresholds**: 200 MB (data) or 500 MB (model) over the baseline is a leak at any slope.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use tandem_events::{Record, Role, RunEvent};

use crate::statistics::{median, slope};

const MIB: f64 = (1 << 20) as f64;
/// Samples in the window.
const WINDOW: usize = 100;
/// Minimum number of samples: five is what a reading every 100 steps gives in 500.
const MIN_SAMPLES: usize = 5;
/// Minimum number of steps in the window.
const MIN_STEPS: f64 = 390.0;
/// Minimum number of steps if readings jump: a wave with a step up in it looks like a leak for a while.
const LONG_STEPS: f64 = 890.0;
/// A larger change between two readings, beyond the slope, is a jump.
const MAX_JUMP: f64 = 1.1 * MIB;
/// Smaller growth over the window is not a leak: fragmentation, lazily touched pages.
const MIN_GROWTH: f64 = 3.25 * MIB;
/// The same if readings jump.
const MIN_GROWTH_IN_JUMPS: f64 = 6.0 * MIB;
/// Minimum ratio of growth to its error.
const ERRORS: f64 = 4.0;
/// Readings between two cuts if readings jump: a step up between two cuts affects a tenth of the pairs.
const CUT_EVERY: usize = 2;
/// Number of cuts if readings do not jump: each cut costs a slope, and there is no large step up to find.
const CUTS: usize = 10;
/// Number of samples whose median is the baseline, and of those whose median is the current use.
const BASELINE: usize = 3;
/// Standard deviation ÷ median absolute deviation of a normal distribution.
const PER_MAD: f64 = 1.4826;

/// The owner of memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryOwner {
    /// A named owner inside a role's arena.
    Arena(Role, String),
    /// A role, if its owners are unknown or none of them grows.
    Role(Role),
    /// Pinned host memory of the process.
    Pinned,
    /// Host memory of the process that no cache or pool accounts for.
    Host,
}

/// How a leak was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeakKind {
    /// Steady growth.
    Slope,
    /// Growth over the baseline beyond the role's threshold.
    Threshold,
}

/// A memory leak. Reported once per owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// The owner of the memory.
    pub owner: MemoryOwner,
    /// How it was detected.
    pub kind: LeakKind,
    /// The step after which it was detected.
    pub step: u64,
    /// Growth rate.
    pub bytes_per_step: f64,
    /// Growth over the baseline.
    pub grown_bytes: f64,
    /// The limit of the owner's role, or the memory that the host can give it.
    pub limit_bytes: u64,
    /// Time until the limit is reached at this rate; `None` if the growth rate or the step rate is unknown.
    pub seconds_to_limit: Option<f64>,
}

/// Watches memory. Give it every record of a run, in order.
///
/// Costs nothing for most records, and a few thousand divisions for a memory record of an owner that grew.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    step: u64,
    series: BTreeMap<MemoryOwner, Series>,
    /// Limits of the roles, for their owners.
    limits: BTreeMap<Role, u64>,
    scratch: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct Series {
    first: Vec<f64>,
    samples: VecDeque<Sample>,
    is_reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    step: f64,
    t_ns: f64,
    bytes: f64,
}

impl Leaks {
    /// Observes a record. Returns newly detected leaks, each once.
    pub fn observe(&mut self, record: &Record) -> Vec<Leak> {
        match &record.event {
            RunEvent::Step { step, .. } => {
                self.step = self.step.max(*step);
                Vec::new()
            }
            RunEvent::Memory { role, used_bytes, limit_bytes, .. } => {
                self.limits.insert(*role, *limit_bytes);
                self.sample(&MemoryOwner::Role(*role), record.t_ns, *used_bytes);
                // If the log has owners, their record follows and decides: an owner is more useful than a role.
                if self.has_owners(*role) { Vec::new() } else { self.judge(MemoryOwner::Role(*role), *limit_bytes) }
            }
            RunEvent::MemoryOwners { role, owners } => {
                let limit_bytes = self.limits.get(role).copied().unwrap_or(u64::MAX);
                let mut leaks = Vec::new();
                for (owner, bytes) in owners {
                    let owner = MemoryOwner::Arena(*role, owner.clone());
                    self.sample(&owner, record.t_ns, *bytes);
                    leaks.extend(self.judge(owner, limit_bytes));
                }
                leaks.extend(self.judge(MemoryOwner::Role(*role), limit_bytes));
                leaks
            }
            RunEvent::HostMemory { bytes, accounted_bytes, pinned_bytes, limit_bytes } => {
                // They share the host memory: the limit of each is what the others leave.
                let rest_bytes = bytes.saturating_sub(*accounted_bytes);
                self.sample(&MemoryOwner::Pinned, record.t_ns, *pinned_bytes);
                self.sample(&MemoryOwner::Host, record.t_ns, rest_bytes);
                let mut leaks =
                    self.judge(MemoryOwner::Pinned, limit_bytes.saturating_sub(bytes - (*pinned_bytes).min(*bytes)));
                leaks.extend(self.judge(MemoryOwner::Host, limit_bytes.saturating_sub(*accounted_bytes)));
                leaks
            }
            _ => Vec::new(),
        }
    }

    /// All leaks of a log, in the order of detection.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Leak> {
        let mut leaks = Leaks::default();
        records.into_iter().flat_map(|record| leaks.observe(record)).collect()
    }

    fn sample(&mut self, owner: &MemoryOwner, t_ns: u64, bytes: u64) {
        if self.step == 0 {
            return;
        }
        let sample = Sample { step: self.step as f64, t_ns: t_ns as f64, bytes: bytes as f64 };
        match self.series.get_mut(owner) {
            Some(series) => series.push(sample),
            None => self.series.entry(owner.clone()).or_default().push(sample),
        }
    }

    fn judge(&mut self, owner: MemoryOwner, limit_bytes: u64) -> Vec<Leak> {
        let is_sum = matches!(owner, MemoryOwner::Role(role) if self.has_owners(role));
        let is_covered = matches!(owner, MemoryOwner::Role(role) if self.owners(role).any(|series| series.is_reported));
        let Some(series) = self.series.get_mut(&owner).filter(|series| !series.is_reported && !is_covered) else {
            return Vec::new();
        };
        let Some((kind, bytes_per_step)) = series.judge(&owner, is_sum, &mut self.scratch) else { return Vec::new() };
        series.is_reported = true;
        let (used, ns_per_step) = (series.used(), series.ns_per_step());
        vec![Leak {
            owner,
            kind,
            step: self.step,
            bytes_per_step,
            grown_bytes: series.grown(),
            limit_bytes,
            seconds_to_limit: seconds_to(limit_bytes as f64 - used, bytes_per_step, ns_per_step),
        }]
    }

    fn has_owners(&self, role: Role) -> bool {
        self.owners(role).next().is_some()
    }

    fn owners(&self, role: Role) -> impl Iterator<Item = &Series> {
        self.series
            .iter()
            .filter(move |(owner, _)| matches!(owner, MemoryOwner::Arena(of, _) if *of == role))
            .map(|(_, s)| s)
    }
}

impl Series {
    fn push(&mut self, sample: Sample) {
        if self.first.len() < BASELINE {
            self.first.push(sample.bytes);
        }
        if self.samples.len() == WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    fn baseline(&self) -> f64 {
        median(&mut self.first.clone())
    }

    fn used(&self) -> f64 {
        self.samples.back().map_or(0.0, |last| last.bytes)
    }

    /// Growth over the baseline, ignoring a single peak.
    fn grown(&self) -> f64 {
        let mut last: Vec<f64> = self.samples.iter().rev().take(BASELINE).map(|sample| sample.bytes).collect();
        median(&mut last) - self.baseline()
    }

    fn ns_per_step(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let steps = last.step - first.step;
        if steps > 0.0 { (last.t_ns - first.t_ns) / steps } else { 0.0 }
    }

    fn judge(&self, owner: &MemoryOwner, is_sum: bool, scratch: &mut Vec<f64>) -> Option<(LeakKind, f64)> {
        let over = threshold_bytes(owner).is_some_and(|max| self.first.len() == BASELINE && self.grown() > max);
        let rate = if is_sum { None } else { self.steady_growth(scratch) };
        match (rate, over) {
            (Some(rate), _) => Some((LeakKind::Slope, rate)),
            (None, true) => {
                let points: Vec<(f64, f64)> = self.samples.iter().map(|s| (s.step, s.bytes)).collect();
                Some((LeakKind::Threshold, slope(&points, 0, scratch).max(0.0)))
            }
            (None, false) => None,
        }
    }

    /// Median filter over three readings: a checkpoint's temporary memory shows in a single reading.
    fn without_peaks(&self) -> Vec<(f64, f64)> {
        let bytes = |at: usize| self.samples.get(at).map(|sample| sample.bytes);
        let smoothed = |(at, sample): (usize, &Sample)| match (at.checked_sub(1).and_then(bytes), bytes(at + 1)) {
            (Some(before), Some(after)) => (sample.step, median(&mut [before, sample.bytes, after])),
            _ => (sample.step, sample.bytes),
        };
        self.samples.iter().enumerate().map(smoothed).collect()
    }

    /// Bytes per step if it is a leak: over the recent readings if they are smooth, or over all of them.
    fn steady_growth(&self, scratch: &mut Vec<f64>) -> Option<f64> {
        let points = self.without_peaks();
        let (first, last) = (points.first()?.0, points.last()?.0);
        let (before, recent) = points.split_at(points.iter().rposition(|(step, _)| last - step >= MIN_STEPS)?);
        let smooth = |points: &[(f64, f64)], scratch: &mut Vec<f64>| {
            growth(points, MIN_GROWTH, points.len().div_ceil(CUTS), scratch).filter(|rate| is_smooth(points, *rate))
        };
        let is_long = last - first >= LONG_STEPS;
        // Memory that was freed before may be freed again, or the recent growth may only replace it.
        let was_freed = before.windows(2).any(|pair| pair[1].1 - pair[0].1 < -MAX_JUMP);
        smooth(recent, scratch)
            .filter(|_| !was_freed)
            .or_else(|| is_long.then(|| smooth(&points, scratch)).flatten())
            .or_else(|| is_long.then(|| growth(&points, MIN_GROWTH_IN_JUMPS, CUT_EVERY, scratch)).flatten())
    }
}

/// Bytes per step if these points show a leak.
fn growth(points: &[(f64, f64)], min_growth: f64, cut_every: usize, scratch: &mut Vec<f64>) -> Option<f64> {
    let span = points.last()?.0 - points.first()?.0;
    let bounds = |(low, high): (f64, f64), (_, y): &(f64, f64)| (low.min(*y), high.max(*y));
    let (low, high) = points.iter().fold((f64::MAX, 0.0), bounds);
    // The use of most owners never changes: they cost one pass.
    if points.len() < MIN_SAMPLES || high - low < min_growth {
        return None;
    }
    let rate = slope(points, 0, scratch);
    let min_rate = min_growth.max(ERRORS * error_of(points, rate, scratch)) / span;
    if rate < min_rate {
        return None;
    }
    (cut_every..points.len()).step_by(cut_every).all(|cut| slope(points, cut, scratch) >= min_rate).then_some(rate)
}

/// Whether no reading differs by a jump from the previous one plus the slope.
fn is_smooth(points: &[(f64, f64)], rate: f64) -> bool {
    points.windows(2).all(|pair| (pair[1].1 - pair[0].1 - rate * (pair[1].0 - pair[0].0)).abs() < MAX_JUMP)
}

/// Standard error of `rate` as growth over the window, from the residuals, with the formula for least squares.
fn error_of(points: &[(f64, f64)], rate: f64, scratch: &mut Vec<f64>) -> f64 {
    let mut residuals: Vec<f64> = points.iter().map(|(x, y)| y - rate * x).collect();
    let middle = median(&mut residuals);
    scratch.clear();
    scratch.extend(residuals.iter().map(|residual| (residual - middle).abs()));
    PER_MAD * median(scratch) * (12.0 / points.len() as f64).sqrt()
}

fn threshold_bytes(owner: &MemoryOwner) -> Option<f64> {
    match owner {
        MemoryOwner::Arena(Role::Data, _) | MemoryOwner::Role(Role::Data) => Some(200.0 * MIB),
        MemoryOwner::Arena(Role::Model, _) | MemoryOwner::Role(Role::Model) => Some(500.0 * MIB),
        MemoryOwner::Pinned | MemoryOwner::Host => None,
    }
}

fn seconds_to(left_bytes: f64, bytes_per_step: f64, ns_per_step: f64) -> Option<f64> {
    let steps = left_bytes.max(0.0) / bytes_per_step;
    (bytes_per_step > 0.0 && ns_per_step > 0.0).then(|| steps * ns_per_step / 1e9)
}

impl fmt::Display for MemoryOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryOwner::Arena(role, owner) => write!(f, "{role} role ({owner})"),
            MemoryOwner::Role(role) => write!(f, "{role} role (owner unknown)"),
            MemoryOwner::Pinned => f.write_str("host process (pinned memory)"),
            MemoryOwner::Host => f.write_str("host process"),
        }
    }
}

impl fmt::Display for Leak {
    /// `memory leak in data role (slots): 1.00 MB per 100 steps, 5 MB since warm-up; reaches the limit of 8192 MB in 3 h 20 min`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, grown) = (100.0 * self.bytes_per_step / MIB, self.grown_bytes / MIB);
        write!(f, "memory leak in {}: {rate:.2} MB per 100 steps, {grown:.0} MB since warm-up", self.owner)?;
        match self.seconds_to_limit {
            Some(seconds) => {
                let limit = self.limit_bytes as f64 / MIB;
                write!(f, "; reaches the limit of {limit:.0} MB in {}", HumanDuration(seconds))
            }
            None => Ok(()),
        }
    }
}

/// Seconds as `3 h 20 min`.
struct HumanDuration(f64);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = (self.0 / 60.0).floor();
        match minutes {
            m if m < 1.0 => write!(f, "{:.0} s", self.0),
            m if m < 60.0 => write!(f, "{m:.0} min"),
            m if m < 48.0 * 60.0 => write!(f, "{:.0} h {:.0} min", (m / 60.0).floor(), m % 60.0),
            m => write!(f, "{:.0} days", m / 1440.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_events::VERSION;

    use super::*;

    /// The step at which a leak of the host process is reported that has `mib(step)` at every `every`th step up to `last`.
    fn found(every: u64, last: u64, mib: impl Fn(f64) -> f64) -> Option<u64> {
        let mut leaks = Leaks::default();
        for step in (every..=last).step_by(every as usize) {
            let bytes = (1000.0 * MIB + mib(step as f64) * MIB) as u64;
            let events = [
                RunEvent::Step { step, wall_ns: 1, wait_ns: 0 },
                RunEvent::HostMemory { bytes, accounted_bytes: 0, pinned_bytes: 0, limit_bytes: u64::MAX },
            ];
            for event in events {
                let record = Record { v: VERSION, seq: step, t_ns: step, dropped: 0, event };
                if let Some(leak) = leaks.observe(&record).first() {
                    return Some(leak.step);
                }
            }
        }
        None
    }

    #[test]
    fn a_window_has_390_steps_and_five_readings() {
        assert_eq!(found(10, 400, |step| step / 10.0), Some(400));
        assert_eq!(found(10, 390, |step| step / 10.0), None);
        // 390 steps apart, the first and the last of four readings are not enough; of five they are.
        assert_eq!(found(98, 500, |step| step), Some(490));
        assert_eq!(found(130, 910, |step| step), None);
        assert_eq!(found(130, 1040, |step| step), Some(1040), "890 steps");
    }

    #[test]
    fn smooth_growth_is_a_leak_from_3_25_mib() {
        let growing = |mib: f64| found(10, 400, move |step| mib * step / 390.0);
        assert_eq!(growing(3.24), None);
        assert_eq!(growing(3.26), Some(400));
    }

    /// 13 MiB in 390 steps and one step up in the middle.
    fn with_a_step_up(mib: f64) -> Option<u64> {
        found(10, 1000, move |step| step / 30.0 + if step > 205.0 { mib } else { 0.0 })
    }

    #[test]
    fn a_change_over_1_1_mib_is_a_jump_and_needs_890_steps() {
        assert_eq!(with_a_step_up(1.05), Some(400));
        let late = with_a_step_up(1.15).unwrap();
        // Once the jump has left the window of 390 steps, what follows is smooth; nothing is found before.
        assert!((600..=900).contains(&late), "{late}");
        // 30 MiB in 900 steps, 2 MiB at a time.
        let in_jumps = |step: f64| 2.0 * (step / 60.0).floor();
        assert_eq!(found(10, 1000, in_jumps), Some(900));
    }

    #[test]
    fn growth_in_jumps_is_a_leak_from_6_mib_and_four_times_its_error() {
        // Blocks of 40 steps, each at another height.
        let wave = |step: f64, height: f64| height * ((step / 40.0).floor() * 0.618).fract();
        let growing = |mib: f64, height: f64| found(10, 1000, move |step| mib * step / 990.0 + wave(step, height));
        assert_eq!(growing(6.2, 3.0), None);
        assert_eq!(growing(6.4, 3.0), Some(990));
        assert_eq!(growing(9.4, 20.0), None);
        assert_eq!(growing(9.8, 20.0), Some(900));
    }
}
