//! The way from the decode threads to the one thread that writes: bounded in bytes, and nobody waits to get in.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue of jobs with sizes. One thread takes, any number bring.
#[derive(Debug)]
pub(super) struct WriteQueue<J> {
    max_bytes: u64,
    state: Mutex<State<J>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<(u64, J)>,
    /// Of the jobs here and of the one in hand.
    bytes: u64,
    in_hand: Option<u64>,
    closing: Option<Closing>,
}

#[derive(Debug)]
enum Closing {
    /// Everything here is still handed out.
    Drain,
    /// What is here at that time is not.
    At(Instant),
}

impl<J> WriteQueue<J> {
    pub(super) fn new(max_bytes: u64) -> WriteQueue<J> {
        let state = State { jobs: VecDeque::new(), bytes: 0, in_hand: None, closing: None };
        WriteQueue { max_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Whether the job was taken in: there was room, and the queue is open. `job` is made only then.
    pub(super) fn try_push(&self, bytes: u64, job: impl FnOnce() -> J) -> bool {
        let mut state = self.lock();
        let fits = state.bytes.checked_add(bytes).is_some_and(|sum| sum <= self.max_bytes);
        if !fits || state.closing.is_some() {
            return false;
        }
        state.bytes += bytes;
        // Room is taken; the copying is done without the lock.
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

    /// The next job, when there is one; none once the queue is closed. The job before counts as done.
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
                state.in_hand = Some(bytes);
                return Some(job);
            }
            if state.closing.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until every job brought so far is done, or the queue is closed.
    pub(super) fn wait_until_empty(&self) {
        let busy = |state: &mut State<J>| state.bytes > 0 && state.closing.is_none();
        drop(self.changed.wait_while(self.lock(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes nothing in from here on. What is here is handed out for `grace` yet.
    pub(super) fn close(&self, grace: Duration) {
        self.lock().closing = Some(Instant::now().checked_add(grace).map_or(Closing::Drain, Closing::At));
        self.changed.notify_all();
    }

    /// Closes the queue and takes out all that is left, for a taker that will take no more.
    pub(super) fn abandon(&self) -> Vec<J> {
        let mut state = self.lock();
        state.closing = Some(Closing::At(Instant::now()));
        let left = state.jobs.drain(..).map(|(_, job)| job).collect();
        state.bytes = 0;
        state.in_hand = None;
        self.changed.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        // Every change of the state is whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn finish(&mut self) {
        self.bytes -= self.in_hand.take().unwrap_or(0);
    }

    fn is_over(&self) -> bool {
        matches!(self.closing, Some(Closing::At(deadline)) if Instant::now() >= deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_in_order_and_the_one_in_hand_still_takes_room() {
        let queue = WriteQueue::new(10);
        assert!(queue.try_push(6, || 'a') && queue.try_push(4, || 'b'));
        assert!(!queue.try_push(1, || unreachable!("a job that has no room is not made")));
        assert_eq!(queue.take(), Some('a'));
        assert!(!queue.try_push(1, || 'c'));
        assert_eq!(queue.take(), Some('b'));
        assert!(queue.try_push(6, || 'c') && !queue.try_push(1, || 'd'));
    }

    #[test]
    fn a_closed_queue_hands_out_the_rest_or_lets_it_go() {
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
    fn an_abandoned_queue_is_empty_and_nobody_waits_for_it() {
        let queue = WriteQueue::new(10);
        assert!(queue.try_push(1, || 'a') && queue.try_push(1, || 'b') && queue.try_push(1, || 'c'));
        assert_eq!(queue.take(), Some('a'));
        assert_eq!(queue.abandon(), ['b', 'c']);
        queue.wait_until_empty();
        // Also one that was on its way in.
        let queue = WriteQueue::new(10);
        assert!(!queue.try_push(1, || queue.abandon().len()));
        assert_eq!(queue.take(), None);
    }
}
