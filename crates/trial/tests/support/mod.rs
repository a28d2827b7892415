//! A small rehearsal, on any kind of device.

use tandem_device::{ArenaSpec, DeviceError, Isolation, Machine, Route};
use tandem_events::Role;
use tandem_feed::{Bucket, SPEECH};
use tandem_plan::{ModelChoice, ModelSize, Precision, StandIn};
use tandem_trial::rehearsal::{Rehearsal, RehearsalError, RehearsalSpec};

const MIB: u64 = 1 << 20;

/// A rehearsal of one shape, with few slots: every ring wraps many times in a short run.
pub(crate) fn rehearsal(route: Route, seed: u64, bucket: Bucket) -> RehearsalSpec {
    let choice = ModelChoice { size: ModelSize::Nano, precision: Precision::Full, ema: false };
    RehearsalSpec {
        batch_bytes: SPEECH.layout(&bucket).bytes,
        upload_bytes: bucket.frames() * 256 * 2,
        data_slots: 2,
        model_slots: 2,
        route,
        why: "a test".to_owned(),
        model: StandIn { choice, width: 32, layers: 6 },
        bucket,
        seed,
        delay_ns: 0,
    }
}

/// Batches small enough to rehearse thousands of times.
pub(crate) fn small(route: Route, seed: u64) -> RehearsalSpec {
    let mut spec = rehearsal(route, seed, Bucket::even(4, 3, 1));
    // The reference recording is most of a batch of this size, and no test needs it.
    (spec.batch_bytes, spec.upload_bytes) = (8192, 1500);
    spec
}

pub(crate) fn arena(role: Role) -> ArenaSpec {
    ArenaSpec { role, limit_bytes: 704 * MIB, driver_bytes: 640 * MIB, arena_bytes: 64 * MIB, capped: true }
}

/// Sets both roles up on `cards`, rehearses, and gives everything back.
pub(crate) fn rehearse(
    machine: &Machine,
    cards: (usize, usize),
    spec: RehearsalSpec,
    steps: u64,
) -> Result<(), RehearsalError> {
    let roles = Isolation::set_up(machine, (cards.0, arena(Role::Data)), (cards.1, arena(Role::Model)))?;
    let route = spec.route;
    let mut rehearsal = Rehearsal::prepare(&roles, spec)?;
    if route != Route::Handover {
        rehearsal.prove()?;
    }
    let (ready, slots) = rehearsal.fill(u64::MAX, || machine.now_ns())?;
    if ready < slots {
        return Err(DeviceError::StillInUse { what: "a batch that was waited for is not ready" }.into());
    }
    rehearsal.run(steps)?;
    Ok(roles.settle()?)
}
