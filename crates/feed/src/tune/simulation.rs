//! A simulated feed in virtual time, for tests of the tuner: decode threads, a bounded number of batches, a consumer.
//!
//! Free threads start clips in order, as long as their batch has a slot. A batch is ready when its clips and all batches before
//! it are done. Its slot is free when its step ends. The next event is always the end of a clip or of a step, so all times are
//! exact, and a seed gives the same run every time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::tuner::{Tuner, TuningState, TuningWindow};

/// Batches of a window.
const WINDOW_BATCHES: u64 = 16;

/// The simulated load.
#[derive(Clone, Copy)]
pub(super) struct SimulatedLoad {
    pub(super) clips_per_batch: usize,
    pub(super) step_ns: u64,
    /// Mean time of a clip on an idle core.
    pub(super) clip_ns: u64,
    /// Threads that work at once without slowing each other down.
    pub(super) cores: usize,
    pub(super) burst: Option<Burst>,
}

/// Every `every`th batch has clips that take `times` as long.
#[derive(Clone, Copy)]
pub(super) struct Burst {
    pub(super) every: u64,
    pub(super) times: u64,
}

/// The result of a simulation.
pub(super) struct SimulatedOutcome {
    /// Every window, and the change made after it.
    pub(super) windows: Vec<(TuningWindow, Option<String>)>,
    pub(super) setting: TuningState,
}

impl SimulatedOutcome {
    /// The share of stall in the last quarter.
    pub(super) fn last_stall(&self) -> f64 {
        let last = &self.windows[self.windows.len() * 3 / 4..];
        let sum = |of: fn(&TuningWindow) -> u64| last.iter().map(|(window, _)| of(window)).sum::<u64>() as f64;
        sum(|window| window.stall_ns) / sum(|window| window.wall_ns)
    }

    /// All changes, with the window before each.
    pub(super) fn changes(&self) -> Vec<(usize, &str)> {
        self.windows.iter().enumerate().filter_map(|(n, (_, why))| Some((n, why.as_deref()?))).collect()
    }
}

/// Runs `num_windows` windows; `load_at` gives the load of each window.
pub(super) fn run(
    tuner: &mut Tuner,
    seed: u64,
    num_windows: usize,
    load_at: impl Fn(usize) -> SimulatedLoad,
) -> SimulatedOutcome {
    let mut machine = Machine::new(seed, load_at(0), tuner.setting());
    let mut windows = Vec::new();
    for number in 0..num_windows {
        machine.load = load_at(number);
        let window = machine.window();
        let change = tuner.observe(&window);
        assert!(change.as_ref().is_none_or(|change| change.setting == tuner.setting()));
        machine.setting = tuner.setting();
        windows.push((window, change.map(|change| change.why)));
    }
    SimulatedOutcome { windows, setting: tuner.setting() }
}

struct Machine {
    load: SimulatedLoad,
    setting: TuningState,
    random: u64,
    now_ns: u64,
    /// When each started clip ends, and its batch.
    clips: BinaryHeap<Reverse<(u64, u64)>>,
    /// Batches whose step has ended.
    done: u64,
    /// Unfinished clips of every started batch from `done` on.
    missing: VecDeque<usize>,
    /// The batch and the clip in it that starts next.
    next: (u64, usize),
    /// When the running step ends.
    step: Option<u64>,
}

impl Machine {
    fn new(seed: u64, load: SimulatedLoad, setting: TuningState) -> Machine {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (clips, missing) = (BinaryHeap::new(), VecDeque::new());
        Machine { load, setting, random, now_ns: 0, clips, done: 0, missing, next: (0, 0), step: None }
    }

    fn window(&mut self) -> TuningWindow {
        let mut window = TuningWindow { ready_low: usize::MAX, ..TuningWindow::default() };
        while window.batches < WINDOW_BATCHES {
            self.start_clips();
            self.start_step();
            self.advance(&mut window);
        }
        window
    }

    fn start_clips(&mut self) {
        while self.clips.len() < self.setting.threads && self.next.0 < self.done + self.setting.depth as u64 {
            let (batch, clip) = self.next;
            if clip == 0 {
                self.missing.push_back(self.load.clips_per_batch);
            }
            let end_ns = self.now_ns + self.clip_ns(batch);
            self.clips.push(Reverse((end_ns, batch)));
            self.next = if clip + 1 < self.load.clips_per_batch { (batch, clip + 1) } else { (batch + 1, 0) };
        }
    }

    fn start_step(&mut self) {
        if self.step.is_none() && self.ready() > 0 {
            self.step = Some(self.now_ns + self.load.step_ns);
        }
    }

    /// Advances to the next event.
    fn advance(&mut self, window: &mut TuningWindow) {
        let clip_ns = self.clips.peek().map(|Reverse((end_ns, _))| *end_ns);
        let next_ns = clip_ns.into_iter().chain(self.step).min().unwrap();
        let (took_ns, ready) = (next_ns - self.now_ns, self.ready());
        let working = self.clips.len() as u64;
        window.wall_ns += took_ns;
        window.stall_ns += if self.step.is_none() { took_ns } else { 0 };
        window.load_wait_ns += if ready < self.setting.depth { took_ns } else { 0 };
        window.slot_wait_ns += took_ns * (self.setting.threads as u64).saturating_sub(working);
        window.load_busy_ns += took_ns * working;
        // The batch of the running step is ready, but no reserve.
        window.ready_low = window.ready_low.min(ready - usize::from(self.step.is_some()));
        self.now_ns = next_ns;
        if self.step == Some(next_ns) {
            self.step = None;
            self.missing.pop_front();
            self.done += 1;
            window.batches += 1;
        } else if let Some(Reverse((_, batch))) = self.clips.pop() {
            self.missing[(batch - self.done) as usize] -= 1;
        }
    }

    /// Batches in order whose clips are all done.
    fn ready(&self) -> usize {
        self.missing.iter().take_while(|missing| **missing == 0).count()
    }

    /// Half to one and a half times the mean; longer in a burst, and when threads share cores.
    fn clip_ns(&mut self, batch: u64) -> u64 {
        let SimulatedLoad { clip_ns, cores, burst, .. } = self.load;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let clip_ns = clip_ns / 2 + self.random % clip_ns;
        let longer = burst.map_or(1, |burst| if batch.is_multiple_of(burst.every) { burst.times } else { 1 });
        let sharing = (self.clips.len() + 1).max(cores) as u64;
        clip_ns * longer * sharing / cores as u64
    }
}
