//! The locks of links and rings: std's, or loom's where a build says `--cfg loom`, which tries every order of threads.
//!
//! [`StopFlag`](crate::StopFlag) stays with std: it pauses for a time, and a model has none.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Locks `mutex`, also after a panic elsewhere.
///
/// No code of a caller runs under these locks: closures are called and items dropped outside. So a panic never leaves
/// half a change behind, and a poisoned lock is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of the lock until `condvar` is notified.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The same, for `pause` at most.
pub(crate) fn wait_timeout<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, pause: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0
}

/// Nanoseconds since `start`; a wait of 584 years is as long as any longer one.
pub(crate) fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
