//! Memory that goes round: free, filling, ready, leased, free. Made once, never copied, never allocated again.
//!
//! The host hands slots on at once, while the device may still be at work in their memory. So every slot owns two
//! fences, used for ever: `written` is recorded when its writing has been queued, `freed` when its reading has. There
//! is no way to the memory that does not go through waiting for the right one:
//!
//! | state | who holds it | the way on |
//! |---|---|---|
//! | [`FreeSlot`] | filler | [`claim`](FreeSlot::claim): wait for `freed` |
//! | [`FillingSlot`] | filler | [`publish`](FillingSlot::publish): record `written` |
//! | [`ReadySlot`] | taker | [`lease`](ReadySlot::lease): wait for `written` |
//! | [`LeasedSlot`] | taker | [`release`](LeasedSlot::release): record `freed` |
//!
//! What "record" and "wait" are is the caller's: a closure gets the fence. In use a fence is a device event, and to
//! wait is to make a stream wait, which costs the host nothing.
//!
//! # What a fence must be
//!
//! A wait is for the last record made before it, and stays so when the fence is recorded again: the host may be a whole
//! round ahead of the device. One that was never recorded lets its waiter through: a new slot has no reader.
//!
//! # What the filler must hold to
//!
//! All writes into the slots of one ring happen in one order: one stream, or one thread that waits for its own writes.
//! A slot can go home with writes still queued and unfenced (a [`FillingSlot`] dropped half filled, a [`ReadySlot`]
//! dropped unread); the next filling is right because it is queued behind them.

mod shared;
mod slot;

use std::time::Duration;

use crate::Closed;
use crate::sync::Arc;
use shared::{End, RingShared};

pub use shared::{RingHandle, RingStats};
pub use slot::{FillingSlot, FreeSlot, LeasedSlot, ReadySlot};

/// What a slot is made of.
pub struct RingSlot<M, F> {
    /// The memory, or what stands for it.
    pub memory: M,
    /// Recorded by the filler, waited for by the taker.
    pub written: F,
    /// Recorded by the taker, waited for by the filler.
    pub freed: F,
}

/// A ring of these slots, all of them free. `P` is what the filler tells the taker about a filling.
///
/// The only allocation: afterwards slots change hands by pointer. The memory is dropped when both ends and every slot
/// that is out are gone. No slots at all: both ends find the ring closed.
pub fn ring<M, P, F>(
    name: &'static str,
    slots: impl IntoIterator<Item = RingSlot<M, F>>,
) -> (Filler<M, P, F>, Taker<M, P, F>) {
    let shared = Arc::new(RingShared::new(name, slots));
    (Filler { shared: shared.clone() }, Taker { shared })
}

/// The end that slots are filled from. Dropping it, also in a panic, is the end of the stream: the taker gets what is
/// ready or still being filled, then `None`.
pub struct Filler<M, P, F> {
    shared: Arc<RingShared<M, P, F>>,
}

/// The end that filled slots come out of. Dropping it closes the ring: the filler gets [`Closed`], and what was ready
/// goes home unread.
pub struct Taker<M, P, F> {
    shared: Arc<RingShared<M, P, F>>,
}

impl<M, P, F> Filler<M, P, F> {
    /// The slot that has been home longest; waits until one is home. Its last reader may still be at work in it until
    /// `freed` fires, which [`FreeSlot::claim`] sees to.
    ///
    /// Several may be held at once. They are taken in the order of publishing, whatever the order of taking was. Fails
    /// when the ring is closed, or when every slot has been retired.
    pub fn take(&self) -> Result<FreeSlot<M, P, F>, Closed> {
        self.shared.take_free().map(|slot| FreeSlot::new(&self.shared, slot))
    }

    /// The same without waiting: `None` when no slot is home, or as many are in use as [`set_depth`](Filler::set_depth)
    /// allows.
    pub fn try_take(&self) -> Result<Option<FreeSlot<M, P, F>>, Closed> {
        let slot = self.shared.try_take_free()?;
        Ok(slot.map(|slot| FreeSlot::new(&self.shared, slot)))
    }

    /// Has at most `slots` in use at once, at least one; the others rest at home. Which ones rest changes: the slot
    /// taken next is always the one whose reader has had most time to end. Those in use beyond a new, lower depth are
    /// not recalled.
    pub fn set_depth(&self, slots: usize) {
        self.shared.set_depth(slots);
    }

    /// Closes the ring for everybody: see [`RingHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// Where the slots are.
    pub fn stats(&self) -> RingStats {
        self.shared.stats()
    }
}

impl<M, P, F> Taker<M, P, F> {
    /// The slot that was published first; waits for it. `None` once nothing is ready and nothing can come: the ring is
    /// closed, or the filler is gone with all it held.
    ///
    /// A slot that is ready costs one lock of one mutex, and no allocation.
    pub fn take(&self) -> Option<ReadySlot<M, P, F>> {
        self.shared.take_ready().map(|(slot, payload)| ReadySlot::new(&self.shared, slot, payload))
    }

    /// The same without waiting: `Ok(None)` when nothing is ready yet, [`Closed`] where [`take`](Taker::take) says
    /// `None`.
    pub fn try_take(&self) -> Result<Option<ReadySlot<M, P, F>>, Closed> {
        let taken = self.shared.try_take_ready()?;
        Ok(taken.map(|(slot, payload)| ReadySlot::new(&self.shared, slot, payload)))
    }

    /// Waits until `count` slots are ready, for `timeout` at most; returns how many are. For a gate before the first
    /// step: it takes nothing, and is not counted as waiting of the taker.
    ///
    /// Returns early when nothing more can become ready: at the end of the stream, and at the depth of the ring when
    /// `count` is more than that.
    pub fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        self.shared.wait_ready(count, timeout)
    }

    /// Closes the ring for everybody: see [`RingHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// Where the slots are.
    pub fn stats(&self) -> RingStats {
        self.shared.stats()
    }
}

impl<M, P, F> Filler<M, P, F>
where
    M: Send + 'static,
    P: Send + 'static,
    F: Send + 'static,
{
    /// A handle that watches and closes, and keeps no memory alive.
    pub fn handle(&self) -> RingHandle {
        RingHandle::new(&self.shared)
    }
}

impl<M, P, F> Taker<M, P, F>
where
    M: Send + 'static,
    P: Send + 'static,
    F: Send + 'static,
{
    /// A handle that watches and closes, and keeps no memory alive.
    pub fn handle(&self) -> RingHandle {
        RingHandle::new(&self.shared)
    }
}

impl<M, P, F> Drop for Filler<M, P, F> {
    fn drop(&mut self) {
        self.shared.leave(End::Filler);
    }
}

impl<M, P, F> Drop for Taker<M, P, F> {
    fn drop(&mut self) {
        self.shared.leave(End::Taker);
    }
}

#[cfg(test)]
mod tests;
