//! One test body, every kind of device.

use tandem_device::sim::Link;
use tandem_device::{Arena, ArenaSpec, Device, Machine, SimSpec};
use tandem_events::Role;

pub(crate) const MIB: u64 = 1 << 20;

/// One simulated card, with the order of work that `seed` gives.
pub(crate) fn simulated(seed: u64) -> Machine {
    Machine::simulated(SimSpec::new(1, 8 << 30).with_seed(seed))
}

/// Two simulated cards that reach each other.
#[allow(dead_code, reason = "not every test file needs a pair")]
pub(crate) fn simulated_pair(link: Link, seed: u64) -> Machine {
    Machine::simulated(SimSpec::new(2, 8 << 30).with_link(link).with_seed(seed))
}

/// The first real card. Its tests are marked as ignored, so a run without a card counts them as skipped.
#[allow(dead_code, reason = "not every test file has tests for a real card")]
pub(crate) fn cuda() -> Machine {
    Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card")
}

pub(crate) fn spec(role: Role, arena_mib: u64) -> ArenaSpec {
    ArenaSpec {
        role,
        limit_bytes: (arena_mib + 64) * MIB,
        driver_bytes: 64 * MIB,
        arena_bytes: arena_mib * MIB,
        capped: true,
    }
}

pub(crate) fn arena(device: &Device, role: Role, arena_mib: u64) -> Arena {
    Arena::reserve(device, spec(role, arena_mib)).expect("the arena fits")
}

/// Runs a body on simulated cards under several orders of work, on the CPU, and on a real card where there is one.
#[macro_export]
macro_rules! on_every_device {
    ($name:ident, $body:ident) => {
        mod $name {
            use super::*;

            #[test]
            fn simulated() {
                (0..20).for_each(|seed| $body(&support::simulated(seed)));
            }

            #[test]
            fn cpu() {
                $body(&tandem_device::Machine::cpu());
            }

            #[test]
            #[ignore = "needs an NVIDIA card"]
            fn cuda() {
                $body(&support::cuda());
            }
        }
    };
}
