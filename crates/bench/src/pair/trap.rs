//! What a wait of the second card does when a kernel on the first faults: a run that loses its data card must not hang in
//! a wait of the model's.

use std::time::Instant;

use serde_json::{Value, json};
use tandem_device::kernels::{Checks, KERNELS};
use tandem_device::{DeviceError, Event, Machine};

use super::{DEADLINE, spin_until};

/// The first card is busy for so long before its fault that the second already waits.
const BUSY_NS: u64 = 200_000_000;

pub(super) fn measure(machine: &Machine, [a, b]: [usize; 2]) -> Result<Value, DeviceError> {
    let (first, second) = (machine.open(a)?, machine.open(b)?);
    let (faulting, waiting) = (first.stream(false)?, second.stream(false)?);
    let (behind_trap, behind_wait) = (first.event()?, second.event()?);
    // All now: loading a kernel later could wait for the delay, and the fault would come before the wait.
    first.load_all(KERNELS)?;
    let checks = Checks::load(&first)?;
    let began = Instant::now();
    checks.delay(&faulting, BUSY_NS)?;
    faulting.trap()?;
    faulting.record(&behind_trap)?;
    waiting.wait(&behind_trap, "the second card waits for the first")?;
    waiting.record(&behind_wait)?;
    let ended = spin_until(&behind_wait, machine, DEADLINE);
    let after_ms = began.elapsed().as_secs_f64() * 1e3 - BUSY_NS as f64 / 1e6;
    let (outcome, error) = match ended {
        Ok(true) => ("ended without an error", None),
        Ok(false) => ("did not end", None),
        Err(error) => ("ended with an error", Some(reason(&error))),
    };
    Ok(json!({
        "b_wait": outcome,
        "after_ms": after_ms.max(0.0),
        "b_error": error,
        "a_error": error_of(&behind_trap),
        "b_error_afterwards": error_of(&behind_wait),
    }))
}

/// What the card says about an event now.
fn error_of(event: &Event) -> Option<String> {
    event.reached().err().map(|error| reason(&error))
}

/// The driver's words only: what to do about a lost card is known here.
fn reason(error: &DeviceError) -> String {
    match error {
        DeviceError::Lost { card, what, .. } => format!("GPU {card}: {what}"),
        other => other.to_string(),
    }
}
