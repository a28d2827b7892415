//! A slot outside its ring: one type per state, and each can only become the next.

use super::RingSlot;
use super::shared::{End, RingShared};
use crate::sync::Arc;

/// A slot that is not in use on the host. The device may still be reading it. Dropped, it becomes free again.
#[must_use]
pub struct FreeSlot<M, P, F> {
    guard: SlotGuard<M, P, F>,
}

/// Holding one of these means exclusive write access to the memory, for work ordered after the wait for `freed`.
///
/// Dropped unpublished, also in a panic, it becomes a free slot again. That is sound because of the
/// [requirements on the filler](crate::ring): its unfinished writes come before those of the next filling.
#[must_use]
pub struct FillingSlot<M, P, F> {
    guard: SlotGuard<M, P, F>,
}

/// A filled slot. Its writes are queued, not done. Dropped without a lease it becomes free and is counted as unread: the
/// next filling comes after these writes because of the [requirements on the filler](crate::ring).
#[must_use]
pub struct ReadySlot<M, P, F> {
    payload: P,
    guard: SlotGuard<M, P, F>,
}

/// Holding one of these means read access to the memory, for work ordered after the wait for `written`.
///
/// It must be [released](LeasedSlot::release). Dropped otherwise, also in a panic, the slot is retired: it is counted and
/// never reused, because no fence says when its reader ends.
#[must_use]
pub struct LeasedSlot<M, P, F> {
    payload: P,
    guard: SlotGuard<M, P, F>,
}

impl<M, P, F> FreeSlot<M, P, F> {
    pub(super) fn new(ring: &Arc<RingShared<M, P, F>>, slot: Box<RingSlot<M, F>>) -> Self {
        Self { guard: SlotGuard { ring: ring.clone(), slot: Some(slot), fate: Fate::Unfilled } }
    }

    /// Waits for `freed`, the end of the last reader, and gives access to the memory. The closure must wait, or make the
    /// stream wait that will write. When it fails the slot becomes free again, and its fence guards it as before.
    pub fn claim<E>(self, wait: impl FnOnce(&F) -> Result<(), E>) -> Result<FillingSlot<M, P, F>, E> {
        wait(&self.guard.slot().freed)?;
        Ok(FillingSlot { guard: self.guard })
    }
}

impl<M, P, F> FillingSlot<M, P, F> {
    /// The memory to write.
    pub fn memory(&self) -> &M {
        &self.guard.slot().memory
    }

    /// The memory to write.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.guard.slot_mut().memory
    }

    /// Records `written` behind the writes, and appends the slot to the ready queue. When recording fails, the payload is
    /// dropped and the slot becomes free.
    ///
    /// On a closed ring the slot becomes free too; the filler's next take returns [`Closed`](crate::Closed).
    pub fn publish<E>(mut self, payload: P, record: impl FnOnce(&F) -> Result<(), E>) -> Result<(), E> {
        record(&self.guard.slot().written)?;
        if let Some(slot) = self.guard.slot.take() {
            self.guard.ring.publish(slot, payload);
        }
        Ok(())
    }
}

impl<M, P, F> ReadySlot<M, P, F> {
    pub(super) fn new(ring: &Arc<RingShared<M, P, F>>, slot: Box<RingSlot<M, F>>, payload: P) -> Self {
        Self { payload, guard: SlotGuard { ring: ring.clone(), slot: Some(slot), fate: Fate::Unread } }
    }

    /// The payload the filler published with it.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// The fence behind the writes, to see whether they are done before a lease.
    pub fn written(&self) -> &F {
        &self.guard.slot().written
    }

    /// Waits for `written`, the end of the writes, and gives access to the memory. The closure must wait, or make the
    /// stream wait that will read. When it fails the slot becomes free unread.
    pub fn lease<E>(mut self, wait: impl FnOnce(&F) -> Result<(), E>) -> Result<LeasedSlot<M, P, F>, E> {
        wait(&self.guard.slot().written)?;
        self.guard.fate = Fate::Unreleased;
        Ok(LeasedSlot { payload: self.payload, guard: self.guard })
    }
}

impl<M, P, F> LeasedSlot<M, P, F> {
    /// The memory to read.
    pub fn memory(&self) -> &M {
        &self.guard.slot().memory
    }

    /// The payload the filler published with it.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// The fence behind the writes, for readers that join later than the lease: they wait for it too.
    pub fn written(&self) -> &F {
        &self.guard.slot().written
    }

    /// Records `freed` behind the reads, and frees the slot. When recording fails, the slot is retired.
    pub fn release<E>(mut self, record: impl FnOnce(&F) -> Result<(), E>) -> Result<(), E> {
        record(&self.guard.slot().freed)?;
        self.guard.fate = Fate::Released;
        Ok(())
    }
}

/// A slot that is out of its ring; returns it there on drop.
struct SlotGuard<M, P, F> {
    ring: Arc<RingShared<M, P, F>>,
    /// `None` only after it was published.
    slot: Option<Box<RingSlot<M, F>>>,
    fate: Fate,
}

/// What a drop does with the slot.
#[derive(Clone, Copy)]
enum Fate {
    /// Not published: becomes free.
    Unfilled,
    /// Published and never leased: becomes free, counted as unread.
    Unread,
    /// Leased, `freed` not recorded: retired.
    Unreleased,
    /// Leased, `freed` recorded: becomes free.
    Released,
}

impl<M, P, F> SlotGuard<M, P, F> {
    fn slot(&self) -> &RingSlot<M, F> {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("only publishing takes the slot, and it consumes the guard"),
        }
    }

    fn slot_mut(&mut self) -> &mut RingSlot<M, F> {
        match &mut self.slot {
            Some(slot) => slot,
            None => unreachable!("only publishing takes the slot, and it consumes the guard"),
        }
    }
}

impl<M, P, F> Drop for SlotGuard<M, P, F> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        match self.fate {
            Fate::Unfilled => self.ring.give_back(slot, End::Filler),
            Fate::Unread => self.ring.give_back_unread(slot),
            Fate::Unreleased => self.ring.retire(slot),
            Fate::Released => self.ring.give_back(slot, End::Taker),
        }
    }
}
