//! The feed watches its own waiting and acts on it: windows of measured waits go to the [`Tuner`], what it decides goes
//! to the decode threads and to the ring's depth. Batches never change because of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tandem_device::Route;
use tandem_events::{Emitter, RunEvent};

use crate::feed::data_thread::BatchFiller;
use crate::feed::messages::Notes;
use crate::load::decode_threads::DecodeThreads;
use crate::tune::tuner::{Tuner, TuningState, TuningWindow};

/// Batches of a window: enough to see a mean, few enough to act within seconds.
const WINDOW_BATCHES: u64 = 16;

/// Runs on the data thread, once per batch.
pub(crate) struct SelfTuning {
    tuner: Tuner,
    threads: Arc<DecodeThreads>,
    /// What decode threads waited for room in all, summed over threads.
    slot_wait_ns: Arc<AtomicU64>,
    /// What the consumer waited in all.
    stall_ns: Arc<AtomicU64>,
    notes: Notes,
    emitter: Emitter,
    told: ToldSetting,
    since: Instant,
    before: Totals,
    window: TuningWindow,
}

/// What the log is told of a setting beside the setting itself.
#[derive(Clone, Copy)]
pub(crate) struct ToldSetting {
    pub(crate) cores: usize,
    /// Batch slots towards the model device. With a hand-over they are some of those that are made ahead.
    pub(crate) model_slots: u64,
    pub(crate) route: Route,
}

impl ToldSetting {
    pub(crate) fn event(&self, setting: TuningState) -> RunEvent {
        RunEvent::FeedSetting {
            threads: setting.threads as u32,
            cores: self.cores as u32,
            ahead: setting.depth as u32,
            slots: self.model_slots as u32,
            route: self.route.name().to_owned(),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Totals {
    stall_ns: u64,
    slot_wait_ns: u64,
}

impl SelfTuning {
    pub(crate) fn new(
        tuner: Tuner,
        threads: Arc<DecodeThreads>,
        [slot_wait_ns, stall_ns]: [Arc<AtomicU64>; 2],
        (notes, emitter): (Notes, Emitter),
        told: ToldSetting,
    ) -> SelfTuning {
        let (since, before) = (Instant::now(), Totals::default());
        // Here, before the thread that changes it is started: the first setting is told first.
        emitter.emit(told.event(tuner.setting()));
        SelfTuning { tuner, threads, slot_wait_ns, stall_ns, notes, emitter, told, since, before, window: empty() }
    }

    /// Another batch was made.
    pub(crate) fn made_one(&mut self, load_wait_ns: u64, load_busy_ns: u64, slots: &BatchFiller) {
        self.window.batches += 1;
        self.window.load_wait_ns += load_wait_ns;
        self.window.load_busy_ns += load_busy_ns;
        self.window.ready_low = self.window.ready_low.min(slots.stats().ready);
        if self.window.batches >= WINDOW_BATCHES {
            self.close_window(slots);
        }
    }

    fn close_window(&mut self, slots: &BatchFiller) {
        let now = Totals {
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
            slot_wait_ns: self.slot_wait_ns.load(Ordering::Relaxed),
        };
        self.window.wall_ns = self.since.elapsed().as_nanos() as u64;
        self.window.stall_ns = now.stall_ns - self.before.stall_ns;
        self.window.slot_wait_ns = now.slot_wait_ns - self.before.slot_wait_ns;
        (self.since, self.before) = (Instant::now(), now);
        let window = std::mem::replace(&mut self.window, empty());
        let Some(change) = self.tuner.observe(&window) else { return };
        self.threads.set(change.setting.threads);
        slots.set_depth(change.setting.depth);
        self.emitter.emit(self.told.event(change.setting));
        self.emitter.emit(RunEvent::Note { text: change.why.clone() });
        self.notes.say(change.why);
    }
}

fn empty() -> TuningWindow {
    TuningWindow {
        batches: 0,
        wall_ns: 0,
        stall_ns: 0,
        load_wait_ns: 0,
        slot_wait_ns: 0,
        load_busy_ns: 0,
        ready_low: usize::MAX,
    }
}
