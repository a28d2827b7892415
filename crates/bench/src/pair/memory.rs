//! The driver's own memory on two cards: with one of them open, with both, and with peer access between them.
//!
//! A driver may take more for two cards than for each alone, and the plan has to know.

use serde_json::{Value, json};
use tandem_device::bytes::POOL_GRANULE;
use tandem_device::{Arena, ArenaSpec, Device, DeviceError, Machine, Route, Transfer};
use tandem_events::Role;

/// The readings of a pair.
struct Readings<'m> {
    machine: &'m Machine,
    cards: [usize; 2],
    /// Free memory before anything was opened.
    free_before: [u64; 2],
}

pub(super) fn measure(machine: &Machine, cards: [usize; 2]) -> Result<Value, DeviceError> {
    let [a, b] = cards;
    let free_before = [machine.read(a)?.free_bytes, machine.read(b)?.free_bytes];
    let readings = Readings { machine, cards, free_before };
    let opened = machine.open(a)?;
    let source = if opened.process_bytes()?.is_some() { "memory of the process" } else { "free memory of the cards" };
    let a_open = readings.held()?;
    drop(opened);
    let opened = machine.open(b)?;
    let b_open = readings.held()?;
    drop(opened);
    let both = [machine.open(a)?, machine.open(b)?];
    let both_open = readings.held()?;
    let peer_access = match readings.with_peer_access(&both) {
        Ok(held) => held,
        // Cards without peer access have no such figure.
        Err(error) if error.is_about_route() => json!({ "error": error.to_string() }),
        Err(error) => return Err(error),
    };
    Ok(json!({
        "source": source,
        "a_open": a_open,
        "b_open": b_open,
        "both_open": both_open,
        "peer_access": peer_access,
    }))
}

impl Readings<'_> {
    /// What the driver holds on each card for this process, without what we allocated.
    fn held(&self) -> Result<Value, DeviceError> {
        let [a, b] = [0, 1].map(|at| {
            let card = self.cards[at];
            let held = match self.machine.process_bytes(card)? {
                Some(bytes) => bytes,
                None => self.free_before[at].saturating_sub(self.machine.read(card)?.free_bytes),
            };
            Ok::<u64, DeviceError>(held.saturating_sub(self.machine.counters(card).live_bytes))
        });
        Ok(json!({ "a_bytes": a?, "b_bytes": b? }))
    }

    /// The same with peer access between two small arenas.
    fn with_peer_access(&self, [a, b]: &[Device; 2]) -> Result<Value, DeviceError> {
        let arena = |role, device| {
            let arena_bytes = POOL_GRANULE;
            let spec = ArenaSpec { peer_bytes: arena_bytes, capped: true, ..ArenaSpec::new(role, arena_bytes) };
            Arena::reserve(device, spec)
        };
        let (from, to) = (arena(Role::Data, a)?, arena(Role::Model, b)?);
        let _access = Transfer::open(Route::Peer, "a measurement", &from, &to, POOL_GRANULE)?;
        self.held()
    }
}
