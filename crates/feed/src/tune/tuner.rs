//! The number of decode threads and of prefetched batches, as a pure function of measured waits.
//!
//! [`TuningWindow`]s of a few batches go in, [`TuningChange`]s with their reasons come out. There is no clock and no thread
//! here, and no batch depends on it. The rules, and why:
//!
//! 1. **Threads grow** by half (at least by one) when the consumer stalls for more than 1 % of the time, the data thread waits
//!    for decoded batches in at least half of that time, and decode threads are almost always busy. Half and not double: each
//!    thread costs memory and CPU time, and three steps of growth still turn one thread into four.
//! 2. **Growth that does not help is undone**: less than 3 % more batches per second, stalls neither gone nor halved. The disk
//!    or the CPU is then the limit, and more threads only cost. Growth is not tried again until the rate at the old number has
//!    moved by 25 %: time alone changes nothing, and each attempt costs a stall.
//! 3. **Depth doubles** when the consumer stalls although decoding keeps up on average (decode threads wait for room for more
//!    than 10 % of their time), or when the stall is not a wait for decoding. What is missing then is a reserve for slow
//!    phases. If depth cannot grow, rule 1 applies. Depth does not shrink: its slots are reserved anyway, and an unused one
//!    costs nothing.
//! 4. **Threads shrink** by one when, over 8 windows, nothing stalled, a batch was always ready, decode threads waited for room
//!    most of the time, and the work would fill less than 60 % of one thread less. A number that was left this way and had to
//!    be grown back to is not left again, nor is a number that was reached for slow phases, unless the work halves.
//! 5. **A number given by hand** never changes, and no number moves past its limits.
//!
//! Every decision needs at least two windows, and the first window after a change is ignored: it belongs to both settings.
//! Growth starts near full load and shrinking below 60 % of it, so one does not trigger the other. Rules 2 and 4 remember what
//! failed. A steady load therefore reaches a steady setting.

use std::collections::VecDeque;

use super::evidence::Evidence;

/// The share of its time that the consumer may stall.
const MAX_STALL: f64 = 0.01;
/// Decode threads that wait for room longer than this share of their time keep up on average.
const SPARE: f64 = 0.10;
/// The least increase of the rate that counts as help.
const HELP: f64 = 0.03;
/// The least change of the rate after which a failed growth is tried again.
const MOVED: f64 = 0.25;
/// The most load of each remaining thread after shrinking.
const MAX_LOAD_AFTER_SHRINKING: f64 = 0.60;
/// Windows that show a shortage, and that judge a growth.
const PAIR: usize = 2;
/// Windows of slow decisions: shrinking, occasional stalls, a rate that has moved.
pub(super) const LONG: usize = 8;

/// The limits of tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningLimits {
    /// At least this many decode threads.
    pub min_threads: usize,
    /// At most this many.
    pub max_threads: usize,
    /// Their number was given by hand.
    pub threads_fixed: bool,
    /// At least this many batches ahead.
    pub min_depth: usize,
    /// At most this many: the reserved slots.
    pub max_depth: usize,
    /// The depth was given by hand.
    pub depth_fixed: bool,
}

/// The current setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningState {
    /// Decode threads.
    pub threads: usize,
    /// Prefetched batches.
    pub depth: usize,
}

/// Measurements over a few batches under one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TuningWindow {
    /// Batches consumed.
    pub batches: u64,
    /// Their wall time.
    pub wall_ns: u64,
    /// Time the consumer waited for a batch.
    pub stall_ns: u64,
    /// Time the data thread waited for decoded batches.
    pub load_wait_ns: u64,
    /// Time decode threads waited for room, summed over threads.
    pub slot_wait_ns: u64,
    /// Time decode threads worked, summed over threads.
    pub load_busy_ns: u64,
    /// Fewest ready batches.
    pub ready_low: usize,
}

/// A new setting, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningChange {
    /// The new setting.
    pub setting: TuningState,
    /// The message for users.
    pub why: String,
}

/// Decides from windows. The same windows give the same decisions.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: TuningLimits,
    setting: TuningState,
    /// The latest windows under this setting, oldest first.
    history: VecDeque<TuningWindow>,
    /// The next window belongs to two settings, or to the start.
    is_unsettled: bool,
    growth: Option<Growth>,
    ceiling: Option<Ceiling>,
    /// The number before the last shrink.
    shrunk_from: Option<usize>,
    floor: Option<Floor>,
}

/// Threads have just grown, and the result is not known yet.
#[derive(Clone, Copy, Debug)]
struct Growth {
    from: usize,
    before: Evidence,
}

/// Growing did not help.
#[derive(Clone, Copy, Debug, Default)]
struct Ceiling {
    /// Batches per second without it, once measured over [`LONG`] windows.
    rate: Option<f64>,
}

/// Shrinking below this was a mistake.
#[derive(Clone, Copy, Debug)]
struct Floor {
    threads: usize,
    /// Threads' worth of work then.
    load: f64,
}

impl Tuner {
    /// Starts from `start`, clamped to `limits` unless given by hand. Panics for empty limits.
    pub fn new(limits: TuningLimits, start: TuningState) -> Tuner {
        let TuningLimits { min_threads, max_threads, threads_fixed, min_depth, max_depth, depth_fixed } = limits;
        assert!(1 <= min_threads && min_threads <= max_threads, "threads {min_threads} to {max_threads}");
        assert!(1 <= min_depth && min_depth <= max_depth, "depth {min_depth} to {max_depth}");
        let setting = TuningState {
            threads: if threads_fixed { start.threads } else { start.threads.clamp(min_threads, max_threads) },
            depth: if depth_fixed { start.depth } else { start.depth.clamp(min_depth, max_depth) },
        };
        let history = VecDeque::with_capacity(LONG);
        Tuner {
            limits,
            setting,
            history,
            is_unsettled: true,
            growth: None,
            ceiling: None,
            shrunk_from: None,
            floor: None,
        }
    }

    /// The current setting.
    pub fn setting(&self) -> TuningState {
        self.setting
    }

    /// Adds a window, and returns a change if one is due. Ignores windows without batches. Expects every window, also the one
    /// in which a change took effect.
    pub fn observe(&mut self, window: &TuningWindow) -> Option<TuningChange> {
        if window.batches == 0 || window.wall_ns == 0 {
            return None;
        }
        if std::mem::take(&mut self.is_unsettled) {
            return None;
        }
        if self.history.len() == LONG {
            self.history.pop_front();
        }
        self.history.push_back(*window);
        if let Some(growth) = self.growth {
            match self.latest(growth.before.windows) {
                None => return None,
                Some(after) if helped(&growth.before, &after) => self.accept(&growth, &after),
                Some(after) => return Some(self.undo(&growth, &after)),
            }
        }
        self.drop_outdated_limits();
        match self.shortage() {
            Some(seen) => self.answer(&seen),
            None => self.shrink(),
        }
    }

    /// The evidence of a shortage: two stalled windows in a row, or several with a lasting sum.
    fn shortage(&self) -> Option<Evidence> {
        let stalled = |window: &&TuningWindow| Evidence::of([*window]).stall() > MAX_STALL;
        let pair = self.latest(PAIR)?;
        if self.history.iter().rev().take(PAIR).filter(stalled).count() == PAIR {
            return Some(pair);
        }
        let several = self.history.iter().filter(stalled).count() >= 2;
        self.latest(LONG).filter(|long| several && long.stall() > MAX_STALL)
    }

    /// Rules 1 and 3.
    fn answer(&mut self, seen: &Evidence) -> Option<TuningChange> {
        let keeps_up = seen.spare(self.setting.threads) > SPARE;
        if seen.waits_for_decoding() && !keeps_up {
            return self.grow_threads(seen);
        }
        match self.grow_depth(seen) {
            None if seen.waits_for_decoding() => self.grow_threads(seen),
            grown => grown,
        }
    }

    fn grow_threads(&mut self, seen: &Evidence) -> Option<TuningChange> {
        let from = self.setting.threads;
        let to = (from * 3 / 2).max(from + 1).min(self.limits.max_threads);
        if self.limits.threads_fixed || self.ceiling.is_some() || to <= from {
            return None;
        }
        if let Some(threads) = self.shrunk_from.take() {
            self.floor = Some(Floor { threads, load: seen.load() });
        }
        self.growth = Some(Growth { from, before: *seen });
        Some(self.set_threads(to, &format!("training waited for decoding {}", seen.stall_share())))
    }

    /// Growth that helped although threads had time to spare serves slow phases, which the mean load does not show.
    fn accept(&mut self, growth: &Growth, after: &Evidence) {
        self.growth = None;
        if growth.before.spare(growth.from) > SPARE {
            self.floor = Some(Floor { threads: self.setting.threads, load: after.load() });
        }
    }

    /// Rule 2.
    fn undo(&mut self, growth: &Growth, after: &Evidence) -> TuningChange {
        self.growth = None;
        self.ceiling = Some(Ceiling::default());
        let gain = 100.0 * (after.rate() / growth.before.rate() - 1.0);
        let why = format!("more threads gave {gain:+.1} % batches/s: the disk or the CPU is the limit");
        self.set_threads(growth.from, &why)
    }

    fn grow_depth(&mut self, seen: &Evidence) -> Option<TuningChange> {
        let from = self.setting.depth;
        let to = (2 * from).min(self.limits.max_depth);
        if self.limits.depth_fixed || to <= from {
            return None;
        }
        self.setting.depth = to;
        let why = if seen.waits_for_decoding() { "although decoding keeps up on average" } else { "not for decoding" };
        Some(self.changed(format!("prefetch depth {from} → {to} (training waited {}, {why})", seen.stall_share())))
    }

    /// Rule 4.
    fn shrink(&mut self) -> Option<TuningChange> {
        let from = self.setting.threads;
        let floor = self.floor.map_or(1, |floor| floor.threads).max(self.limits.min_threads);
        let seen = self.latest(LONG)?;
        let has_reserve = seen.stall_ns == 0 && seen.ready_low > 0;
        if self.limits.threads_fixed || from <= floor || !has_reserve || seen.spare(from) < 0.5 {
            return None;
        }
        if seen.load() > MAX_LOAD_AFTER_SHRINKING * (from - 1) as f64 {
            return None;
        }
        self.shrunk_from = Some(from);
        // A wait that began in an earlier window counts in the window in which it ends.
        let share = 100.0 * seen.spare(from).min(1.0);
        Some(self.set_threads(from - 1, &format!("idle {share:.0} % of the last {} batches", seen.batches)))
    }

    /// A failed change may be tried again when the work has changed.
    fn drop_outdated_limits(&mut self) {
        let Some(seen) = self.latest(LONG) else { return };
        if self.floor.is_some_and(|floor| seen.load() < 0.5 * floor.load) {
            self.floor = None;
        }
        // Without a stall, the rate does not show what decoding could do.
        let Some(ceiling) = self.ceiling.as_mut().filter(|_| seen.stall() > MAX_STALL) else { return };
        let rate = *ceiling.rate.get_or_insert(seen.rate());
        if (seen.rate() / rate - 1.0).abs() > MOVED {
            self.ceiling = None;
        }
    }

    fn set_threads(&mut self, to: usize, because: &str) -> TuningChange {
        let from = std::mem::replace(&mut self.setting.threads, to);
        self.changed(format!("decode threads {from} → {to} ({because})"))
    }

    fn changed(&mut self, why: String) -> TuningChange {
        self.history.clear();
        self.is_unsettled = true;
        TuningChange { setting: self.setting, why }
    }

    /// The sum of the latest `num_windows` under this setting, if there are so many.
    fn latest(&self, num_windows: usize) -> Option<Evidence> {
        let skipped = self.history.len().checked_sub(num_windows)?;
        Some(Evidence::of(self.history.iter().skip(skipped)))
    }
}

/// Whether growth helped.
fn helped(before: &Evidence, after: &Evidence) -> bool {
    let faster = after.rate() > (1.0 + HELP) * before.rate();
    faster || after.stall() <= MAX_STALL.max(0.5 * before.stall())
}
