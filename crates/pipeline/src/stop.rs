//! The flag that asks a thread to stop, also in the middle of a pause.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A flag that is raised once and stays raised. Clones are the same flag.
///
/// A worker pauses with [`wait_timeout`](StopFlag::wait_timeout) on its flag and never sleeps, so that stopping waits
/// only for the current work item.
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
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag and ends every pause that waits on it. Raising it again does nothing.
    pub fn raise(&self) {
        *self.lock() = true;
        self.shared.changed.notify_all();
    }

    /// Whether the flag is raised.
    pub fn is_raised(&self) -> bool {
        *self.lock()
    }

    /// Pauses for `pause`, or until the flag is raised. True when it is raised.
    pub fn wait_timeout(&self, pause: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.lock(), pause, |raised| !*raised);
        let (raised, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *raised
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // A bool is never half written: it is valid even if a thread panicked while holding the lock.
        self.shared.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_without_a_stop_times_out() {
        assert!(!StopFlag::new().wait_timeout(Duration::from_millis(1)));
    }

    #[test]
    fn a_raised_flag_ends_every_pause_and_stays_raised() {
        let flag = StopFlag::new();
        flag.clone().raise();
        assert!(flag.is_raised());
        for _ in 0..2 {
            // Without the flag this would outlast the test run.
            assert!(flag.wait_timeout(Duration::MAX));
        }
    }
}
