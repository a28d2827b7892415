//! Self-tuning of a running feed: measures waits, asks the [`Tuner`], and applies its changes to the decode threads and to the
//! depth of the data ring. Batches do not depend on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tandem_device::Route;
use tandem_events::{Emitter, RunEvent};

use super::tuner::{Tuner, TuningChange, TuningState, TuningWindow};
use crate::feed::messages::Messages;
use crate::feed::rings::BatchFiller;
use crate::load::decode_threads::DecodeThreads;

/// Batches of a window: enough for a mean, few enough to react within seconds.
const WINDOW_BATCHES: u64 = 16;

/// Runs on the data thread, once per batch.
pub(crate) struct SelfTuning {
    tuner: Tuner,
    threads: Arc<DecodeThreads>,
    waits: WaitCounters,
    log: TuningLog,
    since: Instant,
    before: WaitTotals,
    window: TuningWindow,
}

/// Counters that other threads add their waits to.
#[derive(Clone, Default)]
pub(crate) struct WaitCounters {
    /// Time decode threads waited for a slot, summed over threads.
    pub(crate) slot_wait_ns: Arc<AtomicU64>,
    /// Time the consumer waited for a batch.
    pub(crate) stall_ns: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Default)]
struct WaitTotals {
    slot_wait_ns: u64,
    stall_ns: u64,
}

/// Reports settings to the run log and to users.
pub(crate) struct TuningLog {
    pub(crate) emitter: Emitter,
    pub(crate) messages: Messages,
    pub(crate) cores: usize,
    /// Batch slots on the model device. With a hand-over they are part of the prefetched batches.
    pub(crate) model_slots: u64,
    pub(crate) route: Route,
}

impl TuningLog {
    fn setting(&self, setting: TuningState) {
        self.emitter.emit(RunEvent::FeedSetting {
            threads: setting.threads as u32,
            cores: self.cores as u32,
            buffer_size: setting.depth as u32,
            prefetch: self.model_slots as u32,
            route: self.route.name().to_owned(),
        });
    }

    fn change(&self, change: TuningChange) {
        self.setting(change.setting);
        self.emitter.emit(RunEvent::Note { text: change.why.clone() });
        self.messages.push(change.why);
    }
}

impl WaitCounters {
    fn totals(&self) -> WaitTotals {
        WaitTotals {
            slot_wait_ns: self.slot_wait_ns.load(Ordering::Relaxed),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
        }
    }
}

impl SelfTuning {
    /// Reports the first setting.
    pub(crate) fn new(tuner: Tuner, threads: Arc<DecodeThreads>, waits: WaitCounters, log: TuningLog) -> SelfTuning {
        let (since, before) = (Instant::now(), WaitTotals::default());
        // Here, before the thread that changes the setting is started: the first setting is logged first.
        log.setting(tuner.setting());
        SelfTuning { tuner, threads, waits, log, since, before, window: empty_window() }
    }

    /// Counts a batch. The last one of a window may change the setting.
    pub(crate) fn count_batch(&mut self, load_wait_ns: u64, load_busy_ns: u64, slots: &BatchFiller) {
        self.window.batches += 1;
        self.window.load_wait_ns += load_wait_ns;
        self.window.load_busy_ns += load_busy_ns;
        self.window.ready_low = self.window.ready_low.min(slots.stats().ready);
        if self.window.batches >= WINDOW_BATCHES {
            self.close_window(slots);
        }
    }

    fn close_window(&mut self, slots: &BatchFiller) {
        let now = self.waits.totals();
        self.window.wall_ns = self.since.elapsed().as_nanos() as u64;
        self.window.stall_ns = now.stall_ns - self.before.stall_ns;
        self.window.slot_wait_ns = now.slot_wait_ns - self.before.slot_wait_ns;
        (self.since, self.before) = (Instant::now(), now);
        let window = std::mem::replace(&mut self.window, empty_window());
        let Some(change) = self.tuner.observe(&window) else { return };
        self.threads.set(change.setting.threads);
        slots.set_depth(change.setting.depth);
        self.log.change(change);
    }
}

fn empty_window() -> TuningWindow {
    TuningWindow { ready_low: usize::MAX, ..TuningWindow::default() }
}
