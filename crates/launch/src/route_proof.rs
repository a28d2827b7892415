//! Proofs of transfer routes, before a run uses them.
//!
//! A peer copy can freeze or fault, behind an IOMMU for example. After that no card of the process works any more, and no
//! other route can be tried. So a program can give the inventory a [`RouteProver`], which tries such routes where a fault
//! ends nothing but the proof: in a process of its own. A run proves its route again, in its own memory.

use tandem_device::bytes::{BLOCK_ALIGN, POOL_GRANULE, round_up};
use tandem_device::transfer::Measured;
use tandem_device::{Arena, ArenaSpec, Block, DeviceError, Machine, Route, Transfer};
use tandem_events::Role;

/// What a proof copies, and between which cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteProof {
    /// The card that sends.
    pub from: usize,
    /// The card that receives.
    pub to: usize,
    /// Bytes of a batch.
    pub batch_bytes: u64,
    /// Slots for a batch on each card. All are used.
    pub slots: usize,
}

/// Proves routes where a fault does not reach this process.
pub trait RouteProver: Send + Sync {
    /// Proves each of `routes` between two cards of `machine`, and returns what each copies per second, or why it does not
    /// work, in the same order. A proof that crashes or hangs is a route that does not work.
    fn prove(&self, machine: &Machine, proof: &RouteProof, routes: &[Route]) -> Vec<Result<Measured, String>>;
}

impl RouteProof {
    /// Proves a route in this process, between two temporary arenas: copies a pattern through every slot and compares every
    /// byte.
    pub fn run(&self, machine: &Machine, route: Route) -> Result<Measured, DeviceError> {
        let slots_bytes = self.slots as u64 * round_up(self.batch_bytes, BLOCK_ALIGN);
        let arena_bytes = round_up(slots_bytes, POOL_GRANULE);
        let arena = |role, card| {
            let spec = ArenaSpec { peer_bytes: arena_bytes, ..ArenaSpec::new(role, arena_bytes) };
            Arena::reserve(&machine.open(card)?, spec)
        };
        let (from, to) = (arena(Role::Data, self.from)?, arena(Role::Model, self.to)?);
        let mut transfer = Transfer::open(route, "a proof", &from, &to, self.batch_bytes)?;
        let blocks = |arena: &Arena, owner| {
            (0..self.slots).map(|_| arena.take_for_peer(owner, self.batch_bytes)).collect::<Result<Vec<_>, _>>()
        };
        let (sources, targets) = (blocks(&from, "batch")?, blocks(&to, "slot")?);
        let [sources, targets] = [&sources, &targets].map(|blocks| blocks.iter().map(Block::view).collect::<Vec<_>>());
        transfer.prove(&sources, &targets)
    }

    /// The error for a route that a prover refuses.
    pub(crate) fn refused(&self, route: Route, why: &str) -> DeviceError {
        DeviceError::NoRoute { route: route.name(), from: self.from, to: self.to, why: why.to_owned() }
    }
}
