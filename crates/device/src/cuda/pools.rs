//! Memory pools of a card, which other cards may access them, and a book of all reservations.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::api::{self, Access, Code, Handle, PoolProps};
use super::{CudaDriver, OpenCard, status};
use crate::bytes::POOL_GRANULE;
use crate::driver::{Address, Reservation};
use crate::error::DeviceError;
use crate::machine::lock;

/// The reservations of this driver, by address.
#[derive(Default)]
pub(super) struct Reservations(Mutex<BTreeMap<u64, Held>>);

struct Held {
    reservation: Reservation,
    /// The driver's handles of the cards with access.
    readers: Vec<i32>,
}

impl Reservations {
    pub(super) fn add(&self, reservation: Reservation) {
        lock(&self.0).insert(reservation.base.raw, Held { reservation, readers: Vec::new() });
    }

    pub(super) fn grant(&self, reservation: &Reservation, reader: i32) {
        if let Some(held) = lock(&self.0).get_mut(&reservation.base.raw) {
            held.readers.push(reader);
        }
    }

    /// Removes it, and returns the cards with access.
    pub(super) fn remove(&self, reservation: &Reservation) -> Vec<i32> {
        lock(&self.0).remove(&reservation.base.raw).map(|held| held.readers).unwrap_or_default()
    }

    /// The card whose reservation holds the byte at `at`.
    pub(super) fn card_of(&self, at: Address) -> Option<usize> {
        let held = lock(&self.0);
        let Reservation { base, bytes, .. } = held.range(..=at.raw).next_back()?.1.reservation;
        (at.raw - base.raw < bytes).then_some(base.card)
    }
}

impl CudaDriver {
    /// Creates a pool that is capped at `bytes`, and allocates all of it.
    pub(super) fn reserve_in_pool(&self, card: usize, open: OpenCard, bytes: u64) -> Result<Reservation, DeviceError> {
        let during = "reserving memory";
        assert!(bytes.is_multiple_of(POOL_GRANULE), "a pool cap of {bytes} bytes would be rounded up by the driver");
        let props = PoolProps::capped(self.device(card)?, bytes as usize);
        let mut pool = 0;
        // SAFETY: one handle is written; the properties are read during the call.
        let code = unsafe { (self.api.cuMemPoolCreate)(&raw mut pool, &raw const props) };
        if code == api::NOT_SUPPORTED {
            return Err(DeviceError::NoPools { card, what: status::describe(&self.api, code) });
        }
        self.check_memory(card, during, code, bytes)?;
        self.close_to_others(card, pool);
        let taken = self.take_from(card, open, pool, bytes);
        if taken.is_err() && !self.leaves_all_to_the_system() {
            // SAFETY: the pool was created above and is empty.
            unsafe { (self.api.cuMemPoolDestroy)(pool) };
        }
        taken.map(|raw| Reservation { base: Address { card, raw }, bytes, pool: pool as u64 })
    }

    /// Takes access away from other cards that a new pool inherited from a destroyed one with the same handle. Errors are
    /// ignored: a card without an answer has no access.
    fn close_to_others(&self, card: usize, pool: Handle) {
        let own = self.cuda_cards[card].device;
        for device in self.cuda_cards.iter().filter_map(|other| other.device).filter(|device| own != Some(*device)) {
            let (mut access, mut flags) = (Access::none(device), 0);
            // SAFETY: the pool was just created; the flags are written, the location and the description are read.
            unsafe {
                let code = (self.api.cuMemPoolGetAccess)(&raw mut flags, pool, &raw mut access.location);
                if code == 0 && flags != 0 {
                    (self.api.cuMemPoolSetAccess)(pool, &raw const access, 1);
                }
            }
        }
    }

    /// Sets what a card may do with the pool of a reservation.
    pub(super) fn set_access(&self, reservation: &Reservation, access: Access) -> Code {
        // SAFETY: the pool is alive; one description is read.
        unsafe { (self.api.cuMemPoolSetAccess)(reservation.pool as Handle, &raw const access, 1) }
    }

    /// Allocates from a pool (stream-ordered) and waits until the allocation is done.
    pub(super) fn take_from(&self, card: usize, open: OpenCard, pool: Handle, bytes: u64) -> Result<u64, DeviceError> {
        let during = "reserving memory";
        let mut raw = 0;
        // SAFETY: one address is written; pool and stream are of this card and alive.
        let code =
            unsafe { (self.api.cuMemAllocFromPoolAsync)(&raw mut raw, bytes as usize, pool, open.service_stream) };
        self.check_memory(card, during, code, bytes)?;
        let done = self.await_service(card, during, open)?;
        self.check_memory(card, during, done, bytes)?;
        Ok(raw)
    }
}
