//! How far the clocks of two cards drift apart.
//!
//! CUDA reads a card's clock only as the time between two events of that card. So a timer is recorded on each card at both
//! ends of an interval, with the host's clock read around it, and each card's interval is compared with the host's.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_device::bytes::{MIB, POOL_GRANULE};
use tandem_device::{Arena, ArenaSpec, Device, DeviceError, DeviceKind, Event, Machine, Stream};
use tandem_events::Role;

use super::spin;

/// CUDA's float of milliseconds still resolves a quarter of a microsecond here.
const INTERVAL: Duration = Duration::from_secs(4);
const SIMULATED_INTERVAL: Duration = Duration::from_millis(20);
/// Timers at each end; the one with the narrowest reading around it counts.
const TRIES: usize = 16;

/// A timer, and when it was reached by the host's clock.
struct Mark {
    timer: Event,
    host_ns: u64,
    /// The host's reading is off by this much at most.
    slack_ns: u64,
}

pub(super) fn measure(machine: &Machine, cards: [usize; 2]) -> Result<Value, DeviceError> {
    let devices = [machine.open(cards[0])?, machine.open(cards[1])?];
    let streams = [devices[0].stream(false)?, devices[1].stream(false)?];
    let marks = || -> Result<[Mark; 2], DeviceError> { Ok([mark(&streams[0])?, mark(&streams[1])?]) };
    // Once for nothing: the first records in a context are slower.
    marks()?;
    let began = marks()?;
    pass_time(machine, &devices[0], &streams[0])?;
    let ended = marks()?;
    let (mut drifts_ppm, mut uncertainty_ppm) = (Vec::new(), 0.0);
    for (began, ended) in began.iter().zip(&ended) {
        let host_ns = (ended.host_ns - began.host_ns).max(1) as f64;
        drifts_ppm.push((ended.timer.ns_since(&began.timer)? as f64 - host_ns) / host_ns * 1e6);
        uncertainty_ppm += (began.slack_ns + ended.slack_ns) as f64 / host_ns * 1e6;
    }
    Ok(json!({
        "seconds": (ended[0].host_ns - began[0].host_ns) as f64 / 1e9,
        "b_ahead_of_a_ppm": drifts_ppm[1] - drifts_ppm[0],
        "uncertainty_ppm": uncertainty_ppm,
    }))
}

fn mark(stream: &Stream) -> Result<Mark, DeviceError> {
    let device = stream.device();
    let machine = device.machine();
    let mut best: Option<Mark> = None;
    for _ in 0..TRIES {
        let timer = device.timer()?;
        let before_ns = machine.now_ns();
        stream.record(&timer)?;
        spin(&timer, machine, device.index())?;
        let after_ns = machine.now_ns();
        let mark = Mark { timer, host_ns: before_ns.midpoint(after_ns), slack_ns: (after_ns - before_ns).div_ceil(2) };
        if best.as_ref().is_none_or(|best| mark.slack_ns < best.slack_ns) {
            best = Some(mark);
        }
    }
    let Some(best) = best else { unreachable!("there is at least one try") };
    Ok(best)
}

/// Lets the interval pass. A simulated clock advances only with work.
fn pass_time(machine: &Machine, device: &Device, stream: &Stream) -> Result<(), DeviceError> {
    if machine.kind() != DeviceKind::Simulated {
        thread::sleep(INTERVAL);
        return Ok(());
    }
    let (bytes, arena_bytes) = (8 * MIB, POOL_GRANULE.max(8 * MIB));
    let spec = ArenaSpec { capped: true, ..ArenaSpec::new(Role::Data, arena_bytes) };
    let arena = Arena::reserve(device, spec)?;
    let (block, pinned) = (arena.take("batch", bytes)?, device.pinned(bytes)?);
    let until_ns = machine.now_ns() + SIMULATED_INTERVAL.as_nanos() as u64;
    while machine.now_ns() < until_ns {
        stream.upload(&pinned, 0..bytes, block.view())?;
        stream.drain()?;
    }
    Ok(())
}
