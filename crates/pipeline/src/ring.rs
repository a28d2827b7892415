//! A ring of memory slots. A slot cycles through free, filling, ready, leased and back to free; its memory is allocated
//! once and never copied.
//!
//! The host passes slots on at once, while the device may still read or write their memory. So every slot owns two
//! fences, which are reused: `written` is recorded when its writes have been queued, `freed` when its reads have. The
//! types give access to the memory only after a wait for the right fence:
//!
//! | state | owner | next step |
//! |---|---|---|
//! | [`FreeSlot`] | filler | [`claim`](FreeSlot::claim): wait for `freed` |
//! | [`FillingSlot`] | filler | [`publish`](FillingSlot::publish): record `written` |
//! | [`ReadySlot`] | taker | [`lease`](ReadySlot::lease): wait for `written` |
//! | [`LeasedSlot`] | taker | [`release`](LeasedSlot::release): record `freed` |
//!
//! The caller defines "record" and "wait": a closure gets the fence. In use a fence is a device event, and a wait makes
//! a stream wait, which never blocks the host.
//!
//! # Requirements on a fence
//!
//! A wait is for the last record made before it, even if the fence is recorded again later: the host may be a full round
//! ahead of the device. A wait for a fence that was never recorded returns at once: a new slot has no reader.
//!
//! # Requirements on the filler
//!
//! All writes into the slots of one ring happen in one order: on one stream, or on one thread that waits for its own
//! writes. A slot can become free while unfenced writes are still queued (a [`FillingSlot`] dropped half filled, a
//! [`ReadySlot`] dropped unread); the next filling is correct because it is queued behind them.

mod shared;
mod slot;

use std::time::Duration;

use crate::Closed;
use crate::sync::Arc;
use shared::{End, RingShared};

pub use shared::{RingHandle, RingStats};
pub use slot::{FillingSlot, FreeSlot, LeasedSlot, ReadySlot};

/// The parts of a slot.
pub struct RingSlot<M, F> {
    /// The memory, or a handle of it.
    pub memory: M,
    /// Recorded by the filler, waited for by the taker.
    pub written: F,
    /// Recorded by the taker, waited for by the filler.
    pub freed: F,
}

/// A ring of these slots, all of them free. `P` is the payload that the filler sends along with a filled slot.
///
/// This is the only allocation: afterwards slots are passed by pointer. The memory is dropped when both ends and every
/// slot in use are dropped. A ring without slots is closed from the start.
pub fn ring<M, P, F>(
    name: &'static str,
    slots: impl IntoIterator<Item = RingSlot<M, F>>,
) -> (Filler<M, P, F>, Taker<M, P, F>) {
    let shared = Arc::new(RingShared::new(name, slots));
    (Filler { shared: shared.clone() }, Taker { shared })
}

/// The end that fills slots. Dropping it, also in a panic, ends the stream: the taker gets the slots that are ready or
/// still being filled, then `None`.
pub struct Filler<M, P, F> {
    shared: Arc<RingShared<M, P, F>>,
}

/// The end that takes filled slots. Dropping it closes the ring: the filler gets [`Closed`], and ready slots become free
/// unread.
pub struct Taker<M, P, F> {
    shared: Arc<RingShared<M, P, F>>,
}

impl<M, P, F> Filler<M, P, F> {
    /// Takes the slot that has been free longest; waits until one is free. Its last reader may still use it until `freed`
    /// fires: [`FreeSlot::claim`] waits for that.
    ///
    /// Several may be held at once. The taker gets them in the order of publishing, not of taking. Fails when the ring
    /// is closed, or when every slot has been retired.
    pub fn take(&self) -> Result<FreeSlot<M, P, F>, Closed> {
        self.shared.take_free().map(|slot| FreeSlot::new(&self.shared, slot))
    }

    /// [`take`](Filler::take) without waiting: `None` when no slot is free, or as many are in use as
    /// [`set_depth`](Filler::set_depth) allows.
    pub fn try_take(&self) -> Result<Option<FreeSlot<M, P, F>>, Closed> {
        let slot = self.shared.try_take_free()?;
        Ok(slot.map(|slot| FreeSlot::new(&self.shared, slot)))
    }

    /// Limits the slots in use at once to `slots`, at least one. The next slot is always the one that has been free
    /// longest, because its reader has had most time to end. A lower depth does not recall slots that are in use.
    pub fn set_depth(&self, slots: usize) {
        self.shared.set_depth(slots);
    }

    /// Closes the ring for both ends: see [`RingHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// How many slots are in each state, and the counters.
    pub fn stats(&self) -> RingStats {
        self.shared.stats()
    }
}

impl<M, P, F> Taker<M, P, F> {
    /// Takes the slot that was published first; waits for one. `None` at the end: no slot is ready, and the ring is
    /// closed or the filler and all slots it held were dropped.
    ///
    /// Taking a slot that is ready locks one mutex once and allocates nothing.
    pub fn take(&self) -> Option<ReadySlot<M, P, F>> {
        self.shared.take_ready().map(|(slot, payload)| ReadySlot::new(&self.shared, slot, payload))
    }

    /// [`take`](Taker::take) without waiting: `Ok(None)` when no slot is ready yet, [`Closed`] where `take` returns
    /// `None`.
    pub fn try_take(&self) -> Result<Option<ReadySlot<M, P, F>>, Closed> {
        let taken = self.shared.try_take_ready()?;
        Ok(taken.map(|(slot, payload)| ReadySlot::new(&self.shared, slot, payload)))
    }

    /// Waits until `count` slots are ready, for `timeout` at most; returns how many are. For prefetching before the first
    /// step: it takes no slot, and does not count as the taker's waiting time.
    ///
    /// Returns early when no more slots can become ready: at the end of the stream, and when `count` is more than the
    /// ring's depth.
    pub fn wait_ready(&self, count: usize, timeout: Duration) -> usize {
        self.shared.wait_ready(count, timeout)
    }

    /// Closes the ring for both ends: see [`RingHandle::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// How many slots are in each state, and the counters.
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
    /// A handle that reads the counters and closes the ring, and does not keep memory alive.
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
    /// A handle that reads the counters and closes the ring, and does not keep memory alive.
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
