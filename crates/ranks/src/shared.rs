//! What the threads of a rank share: the connections, and whether the group still works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::link::{RankLink, has_bytes};
use crate::message::ControlMessage;
use crate::{RankError, World};

/// The state of a rank's group.
pub(crate) struct Shared {
    pub(crate) world: World,
    /// On rank 0 a link to each other rank, in rank order; elsewhere one, to rank 0.
    pub(crate) links: Vec<RankLink>,
    pub(crate) heartbeat_timeout: Duration,
    /// On rank 0, by link: whether the part of the current round has arrived.
    arrived: Vec<AtomicBool>,
    state: Mutex<State>,
    /// Notified when the group fails, and when a control thread ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    failure: Option<RankError>,
    /// Ranks that have left, and the collectives each of them completed.
    left: Vec<(u32, u64)>,
    /// The collectives that this rank has completed, which is also the number of the current or next one.
    completed: u64,
    is_running: bool,
    /// Control threads that have not ended.
    num_controls: usize,
}

impl Shared {
    pub(crate) fn new(world: World, links: Vec<RankLink>, heartbeat_timeout: Duration) -> Shared {
        let arrived = links.iter().map(|_| AtomicBool::new(false)).collect();
        let state = State { num_controls: links.len(), ..State::default() };
        Shared { world, links, heartbeat_timeout, arrived, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The error that has ended the group.
    pub(crate) fn failure(&self) -> Option<RankError> {
        self.lock().failure.clone()
    }

    /// Ends the group with `error`, for every rank, unless it has ended already. Returns the error that ended it.
    pub(crate) fn fail(&self, error: RankError) -> RankError {
        if let Some(first) = self.fail_here(&error) {
            return first;
        }
        // The other ranks get the cause before their data connection ends.
        let message = ControlMessage::Failed(error.clone());
        self.links.iter().for_each(|link| link.send_last(&message));
        self.links.iter().for_each(RankLink::shut_data);
        error
    }

    /// Stores `error`. Returns the earlier one if there is one.
    fn fail_here(&self, error: &RankError) -> Option<RankError> {
        let mut state = self.lock();
        if state.failure.is_some() {
            return state.failure.clone();
        }
        state.failure = Some(error.clone());
        self.changed.notify_all();
        None
    }

    /// Waits for the error that ends the group, for `timeout` at most.
    pub(crate) fn wait_for_failure(&self, timeout: Duration) -> Option<RankError> {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| state.failure.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.failure.clone()
    }

    /// Begins a collective and returns its number. Fails if the group has ended, or if a rank has left that would have to
    /// take part.
    pub(crate) fn begin(&self) -> Result<u64, RankError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let number = state.completed;
        if let Some(&(rank, _)) = state.left.iter().find(|(_, completed)| *completed <= number) {
            drop(state);
            return Err(self.fail(RankError::Left { rank }));
        }
        // Before the collective is seen to run: the marks are those of the last one.
        self.clear_arrived();
        state.is_running = true;
        Ok(number)
    }

    /// Ends the collective that [`begin`](Shared::begin) began.
    pub(crate) fn end(&self, completed: bool) {
        let mut state = self.lock();
        state.is_running = false;
        state.completed += u64::from(completed);
    }

    /// Notes that `rank` has left. Ends the group if this rank is in a collective that `rank` did not complete; one that it
    /// did complete still has its result on the way.
    pub(crate) fn note_left(&self, rank: u32, completed: u64) {
        let mut state = self.lock();
        state.left.push((rank, completed));
        let is_needed = state.is_running && completed <= state.completed;
        drop(state);
        if is_needed {
            self.fail(RankError::Left { rank });
        }
    }

    /// Sends the last message to every rank: a goodbye, or the failure.
    pub(crate) fn leave(&self) {
        let completed = self.lock().completed;
        self.links.iter().for_each(|link| self.close(link, Some(&ControlMessage::Leave { completed })));
    }

    /// Closes this end of `link`, after `goodbye`. If the group has failed, the failure goes instead: the thread that found it
    /// may not have sent it yet, and without it the other end would take this rank for lost.
    pub(crate) fn close(&self, link: &RankLink, goodbye: Option<&ControlMessage>) {
        let failed = self.failure().map(ControlMessage::Failed);
        match failed.as_ref().or(goodbye) {
            Some(message) => link.send_last(message),
            None => link.close(),
        }
    }

    /// Notes that one control thread has ended.
    pub(crate) fn note_control_ended(&self) {
        self.lock().num_controls -= 1;
        self.changed.notify_all();
    }

    /// Waits until all control threads have ended, for `timeout` at most.
    pub(crate) fn wait_for_controls(&self, timeout: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| state.num_controls > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Begins a round on rank 0: nobody's part has arrived.
    pub(crate) fn clear_arrived(&self) {
        self.arrived.iter().for_each(|arrived| arrived.store(false, Ordering::Relaxed));
    }

    /// The part of the rank at `link` has arrived.
    pub(crate) fn set_arrived(&self, link: usize) {
        self.arrived[link].store(true, Ordering::Relaxed);
    }

    /// On rank 0: the ranks that have not come to collective number `number`, in which `waiting` waits. Empty when all have.
    pub(crate) fn late_ranks(&self, number: u64, waiting: u32) -> Vec<u32> {
        let (completed, is_running) = {
            let state = self.lock();
            (state.completed, state.is_running)
        };
        if number < completed {
            // The result is on its way: the connection to `waiting` is slow.
            return vec![waiting];
        }
        let links = self.links.iter().zip(&self.arrived);
        // Without a collective on rank 0, the marks are those of the last one.
        let is_late = |(link, arrived): &(&RankLink, &AtomicBool)| {
            !(is_running && arrived.load(Ordering::Relaxed) || link.rank == waiting || has_bytes(&link.data))
        };
        let mut late: Vec<u32> = links.filter(is_late).map(|(link, _)| link.rank).collect();
        if !is_running {
            late.insert(0, 0);
        }
        late
    }

    /// Ends all connections without a word, as the death of the process would.
    #[cfg(test)]
    pub(crate) fn vanish(&self) {
        // A failure of its own keeps this rank from reporting the others as lost.
        self.fail_here(&RankError::Aborted { rank: self.world.rank, reason: "vanished".to_owned() });
        for link in &self.links {
            link.shut_control();
            link.shut_data();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
