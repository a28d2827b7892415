//! A leak on order: memory that is taken while a run goes on and never given back, so that what looks for leaks can be tried
//! on whole runs.

use memmap2::MmapMut;

use crate::arena::Block;
use crate::error::DeviceError;
use crate::fault::{Fault, LeakRate, Pool};
use crate::isolation::Isolation;
use crate::pinned::Pinned;

/// Whom the memory of a planted leak is shown under.
const OWNER: &str = "planted leak";
/// It grows by whole pieces of this: pages, and blocks of an arena, are not cut.
const PIECE_BYTES: u64 = 64 << 10;

/// A leak that grows with the steps. Dropping it gives everything back.
pub struct InjectedLeak {
    rate: LeakRate,
    first_step: Option<u64>,
    held: Vec<Held>,
    held_bytes: u64,
    is_over: bool,
}

#[expect(dead_code, reason = "it is held, and that is all that is done with it")]
enum Held {
    Block(Block),
    Pinned(Pinned),
    Host(MmapMut),
}

impl InjectedLeak {
    /// The one that the environment asks for; none where it asks for none.
    pub fn from_env() -> Result<Option<InjectedLeak>, DeviceError> {
        Ok(Fault::from_env()?.leak().map(InjectedLeak::new))
    }

    fn new(rate: LeakRate) -> InjectedLeak {
        InjectedLeak { rate, first_step: None, held: Vec::new(), held_bytes: 0, is_over: false }
    }

    /// Takes what is due by `step`, counted from the first it is told of. A pool that has no more to give refuses once, as
    /// it would refuse anyone, and is not asked again.
    pub fn grow(&mut self, step: u64, roles: &Isolation) -> Result<(), DeviceError> {
        let steps = step.saturating_sub(*self.first_step.get_or_insert(step));
        let due_bytes = (steps * self.rate.bytes / self.rate.steps).saturating_sub(self.held_bytes);
        let bytes = due_bytes - due_bytes % PIECE_BYTES;
        if bytes == 0 || self.is_over {
            return Ok(());
        }
        let taken = self.take(bytes, roles);
        self.is_over = taken.is_err();
        self.held.push(taken?);
        self.held_bytes += bytes;
        Ok(())
    }

    fn take(&self, bytes: u64, roles: &Isolation) -> Result<Held, DeviceError> {
        Ok(match self.rate.pool {
            Pool::Data => Held::Block(roles.data.arena.take(OWNER, bytes)?),
            Pool::Model => Held::Block(roles.model.arena.take(OWNER, bytes)?),
            Pool::Pinned => Held::Pinned(roles.data.device.pinned(bytes)?),
            Pool::Host => Held::Host(own_pages(bytes).ok_or(DeviceError::OutOfPinned { asked: bytes })?),
        })
    }
}

/// Pages that were not the process's before: an allocator would first give out what others have given back to it, and then
/// nothing grows. Written, not only promised: what nobody touched is not there.
fn own_pages(bytes: u64) -> Option<MmapMut> {
    let mut pages = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
    pages.fill(1);
    Some(pages)
}

#[cfg(test)]
mod tests {
    use tandem_events::Role;

    use super::*;
    use crate::{ArenaSpec, Machine};

    #[test]
    fn each_pool_grows_at_the_rate_that_was_asked_for_until_it_is_full() {
        let spec = |role| {
            let (limit_bytes, arena_bytes) = (4 << 20, 4 << 20);
            ArenaSpec { role, limit_bytes, driver_bytes: 0, arena_bytes, capped: false }
        };
        let machine = Machine::cpu();
        let roles = Isolation::set_up(&machine, (0, spec(Role::Data)), (0, spec(Role::Model))).unwrap();
        let held = || {
            let [data, model] = roles.memory_stats().map(|role| role.used_bytes);
            [data, model, roles.host_use().pinned_bytes]
        };
        for (pool, expected) in [
            (Pool::Data, [3 << 20, 0, 0]),
            (Pool::Model, [0, 3 << 20, 0]),
            (Pool::Pinned, [0, 0, 3 << 20]),
            (Pool::Host, [0, 0, 0]),
        ] {
            let mut leak = InjectedLeak::new(LeakRate { pool, bytes: 1 << 20, steps: 64 });
            // A run that goes on from step 1000: the first step has nothing behind it.
            (1000..=1000 + 3 * 64).for_each(|step| leak.grow(step, &roles).unwrap());
            assert_eq!((held(), leak.held_bytes), (expected, 3 << 20), "{pool:?}");
            let refused = (2000..2200).filter(|step| leak.grow(*step, &roles).is_err()).count();
            assert_eq!(refused, usize::from(matches!(pool, Pool::Data | Pool::Model)), "{pool:?}");
            drop(leak);
            assert_eq!(held(), [0; 3]);
        }
    }
}
