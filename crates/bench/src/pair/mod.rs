//! Measurements of two cards as a pair, for `tandem doctor --pair`.
//!
//! Each can hang or lose its cards, so `cli` runs them in child processes: one process runs some checks in turn and reports
//! each. Nobody knows yet what all pairs of cards do; the report of a pair says it for one.

mod clocks;
mod events;
mod memory;
mod trap;

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandem_device::{Device, DeviceError, DeviceKind, Event, Machine, Route};
use tandem_launch::route_proof::RouteProof;

/// A measurement of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairCheck {
    /// A transfer route from the first card to the second: every byte of every slot, and the bandwidth.
    Route(Route),
    /// What the driver says about peer access, in both directions.
    PeerAccess,
    /// The driver's own memory with one card open, with both, and with peer access between them.
    Memory,
    /// How soon the host sees the work of one card that waited for the other.
    Events,
    /// How far the clocks of the two cards drift apart.
    Clocks,
    /// What a wait of the second card does when a kernel on the first faults. Neither card works in this process after it.
    Trap,
}

impl PairCheck {
    /// Every check, routes through the host first: a fault of a later one does not affect what is known before.
    pub const ALL: [PairCheck; 9] = [
        PairCheck::PeerAccess,
        PairCheck::Memory,
        PairCheck::Route(Route::Bounce),
        PairCheck::Route(Route::Staged),
        PairCheck::Route(Route::PeerCopy),
        PairCheck::Route(Route::Peer),
        PairCheck::Events,
        PairCheck::Clocks,
        PairCheck::Trap,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            PairCheck::Route(route) => route.name(),
            PairCheck::PeerAccess => "peer-access",
            PairCheck::Memory => "memory",
            PairCheck::Events => "events",
            PairCheck::Clocks => "clocks",
            PairCheck::Trap => "trap",
        }
    }

    /// The check of this name.
    pub fn named(name: &str) -> Option<PairCheck> {
        PairCheck::ALL.into_iter().find(|check| check.name() == name)
    }
}

/// Two cards of a machine, to be measured.
pub struct Pair {
    machine: Machine,
    proof: RouteProof,
    /// Open from the first route on, so that all routes share two contexts.
    opened: Vec<Device>,
}

impl Pair {
    /// The first card is the sender of `proof`, the second its receiver.
    pub fn new(machine: &Machine, proof: RouteProof) -> Pair {
        Pair { machine: machine.clone(), proof, opened: Vec::new() }
    }

    /// Runs a check and returns its figures.
    ///
    /// After [`DeviceError::Lost`] and [`DeviceError::TimedOut`] this process can check nothing more.
    pub fn run(&mut self, check: PairCheck) -> Result<Value, DeviceError> {
        let (machine, RouteProof { from, to, .. }) = (&self.machine, self.proof);
        match check {
            PairCheck::Route(route) => self.route(route),
            PairCheck::PeerAccess => peer_access(machine, from, to),
            PairCheck::Memory => memory::measure(machine, [from, to]),
            PairCheck::Events => events::measure(machine, [from, to]),
            PairCheck::Clocks => clocks::measure(machine, [from, to]),
            PairCheck::Trap => trap::measure(machine, [from, to]),
        }
    }

    fn route(&mut self, route: Route) -> Result<Value, DeviceError> {
        if self.opened.is_empty() {
            self.opened = vec![self.machine.open(self.proof.from)?, self.machine.open(self.proof.to)?];
        }
        let measured = self.proof.run(&self.machine, route)?;
        Ok(json!({
            "gb_per_s": measured.gb_per_s(),
            "bytes": measured.bytes,
            "ns": measured.ns,
            "slots": self.proof.slots,
        }))
    }
}

fn peer_access(machine: &Machine, a: usize, b: usize) -> Result<Value, DeviceError> {
    let direction = |reader, owner| {
        let attributes = machine.peer_attributes(reader, owner)?;
        Ok::<_, DeviceError>(json!({
            "can_access": machine.can_access_peer(reader, owner)?,
            "performance_rank": attributes.performance_rank,
            "access_supported": attributes.access_supported,
            "native_atomics": attributes.native_atomics,
            "array_access": attributes.array_access,
        }))
    };
    Ok(json!({ "a_to_b": direction(a, b)?, "b_to_a": direction(b, a)? }))
}

/// Waits for an event by asking the driver about it, without sleeping and without our own checks of the other card; `false`
/// if it is not reached within `longest`.
fn spin_until(event: &Event, machine: &Machine, longest: Duration) -> Result<bool, DeviceError> {
    if machine.kind() == DeviceKind::Simulated {
        // Simulated work runs while the host waits, and not while it asks.
        return event.synchronize_within(longest);
    }
    let began = Instant::now();
    while !event.reached()? {
        if began.elapsed() > longest {
            return Ok(false);
        }
        spin_loop();
    }
    Ok(true)
}

/// [`spin_until`] the event is reached; fails after ten seconds.
fn spin(event: &Event, machine: &Machine, card: usize) -> Result<(), DeviceError> {
    match spin_until(event, machine, DEADLINE)? {
        true => Ok(()),
        false => Err(DeviceError::TimedOut { card, during: "reaching an event", seconds: DEADLINE.as_secs() }),
    }
}

/// The longest that a check waits for one event.
const DEADLINE: Duration = Duration::from_secs(10);
