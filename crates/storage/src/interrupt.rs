//! Ends waits for stores: whoever stops does not wait for a network that is gone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

thread_local! {
    /// What ends the waits of this thread.
    static CURRENT: RefCell<Option<StorageInterrupt>> = const { RefCell::new(None) };
}

/// Ends the waits of some threads for stores, and of no others. Clones are the same one.
///
/// A thread waits for a store in many places: for a list, for a stamp, for bytes, inside a decoder. All of them belong to the
/// work that the thread does, so work is what an interrupt is for, not a request and not a [`Storage`](crate::Storage): whoever
/// shares the storage reads on.
///
/// Once it is raised, a wait inside [`StorageInterrupt::run`] fails with
/// [`StorageError::Interrupted`](crate::StorageError::Interrupted), at once, and its request is cancelled, also between two
/// attempts. It stays raised: later requests fail without being made. Files of this machine are read as ever.
#[derive(Clone, Default)]
pub struct StorageInterrupt {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_raised: bool,
    /// Requests that threads wait for.
    waits: BTreeMap<u64, AbortHandle>,
    next_wait: u64,
}

impl StorageInterrupt {
    /// One that is not raised.
    pub fn new() -> StorageInterrupt {
        StorageInterrupt::default()
    }

    /// Does `work` on this thread, with waits that this interrupt ends. In nested calls, the inner one counts.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _outer = Outer(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Ends every wait, now and from now on. Waits for nothing itself. Again does nothing.
    pub fn raise(&self) {
        let waits = {
            let mut state = self.lock();
            state.is_raised = true;
            std::mem::take(&mut state.waits)
        };
        waits.into_values().for_each(|request| request.abort());
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        self.lock().is_raised
    }

    /// The one that ends the waits of this thread.
    pub(crate) fn of_this_thread() -> Option<StorageInterrupt> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Cancels `request` when it is raised, until the guard is dropped. None if it is raised already.
    pub(crate) fn begin_wait(&self, request: AbortHandle) -> Option<InterruptibleWait<'_>> {
        let mut state = self.lock();
        if state.is_raised {
            return None;
        }
        let number = state.next_wait;
        state.next_wait += 1;
        state.waits.insert(number, request);
        Some(InterruptibleWait { interrupt: self, number })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StorageInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageInterrupt").field("is_raised", &self.is_raised()).finish_non_exhaustive()
    }
}

/// A wait that an interrupt ends.
pub(crate) struct InterruptibleWait<'a> {
    interrupt: &'a StorageInterrupt,
    number: u64,
}

impl Drop for InterruptibleWait<'_> {
    fn drop(&mut self) {
        self.interrupt.lock().waits.remove(&self.number);
    }
}

/// What ended the waits of this thread before. Dropping it restores that, also if the work panics.
struct Outer(Option<StorageInterrupt>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn is_raised_here() -> Option<bool> {
        StorageInterrupt::of_this_thread().map(|interrupt| interrupt.is_raised())
    }

    #[test]
    fn an_interrupt_is_that_of_the_work_and_of_its_thread_only() {
        let (outer, inner) = (StorageInterrupt::new(), StorageInterrupt::new());
        inner.raise();
        inner.raise();
        assert_eq!(is_raised_here(), None);
        outer.run(|| {
            assert_eq!(is_raised_here(), Some(false));
            inner.run(|| assert_eq!(is_raised_here(), Some(true)));
            assert_eq!(is_raised_here(), Some(false));
            std::thread::scope(|scope| assert_eq!(scope.spawn(is_raised_here).join().unwrap(), None));
            // A clone is the same one.
            outer.clone().raise();
            assert_eq!(is_raised_here(), Some(true));
        });
        assert_eq!(is_raised_here(), None);
    }

    #[test]
    fn work_that_panics_leaves_no_interrupt_behind() {
        catch_unwind(|| StorageInterrupt::new().run(|| panic!("the work"))).unwrap_err();
        assert_eq!(is_raised_here(), None);
    }
}
