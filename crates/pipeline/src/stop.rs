//! How a thread is told to stop, also in the middle of a pause.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A flag that is raised once and stays up. Clones are the same flag.
///
/// A pause in a worker is a [`wait_timeout`](StopFlag::wait_timeout) on its flag and never a sleep, so that stopping
/// costs no more than the work in hand.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag and ends every pause that waits on it. Raising it again does nothing.
    pub fn raise(&self) {
        *self.lock() = true;
        self.shared.changed.notify_all();
    }

    /// Whether the flag is up.
    pub fn is_raised(&self) -> bool {
        *self.lock()
    }

    /// Pauses for `pause`, or until the flag goes up. True when it is up.
    pub fn wait_timeout(&self, pause: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.lock(), pause, |raised| !*raised);
        let (raised, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *raised
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // A bool is never half written: whoever panicked while holding the lock left a good one behind.
        self.shared.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_nobody_ends_runs_out() {
        assert!(!StopFlag::new().wait_timeout(Duration::from_millis(1)));
    }

    #[test]
    fn a_raised_flag_ends_every_pause_and_stays_up() {
        let flag = StopFlag::new();
        flag.clone().raise();
        assert!(flag.is_raised());
        for _ in 0..2 {
            // Without the flag this would outlast the test run.
            assert!(flag.wait_timeout(Duration::MAX));
        }
    }
}
