//! What both ends of a ring see: where every slot is, and who waits for one.

use std::collections::VecDeque;
use std::mem::take;
use std::time::{Duration, Instant};

use super::RingSlot;
use crate::Closed;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, ns_since, wait, wait_timeout};

/// A slot changes hands by pointer, however large what stands for its memory is.
type Boxed<M, F> = Box<RingSlot<M, F>>;

/// A slot that is ready, and what the filler says about it.
type Filled<M, P, F> = (Boxed<M, F>, P);

/// The locked state of a ring.
type Book<'a, M, P, F> = MutexGuard<'a, Places<M, P, F>>;

/// The two ends of a ring.
#[derive(Clone, Copy)]
pub(super) enum End {
    Filler,
    Taker,
}

pub(super) struct RingShared<M, P, F> {
    name: &'static str,
    slots: usize,
    book: Mutex<Places<M, P, F>>,
    /// Fillers wait here.
    home: Condvar,
    /// Takers wait here.
    arrival: Condvar,
}

/// Every slot is in one of the lists or counted in `filling` or `leased`. The lists never grow past their first
/// allocation.
struct Places<M, P, F> {
    /// Longest home first.
    free: VecDeque<Boxed<M, F>>,
    /// First published first.
    ready: VecDeque<Filled<M, P, F>>,
    /// Kept and not dropped: its reader may still be at work.
    retired: Vec<Boxed<M, F>>,
    /// With the filler.
    filling: usize,
    /// With the taker.
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

/// A look at a ring: where its slots are. Times are of waits that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStats {
    /// The ring's name.
    pub name: &'static str,
    /// All slots there are: free, filling, ready, leased and retired together.
    pub slots: usize,
    /// At home.
    pub free: usize,
    /// With the filler, from taking to publishing.
    pub filling: usize,
    /// Published and not yet taken.
    pub ready: usize,
    /// With the taker, from taking to releasing.
    pub leased: usize,
    /// Lost for good: let go of without a record of when their reader ends.
    pub retired: usize,
    /// How many may be in use at once.
    pub depth: usize,
    /// Slots published so far.
    pub published: u64,
    /// Slots that were published and went home without having been leased.
    pub unread: u64,
    /// What the filler waited for slots to come home.
    pub filler_wait_ns: u64,
    /// What the taker waited for slots to be ready.
    pub taker_wait_ns: u64,
}

impl<M, P, F> Places<M, P, F> {
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

    fn count_out(&mut self, end: End) {
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
        let places = Places {
            free,
            ready: VecDeque::with_capacity(slots),
            retired: Vec::with_capacity(slots),
            filling: 0,
            leased: 0,
            depth: slots,
            // Nobody must wait for a slot that cannot come.
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
        Self { name, slots, book: Mutex::new(places), home: Condvar::new(), arrival: Condvar::new() }
    }

    pub(super) fn take_free(&self) -> Result<Boxed<M, F>, Closed> {
        let mut book = lock(&self.book);
        if !book.closed && !book.can_fill() {
            book = self.wait_for_free(book);
        }
        // Open, and can fill: so there is one.
        self.hand_out(book).and_then(|slot| slot.ok_or(self.closed()))
    }

    pub(super) fn try_take_free(&self) -> Result<Option<Boxed<M, F>>, Closed> {
        self.hand_out(lock(&self.book))
    }

    pub(super) fn publish(&self, slot: Boxed<M, F>, payload: P) {
        let mut book = lock(&self.book);
        if book.closed {
            drop(book);
            return self.come_home(slot, End::Filler);
        }
        book.count_out(End::Filler);
        book.published += 1;
        book.ready.push_back((slot, payload));
        self.wake(book);
    }

    pub(super) fn take_ready(&self) -> Option<Filled<M, P, F>> {
        let mut book = lock(&self.book);
        if book.ready.is_empty() && !book.ended() {
            book = self.wait_for_ready(book);
        }
        let taken = book.ready.pop_front()?;
        book.leased += 1;
        Some(taken)
    }

    pub(super) fn try_take_ready(&self) -> Result<Option<Filled<M, P, F>>, Closed> {
        let mut book = lock(&self.book);
        if book.ready.is_empty() && book.ended() {
            return Err(self.closed());
        }
        let taken = book.ready.pop_front();
        book.leased += usize::from(taken.is_some());
        Ok(taken)
    }

    pub(super) fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        let start = Instant::now();
        let mut book = lock(&self.book);
        book.takers_waiting += 1;
        while book.ready.len() < count.min(book.depth).min(self.slots - book.retired.len()) && !book.ended() {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            book = wait_timeout(&self.arrival, book, left);
        }
        book.takers_waiting -= 1;
        book.ready.len()
    }

    /// A slot comes home from one of the ends. With both ends gone there is no home, and its memory is dropped.
    pub(super) fn come_home(&self, slot: Boxed<M, F>, from: End) {
        let mut book = lock(&self.book);
        book.count_out(from);
        if book.both_gone() {
            drop(book);
            return drop(slot);
        }
        book.free.push_back(slot);
        self.wake(book);
    }

    pub(super) fn come_home_unread(&self, slot: Boxed<M, F>) {
        lock(&self.book).unread += 1;
        self.come_home(slot, End::Taker);
    }

    pub(super) fn retire(&self, slot: Boxed<M, F>) {
        let mut book = lock(&self.book);
        book.count_out(End::Taker);
        if book.both_gone() {
            drop(book);
            return drop(slot);
        }
        book.retired.push(slot);
        // With the last slot the ring has ended: a filler would wait for ever.
        book.closed |= book.retired.len() == self.slots;
        self.wake(book);
    }

    pub(super) fn set_depth(&self, slots: usize) {
        let mut book = lock(&self.book);
        book.depth = slots.min(self.slots).max(1);
        self.wake(book);
    }

    pub(super) fn close(&self) {
        let mut book = lock(&self.book);
        book.closed = true;
        self.wake(book);
    }

    /// One end is gone. Without a taker the ring is closed and what was ready goes home; with the second end goes all
    /// memory that is home.
    pub(super) fn leave(&self, end: End) {
        let mut book = lock(&self.book);
        let mut payloads = Vec::new();
        match end {
            End::Filler => book.filler_gone = true,
            End::Taker => {
                book.taker_gone = true;
                book.closed = true;
                for (slot, payload) in take(&mut book.ready) {
                    book.free.push_back(slot);
                    book.unread += 1;
                    payloads.push(payload);
                }
            }
        }
        let gone = book.both_gone().then(|| (take(&mut book.free), take(&mut book.retired)));
        self.wake(book);
        // Other people's destructors run outside the lock.
        drop((payloads, gone));
    }

    pub(super) fn stats(&self) -> RingStats {
        let book = lock(&self.book);
        RingStats {
            name: self.name,
            slots: self.slots,
            free: book.free.len(),
            filling: book.filling,
            ready: book.ready.len(),
            leased: book.leased,
            retired: book.retired.len(),
            depth: book.depth,
            published: book.published,
            unread: book.unread,
            filler_wait_ns: book.filler_wait_ns,
            taker_wait_ns: book.taker_wait_ns,
        }
    }

    fn closed(&self) -> Closed {
        Closed { name: self.name }
    }

    fn hand_out(&self, mut book: Book<'_, M, P, F>) -> Result<Option<Boxed<M, F>>, Closed> {
        if book.closed {
            return Err(self.closed());
        }
        if !book.can_fill() {
            return Ok(None);
        }
        book.filling += 1;
        Ok(book.free.pop_front())
    }

    fn wait_for_free<'a>(&self, mut book: Book<'a, M, P, F>) -> Book<'a, M, P, F> {
        let start = Instant::now();
        book.fillers_waiting += 1;
        while !(book.closed || book.can_fill()) {
            book = wait(&self.home, book);
        }
        book.fillers_waiting -= 1;
        book.filler_wait_ns += ns_since(start);
        book
    }

    fn wait_for_ready<'a>(&self, mut book: Book<'a, M, P, F>) -> Book<'a, M, P, F> {
        let start = Instant::now();
        book.takers_waiting += 1;
        while book.ready.is_empty() && !book.ended() {
            book = wait(&self.arrival, book);
        }
        book.takers_waiting -= 1;
        book.taker_wait_ns += ns_since(start);
        book
    }

    /// The end of every change: unlocks, then wakes whoever may go on now. All of them, because a taker at the start
    /// gate and one that takes wait in the same place.
    fn wake(&self, book: Book<'_, M, P, F>) {
        let fillers = book.fillers_waiting > 0 && (book.closed || book.can_fill());
        let takers = book.takers_waiting > 0 && (book.ended() || !book.ready.is_empty());
        drop(book);
        if fillers {
            self.home.notify_all();
        }
        if takers {
            self.arrival.notify_all();
        }
    }
}

/// A look at a ring and the means to end it, for whoever supervises it. The types are forgotten, so that handles of
/// different rings fit into one list; and it keeps no slot's memory alive.
#[derive(Clone)]
pub struct RingHandle {
    ring: std::sync::Arc<dyn Ends>,
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

    /// Ends the ring and wakes everybody who waits on it. Nothing more is filled; what is ready can still be taken, and
    /// what is out still goes home.
    pub fn close(&self) {
        self.ring.close();
    }

    /// Where the slots are.
    pub fn stats(&self) -> RingStats {
        self.ring.stats()
    }

    /// Waits until `count` slots are ready: see [`Taker::wait_ready`](crate::Taker::wait_ready).
    pub fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        self.ring.wait_ready(count, timeout)
    }
}

trait Ends: Send + Sync {
    fn close(&self);
    fn stats(&self) -> RingStats;
    fn wait_ready(&self, count: usize, timeout: Duration) -> usize;
}

impl<M: Send, P: Send, F: Send> Ends for Arc<RingShared<M, P, F>> {
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
