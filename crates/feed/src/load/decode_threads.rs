//! How many decode threads are at work: some of those there are; the others rest.

use std::sync::{Condvar, Mutex, PoisonError};

/// The number, and where those wait that are not among them.
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

    /// Returns when thread `number` (from 0) is to work; false when the feed ends.
    pub(crate) fn may_work(&self, number: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = |state: &mut State| !state.ended && number >= state.active;
        let state = self.changed.wait_while(state, rests).unwrap_or_else(PoisonError::into_inner);
        !state.ended
    }

    /// Has this many at work from now on; those that are to rest finish the row in hand.
    pub(crate) fn set(&self, active: usize) {
        self.change(|state| state.active = active.max(1));
    }

    /// Ends the rest of all.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// Whether the feed has ended, or is about to.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// How many are at work.
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
    fn those_beyond_the_number_rest_until_it_grows_or_all_ends() {
        let threads = DecodeThreads::new(2);
        assert!(threads.may_work(0) && threads.may_work(1) && !threads.has_ended());
        std::thread::scope(|scope| {
            let third = scope.spawn(|| threads.may_work(2));
            let last = scope.spawn(|| threads.may_work(9));
            threads.set(3);
            assert!(third.join().unwrap());
            threads.end();
            assert!(!last.join().unwrap());
        });
        assert!(!threads.may_work(0) && threads.has_ended());
    }

    #[test]
    fn one_always_works() {
        let threads = DecodeThreads::new(4);
        threads.set(0);
        assert_eq!(threads.active(), 1);
    }
}
