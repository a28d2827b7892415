//! Fault injection: a memory leak that grows during a run, to test leak detection on complete runs.

use memmap2::MmapMut;

use crate::arena::Block;
use crate::error::DeviceError;
use crate::fault::{Fault, LeakRate, Pool};
use crate::isolation::Isolation;
use crate::pinned::Pinned;

/// The owner of the leaked memory.
const OWNER: &str = "injected leak";
/// It grows in multiples of this, a multiple of pages and of an arena's block alignment.
const CHUNK_BYTES: u64 = 64 << 10;

/// A leak that grows with the steps. Dropping it frees all of it.
pub struct InjectedLeak {
    rate: LeakRate,
    first_step: Option<u64>,
    leaked: Vec<Leaked>,
    leaked_bytes: u64,
    is_over: bool,
}

#[expect(dead_code, reason = "the memory is only kept allocated")]
enum Leaked {
    Block(Block),
    Pinned(Pinned),
    Host(MmapMut),
}

impl InjectedLeak {
    /// The leak that `TANDEM_FAULT` asks for, if any.
    pub fn from_env() -> Result<Option<InjectedLeak>, DeviceError> {
        Ok(Fault::from_env()?.leak().map(InjectedLeak::new))
    }

    fn new(rate: LeakRate) -> InjectedLeak {
        InjectedLeak { rate, first_step: None, leaked: Vec::new(), leaked_bytes: 0, is_over: false }
    }

    /// Allocates what is due by `step`, counted from the first call's step. When the pool refuses, this fails once and
    /// the leak stops growing.
    pub fn grow(&mut self, step: u64, roles: &Isolation) -> Result<(), DeviceError> {
        let steps = step.saturating_sub(*self.first_step.get_or_insert(step));
        let due_bytes = (steps * self.rate.bytes / self.rate.steps).saturating_sub(self.leaked_bytes);
        let bytes = due_bytes - due_bytes % CHUNK_BYTES;
        if bytes == 0 || self.is_over {
            return Ok(());
        }
        let taken = self.take(bytes, roles);
        self.is_over = taken.is_err();
        self.leaked.push(taken?);
        self.leaked_bytes += bytes;
        Ok(())
    }

    fn take(&self, bytes: u64, roles: &Isolation) -> Result<Leaked, DeviceError> {
        Ok(match self.rate.pool {
            Pool::Data => Leaked::Block(roles.data.arena.take(OWNER, bytes)?),
            Pool::Model => Leaked::Block(roles.model.arena.take(OWNER, bytes)?),
            Pool::Pinned => Leaked::Pinned(roles.data.device.pinned(bytes)?),
            Pool::Host => Leaked::Host(new_pages(bytes).ok_or(DeviceError::OutOfPinned { asked: bytes })?),
        })
    }
}

/// New pages from the system: the allocator would reuse freed memory first, and the process would not grow. They are
/// written, because untouched pages are not resident.
fn new_pages(bytes: u64) -> Option<MmapMut> {
    let mut pages = MmapMut::map_anon(usize::try_from(bytes).ok()?).ok()?;
    pages.fill(1);
    Some(pages)
}

#[cfg(test)]
mod tests {
    use tandem_events::Role;

    use super::*;
    use crate::{ArenaSpec, Machine, RoleSetup};

    #[test]
    fn each_pool_grows_at_the_rate_that_was_asked_for_until_it_is_full() {
        let role = |role| RoleSetup { card: 0, arena: ArenaSpec::new(role, 4 << 20) };
        let machine = Machine::cpu();
        let roles = Isolation::set_up(&machine, role(Role::Data), role(Role::Model)).unwrap();
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
            // A run that resumes from step 1000: nothing is due at its first step.
            (1000..=1000 + 3 * 64).for_each(|step| leak.grow(step, &roles).unwrap());
            assert_eq!((held(), leak.leaked_bytes), (expected, 3 << 20), "{pool:?}");
            let refused = (2000..2200).filter(|step| leak.grow(*step, &roles).is_err()).count();
            assert_eq!(refused, usize::from(matches!(pool, Pool::Data | Pool::Model)), "{pool:?}");
            drop(leak);
            assert_eq!(held(), [0; 3]);
        }
    }
}
