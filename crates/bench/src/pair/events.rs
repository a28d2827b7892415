//! How soon the host sees the work of a card that waited for the other: an event is recorded on one, waited for on the
//! other, and a second event behind that wait is seen by the host. A transfer makes this round trip for every batch.

use serde_json::{Value, json};
use tandem_device::{DeviceError, DeviceKind, Machine};

use super::spin;

const ROUNDS: usize = 2000;
/// A simulated clock has little to say.
const SIMULATED_ROUNDS: usize = 50;
/// Rounds before those that count: the first are slower.
const WARM_UP: usize = 20;

pub(super) fn measure(machine: &Machine, [a, b]: [usize; 2]) -> Result<Value, DeviceError> {
    let rounds = if machine.kind() == DeviceKind::Simulated { SIMULATED_ROUNDS } else { ROUNDS };
    Ok(json!({
        "rounds": rounds,
        "a_to_b": direction(machine, a, b, rounds)?,
        "b_to_a": direction(machine, b, a, rounds)?,
    }))
}

fn direction(machine: &Machine, from: usize, to: usize, rounds: usize) -> Result<Value, DeviceError> {
    let (sender, receiver) = (machine.open(from)?, machine.open(to)?);
    let (send, receive) = (sender.stream(false)?, receiver.stream(false)?);
    let (sent, received) = (sender.event()?, receiver.event()?);
    let mut round_trips_ns = Vec::with_capacity(rounds);
    for round in 0..WARM_UP + rounds {
        let began_ns = machine.now_ns();
        send.record(&sent)?;
        receive.wait(&sent, "the measured card waits for the other")?;
        receive.record(&received)?;
        spin(&received, machine, to)?;
        if round >= WARM_UP {
            round_trips_ns.push(machine.now_ns() - began_ns);
        }
    }
    round_trips_ns.sort_unstable();
    let percentile = |percent: usize| round_trips_ns[(rounds - 1) * percent / 100] as f64 / 1e3;
    Ok(json!({ "p50_us": percentile(50), "p99_us": percentile(99) }))
}
