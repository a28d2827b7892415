//! One test body for every kind of device.

use tandem_device::sim::Link;
use tandem_device::{Arena, ArenaSpec, Device, Machine, SimSpec};
use tandem_events::Role;

pub(crate) const MIB: u64 = 1 << 20;

/// One simulated card; `seed` decides the order of work.
pub(crate) fn simulated(seed: u64) -> Machine {
    Machine::simulated(SimSpec::new(1, 8 << 30).with_seed(seed))
}

/// Two simulated cards.
pub(crate) fn simulated_pair(link: Link, seed: u64) -> Machine {
    Machine::simulated(SimSpec::new(2, 8 << 30).with_link(link).with_seed(seed))
}

/// The first real card. Its tests are ignored by default.
pub(crate) fn cuda() -> Machine {
    Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card")
}

pub(crate) fn spec(role: Role, arena_mib: u64) -> ArenaSpec {
    ArenaSpec {
        role,
        limit_bytes: (arena_mib + 64) * MIB,
        driver_bytes: 64 * MIB,
        arena_bytes: arena_mib * MIB,
        peer_bytes: 0,
        capped: true,
    }
}

pub(crate) fn arena(device: &Device, role: Role, arena_mib: u64) -> Arena {
    Arena::reserve(device, spec(role, arena_mib)).expect("the arena fits")
}

/// An arena of 64 MiB whose second half another card may access.
pub(crate) fn peer_arena(device: &Device, role: Role) -> Arena {
    Arena::reserve(device, ArenaSpec { peer_bytes: 32 * MIB, ..spec(role, 64) }).expect("the arena fits")
}

/// Makes tests of a function that takes a [`Machine`]: on simulated cards with several seeds, on the CPU, and on a real
/// card. Each function gives a module of its name with three tests.
macro_rules! on_every_device {
    ($($body:ident),* $(,)?) => {$(
        mod $body {
            #[test]
            fn simulated() {
                (0..20).for_each(|seed| super::$body(&crate::support::simulated(seed)));
            }

            #[test]
            fn cpu() {
                super::$body(&tandem_device::Machine::cpu());
            }

            #[test]
            #[ignore = "needs an NVIDIA card"]
            fn cuda() {
                super::$body(&crate::support::cuda());
            }
        }
    )*};
}
