//! Excludes graph captures on a card from synchronisation of its context, and the other way round.
//!
//! A capture is started in CUDA's thread-local mode (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`). What this mode allows:
//!
//! - Calls that are potentially unsafe during a capture, because a graph launch would not repeat them, are prohibited on
//!   the capturing thread only: `cuMemAlloc`, `cuMemFree`, `cuMemHostAlloc`, `cuModuleLoadData`, `cuEventQuery` and others.
//!   Other threads can load kernels and allocate memory. (In global mode they would invalidate the capture. Relaxed mode
//!   would allow these calls on the capturing thread too, and would hide our bugs.)
//! - Work that other threads queue on other streams, and events recorded there, do not become part of the graph and do not
//!   invalidate the capture.
//! - No thread may query or wait for the capturing stream, an event recorded in it, or the context as a whole, in any mode:
//!   the call fails and invalidates the capture. [`crate::Stream`] guards streams and events of its own thread; this file
//!   guards those of others from a thread that waits for **all streams of a card**, to free memory or to close the card.
//! - The legacy default stream may not be used during captures on streams that synchronise with it. Ours never do
//!   (`STREAM_NON_BLOCKING`), and nothing here uses that stream.
//!
//! So a thread that waits for all streams of a context first waits until no capture is in progress there, and a capture
//! starts only while no thread waits so. Both are short: a capture only builds lists on the host. A context has a number in
//! this process: all openings of a card, also by different machines, share its primary context and with it CUDA's number of
//! the card; a context of its own has a negative one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};

use crate::machine::lock;

/// The lock of this process.
pub(super) static CAPTURE_LOCK: CaptureLock = CaptureLock::new();

thread_local! {
    /// The cards on which this thread is capturing; a card is listed once per stream.
    static CAPTURING: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// Captures and synchronisations in progress on each card.
pub(super) struct CaptureLock {
    cards: Mutex<BTreeMap<i32, InProgress>>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct InProgress {
    captures: usize,
    synchronizations: usize,
}

/// Holding one means that no other thread is capturing on the card.
pub(super) struct CaptureGuard<'a> {
    lock: &'a CaptureLock,
    device: i32,
}

impl CaptureLock {
    const fn new() -> CaptureLock {
        CaptureLock { cards: Mutex::new(BTreeMap::new()), changed: Condvar::new() }
    }

    /// Call before a capture starts on this thread. Blocks while another thread synchronises the context.
    pub(super) fn begin_capture(&self, device: i32) {
        self.change_when(device, |now| now.synchronizations == 0, |now| now.captures += 1);
        CAPTURING.with_borrow_mut(|mine| mine.push(device));
    }

    /// Call after a capture ended, or failed to start.
    pub(super) fn end_capture(&self, device: i32) {
        CAPTURING.with_borrow_mut(|mine| {
            if let Some(at) = mine.iter().position(|other| *other == device) {
                mine.swap_remove(at);
            }
        });
        self.change_when(device, |_| true, |now| now.captures -= 1);
    }

    /// Blocks while another thread is capturing on the card. A thread that is capturing itself does not block, because it
    /// would wait for itself forever; its capture is then invalidated.
    pub(super) fn exclude_captures(&self, device: i32) -> CaptureGuard<'_> {
        let mine = CAPTURING.with_borrow(|mine| mine.contains(&device));
        self.change_when(device, |now| mine || now.captures == 0, |now| now.synchronizations += 1);
        CaptureGuard { lock: self, device }
    }

    fn change_when(&self, device: i32, ready: impl Fn(InProgress) -> bool, change: impl FnOnce(&mut InProgress)) {
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
        self.lock.change_when(self.device, |_| true, |now| now.synchronizations -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Calls `acquire`, runs `enter` on another thread, and returns whether `enter` returned before `release`.
    fn entered_early(acquire: impl FnOnce(), enter: impl FnOnce() + Send, release: impl FnOnce()) -> bool {
        let (inside, ready) = (AtomicBool::new(false), Barrier::new(2));
        acquire();
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
    fn a_context_synchronisation_and_a_capture_exclude_each_other() {
        let lock = CaptureLock::new();
        let (begin, end) = (|| lock.begin_capture(0), || lock.end_capture(0));
        assert!(!entered_early(begin, || drop(lock.exclude_captures(0)), end), "synchronised during a capture");
        let guard = RefCell::new(None);
        let (exclude, allow) = (|| *guard.borrow_mut() = Some(lock.exclude_captures(0)), || *guard.borrow_mut() = None);
        let capture = || {
            lock.begin_capture(0);
            lock.end_capture(0);
        };
        assert!(!entered_early(exclude, capture, allow), "captured during a synchronisation");
    }

    #[test]
    fn captures_do_not_wait_for_each_other_nor_cards_for_other_cards() {
        let lock = CaptureLock::new();
        lock.begin_capture(0);
        // Each call would deadlock if it blocked: this thread ends its capture only after them.
        thread::scope(|scope| {
            scope.spawn(|| {
                lock.begin_capture(0);
                lock.end_capture(0);
                drop(lock.exclude_captures(1));
            });
        });
        drop(lock.exclude_captures(0));
        lock.end_capture(0);
        drop(lock.exclude_captures(0));
    }
}
