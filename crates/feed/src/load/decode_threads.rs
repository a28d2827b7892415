//! How many decode threads are active. The others wait.

use std::sync::{Condvar, Mutex, PoisonError};

/// The number of active decode threads, and where the others wait.
pub(crate) struct DecodeThreads {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    active: usize,
    ended: bool,
}

impl DecodeThreads {
    pub(crate) fn new(active: usize) -> DecodeThreads {
        DecodeThreads { state: Mutex::new(State { active, ended: false }), changed: Condvar::new() }
    }

    /// Waits until thread `number` (from 0) is active. False when the feed ends.
    pub(crate) fn wait_active(&self, number: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |state: &mut State| !state.ended && number >= state.active;
        let state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        !state.ended
    }

    /// Sets the number of active threads, at least one. A thread that becomes idle finishes its row first.
    pub(crate) fn set(&self, active: usize) {
        self.change(|state| state.active = active.max(1));
    }

    /// Wakes all threads to end.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// Whether the feed has ended, or is about to.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// The number of active threads.
    pub(crate) fn active(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).active
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_above_the_number_wait_until_it_grows_or_the_feed_ends() {
        let threads = DecodeThreads::new(2);
        assert!(threads.wait_active(0) && threads.wait_active(1) && !threads.has_ended());
        std::thread::scope(|scope| {
            let third = scope.spawn(|| threads.wait_active(2));
            let last = scope.spawn(|| threads.wait_active(9));
            threads.set(3);
            assert!(third.join().unwrap());
            threads.end();
            assert!(!last.join().unwrap());
        });
        assert!(!threads.wait_active(0) && threads.has_ended());
    }

    #[test]
    fn at_least_one_thread_is_active() {
        let threads = DecodeThreads::new(4);
        threads.set(0);
        assert_eq!(threads.active(), 1);
    }
}
