//! The queue from the decode threads to the writer thread: bounded in bytes, and pushing never waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue of jobs with sizes. One thread takes, any number push.
#[derive(Debug)]
pub(super) struct WriteQueue<J> {
    max_bytes: u64,
    state: Mutex<State<J>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<(u64, J)>,
    /// Of the queued jobs and the current one.
    bytes: u64,
    current: Option<u64>,
    closing: Option<Closing>,
}

#[derive(Debug)]
enum Closing {
    /// All queued jobs are still taken.
    Drain,
    /// Jobs still queued at that time are dropped.
    At(Instant),
}

impl<J> WriteQueue<J> {
    pub(super) fn new(max_bytes: u64) -> WriteQueue<J> {
        let state = State { jobs: VecDeque::new(), bytes: 0, current: None, closing: None };
        WriteQueue { max_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Queues a job. False, without calling `job`, if there is no room or the queue is closed.
    pub(super) fn try_push(&self, bytes: u64, job: impl FnOnce() -> J) -> bool {
        let mut state = self.lock();
        let fits = state.bytes.checked_add(bytes).is_some_and(|sum| sum <= self.max_bytes);
        if !fits || state.closing.is_some() {
            return false;
        }
        state.bytes += bytes;
        // The room is reserved; the clip is copied without the lock.
        drop(state);
        let job = job();
        let mut state = self.lock();
        if state.closing.is_some() {
            state.bytes = state.bytes.saturating_sub(bytes);
            return false;
        }
        state.jobs.push_back((bytes, job));
        self.changed.notify_all();
        true
    }

    /// Waits for the next job; none once the queue is closed. The job before it counts as done.
    pub(super) fn take(&self) -> Option<J> {
        let mut state = self.lock();
        state.finish();
        self.changed.notify_all();
        loop {
            if state.is_over() {
                state.jobs.clear();
                return None;
            }
            if let Some((bytes, job)) = state.jobs.pop_front() {
                state.current = Some(bytes);
                return Some(job);
            }
            if state.closing.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until every job pushed so far is done, or the queue is closed.
    pub(super) fn wait_until_empty(&self) {
        let busy = |state: &mut State<J>| state.bytes > 0 && state.closing.is_none();
        drop(self.changed.wait_while(self.lock(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses new jobs. Queued jobs are still taken for `grace`.
    pub(super) fn close(&self, grace: Duration) {
        self.lock().closing = Some(Instant::now().checked_add(grace).map_or(Closing::Drain, Closing::At));
        self.changed.notify_all();
    }

    /// Closes the queue and removes all jobs, for a taker that takes no more.
    pub(super) fn abandon(&self) -> Vec<J> {
        let mut state = self.lock();
        state.closing = Some(Closing::At(Instant::now()));
        let left = state.jobs.drain(..).map(|(_, job)| job).collect();
        state.bytes = 0;
        state.current = None;
        self.changed.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        // Every change of the state is complete before code that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn finish(&mut self) {
        self.bytes -= self.current.take().unwrap_or(0);
    }

    fn is_over(&self) -> bool {
        matches!(self.closing, Some(Closing::At(deadline)) if Instant::now() >= deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_taken_in_order_and_the_current_one_still_takes_room() {
        let queue = WriteQueue::new(10);
        assert!(queue.try_push(6, || 'a') && queue.try_push(4, || 'b'));
        assert!(!queue.try_push(1, || unreachable!("a job without room is not created")));
        assert_eq!(queue.take(), Some('a'));
        assert!(!queue.try_push(1, || 'c'));
        assert_eq!(queue.take(), Some('b'));
        assert!(queue.try_push(6, || 'c') && !queue.try_push(1, || 'd'));
    }

    #[test]
    fn a_closed_queue_drains_or_drops_the_rest() {
        let check = |grace: Duration, expected: Option<char>| {
            let queue = WriteQueue::new(10);
            assert!(queue.try_push(1, || 'a'));
            queue.close(grace);
            assert!(!queue.try_push(1, || 'b'));
            assert_eq!((queue.take(), queue.take()), (expected, None));
        };
        check(Duration::MAX, Some('a'));
        check(Duration::ZERO, None);
    }

    #[test]
    fn an_abandoned_queue_is_empty_and_does_not_block() {
        let queue = WriteQueue::new(10);
        assert!(queue.try_push(1, || 'a') && queue.try_push(1, || 'b') && queue.try_push(1, || 'c'));
        assert_eq!(queue.take(), Some('a'));
        assert_eq!(queue.abandon(), ['b', 'c']);
        queue.wait_until_empty();
        // Also a job that was being pushed.
        let queue = WriteQueue::new(10);
        assert!(!queue.try_push(1, || queue.abandon().len()));
        assert_eq!(queue.take(), None);
    }
}
