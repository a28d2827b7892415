//! The locks of rings: std's, or with `--cfg loom` loom's, which explores every interleaving of threads.
//!
//! [`StopFlag`](crate::StopFlag) always uses std's: it waits with a timeout, and loom models no time.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Locks `mutex`, also after a panic elsewhere.
///
/// No code of a caller runs under these locks: closures are called and items dropped outside. So a panic never leaves
/// a half-made change behind, and a poisoned lock is safe to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the lock until `condvar` is notified.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`] for `pause` at most.
pub(crate) fn wait_timeout<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, pause: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0
}

/// Nanoseconds since `start`, saturating at 584 years.
pub(crate) fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
