//! A slot on its way: one type per state, and each can only become the next.

use super::RingSlot;
use super::shared::{End, RingShared};
use crate::sync::Arc;

/// A slot nobody is using on the host. Its last reader on the device may still be at work. Dropped, it goes home as it
/// came.
#[must_use]
pub struct FreeSlot<M, P, F> {
    away: Away<M, P, F>,
}

/// Holding one of these means that the memory is the holder's to write, in the order that `freed` was waited for in.
///
/// Dropped unpublished, also in a panic, it goes home as an empty slot. That is sound under the rule of the
/// [ring's filler](crate::ring): its unfinished writes come before those of the next filling.
#[must_use]
pub struct FillingSlot<M, P, F> {
    away: Away<M, P, F>,
}

/// A filled slot. Its writes are queued, not done. Dropped without a lease it goes home unread, and is counted: the
/// next filling comes after these writes by the rule of the [ring's filler](crate::ring).
#[must_use]
pub struct ReadySlot<M, P, F> {
    payload: P,
    away: Away<M, P, F>,
}

/// Holding one of these means that the memory may be read, in the order that `written` was waited for in.
///
/// It must be [released](LeasedSlot::release). Dropped otherwise, also in a panic, the slot is retired, never reused
/// and counted: nobody could say when its reader ends.
#[must_use]
pub struct LeasedSlot<M, P, F> {
    payload: P,
    away: Away<M, P, F>,
}

impl<M, P, F> FreeSlot<M, P, F> {
    pub(super) fn new(ring: &Arc<RingShared<M, P, F>>, slot: Box<RingSlot<M, F>>) -> Self {
        Self { away: Away { ring: ring.clone(), slot: Some(slot), fate: Fate::Unfilled } }
    }

    /// Waits for `freed`, the end of the last reader, and hands out the memory. The closure is to wait, or to make the
    /// stream wait that will write. When it fails the slot goes home, and its fence guards it as before.
    pub fn claim<E>(self, wait: impl FnOnce(&F) -> Result<(), E>) -> Result<FillingSlot<M, P, F>, E> {
        wait(&self.away.slot().freed)?;
        Ok(FillingSlot { away: self.away })
    }
}

impl<M, P, F> FillingSlot<M, P, F> {
    /// The memory to write.
    pub fn memory(&self) -> &M {
        &self.away.slot().memory
    }

    /// The memory to write.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.away.slot_mut().memory
    }

    /// Records `written` behind the writes, and puts the slot at the end of what is ready. When recording fails, the
    /// payload is dropped and the slot goes home empty.
    ///
    /// On a closed ring it goes home too, unread: the filler learns of it when it takes the next.
    pub fn publish<E>(mut self, payload: P, mark: impl FnOnce(&F) -> Result<(), E>) -> Result<(), E> {
        mark(&self.away.slot().written)?;
        if let Some(slot) = self.away.slot.take() {
            self.away.ring.publish(slot, payload);
        }
        Ok(())
    }
}

impl<M, P, F> ReadySlot<M, P, F> {
    pub(super) fn new(ring: &Arc<RingShared<M, P, F>>, slot: Box<RingSlot<M, F>>, payload: P) -> Self {
        Self { payload, away: Away { ring: ring.clone(), slot: Some(slot), fate: Fate::Unread } }
    }

    /// What the filler says about it.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// Waits for `written`, the end of the writing, and hands out the memory. The closure is to wait, or to make the
    /// stream wait that will read. When it fails the slot goes home unread.
    pub fn lease<E>(mut self, wait: impl FnOnce(&F) -> Result<(), E>) -> Result<LeasedSlot<M, P, F>, E> {
        wait(&self.away.slot().written)?;
        self.away.fate = Fate::Unmarked;
        Ok(LeasedSlot { payload: self.payload, away: self.away })
    }
}

impl<M, P, F> LeasedSlot<M, P, F> {
    /// The memory to read.
    pub fn memory(&self) -> &M {
        &self.away.slot().memory
    }

    /// What the filler says about it.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// Records `freed` behind the reading, and sends the slot home. When recording fails, the slot is retired.
    pub fn release<E>(mut self, mark: impl FnOnce(&F) -> Result<(), E>) -> Result<(), E> {
        mark(&self.away.slot().freed)?;
        self.away.fate = Fate::Read;
        Ok(())
    }
}

/// A slot that is out of its ring, and what becomes of it when its holder lets go.
struct Away<M, P, F> {
    ring: Arc<RingShared<M, P, F>>,
    /// Gone only when it has been published.
    slot: Option<Box<RingSlot<M, F>>>,
    fate: Fate,
}

/// What is known about a slot that its holder lets go of.
#[derive(Clone, Copy)]
enum Fate {
    /// Nothing was published: home.
    Unfilled,
    /// Published and never leased: home, counted.
    Unread,
    /// Leased, and `freed` not recorded: retired.
    Unmarked,
    /// Leased, and `freed` recorded: home.
    Read,
}

impl<M, P, F> Away<M, P, F> {
    fn slot(&self) -> &RingSlot<M, F> {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("publishing ends the only state that lets go of its slot"),
        }
    }

    fn slot_mut(&mut self) -> &mut RingSlot<M, F> {
        match &mut self.slot {
            Some(slot) => slot,
            None => unreachable!("publishing ends the only state that lets go of its slot"),
        }
    }
}

impl<M, P, F> Drop for Away<M, P, F> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        match self.fate {
            Fate::Unfilled => self.ring.come_home(slot, End::Filler),
            Fate::Unread => self.ring.come_home_unread(slot),
            Fate::Unmarked => self.ring.retire(slot),
            Fate::Read => self.ring.come_home(slot, End::Taker),
        }
    }
}
