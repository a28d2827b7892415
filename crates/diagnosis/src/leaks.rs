//! Memory that grows and does not come back: who holds it, how fast, and how long it can go on.
//!
//! In come records one by one, out comes a [`Leak`] once per holder. Nothing is judged before the first step: what
//! comes before is warm-up. The rules, and why:
//!
//! 1. **Slope**: Theil–Sen's over the last 400 steps where readings do not jump, and over the last 100 readings (900 steps at
//!    least) where they do. Single peaks are taken out before.
//! 2. **One step up is no leak**: the slope is taken again with the window cut here and there, pairs
//!    across the cut left out. The smallest counts.
//! 3. **It must stand out**: 3¼ MiB in the window, 6 where readings jump, and four times the error that the residuals give it.
//! 4. **Owners, or the role**: where owners are told of, slopes are theirs. In the sum, a step up of each is two.
//! 5. **Thresholds**: 200 MB (data) or 500 MB (model) over the baseline is a leak whatever the slope.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use tandem_events::{Record, Role, RunEvent};

use crate::statistics::{median, slope};

const MIB: f64 = (1 << 20) as f64;
/// Samples a slope is taken over.
const WINDOW: usize = 100;
/// Nothing is said of fewer: five is what a reading every 100 steps gives in 500.
const MIN_SAMPLES: usize = 5;
/// A slope over fewer steps is no trend.
const MIN_STEPS: f64 = 390.0;
/// Where readings jump, a slope is taken over at least so many: a wave with a step up in it looks like a leak for a while.
const LONG_STEPS: f64 = 890.0;
/// What a jump is.
const MAX_JUMP: f64 = 1.1 * MIB;
/// Growth over the window below this is no leak: fragments, lazily touched pages.
const MIN_GROWTH: f64 = 3.25 * MIB;
/// The same where readings jump.
const MIN_GROWTH_IN_JUMPS: f64 = 6.0 * MIB;
/// How far a slope must stand out of its own error.
const ERRORS: f64 = 4.0;
/// Readings from cut to cut where they jump: a step up between two cuts shows in a tenth of the pairs.
const CUT_EVERY: usize = 2;
/// Cuts where they do not: each costs what it costs, and there is no large step up to hit.
const CUTS: usize = 10;
/// Samples whose median is the baseline, and what is held now.
const BASELINE: usize = 3;
/// A standard deviation is this times the median deviation of a normal law.
const PER_MAD: f64 = 1.4826;

/// Who holds the memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryOwner {
    /// An owner inside a role's arena.
    Owner(Role, String),
    /// A role, when its owners are not known or none of them grows.
    Role(Role),
    /// Page-locked memory of the process.
    Pinned,
    /// The process, in the machine's own memory, where nobody accounts for it.
    Host,
}

/// How a leak was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeakKind {
    /// It grows steadily.
    Slope,
    /// It is over its baseline by more than its role may.
    Threshold,
}

/// Memory that grows. Told once per holder.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// Who holds it.
    pub holder: MemoryOwner,
    /// How it was seen.
    pub kind: LeakKind,
    /// The step after which it was seen.
    pub step: u64,
    /// How fast it grows.
    pub bytes_per_step: f64,
    /// Over the baseline.
    pub grown_bytes: f64,
    /// What the holder's role, or the machine, can give in all.
    pub limit_bytes: u64,
    /// When that is reached at this rate; none where the rate or the pace of steps is not known.
    pub seconds_to_limit: Option<f64>,
}

/// Watches memory. Give it every record of a run, in order.
///
/// Costs nothing for most records, and a few thousand divisions for a memory record of a holder that grew.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    step: u64,
    series: BTreeMap<MemoryOwner, Series>,
    /// A role's limit, for its owners.
    limits: BTreeMap<Role, u64>,
    room: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct Series {
    first: Vec<f64>,
    samples: VecDeque<Sample>,
    is_told: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    step: f64,
    t_ns: f64,
    bytes: f64,
}

impl Leaks {
    /// Takes a record. The leaks that are seen by it for the first time: mostly none, and none is told twice.
    pub fn observe(&mut self, record: &Record) -> Vec<Leak> {
        match &record.event {
            RunEvent::Step { step, .. } => {
                self.step = self.step.max(*step);
                Vec::new()
            }
            RunEvent::Memory { role, used_bytes, limit_bytes, .. } => {
                self.limits.insert(*role, *limit_bytes);
                self.sample(&MemoryOwner::Role(*role), record.t_ns, *used_bytes);
                // Where owners are told of, they come next and are asked first: a name is worth more than a role.
                if self.has_owners(*role) { Vec::new() } else { self.judge(MemoryOwner::Role(*role), *limit_bytes) }
            }
            RunEvent::MemoryOwners { role, owners } => {
                let limit_bytes = self.limits.get(role).copied().unwrap_or(u64::MAX);
                let mut leaks = Vec::new();
                for (owner, bytes) in owners {
                    let holder = MemoryOwner::Owner(*role, owner.clone());
                    self.sample(&holder, record.t_ns, *bytes);
                    leaks.extend(self.judge(holder, limit_bytes));
                }
                leaks.extend(self.judge(MemoryOwner::Role(*role), limit_bytes));
                leaks
            }
            RunEvent::HostMemory { bytes, accounted_bytes, pinned_bytes, limit_bytes } => {
                // Each may have what the others leave: they share one memory.
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

    /// Every leak of a log, in the order they are seen.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Leak> {
        let mut leaks = Leaks::default();
        records.into_iter().flat_map(|record| leaks.observe(record)).collect()
    }

    fn sample(&mut self, holder: &MemoryOwner, t_ns: u64, bytes: u64) {
        if self.step == 0 {
            return;
        }
        let sample = Sample { step: self.step as f64, t_ns: t_ns as f64, bytes: bytes as f64 };
        match self.series.get_mut(holder) {
            Some(series) => series.push(sample),
            None => self.series.entry(holder.clone()).or_default().push(sample),
        }
    }

    fn judge(&mut self, holder: MemoryOwner, limit_bytes: u64) -> Vec<Leak> {
        let is_sum = matches!(holder, MemoryOwner::Role(role) if self.has_owners(role));
        let is_said = matches!(holder, MemoryOwner::Role(role) if self.owners(role).any(|series| series.is_told));
        let Some(series) = self.series.get_mut(&holder).filter(|series| !series.is_told && !is_said) else {
            return Vec::new();
        };
        let Some((kind, bytes_per_step)) = series.judge(&holder, is_sum, &mut self.room) else { return Vec::new() };
        series.is_told = true;
        let (held, pace) = (series.held(), series.ns_per_step());
        vec![Leak {
            holder,
            kind,
            step: self.step,
            bytes_per_step,
            grown_bytes: series.grown(),
            limit_bytes,
            seconds_to_limit: seconds_to(limit_bytes as f64 - held, bytes_per_step, pace),
        }]
    }

    fn has_owners(&self, role: Role) -> bool {
        self.owners(role).next().is_some()
    }

    fn owners(&self, role: Role) -> impl Iterator<Item = &Series> {
        self.series
            .iter()
            .filter(move |(holder, _)| matches!(holder, MemoryOwner::Owner(of, _) if *of == role))
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

    fn held(&self) -> f64 {
        self.samples.back().map_or(0.0, |last| last.bytes)
    }

    /// Over the baseline, a peak of one reading left out.
    fn grown(&self) -> f64 {
        let mut last: Vec<f64> = self.samples.iter().rev().take(BASELINE).map(|sample| sample.bytes).collect();
        median(&mut last) - self.baseline()
    }

    fn ns_per_step(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let steps = last.step - first.step;
        if steps > 0.0 { (last.t_ns - first.t_ns) / steps } else { 0.0 }
    }

    fn judge(&self, holder: &MemoryOwner, is_sum: bool, room: &mut Vec<f64>) -> Option<(LeakKind, f64)> {
        let over = threshold_bytes(holder).is_some_and(|most| self.first.len() == BASELINE && self.grown() > most);
        let rate = if is_sum { None } else { self.steady_growth(room) };
        match (rate, over) {
            (Some(rate), _) => Some((LeakKind::Slope, rate)),
            (None, true) => {
                let points: Vec<(f64, f64)> = self.samples.iter().map(|s| (s.step, s.bytes)).collect();
                Some((LeakKind::Threshold, slope(&points, 0, room).max(0.0)))
            }
            (None, false) => None,
        }
    }

    /// Each reading as the median of itself and its neighbours: what a checkpoint takes and gives back shows in one.
    fn without_peaks(&self) -> Vec<(f64, f64)> {
        let bytes = |at: usize| self.samples.get(at).map(|sample| sample.bytes);
        let smoothed = |(at, sample): (usize, &Sample)| match (at.checked_sub(1).and_then(bytes), bytes(at + 1)) {
            (Some(before), Some(after)) => (sample.step, median(&mut [before, sample.bytes, after])),
            _ => (sample.step, sample.bytes),
        };
        self.samples.iter().enumerate().map(smoothed).collect()
    }

    /// Bytes per step, when it is a leak: lately, where nothing but a leak can look like it, or all along.
    fn steady_growth(&self, room: &mut Vec<f64>) -> Option<f64> {
        let points = self.without_peaks();
        let (first, last) = (points.first()?.0, points.last()?.0);
        let (before, lately) = points.split_at(points.iter().rposition(|(step, _)| last - step >= MIN_STEPS)?);
        let smooth = |points: &[(f64, f64)], room: &mut Vec<f64>| {
            growth(points, MIN_GROWTH, points.len().div_ceil(CUTS), room).filter(|rate| is_smooth(points, *rate))
        };
        let is_long = last - first >= LONG_STEPS;
        // Where memory came back before, it may come back again, or have come back behind a step up.
        let came_back = before.windows(2).any(|pair| pair[1].1 - pair[0].1 < -MAX_JUMP);
        smooth(lately, room)
            .filter(|_| !came_back)
            .or_else(|| is_long.then(|| smooth(&points, room)).flatten())
            .or_else(|| is_long.then(|| growth(&points, MIN_GROWTH_IN_JUMPS, CUT_EVERY, room)).flatten())
    }
}

/// Bytes per step, when it is a leak that these points show.
fn growth(points: &[(f64, f64)], min_growth: f64, cut_every: usize, room: &mut Vec<f64>) -> Option<f64> {
    let span = points.last()?.0 - points.first()?.0;
    let bounds = |(low, high): (f64, f64), (_, y): &(f64, f64)| (low.min(*y), high.max(*y));
    let (low, high) = points.iter().fold((f64::MAX, 0.0), bounds);
    // Most holders never move: they cost one pass.
    if points.len() < MIN_SAMPLES || high - low < min_growth {
        return None;
    }
    let rate = slope(points, 0, room);
    let least = min_growth.max(ERRORS * error_of(points, rate, room)) / span;
    if rate < least {
        return None;
    }
    (cut_every..points.len()).step_by(cut_every).all(|cut| slope(points, cut, room) >= least).then_some(rate)
}

/// Whether no reading is far from where the one before and the slope put it.
fn is_smooth(points: &[(f64, f64)], rate: f64) -> bool {
    points.windows(2).all(|pair| (pair[1].1 - pair[0].1 - rate * (pair[1].0 - pair[0].0)).abs() < MAX_JUMP)
}

/// How wrong `rate` may be, as growth over the window: the spread around the line, as it is for least squares.
fn error_of(points: &[(f64, f64)], rate: f64, room: &mut Vec<f64>) -> f64 {
    let mut residuals: Vec<f64> = points.iter().map(|(x, y)| y - rate * x).collect();
    let middle = median(&mut residuals);
    room.clear();
    room.extend(residuals.iter().map(|residual| (residual - middle).abs()));
    PER_MAD * median(room) * (12.0 / points.len() as f64).sqrt()
}

fn threshold_bytes(holder: &MemoryOwner) -> Option<f64> {
    match holder {
        MemoryOwner::Owner(Role::Data, _) | MemoryOwner::Role(Role::Data) => Some(200.0 * MIB),
        MemoryOwner::Owner(Role::Model, _) | MemoryOwner::Role(Role::Model) => Some(500.0 * MIB),
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
            MemoryOwner::Owner(role, owner) => write!(f, "{role}, {owner}"),
            MemoryOwner::Role(role) => write!(f, "{role}, owner unknown"),
            MemoryOwner::Pinned => f.write_str("host process, page-locked"),
            MemoryOwner::Host => f.write_str("host process"),
        }
    }
}

impl fmt::Display for Leak {
    /// `memory of data, slots grows: 1.00 MB in 100 steps, 5 MB since warm-up; the limit of 8192 MB is reached in 3 h 20 min`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, grown) = (100.0 * self.bytes_per_step / MIB, self.grown_bytes / MIB);
        write!(f, "memory of {} grows: {rate:.2} MB in 100 steps, {grown:.0} MB since warm-up", self.holder)?;
        match self.seconds_to_limit {
            Some(seconds) => {
                let limit = self.limit_bytes as f64 / MIB;
                write!(f, "; the limit of {limit:.0} MB is reached in {}", Span(seconds))
            }
            None => Ok(()),
        }
    }
}

/// A time as people say it.
struct Span(f64);

impl fmt::Display for Span {
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
