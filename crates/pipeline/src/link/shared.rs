//! What both ends of a link see: the queue, the account of its bytes, and who waits.

use std::collections::VecDeque;
use std::time::Instant;

use crate::Closed;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, ns_since, wait};

/// The locked state of a link.
pub(super) type Book<'a, T> = MutexGuard<'a, Account<T>>;

pub(super) struct Shared<T> {
    name: &'static str,
    pub(super) book: Mutex<Account<T>>,
    /// Senders wait here. All of them are woken together, because a condition variable cannot be told whose turn it is.
    room: Condvar,
    /// The receiver waits here.
    arrival: Condvar,
}

pub(super) struct Account<T> {
    capacity_bytes: u64,
    pub(super) queue: VecDeque<(T, u64)>,
    pub(super) closed: bool,
    /// Senders and unsent permits: while there are any, something may still come.
    pub(super) sources: usize,
    /// Who must wait draws `next_ticket`; the one who holds `served` is next. Equal: nobody waits.
    next_ticket: u64,
    served: u64,
    receiver_waits: bool,
    pub(super) bytes_in_flight: u64,
    peak_bytes: u64,
    pub(super) items: u64,
    sender_wait_ns: u64,
    receiver_wait_ns: u64,
}

/// A look at a link. Times are of waits that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// The link's name.
    pub name: &'static str,
    /// What may be in flight at once.
    pub capacity_bytes: u64,
    /// Reserved, queued, or in a parcel that its receiver still holds.
    pub bytes_in_flight: u64,
    /// The most there ever was in flight. Above the capacity only if one item alone was larger.
    pub peak_bytes: u64,
    /// Items sent so far.
    pub items: u64,
    /// What all senders together waited for room.
    pub sender_wait_ns: u64,
    /// What the receiver waited for items.
    pub receiver_wait_ns: u64,
}

impl<T> Account<T> {
    /// Whether `bytes` may come in now, past nobody.
    pub(super) fn admits(&self, bytes: u64) -> bool {
        !self.is_awaited() && self.fits(bytes)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes_in_flight += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes_in_flight);
    }

    /// Whether nothing can be added to the queue any more.
    pub(super) fn ended(&self) -> bool {
        self.closed || self.sources == 0
    }

    fn fits(&self, bytes: u64) -> bool {
        bytes <= self.capacity_bytes.saturating_sub(self.bytes_in_flight) || self.bytes_in_flight == 0
    }

    fn is_awaited(&self) -> bool {
        self.next_ticket != self.served
    }
}

impl<T> Shared<T> {
    pub(super) fn new(name: &'static str, capacity_bytes: u64) -> Self {
        let account = Account {
            capacity_bytes,
            queue: VecDeque::new(),
            closed: false,
            sources: 1,
            next_ticket: 0,
            served: 0,
            receiver_waits: false,
            bytes_in_flight: 0,
            peak_bytes: 0,
            items: 0,
            sender_wait_ns: 0,
            receiver_wait_ns: 0,
        };
        Self { name, book: Mutex::new(account), room: Condvar::new(), arrival: Condvar::new() }
    }

    pub(super) fn closed(&self) -> Closed {
        Closed { name: self.name }
    }

    /// Queues up behind the senders that wait already. Returns when it is this one's turn and there is room, or when
    /// the link is closed.
    pub(super) fn wait_for_room<'a>(&self, mut book: Book<'a, T>, bytes: u64) -> Book<'a, T> {
        let start = Instant::now();
        let ticket = book.next_ticket;
        book.next_ticket += 1;
        while !(book.closed || (book.served == ticket && book.fits(bytes))) {
            book = wait(&self.room, book);
        }
        // Of a closed link all leave, in any order: `served` then only counts.
        book.served += 1;
        book.sender_wait_ns += ns_since(start);
        book
    }

    pub(super) fn wait_for_item<'a>(&self, mut book: Book<'a, T>) -> Book<'a, T> {
        let start = Instant::now();
        book.receiver_waits = true;
        while book.queue.is_empty() && !book.ended() {
            book = wait(&self.arrival, book);
        }
        book.receiver_waits = false;
        book.receiver_wait_ns += ns_since(start);
        book
    }

    /// The end of every change: unlocks, then wakes whoever may go on now.
    pub(super) fn wake(&self, book: Book<'_, T>) {
        let senders = book.is_awaited();
        let receiver = book.receiver_waits && (book.ended() || !book.queue.is_empty());
        drop(book);
        if senders {
            self.room.notify_all();
        }
        if receiver {
            self.arrival.notify_one();
        }
    }

    pub(super) fn close(&self) {
        let mut book = lock(&self.book);
        book.closed = true;
        self.wake(book);
    }

    pub(super) fn stats(&self) -> LinkStats {
        let book = lock(&self.book);
        LinkStats {
            name: self.name,
            capacity_bytes: book.capacity_bytes,
            bytes_in_flight: book.bytes_in_flight,
            peak_bytes: book.peak_bytes,
            items: book.items,
            sender_wait_ns: book.sender_wait_ns,
            receiver_wait_ns: book.receiver_wait_ns,
        }
    }
}

/// A look at a link and the means to end it, for whoever supervises it. The type of the items is forgotten, so that
/// handles of different links fit into one list; and the receiver does not wait for a handle as it does for a sender.
#[derive(Clone)]
pub struct LinkHandle {
    link: std::sync::Arc<dyn Ends>,
}

impl LinkHandle {
    pub(super) fn new<T: Send + 'static>(shared: &Arc<Shared<T>>) -> Self {
        Self { link: std::sync::Arc::new(shared.clone()) }
    }

    /// Ends the link and wakes everybody who waits on it. Nothing more comes in; what is in the queue can still be
    /// received.
    pub fn close(&self) {
        self.link.close();
    }

    /// What has gone through, and what is on its way.
    pub fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}

trait Ends: Send + Sync {
    fn close(&self);
    fn stats(&self) -> LinkStats;
}

impl<T: Send> Ends for Arc<Shared<T>> {
    fn close(&self) {
        Shared::close(self);
    }

    fn stats(&self) -> LinkStats {
        Shared::stats(self)
    }
}
