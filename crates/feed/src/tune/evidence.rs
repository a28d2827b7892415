//! The sum of several windows, as shares of time.

use super::tuner::TuningWindow;

/// The sum of at least one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    pub(super) windows: usize,
    pub(super) batches: u64,
    pub(super) stall_ns: u64,
    pub(super) ready_low: usize,
    wall_ns: u64,
    load_wait_ns: u64,
    slot_wait_ns: u64,
    load_busy_ns: u64,
}

impl Evidence {
    pub(super) fn of<'a>(windows: impl IntoIterator<Item = &'a TuningWindow>) -> Evidence {
        let none = Evidence { ready_low: usize::MAX, ..Evidence::default() };
        windows.into_iter().fold(none, |sum, window| Evidence {
            windows: sum.windows + 1,
            batches: sum.batches + window.batches,
            stall_ns: sum.stall_ns + window.stall_ns,
            ready_low: sum.ready_low.min(window.ready_low),
            wall_ns: sum.wall_ns + window.wall_ns,
            load_wait_ns: sum.load_wait_ns + window.load_wait_ns,
            slot_wait_ns: sum.slot_wait_ns + window.slot_wait_ns,
            load_busy_ns: sum.load_busy_ns + window.load_busy_ns,
        })
    }

    /// The share of time that the consumer waited for a batch.
    pub(super) fn stall(&self) -> f64 {
        self.stall_ns as f64 / self.wall_ns as f64
    }

    /// Batches per second.
    pub(super) fn rate(&self) -> f64 {
        self.batches as f64 / (self.wall_ns as f64 * 1e-9)
    }

    /// The share of their time that `threads` decode threads waited for room.
    pub(super) fn spare(&self, threads: usize) -> f64 {
        self.slot_wait_ns as f64 / (self.wall_ns as f64 * threads as f64)
    }

    /// The work of decoding, in threads.
    pub(super) fn load(&self) -> f64 {
        self.load_busy_ns as f64 / self.wall_ns as f64
    }

    /// Whether at least half of the stall is a wait for decoding.
    pub(super) fn waits_for_decoding(&self) -> bool {
        2 * self.load_wait_ns >= self.stall_ns
    }

    /// The share as users read it.
    pub(super) fn stall_share(&self) -> String {
        format!("{:.1} % of the last {} batches", 100.0 * self.stall(), self.batches)
    }
}
