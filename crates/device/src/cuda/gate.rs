//! Recordings, and waits for all work of a card, kept out of each other's way.
//!
//! A recording is begun in the driver's thread-local mode. What that mode allows, and what it does not:
//!
//! - Calls that the driver calls unsafe beside a recording, because a replay would not repeat them, are refused to the
//!   recording thread alone: `cuMemAlloc`, `cuMemFree`, `cuMemHostAlloc`, `cuModuleLoadData`, `cuEventQuery` and the like.
//!   Other threads go on loading kernels and taking memory. (In the global mode they would break the recording; the relaxed
//!   one would let the recording thread make them too, and a mistake of ours would pass.)
//! - Work that other threads queue on other streams, and events recorded there, are no part of it and do not harm it.
//! - Nobody may ask for, or wait for, what is being recorded: the stream itself, an event recorded in it, and **the
//!   context as a whole**. That holds for every thread in every mode. `cuCtxSynchronize` fails, and breaks the recordings
//!   of all threads on that card. Streams and events are guarded by [`crate::Stream`]; the context is guarded here.
//! - The default stream may not be used beside recordings of streams that wait for it. Ours never do
//!   (`STREAM_NON_BLOCKING`), and nothing here uses that stream.
//!
//! So whoever waits for a whole card waits first until nobody records there, and a recording begins when no such wait is
//! under way. Either is short: a recording only writes lists on the host. Cards are told apart by the driver's own number,
//! for the whole process: all openings of a card, also through different machines, share its primary context.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};

use crate::machine::lock;

/// The gate of this process.
pub(super) static GATE: Gate = Gate::new();

thread_local! {
    /// The cards on which this thread records; more than once for several streams.
    static RECORDING: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Who records and who waits, for each card.
pub(super) struct Gate {
    cards: Mutex<BTreeMap<i32, Traffic>>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Traffic {
    recordings: usize,
    waits: usize,
}

/// Holding one means that no other thread records on the card.
pub(super) struct CaptureGuard<'a> {
    gate: &'a Gate,
    device: i32,
}

impl Gate {
    const fn new() -> Gate {
        Gate { cards: Mutex::new(BTreeMap::new()), changed: Condvar::new() }
    }

    /// A recording of this thread is about to begin. Blocks while someone waits for the whole card.
    pub(super) fn recording_begins(&self, device: i32) {
        self.change_once(device, |traffic| traffic.waits == 0, |traffic| traffic.recordings += 1);
        RECORDING.with_borrow_mut(|mine| mine.push(device));
    }

    /// It is over, or did not begin after all.
    pub(super) fn recording_ends(&self, device: i32) {
        RECORDING.with_borrow_mut(|mine| {
            if let Some(at) = mine.iter().position(|other| *other == device) {
                mine.swap_remove(at);
            }
        });
        self.change_once(device, |_| true, |traffic| traffic.recordings -= 1);
    }

    /// Blocks while another thread records on the card. A thread that records itself goes on: waiting for itself it would
    /// never end, and its own recording breaks, as it should.
    pub(super) fn alone(&self, device: i32) -> CaptureGuard<'_> {
        let mine = RECORDING.with_borrow(|mine| mine.contains(&device));
        self.change_once(device, |traffic| mine || traffic.recordings == 0, |traffic| traffic.waits += 1);
        CaptureGuard { gate: self, device }
    }

    fn change_once(&self, device: i32, ready: impl Fn(Traffic) -> bool, change: impl FnOnce(&mut Traffic)) {
        let mut cards = lock(&self.cards);
        while !ready(cards.get(&device).copied().unwrap_or_default()) {
            cards = self.changed.wait(cards).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        change(cards.entry(device).or_default());
        self.changed.notify_all();
    }
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        self.gate.change_once(self.device, |_| true, |traffic| traffic.waits -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Runs `enter` on another thread while this one holds what `hold` took, and says whether it came in before `release`.
    fn came_in(hold: impl FnOnce(), enter: impl FnOnce() + Send, release: impl FnOnce()) -> bool {
        let (inside, ready) = (AtomicBool::new(false), Barrier::new(2));
        hold();
        thread::scope(|scope| {
            scope.spawn(|| {
                ready.wait();
                enter();
                inside.store(true, Ordering::SeqCst);
            });
            ready.wait();
            let early = (0..2000).any(|_| {
                thread::yield_now();
                inside.load(Ordering::SeqCst)
            });
            release();
            early
        })
    }

    #[test]
    fn a_wait_for_a_card_and_a_recording_on_it_wait_for_each_other() {
        let gate = Gate::new();
        let (begin, end) = (|| gate.recording_begins(0), || gate.recording_ends(0));
        assert!(!came_in(begin, || drop(gate.alone(0)), end), "a wait came into a recording");
        let held = RefCell::new(None);
        let (wait, over) = (|| *held.borrow_mut() = Some(gate.alone(0)), || *held.borrow_mut() = None);
        let record = || {
            gate.recording_begins(0);
            gate.recording_ends(0);
        };
        assert!(!came_in(wait, record, over), "a recording came into a wait");
    }

    #[test]
    fn recordings_do_not_wait_for_each_other_nor_cards_for_other_cards() {
        let gate = Gate::new();
        gate.recording_begins(0);
        // Each would hang, were it held up: this thread ends the recording only after them.
        thread::scope(|scope| {
            scope.spawn(|| {
                gate.recording_begins(0);
                gate.recording_ends(0);
                drop(gate.alone(1));
            });
        });
        drop(gate.alone(0));
        gate.recording_ends(0);
        drop(gate.alone(0));
    }
}
