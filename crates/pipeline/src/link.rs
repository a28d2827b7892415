//! Items from many threads to one, in order, bounded by their bytes.
//!
//! A sender reserves bytes, makes the item, sends it; the receiver gets it as a [`Parcel`]. The bytes are in flight
//! from the reservation until the parcel is dropped: an item that is being made or being used takes as much memory as
//! one that lies in the queue. A full link makes senders wait, and waiting is measured.

mod parcel;
mod shared;

use crate::Closed;
use crate::sync::{Arc, lock};
use shared::{Book, Shared};

pub use parcel::{Load, Parcel};
pub use shared::{LinkHandle, LinkStats};

/// A link with room for `capacity_bytes`, named after its ends.
///
/// An item larger than the capacity is let in alone, when no bytes are in flight: it is the one way to exceed the
/// capacity, and [`LinkStats::peak_bytes`] shows it.
pub fn link<T>(name: &'static str, capacity_bytes: u64) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared::new(name, capacity_bytes));
    (Sender { shared: shared.clone() }, Receiver { shared })
}

/// Holding one of these means that the receiver waits for more. Clones send into the same link.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Holding one of these means that so many bytes of the link are taken and an item may be made. Dropped unsent, it
/// gives them back.
pub struct Permit<T> {
    shared: Arc<Shared<T>>,
    bytes: u64,
    /// Its bytes and its place among the sources have gone over to the item.
    sent: bool,
}

/// The end that items come out of. Dropping it closes the link and drops what nobody received.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Takes `bytes` of the link, and waits until there is room. Who came first is served first, also when somebody
    /// behind would fit already.
    ///
    /// Without waiting: two locks of one mutex per item, here and in [`Permit::send`]. Fails when the link is closed.
    pub fn reserve(&self, bytes: u64) -> Result<Permit<T>, Closed> {
        let mut book = lock(&self.shared.book);
        if !book.closed && !book.admits(bytes) {
            book = self.shared.wait_for_room(book, bytes);
        }
        if book.closed {
            return Err(self.shared.closed());
        }
        Ok(self.permit(book, bytes))
    }

    /// The same without waiting: `None` when it does not fit now, or when others wait already.
    pub fn try_reserve(&self, bytes: u64) -> Result<Option<Permit<T>>, Closed> {
        let book = lock(&self.shared.book);
        if book.closed {
            return Err(self.shared.closed());
        }
        Ok(if book.admits(bytes) { Some(self.permit(book, bytes)) } else { None })
    }

    /// Closes the link for everybody: see [`LinkHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// What has gone through, and what is on its way.
    pub fn stats(&self) -> LinkStats {
        self.shared.stats()
    }

    fn permit(&self, mut book: Book<'_, T>, bytes: u64) -> Permit<T> {
        book.take(bytes);
        book.sources += 1;
        self.shared.wake(book);
        Permit { shared: self.shared.clone(), bytes, sent: false }
    }
}

impl<T: Send + 'static> Sender<T> {
    /// A handle that watches and closes, and that the receiver does not wait for.
    pub fn handle(&self) -> LinkHandle {
        LinkHandle::new(&self.shared)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.shared.book).sources += 1;
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut book = lock(&self.shared.book);
        book.sources -= 1;
        self.shared.wake(book);
    }
}

impl<T> Permit<T> {
    /// Puts `item` at the end of the queue. Does not wait: its room is taken. The item comes back when the link is
    /// closed.
    pub fn send(mut self, item: T) -> Result<(), T> {
        let mut book = lock(&self.shared.book);
        if book.closed {
            return Err(item);
        }
        book.queue.push_back((item, self.bytes));
        book.items += 1;
        book.sources -= 1;
        self.shared.wake(book);
        self.sent = true;
        Ok(())
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        if self.sent {
            return;
        }
        let mut book = lock(&self.shared.book);
        book.sources -= 1;
        book.bytes_in_flight -= self.bytes;
        self.shared.wake(book);
    }
}

impl<T> Receiver<T> {
    /// The next item, in the order of sending; waits for it. `None` once nothing is left and nothing can come: every
    /// sender and permit is gone, or the link is closed.
    pub fn recv(&mut self) -> Option<Parcel<T>> {
        let mut book = lock(&self.shared.book);
        if book.queue.is_empty() && !book.ended() {
            book = self.shared.wait_for_item(book);
        }
        self.parcel(book)
    }

    /// The same without waiting: `Ok(None)` when nothing is there yet, [`Closed`] where [`recv`](Receiver::recv) says
    /// `None`.
    pub fn try_recv(&mut self) -> Result<Option<Parcel<T>>, Closed> {
        let book = lock(&self.shared.book);
        if book.queue.is_empty() && book.ended() {
            return Err(self.shared.closed());
        }
        Ok(self.parcel(book))
    }

    /// Closes the link for everybody: see [`LinkHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// What has gone through, and what is on its way.
    pub fn stats(&self) -> LinkStats {
        self.shared.stats()
    }

    fn parcel(&self, mut book: Book<'_, T>) -> Option<Parcel<T>> {
        let (item, bytes) = book.queue.pop_front()?;
        drop(book);
        Some(Parcel::new(item, Load::new(self.shared.clone(), bytes)))
    }
}

impl<T: Send + 'static> Receiver<T> {
    /// A handle that watches and closes.
    pub fn handle(&self) -> LinkHandle {
        LinkHandle::new(&self.shared)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut book = lock(&self.shared.book);
        book.closed = true;
        let unread = std::mem::take(&mut book.queue);
        book.bytes_in_flight -= unread.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.shared.wake(book);
        drop(unread);
    }
}

#[cfg(test)]
mod tests;
