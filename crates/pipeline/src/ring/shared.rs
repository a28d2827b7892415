//! The state that both ends of a ring share: the state of every slot, and which end waits for one.

use std::collections::VecDeque;
use std::mem::take;
use std::time::{Duration, Instant};

use super::RingSlot;
use crate::Closed;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, ns_since, wait, wait_timeout};

/// A slot is passed by pointer, however large its memory handle is.
type Boxed<M, F> = Box<RingSlot<M, F>>;

/// A ready slot with its payload.
type Filled<M, P, F> = (Boxed<M, F>, P);

/// The locked state of a ring.
type Locked<'a, M, P, F> = MutexGuard<'a, State<M, P, F>>;

/// The two ends of a ring.
#[derive(Clone, Copy)]
pub(super) enum End {
    Filler,
    Taker,
}

pub(super) struct RingShared<M, P, F> {
    name: &'static str,
    slots: usize,
    state: Mutex<State<M, P, F>>,
    /// Fillers wait here.
    slot_freed: Condvar,
    /// Takers wait here.
    slot_ready: Condvar,
}

/// Every slot is in one of the lists or counted in `filling` or `leased`. The lists never reallocate.
struct State<M, P, F> {
    /// Longest free first.
    free: VecDeque<Boxed<M, F>>,
    /// First published first.
    ready: VecDeque<Filled<M, P, F>>,
    /// Never dropped before the ring: a device may still be reading them.
    retired: Vec<Boxed<M, F>>,
    /// Held by the filler.
    filling: usize,
    /// Held by the taker.
    leased: usize,
    depth: usize,
    closed: bool,
    filler_gone: bool,
    taker_gone: bool,
    fillers_waiting: usize,
    takers_waiting: usize,
    published: u64,
    unread: u64,
    filler_wait_ns: u64,
    taker_wait_ns: u64,
}

/// A reading of a ring: how many slots are in each state, and the counters. Times include only waits that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStats {
    /// The ring's name.
    pub name: &'static str,
    /// All slots: free, filling, ready, leased and retired together.
    pub slots: usize,
    /// Free to be filled.
    pub free: usize,
    /// Held by the filler, from taking to publishing.
    pub filling: usize,
    /// Published and not yet taken.
    pub ready: usize,
    /// Held by the taker, from taking to releasing.
    pub leased: usize,
    /// Never used again: dropped without a fence that says when their reader ends.
    pub retired: usize,
    /// How many may be in use at once.
    pub depth: usize,
    /// Slots published so far.
    pub published: u64,
    /// Slots that were published and became free without having been leased.
    pub unread: u64,
    /// Time the filler waited for free slots.
    pub filler_wait_ns: u64,
    /// Time the taker waited for ready slots.
    pub taker_wait_ns: u64,
}

impl<M, P, F> State<M, P, F> {
    fn can_fill(&self) -> bool {
        !self.free.is_empty() && self.filling + self.ready.len() + self.leased < self.depth
    }

    /// Whether nothing can become ready any more.
    fn ended(&self) -> bool {
        self.closed || (self.filler_gone && self.filling == 0)
    }

    fn both_gone(&self) -> bool {
        self.filler_gone && self.taker_gone
    }

    fn uncount(&mut self, end: End) {
        match end {
            End::Filler => self.filling -= 1,
            End::Taker => self.leased -= 1,
        }
    }
}

impl<M, P, F> RingShared<M, P, F> {
    pub(super) fn new(name: &'static str, slots: impl IntoIterator<Item = RingSlot<M, F>>) -> Self {
        let free: VecDeque<_> = slots.into_iter().map(Box::new).collect();
        let slots = free.len();
        let state = State {
            free,
            ready: VecDeque::with_capacity(slots),
            retired: Vec::with_capacity(slots),
            filling: 0,
            leased: 0,
            depth: slots,
            // Without slots, both ends would wait forever.
            closed: slots == 0,
            filler_gone: false,
            taker_gone: false,
            fillers_waiting: 0,
            takers_waiting: 0,
            published: 0,
            unread: 0,
            filler_wait_ns: 0,
            taker_wait_ns: 0,
        };
        Self { name, slots, state: Mutex::new(state), slot_freed: Condvar::new(), slot_ready: Condvar::new() }
    }

    pub(super) fn take_free(&self) -> Result<Boxed<M, F>, Closed> {
        let mut state = lock(&self.state);
        if !state.closed && !state.can_fill() {
            state = self.wait_for_free(state);
        }
        // Open, and can fill: so a slot is free.
        self.hand_out(state).and_then(|slot| slot.ok_or(self.closed()))
    }

    pub(super) fn try_take_free(&self) -> Result<Option<Boxed<M, F>>, Closed> {
        self.hand_out(lock(&self.state))
    }

    pub(super) fn publish(&self, slot: Boxed<M, F>, payload: P) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return self.give_back(slot, End::Filler);
        }
        state.uncount(End::Filler);
        state.published += 1;
        state.ready.push_back((slot, payload));
        self.wake(state);
    }

    pub(super) fn take_ready(&self) -> Option<Filled<M, P, F>> {
        let mut state = lock(&self.state);
        if state.ready.is_empty() && !state.ended() {
            state = self.wait_for_ready(state);
        }
        let taken = state.ready.pop_front()?;
        state.leased += 1;
        Some(taken)
    }

    pub(super) fn try_take_ready(&self) -> Result<Option<Filled<M, P, F>>, Closed> {
        let mut state = lock(&self.state);
        if state.ready.is_empty() && state.ended() {
            return Err(self.closed());
        }
        let taken = state.ready.pop_front();
        state.leased += usize::from(taken.is_some());
        Ok(taken)
    }

    pub(super) fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        let start = Instant::now();
        let mut state = lock(&self.state);
        state.takers_waiting += 1;
        while state.ready.len() < count.min(state.depth).min(self.slots - state.retired.len()) && !state.ended() {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            state = wait_timeout(&self.slot_ready, state, left);
        }
        state.takers_waiting -= 1;
        state.ready.len()
    }

    /// Puts a slot from one of the ends into the free list. If both ends were dropped, its memory is dropped too.
    pub(super) fn give_back(&self, slot: Boxed<M, F>, from: End) {
        let mut state = lock(&self.state);
        state.uncount(from);
        if state.both_gone() {
            drop(state);
            return drop(slot);
        }
        state.free.push_back(slot);
        self.wake(state);
    }

    pub(super) fn give_back_unread(&self, slot: Boxed<M, F>) {
        lock(&self.state).unread += 1;
        self.give_back(slot, End::Taker);
    }

    pub(super) fn retire(&self, slot: Boxed<M, F>) {
        let mut state = lock(&self.state);
        state.uncount(End::Taker);
        if state.both_gone() {
            drop(state);
            return drop(slot);
        }
        state.retired.push(slot);
        // Without usable slots the filler would wait forever: the ring ends.
        state.closed |= state.retired.len() == self.slots;
        self.wake(state);
    }

    pub(super) fn set_depth(&self, slots: usize) {
        let mut state = lock(&self.state);
        state.depth = slots.min(self.slots).max(1);
        self.wake(state);
    }

    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.wake(state);
    }

    /// One end was dropped. Without a taker the ring is closed and ready slots become free. With the second end, all free
    /// memory is dropped.
    pub(super) fn leave(&self, end: End) {
        let mut state = lock(&self.state);
        let mut payloads = Vec::new();
        match end {
            End::Filler => state.filler_gone = true,
            End::Taker => {
                state.taker_gone = true;
                state.closed = true;
                for (slot, payload) in take(&mut state.ready) {
                    state.free.push_back(slot);
                    state.unread += 1;
                    payloads.push(payload);
                }
            }
        }
        let gone = state.both_gone().then(|| (take(&mut state.free), take(&mut state.retired)));
        self.wake(state);
        // Destructors of the caller's types run outside the lock.
        drop((payloads, gone));
    }

    pub(super) fn stats(&self) -> RingStats {
        let state = lock(&self.state);
        RingStats {
            name: self.name,
            slots: self.slots,
            free: state.free.len(),
            filling: state.filling,
            ready: state.ready.len(),
            leased: state.leased,
            retired: state.retired.len(),
            depth: state.depth,
            published: state.published,
            unread: state.unread,
            filler_wait_ns: state.filler_wait_ns,
            taker_wait_ns: state.taker_wait_ns,
        }
    }

    fn closed(&self) -> Closed {
        Closed { name: self.name }
    }

    fn hand_out(&self, mut state: Locked<'_, M, P, F>) -> Result<Option<Boxed<M, F>>, Closed> {
        if state.closed {
            return Err(self.closed());
        }
        if !state.can_fill() {
            return Ok(None);
        }
        state.filling += 1;
        Ok(state.free.pop_front())
    }

    fn wait_for_free<'a>(&self, mut state: Locked<'a, M, P, F>) -> Locked<'a, M, P, F> {
        let start = Instant::now();
        state.fillers_waiting += 1;
        while !(state.closed || state.can_fill()) {
            state = wait(&self.slot_freed, state);
        }
        state.fillers_waiting -= 1;
        state.filler_wait_ns += ns_since(start);
        state
    }

    fn wait_for_ready<'a>(&self, mut state: Locked<'a, M, P, F>) -> Locked<'a, M, P, F> {
        let start = Instant::now();
        state.takers_waiting += 1;
        while state.ready.is_empty() && !state.ended() {
            state = wait(&self.slot_ready, state);
        }
        state.takers_waiting -= 1;
        state.taker_wait_ns += ns_since(start);
        state
    }

    /// Ends every change: unlocks, then wakes the threads that can continue. All of them, because `wait_ready` and
    /// `take_ready` wait on the same condition variable.
    fn wake(&self, state: Locked<'_, M, P, F>) {
        let fillers = state.fillers_waiting > 0 && (state.closed || state.can_fill());
        let takers = state.takers_waiting > 0 && (state.ended() || !state.ready.is_empty());
        drop(state);
        if fillers {
            self.slot_freed.notify_all();
        }
        if takers {
            self.slot_ready.notify_all();
        }
    }
}

/// Reads a ring's counters and closes it, for a supervisor. The slot types are erased, so that handles of different rings
/// fit into one list. It does not keep slot memory alive.
#[derive(Clone)]
pub struct RingHandle {
    ring: std::sync::Arc<dyn AnyRing>,
}

impl RingHandle {
    pub(super) fn new<M, P, F>(shared: &Arc<RingShared<M, P, F>>) -> Self
    where
        M: Send + 'static,
        P: Send + 'static,
        F: Send + 'static,
    {
        Self { ring: std::sync::Arc::new(shared.clone()) }
    }

    /// Closes the ring and wakes every thread that waits on it. No more slots are filled; ready slots can still be taken,
    /// and slots in use are still returned.
    pub fn close(&self) {
        self.ring.close();
    }

    /// How many slots are in each state, and the counters.
    pub fn stats(&self) -> RingStats {
        self.ring.stats()
    }

    /// Waits until `count` slots are ready: see [`Taker::wait_ready`](crate::Taker::wait_ready).
    pub fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        self.ring.wait_ready(count, timeout)
    }
}

trait AnyRing: Send + Sync {
    fn close(&self);
    fn stats(&self) -> RingStats;
    fn wait_ready(&self, count: usize, timeout: Duration) -> usize;
}

impl<M: Send, P: Send, F: Send> AnyRing for Arc<RingShared<M, P, F>> {
    fn close(&self) {
        RingShared::close(self);
    }

    fn stats(&self) -> RingStats {
        RingShared::stats(self)
    }

    fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        RingShared::wait_ready(self, count, timeout)
    }
}
