//! How many threads decode, and how many batches are made ahead: a pure function of what was waited for.
//!
//! In come [`TuningWindow`]s, a few batches each, out come [`TuningChange`]s with their reasons. Nothing here has a clock or a
//! thread, and no batch depends on it. The rules, and why:
//!
//! 1. **Threads grow** by half (at least by one) when the consumer stalls for more than 1 % of the time, the data thread
//!    is waiting for decoded batches in at least half of that time, and decode threads have next to no time to spare.
//!    Half and not double: each thread costs memory and a core's attention, and three steps still make four of one.
//! 2. **Growth that does not help is taken back**: less than 3 % more batches per second, stalls neither gone nor halved.
//!    The disk or the cores are then what is short, and more threads than they can serve only cost. It is not tried
//!    again until the rate at the old number has moved by 25 %: time alone changes nothing, and a trial costs a stall.
//! 3. **Depth doubles** when the consumer stalls although decoding keeps up on average, that is, although decode threads
//!    were kept waiting for room for more than 10 % of their time, or it was not decoding that was waited for: then what
//!    is short is a reserve for the bad moments. Where depth may not grow, rule 1 is tried instead. Depth does not
//!    shrink: its slots are reserved in any case, and an unused one costs nothing.
//! 4. **Threads shrink** by one when, over 8 windows, nothing stalled, a batch was always ready, decode threads waited
//!    for room most of the time, and the work would fill less than 60 % of one thread less. A number that was left this
//!    way and had to be grown back to is not left again, nor one that was grown to for the bad moments alone, unless the
//!    work falls to half of what it was.
//! 5. **What was given by hand** is never changed, nor is anything moved past its limits.
//!
//! Nothing is decided on less than two windows, and the first window after a change is not looked at: it belongs to both
//! settings. Growing starts near full load and shrinking below 60 % of it, so one cannot call for the other; rules 2 and
//! 4 remember what failed; so a steady load is left alone after a while.

use std::collections::VecDeque;

use super::evidence::Evidence;

/// The consumer may stall this share of its time.
const MAX_STALL: f64 = 0.01;
/// Decode threads that wait for room longer than this share of their time keep up on average.
const SPARE: f64 = 0.10;
/// More batches per second by this share is a help.
const HELP: f64 = 0.03;
/// The rate has moved when it did so by this share.
const MOVED: f64 = 0.25;
/// One thread less must have less to do than this share of its time.
const MAX_LOAD_AFTER_SHRINKING: f64 = 0.60;
/// Windows on which a shortage is seen, and a growth judged.
const PAIR: usize = 2;
/// Windows on which everything slow is decided: shrinking, stalls that come now and then, whether a rate has moved.
pub(super) const LONG: usize = 8;

/// What may be changed, and how far.
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
    /// At most this many: as many slots as were reserved.
    pub max_depth: usize,
    /// The depth was given by hand.
    pub depth_fixed: bool,
}

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningState {
    /// Decode threads.
    pub threads: usize,
    /// Batches made ahead.
    pub depth: usize,
}

/// What was measured over a few batches, all under one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TuningWindow {
    /// Batches consumed.
    pub batches: u64,
    /// Time they took.
    pub wall_ns: u64,
    /// Of it, the consumer had no batch.
    pub stall_ns: u64,
    /// Of it, the data thread waited for decoded batches.
    pub load_wait_ns: u64,
    /// Decode threads waited for room, summed over threads.
    pub slot_wait_ns: u64,
    /// Decode threads worked, summed over threads.
    pub load_busy_ns: u64,
    /// Fewest ready batches seen.
    pub ready_low: usize,
}

/// A new setting, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningChange {
    /// What is in force from now on.
    pub setting: TuningState,
    /// One line for people.
    pub why: String,
}

/// Watches windows and decides. The same windows give the same decisions.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: TuningLimits,
    setting: TuningState,
    /// The latest windows under this setting, oldest first.
    history: VecDeque<TuningWindow>,
    /// The next window belongs to two settings, or to the start.
    is_unsettled: bool,
    trial: Option<Trial>,
    ceiling: Option<Ceiling>,
    /// The number that shrinking left last.
    left: Option<usize>,
    floor: Option<Floor>,
}

/// Threads have just grown, and it must show.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    before: Evidence,
}

/// Growing did not help.
#[derive(Clone, Copy, Debug, Default)]
struct Ceiling {
    /// Batches per second without it, once it has been seen for long.
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
    /// Starts from `start`, moved inside `limits` where it was not given by hand. Limits that leave no room at all are
    /// the caller's mistake.
    pub fn new(limits: TuningLimits, start: TuningState) -> Tuner {
        let TuningLimits { min_threads, max_threads, threads_fixed, min_depth, max_depth, depth_fixed } = limits;
        assert!(1 <= min_threads && min_threads <= max_threads, "threads {min_threads} to {max_threads}");
        assert!(1 <= min_depth && min_depth <= max_depth, "depth {min_depth} to {max_depth}");
        let setting = TuningState {
            threads: if threads_fixed { start.threads } else { start.threads.clamp(min_threads, max_threads) },
            depth: if depth_fixed { start.depth } else { start.depth.clamp(min_depth, max_depth) },
        };
        let history = VecDeque::with_capacity(LONG);
        Tuner { limits, setting, history, is_unsettled: true, trial: None, ceiling: None, left: None, floor: None }
    }

    /// What is in force.
    pub fn setting(&self) -> TuningState {
        self.setting
    }

    /// Takes in what was measured, and says what to change, if anything. Windows without batches are not looked at; the
    /// one in which a change came into force should be given like any other.
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
        if let Some(trial) = self.trial {
            match self.latest(trial.before.windows) {
                None => return None,
                Some(after) if helped(&trial.before, &after) => self.keep(&trial, &after),
                Some(after) => return Some(self.take_back(&trial, &after)),
            }
        }
        self.lift_what_no_longer_holds();
        match self.shortage() {
            Some(seen) => self.answer(&seen),
            None => self.shrink(),
        }
    }

    /// The evidence for a stall that is no accident: two windows in a row, or a lasting sum of several.
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
        if let Some(threads) = self.left.take() {
            self.floor = Some(Floor { threads, load: seen.load() });
        }
        self.trial = Some(Trial { from, before: *seen });
        Some(self.set_threads(to, &format!("the step waited {} for decoding", seen.stall_in_words())))
    }

    /// Growth that helped although threads had time to spare: for bad moments, which a mean load does not show.
    fn keep(&mut self, trial: &Trial, after: &Evidence) {
        self.trial = None;
        if trial.before.spare(trial.from) > SPARE {
            self.floor = Some(Floor { threads: self.setting.threads, load: after.load() });
        }
    }

    /// Rule 2.
    fn take_back(&mut self, trial: &Trial, after: &Evidence) -> TuningChange {
        self.trial = None;
        self.ceiling = Some(Ceiling::default());
        let gain = 100.0 * (after.rate() / trial.before.rate() - 1.0);
        self.set_threads(
            trial.from,
            &format!("more threads gave {gain:+.1} % batches/s, the disk or the cores are at their limit"),
        )
    }

    fn grow_depth(&mut self, seen: &Evidence) -> Option<TuningChange> {
        let from = self.setting.depth;
        let to = (2 * from).min(self.limits.max_depth);
        if self.limits.depth_fixed || to <= from {
            return None;
        }
        self.setting.depth = to;
        let what =
            if seen.waits_for_decoding() { "although decoding keeps up on average" } else { "and not for decoding" };
        Some(self.changed(format!("prefetch depth {from} -> {to}: the step waited {} {what}", seen.stall_in_words())))
    }

    /// Rule 4.
    fn shrink(&mut self) -> Option<TuningChange> {
        let from = self.setting.threads;
        let floor = self.floor.map_or(1, |floor| floor.threads).max(self.limits.min_threads);
        let seen = self.latest(LONG)?;
        let never_close = seen.stall_ns == 0 && seen.ready_low > 0;
        if self.limits.threads_fixed || from <= floor || !never_close || seen.spare(from) < 0.5 {
            return None;
        }
        if seen.load() > MAX_LOAD_AFTER_SHRINKING * (from - 1) as f64 {
            return None;
        }
        self.left = Some(from);
        // A wait that began in an earlier window is counted in the one it ended in.
        let share = 100.0 * seen.spare(from).min(1.0);
        Some(
            self.set_threads(
                from - 1,
                &format!("they waited for room {share:.0} % of the last {} batches", seen.batches),
            ),
        )
    }

    /// What failed once may be tried again when the work is no longer the same.
    fn lift_what_no_longer_holds(&mut self) {
        let Some(seen) = self.latest(LONG) else { return };
        if self.floor.is_some_and(|floor| seen.load() < 0.5 * floor.load) {
            self.floor = None;
        }
        // A consumer that does not wait says nothing about what decoding could do.
        let Some(ceiling) = self.ceiling.as_mut().filter(|_| seen.stall() > MAX_STALL) else { return };
        let rate = *ceiling.rate.get_or_insert(seen.rate());
        if (seen.rate() / rate - 1.0).abs() > MOVED {
            self.ceiling = None;
        }
    }

    fn set_threads(&mut self, to: usize, because: &str) -> TuningChange {
        let from = std::mem::replace(&mut self.setting.threads, to);
        self.changed(format!("decode threads {from} -> {to}: {because}"))
    }

    fn changed(&mut self, why: String) -> TuningChange {
        self.history.clear();
        self.is_unsettled = true;
        TuningChange { setting: self.setting, why }
    }

    /// The sum of the latest `num_windows` under this setting, once there are so many.
    fn latest(&self, num_windows: usize) -> Option<Evidence> {
        let skipped = self.history.len().checked_sub(num_windows)?;
        Some(Evidence::of(self.history.iter().skip(skipped)))
    }
}

/// Whether growing was worth it.
fn helped(before: &Evidence, after: &Evidence) -> bool {
    let faster = after.rate() > (1.0 + HELP) * before.rate();
    faster || after.stall() <= MAX_STALL.max(0.5 * before.stall())
}
