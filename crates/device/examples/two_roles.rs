//! Two roles with hard limits, without the binary: `cargo run -p tandem-device --example two_roles`.
//!
//! Runs on two simulated cards. On a machine with two real ones, use `Machine::cuda()` instead.

use std::io::{self, Write as _};

use tandem_device::bytes::{MIB, POOL_GRANULE, show};
use tandem_device::leak::DEFAULT_THRESHOLD;
use tandem_device::limits::{DATA_SHARE, MODEL_SHARE, optimal_limits};
use tandem_device::{ArenaSpec, DeviceError, DriverCost, Isolation, Machine, RoleSetup, SimSpec};
use tandem_events::Role;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    let machine = Machine::simulated(SimSpec::new(2, 24 << 30));

    // Read the state of all cards. This opens no context.
    for (card, reading) in machine.cards().iter().zip(machine.read_all()?) {
        writeln!(out, "{card}: {} of {} free", show(reading.free_bytes), show(reading.total_bytes))?;
    }

    // Limits from the default shares, then both roles: all of their memory is reserved, or none.
    let totals = machine.cards().iter().map(|card| Some(card.total_bytes)).collect::<Vec<_>>();
    let (data_mb, model_mb) = optimal_limits(totals[0], totals[1], DATA_SHARE, MODEL_SHARE);
    let setup = |card, role, limit_mb: u64| {
        let limit_bytes = limit_mb * MIB;
        // The driver's memory counts too: its cost, rounded up, and one granule more because it varies a little.
        let driver_bytes = DriverCost::table().context_bytes.div_ceil(POOL_GRANULE) * POOL_GRANULE + POOL_GRANULE;
        let arena_bytes = (limit_bytes - driver_bytes) / POOL_GRANULE * POOL_GRANULE;
        RoleSetup {
            card,
            arena: ArenaSpec { role, limit_bytes, driver_bytes, arena_bytes, peer_bytes: 0, capped: true },
        }
    };
    let roles = Isolation::set_up(&machine, setup(0, Role::Data, data_mb), setup(1, Role::Model, model_mb))?;
    if let Err(twice) = Isolation::set_up(&machine, setup(0, Role::Data, 1024), setup(1, Role::Model, 1024)) {
        writeln!(out, "a second time: {twice}")?;
    }

    // Memory has an owner. An allocation over the limit is refused, with the largest owners.
    let baseline = roles.memory_stats();
    let slots = roles.data.arena.take("slots", 6 << 30)?;
    match roles.data.arena.take("one slot more", 2 << 30) {
        Err(DeviceError::Arena(refused)) => writeln!(out, "{refused}")?,
        other => return Err(format!("not refused: {other:?}").into()),
    }
    for now in roles.memory_stats() {
        writeln!(out, "{now}")?;
    }

    // Has a role grown since its baseline?
    for leak in roles.detect_leak(&baseline, DEFAULT_THRESHOLD) {
        writeln!(out, "{leak}")?;
    }
    drop(slots);
    Ok(())
}
