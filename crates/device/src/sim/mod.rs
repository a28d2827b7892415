//! Simulated cards: deferred execution in a seeded order, enforced memory limits, poisoned memory.
//!
//! - Work is queued and runs later, in an order that respects only stream order and event waits (`queue.rs`). It runs when
//!   the host waits for an event, and sometimes before. A copy moves its bytes when it runs.
//! - Memory that was never written, or was freed, is poisoned.
//! - The clock is simulated: work takes the time of its bytes on the links of the spec, and nothing sleeps. Each card may have
//!   a clock of its own, which runs at another rate.
//! - Work that waits for a lost card never ends, nor does anything behind it. The host's waits for it fail after a grace period.
//! - Faults can be injected: [`SimFault`].
//!
//! Results are real: kernels run their host kernels.

mod card_state;
mod clock;
mod queue;
mod spec;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

pub use spec::{Link, SimFault, SimSpec, SimSpecError};
use tandem_random::SplitMix;

use crate::bytes::{MIB, round_up};
use crate::card::{Card, CardProcess, CardReading, PeerAttributes, Visibility};
use crate::cost::DriverCost;
use crate::driver::{
    Address, CopyPath, Driver, EventId, GraphId, HostSpan, KernelId, PeerCall, RawArg, Reservation, StreamId,
};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::host_exec::{AccessRange, accessed, accessed_by_copy, run_copy, run_fill, run_flip, run_host};
use crate::host_gemm::run_gemm;
use crate::host_graph::{HostGraphs, HostOp};
use crate::host_memory::{HostMemory, alloc_span, free_span};
use crate::kernel::{Grid, Kernel};
use crate::machine::{DeviceKind, lock};
use crate::transfer::Route;
use crate::workers::Workers;
use card_state::{CardState, Failure, SimReservation};
use clock::SimClock;
use queue::{QueuedOp, Queues};

/// The driver of simulated cards.
pub struct SimDriver {
    spec: SimSpec,
    cards: Vec<Card>,
    state: Mutex<State>,
    workers: Arc<Workers>,
    graphs: HostGraphs,
}

struct State {
    cards: Vec<CardState>,
    queues: Queues,
    /// The clock of each host thread: a thread that waits for a card does not delay the others.
    hosts: HashMap<ThreadId, u64>,
    allocations: u64,
    copies: u64,
    /// Those from card to card.
    peer_copies: u64,
    calls: u64,
    pinned: u64,
    trace: Vec<DriverCall>,
    /// Decides how much the desktop uses.
    desktop_rng: SplitMix,
}

/// Times on the clock of one card.
struct CardTimes<const N: usize> {
    /// When the card was opened, on the host's clock.
    opened_ns: u64,
    /// The same on the card's clock.
    opened: i64,
    /// When timers were reached, on the card's clock.
    reached: [i64; N],
}

/// A driver call for copies between cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCall {
    /// Peer access was queried.
    CanAccessPeer {
        /// The card that would access memory.
        reader: usize,
        /// The card that owns the memory.
        owner: usize,
    },
    /// Peer access was enabled.
    AllowPeer {
        /// The card that may access memory.
        reader: usize,
        /// The card that owns the memory.
        owner: usize,
    },
    /// A copy from card to card was queued.
    CopyPeer {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
}

/// Live objects of the simulator: all zero once everything was released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Open contexts.
    pub contexts: usize,
    /// Reservations of device memory.
    pub reservations: usize,
    /// Allocations of pinned memory.
    pub pinned: u64,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
}

/// Counters of the simulator: the points at which a fault can be injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Driver calls.
    pub calls: u64,
    /// Allocations of device and pinned memory.
    pub allocations: u64,
    /// Copies that ran.
    pub copies: u64,
    /// Those from card to card.
    pub peer_copies: u64,
}

/// GEMMs between two leaks of [`SimFault::GemmLeak`].
const GEMMS_PER_LEAK: u64 = 64;
/// Driver calls between two changes of the desktop's memory.
const DESKTOP_EVERY: u64 = 16;
/// The desktop changes independently of the order of work.
const DESKTOP_SEED: u64 = 0x6465_736b;

/// The number of peer calls that are stored.
const TRACE_LENGTH: usize = 64;

impl SimDriver {
    pub(crate) fn new(spec: SimSpec, workers: Arc<Workers>) -> SimDriver {
        let hidden_by = |index| spec.hidden.contains(&index).then(|| format!("--sim {}", spec.hidden_option()));
        let card = |index: usize| Card {
            index,
            name: format!("Simulated {} MB", spec.card_bytes[index] / MIB),
            uuid: format!("SIM-{index:08x}-0000-0000-0000-{:012x}", spec.card_bytes[index] / MIB),
            bus_id: format!("00000000:{:02x}:00.0", index + 1),
            total_bytes: spec.card_bytes[index],
            capability: spec.capability,
            hidden_by: hidden_by(index),
        };
        let state = State {
            cards: spec.card_bytes.iter().map(|_| CardState::default()).collect(),
            queues: Queues::new(spec.seed),
            hosts: HashMap::new(),
            allocations: 0,
            copies: 0,
            peer_copies: 0,
            calls: 0,
            pinned: 0,
            trace: Vec::new(),
            desktop_rng: SplitMix::new(spec.seed ^ DESKTOP_SEED),
        };
        let (cards, graphs) = ((0..spec.card_bytes.len()).map(card).collect(), HostGraphs::default());
        SimDriver { cards, spec, state: Mutex::new(state), workers, graphs }
    }

    /// Where `/proc` and `/sys` of the simulated machine are, if it has any.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.spec.root.as_deref()
    }

    /// The live objects.
    pub fn alive(&self) -> Alive {
        let state = lock(&self.state);
        Alive {
            contexts: state.cards.iter().filter(|card| card.opens > 0).count(),
            reservations: state.cards.iter().map(|card| card.reservations.len()).sum(),
            pinned: state.pinned,
            streams: state.queues.streams.len(),
            events: state.queues.events.values().filter(|event| !event.destroyed).count(),
        }
    }

    /// The first peer calls, in order.
    pub fn trace(&self) -> Vec<DriverCall> {
        lock(&self.state).trace.clone()
    }

    /// Driver calls, allocations and copies so far.
    pub fn counts(&self) -> SimCounts {
        let state = lock(&self.state);
        let State { calls, allocations, copies, peer_copies, .. } = *state;
        SimCounts { calls, allocations, copies, peer_copies }
    }

    /// Counts a driver call; fails if the card is lost, or is to be lost by this call.
    fn call(&self, state: &mut State, card: usize, during: &'static str) -> Result<(), DeviceError> {
        let number = state.calls;
        state.calls += 1;
        *state.host_ns() += clock::CALL_NS;
        if self.spec.desktop_bytes > 0 && number.is_multiple_of(DESKTOP_EVERY) {
            self.change_desktop(state);
        }
        if self.spec.fault == Some(SimFault::LoseCard(number)) {
            state.fail_card(card, Failure::Lost);
        }
        state.check_alive(card, during)
    }

    /// The desktop allocates or frees: any amount up to that of the spec, as far as there is memory.
    fn change_desktop(&self, state: &mut State) {
        for card in 0..state.cards.len() {
            let wanted = state.desktop_rng.below(self.spec.desktop_bytes / MIB + 1) * MIB;
            state.cards[card].desktop = 0;
            state.cards[card].desktop = wanted.min(self.free_bytes(state, card));
        }
    }

    /// What the clock of the card showed when it was opened and when its timers were reached, and the host's clock at the
    /// opening. Counts as one driver call, however many timers there are. Like a real driver, refuses timers of another card:
    /// the two clocks cannot be compared.
    fn card_times<const N: usize>(&self, card: usize, events: [EventId; N]) -> Result<CardTimes<N>, DeviceError> {
        let during = "reading a timer";
        let failed = |what: String| DeviceError::Failed { card, during, what };
        let mut state = lock(&self.state);
        self.call(&mut state, card, during)?;
        let clock = SimClock::new(card, self.spec.skew_ppm);
        let mut reached = [0; N];
        for (reached, event) in reached.iter_mut().zip(events) {
            let event = state.queues.events.get(&event).filter(|event| event.reached > 0);
            let event = event.ok_or_else(|| failed("it has not been reached".to_owned()))?;
            if event.card != card {
                return Err(failed(format!("the event belongs to GPU {}", event.card)));
            }
            *reached = clock.shows_ns(event.reached_ns);
        }
        let opened_ns = state.cards[card].opened_ns;
        Ok(CardTimes { opened_ns, opened: clock.shows_ns(opened_ns), reached })
    }

    fn enqueue(&self, card: usize, stream: StreamId, during: &'static str, op: QueuedOp) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, during)?;
        let now = *state.host_ns();
        if let Some(queue) = state.queues.streams.get_mut(&stream) {
            queue.ops.push_back((now, op));
        }
        while state.queues.rng.below(16) < state.queues.eagerness && self.run_one(&mut state) {}
        Ok(())
    }

    /// Captures the operation if the stream is capturing, queues it otherwise.
    fn capture_or_enqueue(
        &self,
        card: usize,
        stream: StreamId,
        during: &'static str,
        op: HostOp,
    ) -> Result<(), DeviceError> {
        match self.graphs.capture(stream, op) {
            None => Ok(()),
            Some(op) => self.enqueue(card, stream, during, QueuedOp::Run(op)),
        }
    }

    /// Runs one queued entry; `false` if none can run.
    fn run_one(&self, state: &mut State) -> bool {
        let Some((stream, queued_ns, op)) = state.queues.next() else { return false };
        let takes_ns = match &op {
            QueuedOp::Run(op) => self.op_ns(state, op),
            QueuedOp::Record { .. } | QueuedOp::Wait { .. } | QueuedOp::Trap | QueuedOp::Stuck => 0,
        };
        let Some(queue) = state.queues.streams.get_mut(&stream) else { return true };
        let card = queue.card;
        queue.now_ns = queue.now_ns.max(queued_ns) + takes_ns;
        let now_ns = queue.now_ns;
        match op {
            QueuedOp::Run(HostOp::Copy(path)) => self.run_copy(state, card, &path),
            QueuedOp::Run(op) => self.run_op(state, &op),
            QueuedOp::Trap => state.fail_card(card, Failure::Trapped),
            QueuedOp::Stuck => unreachable!("it never runs"),
            QueuedOp::Record { event, number } => {
                if let Some(event) = state.queues.events.get_mut(&event) {
                    (event.reached, event.reached_ns) = (event.reached.max(number), now_ns);
                }
            }
            QueuedOp::Wait { event, .. } => {
                let reached_ns = state.queues.events.get(&event).map_or(0, |event| event.reached_ns);
                if let Some(queue) = state.queues.streams.get_mut(&stream) {
                    queue.now_ns = now_ns.max(reached_ns);
                }
            }
        }
        true
    }

    fn op_ns(&self, state: &mut State, op: &HostOp) -> u64 {
        let is_peer = matches!(op, HostOp::Copy(path) if state.route_of(path).is_some_and(Route::needs_peer_access));
        let rng = &mut state.queues.rng;
        match op {
            HostOp::Copy(path) => clock::copy_ns(path, self.spec.link, is_peer, rng),
            HostOp::Fill { bytes, .. } => clock::fill_ns(*bytes, rng),
            HostOp::Launch { args, .. } => clock::kernel_ns(args, rng),
            HostOp::Gemm(gemm) => clock::gemm_ns(gemm, rng),
        }
    }

    fn run_op(&self, state: &mut State, op: &HostOp) {
        state.touch(&op.accesses());
        // SAFETY: queueing checked that the memory is in a live reservation; releasing one runs all queued work first. All
        // simulated work runs under the lock that the caller holds.
        unsafe {
            match op {
                HostOp::Copy(path) => run_copy(path),
                HostOp::Fill { at, bytes, value } => run_fill(*at, *bytes, *value),
                HostOp::Launch { kernel, args, .. } => run_host(kernel, args, &self.workers),
                HostOp::Gemm(gemm) => run_gemm(gemm, &self.workers),
            }
        }
    }

    fn run_copy(&self, state: &mut State, card: usize, path: &CopyPath) {
        let number = state.copies;
        state.copies += 1;
        if self.spec.fault == Some(SimFault::FailCopy(number)) {
            return state.fail_card(card, Failure::CopyFailed);
        }
        let route = state.route_of(path);
        let peer_copy = state.peer_copies;
        state.peer_copies += u64::from(route.is_some());
        if let (CopyPath::Peer { from, to, .. }, Some(SimFault::TrapOnRoute(fatal))) = (path, self.spec.fault)
            && route == Some(fatal)
        {
            return [from.card, to.card].into_iter().for_each(|card| state.fail_card(card, Failure::Trapped));
        }
        let delivers_nothing = route.is_some_and(|route| match self.spec.fault {
            Some(SimFault::CorruptPeer) => route.needs_peer_access(),
            Some(SimFault::CorruptRoute(corrupt)) => route == corrupt,
            _ => false,
        });
        if delivers_nothing {
            // Some real boards do this: the copy succeeds, and the bytes do not arrive.
            return state.touch(&accessed_by_copy(path));
        }
        // `Pinned` keeps the host memory alive until its last use was reached.
        self.run_op(state, &HostOp::Copy(*path));
        let is_corrupt = matches!(self.spec.fault, Some(SimFault::CorruptCopies(first)) if peer_copy >= first);
        if let (true, Some(_), CopyPath::Peer { to, bytes, .. }) = (is_corrupt, route, path) {
            // SAFETY: the byte is one of those that were just copied.
            unsafe { run_flip(to.plus(peer_copy % bytes.max(&1))) };
        }
    }

    /// Runs work until `done`.
    fn run_until(&self, state: &mut State, card: usize, done: impl Fn(&State) -> bool) -> Result<(), DeviceError> {
        let during = "waiting for an event";
        loop {
            state.check_alive(card, during)?;
            if done(state) {
                return Ok(());
            }
            if !self.run_one(state) {
                // The work waits for another card that is lost, or behind an injected copy that never ends. There is no
                // other cause: a wait refers only to records that were queued before it, so waits cannot form a cycle.
                let given_up_ns =
                    state.cards.iter().filter_map(|card| card.failure).map(|(_, ns)| ns + clock::LOSS_GRACE_NS);
                if let Some(given_up_ns) = given_up_ns.min() {
                    let host_ns = state.host_ns();
                    *host_ns = given_up_ns.max(*host_ns);
                }
                (0..state.cards.len()).try_for_each(|other| state.check_alive(other, during))?;
                assert!(state.queues.has_stuck_copy(), "queued work cannot run although no card is lost");
                return Err(DeviceError::TimedOut { card, during, seconds: 0 });
            }
        }
    }

    fn free_bytes(&self, state: &State, card: usize) -> u64 {
        let now = &state.cards[card];
        let others = self.spec.held_bytes + now.intruder + now.desktop;
        self.spec.card_bytes[card].saturating_sub(others + now.process_bytes())
    }

    /// Refuses addresses outside live reservations.
    fn check_range(&self, card: usize, ranges: &[AccessRange]) -> Result<(), DeviceError> {
        let state = lock(&self.state);
        let is_live = |range: &AccessRange| {
            let mut reservations = state.cards.iter().flat_map(|card| card.reservations.values());
            reservations.any(|reservation| reservation.memory.holds(range.from, range.to))
        };
        match ranges.iter().all(is_live) {
            true => Ok(()),
            false => Err(DeviceError::Failed {
                card,
                during: "queueing",
                what: "address outside any reservation".to_owned(),
            }),
        }
    }
}

impl State {
    /// The route of a copy between two cards; `None` for any other copy.
    fn route_of(&self, path: &CopyPath) -> Option<Route> {
        let CopyPath::Peer { from, to, call, .. } = *path else { return None };
        if from.card == to.card {
            return None;
        }
        let allows = |at: Address, reader: usize| {
            let mut reservations = self.cards[at.card].reservations.values();
            let reservation = reservations.find(|reservation| reservation.memory.holds(at.raw, at.raw + 1));
            reservation.is_some_and(|reservation| reservation.peers.contains(&reader))
        };
        Some(match (call, allows(from, to.card) && allows(to, from.card)) {
            (PeerCall::Unified, _) => Route::Peer,
            (PeerCall::BetweenContexts, true) => Route::PeerCopy,
            (PeerCall::BetweenContexts, false) => Route::Staged,
        })
    }

    /// The clock of the calling thread. A new thread starts at the latest clock of all threads.
    fn host_ns(&mut self) -> &mut u64 {
        let latest_ns = self.latest_ns();
        self.hosts.entry(thread::current().id()).or_insert(latest_ns)
    }

    fn latest_ns(&self) -> u64 {
        self.hosts.values().copied().max().unwrap_or(0)
    }

    /// Like a real driver, every call after a failure reports it.
    fn check_alive(&self, card: usize, during: &'static str) -> Result<(), DeviceError> {
        let lost = |what: &str| Err(DeviceError::Lost { card, during, what: what.to_owned() });
        match self.cards[card].failure.map(|(failure, _)| failure) {
            None => Ok(()),
            Some(Failure::Lost) => lost("it stopped responding"),
            Some(Failure::Trapped) => lost("a kernel executed a trap"),
            Some(Failure::CopyFailed) => {
                Err(DeviceError::Failed { card, during: "copy", what: "injected copy failure".to_owned() })
            }
        }
    }

    fn fail_card(&mut self, card: usize, failure: Failure) {
        let now_ns = *self.host_ns();
        self.cards[card].failure.get_or_insert((failure, now_ns));
        self.queues.abandon(card);
        self.queues.hang_copies_with(card);
    }

    /// Whether work is queued that never ends, because it waits for a lost card.
    fn has_endless_work(&self) -> bool {
        self.cards.iter().any(|card| card.failure.is_some()) && !self.queues.all_idle()
    }

    /// Writes the poison of memory that was never touched, before an operation accesses it.
    fn touch(&mut self, ranges: &[AccessRange]) {
        for &AccessRange { from, to, .. } in ranges {
            let mut reservations = self.cards.iter_mut().flat_map(|card| card.reservations.values_mut());
            if let Some(reservation) = reservations.find(|reservation| reservation.memory.holds(from, to)) {
                reservation.memory.touch(from, to);
            }
        }
    }
}

impl Driver for SimDriver {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Simulated
    }

    fn cards(&self) -> &[Card] {
        &self.cards
    }

    fn visibility(&self) -> Option<Visibility> {
        let option = (!self.spec.hidden.is_empty()).then(|| self.spec.hidden_option())?;
        let cuda_order = self.cards.iter().filter(|card| card.hidden_by.is_none()).map(|card| card.index).collect();
        let undo = Some(format!("remove {option} from --sim"));
        Some(Visibility { by: format!("--sim {option}"), undo, cuda_order, lists_hidden: true })
    }

    fn read(&self, card: usize) -> Result<CardReading, DeviceError> {
        let state = lock(&self.state);
        let now = &state.cards[card];
        let others = [("another process", self.spec.held_bytes + now.intruder), ("a desktop", now.desktop)];
        let others = others.into_iter().enumerate().filter(|(_, (_, bytes))| *bytes > 0);
        let processes =
            others.map(|(at, (name, bytes))| CardProcess { pid: at as u32 + 1, name: Some(name.to_owned()), bytes });
        Ok(CardReading {
            free_bytes: self.free_bytes(&state, card),
            total_bytes: self.spec.card_bytes[card],
            processes: processes.collect(),
            busy_percent: None,
            power_watts: None,
        })
    }

    fn process_bytes(&self, card: usize) -> Result<Option<u64>, DeviceError> {
        let bytes = lock(&self.state).cards[card].process_bytes();
        Ok((!self.spec.hides_process_memory).then_some(bytes))
    }

    fn open(&self, card: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "opening")?;
        match self.spec.fault {
            Some(SimFault::Intruder(bytes)) => state.cards[card].intruder = bytes,
            Some(SimFault::DriverGrows(bytes)) => state.cards[card].grown = bytes,
            _ => {}
        }
        let (asked, free) = (DriverCost::table().context_bytes, self.free_bytes(&state, card));
        if state.cards[card].opens == 0 && asked > free {
            return Err(DeviceError::OutOfMemory { card, asked, free, total: self.spec.card_bytes[card] });
        }
        if state.cards[card].opens == 0 {
            state.cards[card].opened_ns = *state.host_ns();
        }
        state.cards[card].opens += 1;
        Ok(())
    }

    fn close(&self, card: usize) {
        let mut state = lock(&self.state);
        state.cards[card].opens -= 1;
        if state.cards[card].opens == 0 {
            state.cards[card].modules.clear();
            state.cards[card].maps_peers = false;
            state.cards[card].grown = 0;
        }
    }

    fn reserve(&self, card: usize, bytes: u64, capped: bool) -> Result<Reservation, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "reserving memory")?;
        let number = state.allocations;
        state.allocations += 1;
        let free = self.free_bytes(&state, card);
        let refused = DeviceError::OutOfMemory { card, asked: bytes, free, total: self.spec.card_bytes[card] };
        if round_up(bytes, 2 * MIB) > free || self.spec.fault == Some(SimFault::RefuseAllocation(number)) {
            return Err(refused);
        }
        let memory = HostMemory::reserve(bytes, true).map_err(|_| refused)?;
        let base = memory.base();
        state.cards[card].reservations.insert(base, SimReservation { memory, capped, peers: Vec::new() });
        Ok(Reservation { base: Address { card, raw: base }, bytes, pool: u64::from(capped) })
    }

    fn release(&self, reservation: Reservation) {
        let mut state = lock(&self.state);
        // Like a real driver, finish the work that still uses the memory first, as far as it ends.
        while self.run_one(&mut state) {}
        let is_in_use = !state.queues.all_idle();
        let card = &mut state.cards[reservation.base.card];
        let released = card.reservations.remove(&reservation.base.raw);
        card.left_behind.extend(released.filter(|_| is_in_use).map(|released| released.memory));
    }

    fn block_freed(&self, at: Address, bytes: u64) {
        let mut state = lock(&self.state);
        let (from, to) = (at.raw, at.raw + bytes);
        let mut reservations = state.cards[at.card].reservations.values_mut();
        if let Some(reservation) = reservations.find(|reservation| reservation.memory.holds(from, to)) {
            reservation.memory.poison(from, to);
        }
    }

    fn pool_refuses_more(&self, reservation: &Reservation) -> Result<bool, DeviceError> {
        let mut state = lock(&self.state);
        let Address { card, raw } = reservation.base;
        self.call(&mut state, card, "asking the pool for more")?;
        Ok(state.cards[card].reservations.get(&raw).is_some_and(|reservation| reservation.capped))
    }

    fn alloc_host(&self, card: usize, bytes: u64) -> Result<HostSpan, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "allocating pinned memory")?;
        let number = state.allocations;
        state.allocations += 1;
        let span = match self.spec.fault == Some(SimFault::RefuseAllocation(number)) {
            true => None,
            false => alloc_span(bytes),
        };
        state.pinned += u64::from(span.is_some());
        span.ok_or(DeviceError::OutOfPinned { asked: bytes })
    }

    fn free_host(&self, _card: usize, span: HostSpan) {
        let mut state = lock(&self.state);
        state.pinned -= 1;
        if state.has_endless_work() {
            // Left to the end of the process: a copy that never ends may still use it.
            return;
        }
        // SAFETY: `Pinned` frees each span once, after its last use.
        unsafe { free_span(span) }
    }

    fn create_stream(&self, card: usize, _high_priority: bool) -> Result<StreamId, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "creating a stream")?;
        Ok(state.queues.add_stream(card))
    }

    fn destroy_stream(&self, card: usize, stream: StreamId) {
        let mut state = lock(&self.state);
        // Queued work still runs, as on a real card.
        let idle = |state: &State| state.queues.streams.get(&stream).is_none_or(|queue| queue.ops.is_empty());
        // A lost card has discarded its queue already.
        let _ = self.run_until(&mut state, card, idle);
        state.queues.streams.remove(&stream);
        state.queues.sweep();
    }

    fn create_event(&self, card: usize, _timed: bool) -> Result<EventId, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "creating an event")?;
        Ok(state.queues.add_event(card))
    }

    fn destroy_event(&self, _card: usize, event: EventId) {
        let mut state = lock(&self.state);
        if let Some(event) = state.queues.events.get_mut(&event) {
            event.destroyed = true;
        }
        state.queues.sweep();
    }

    fn record(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let number = {
            let mut state = lock(&self.state);
            let Some(event) = state.queues.events.get_mut(&event) else { return Ok(()) };
            if event.card != card {
                let what = format!("the event belongs to GPU {}", event.card);
                return Err(DeviceError::Failed { card, during: "recording an event", what });
            }
            event.recorded += 1;
            event.recorded
        };
        self.enqueue(card, stream, "recording an event", QueuedOp::Record { event, number })
    }

    fn wait(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let number = lock(&self.state).queues.events.get(&event).map_or(0, |event| event.recorded);
        self.enqueue(card, stream, "waiting for an event", QueuedOp::Wait { event, number })
    }

    fn reached(&self, card: usize, event: EventId) -> Result<bool, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "querying an event")?;
        Ok(state.queues.is_reached(event))
    }

    fn synchronize(&self, card: usize, event: EventId) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "waiting for an event")?;
        self.run_until(&mut state, card, |state| state.queues.is_reached(event))?;
        let reached_ns = state.queues.events.get(&event).map_or(0, |event| event.reached_ns);
        let host_ns = state.host_ns();
        *host_ns = reached_ns.max(*host_ns);
        Ok(())
    }

    fn synchronize_within(&self, card: usize, event: EventId, _longest: Duration) -> Result<bool, DeviceError> {
        match self.synchronize(card, event) {
            Ok(()) => Ok(true),
            Err(DeviceError::TimedOut { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn abandon(&self, card: usize) {
        lock(&self.state).fail_card(card, Failure::Lost);
    }

    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError> {
        let [from_ns, to_ns] = self.card_times(card, [from, to])?.reached;
        Ok(u64::try_from(to_ns - from_ns).unwrap_or(0))
    }

    /// As on real cards: the card's clock, counted from when the card was opened.
    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError> {
        let CardTimes { opened_ns, opened, reached: [reached] } = self.card_times(card, [event])?;
        Ok(opened_ns.saturating_add_signed(reached - opened))
    }

    fn copy(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        self.check_range(card, &accessed_by_copy(&path))?;
        if let CopyPath::Peer { from, to, bytes, call } = path {
            let mut state = lock(&self.state);
            if state.trace.len() < TRACE_LENGTH {
                state.trace.push(DriverCall::CopyPeer { from: from.card, to: to.card });
            }
            // With access the call between contexts would be another route.
            let as_call = |call| state.route_of(&CopyPath::Peer { from, to, bytes, call });
            let has_access = as_call(PeerCall::BetweenContexts) != Some(Route::Staged);
            if call == PeerCall::Unified && !has_access {
                let what = "peer access is not enabled in both directions".to_owned();
                return Err(DeviceError::Failed { card, during: "peer copy", what });
            }
            let route = as_call(call);
            let is_with_lost_card =
                [from, to].iter().any(|at| at.card != card && state.cards[at.card].failure.is_some());
            drop(state);
            match self.spec.fault {
                _ if is_with_lost_card => return self.enqueue(card, stream, "copying", QueuedOp::Stuck),
                Some(SimFault::StuckRoute(stuck)) if route == Some(stuck) => {
                    return self.enqueue(card, stream, "copying", QueuedOp::Stuck);
                }
                Some(SimFault::FreezeOnRoute(frozen)) if route == Some(frozen) => loop {
                    thread::park();
                },
                Some(SimFault::AbortOnRoute(fatal)) if route == Some(fatal) => std::process::abort(),
                _ => {}
            }
        }
        self.capture_or_enqueue(card, stream, "copying", HostOp::Copy(path))
    }

    fn fill(&self, card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError> {
        self.check_range(card, &[AccessRange::new(at, bytes, true)])?;
        self.capture_or_enqueue(card, stream, "filling memory", HostOp::Fill { at, bytes, value })
    }

    fn load(&self, card: usize, kernel: &'static Kernel) -> Result<KernelId, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "loading a kernel")?;
        state.cards[card].modules.insert(kernel.source.file);
        Ok(0)
    }

    fn launch(
        &self,
        card: usize,
        stream: StreamId,
        (kernel, _): (&'static Kernel, KernelId),
        grid: Grid,
        args: &[RawArg],
    ) -> Result<(), DeviceError> {
        self.check_range(card, &accessed(args))?;
        let op = HostOp::Launch { kernel, grid, args: args.to_vec() };
        self.capture_or_enqueue(card, stream, "launching a kernel", op)
    }

    fn gemm(&self, card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError> {
        self.check_range(card, &accessed(&gemm.args()))?;
        if let Some(SimFault::GemmLeak(bytes)) = self.spec.fault {
            let card = &mut lock(&self.state).cards[card];
            card.gemms += 1;
            card.grown += if card.gemms.is_multiple_of(GEMMS_PER_LEAK) { bytes } else { 0 };
        }
        self.capture_or_enqueue(card, stream, "queueing a GEMM", HostOp::Gemm(*gemm))
    }

    fn trap(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.enqueue(card, stream, "injecting a trap", QueuedOp::Trap)
    }

    fn begin_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.call(&mut lock(&self.state), card, "capturing a graph")?;
        self.graphs.begin(stream);
        Ok(())
    }

    fn end_capture(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError> {
        self.call(&mut lock(&self.state), card, "capturing a graph")?;
        self.graphs.end(card, stream)
    }

    fn abandon_capture(&self, _card: usize, stream: StreamId) {
        self.graphs.take(stream);
    }

    /// Queues each operation again, which checks its memory again.
    fn replay(&self, card: usize, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.graphs.get(card, graph)?.iter().try_for_each(|op| op.queue(self, card, stream))
    }

    fn destroy_graph(&self, _card: usize, graph: GraphId) {
        self.graphs.destroy(graph);
    }

    fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError> {
        if let Some(index) = [reader, owner].into_iter().find(|card| self.cards[*card].hidden_by.is_some()) {
            let Card { uuid, hidden_by, .. } = self.cards[index].clone();
            return Err(DeviceError::Hidden { index, uuid, by: hidden_by.unwrap_or_default() });
        }
        let mut state = lock(&self.state);
        self.call(&mut state, reader, "querying peer access")?;
        if state.trace.len() < TRACE_LENGTH {
            state.trace.push(DriverCall::CanAccessPeer { reader, owner });
        }
        Ok(self.spec.has_peers() && reader != owner)
    }

    fn peer_attributes(&self, reader: usize, owner: usize) -> Result<PeerAttributes, DeviceError> {
        let can_access = self.can_access_peer(reader, owner)?;
        Ok(PeerAttributes {
            performance_rank: 0,
            access_supported: can_access,
            native_atomics: can_access,
            array_access: can_access,
        })
    }

    fn deny_peer(&self, reservation: &Reservation, reader: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        let Address { card: owner, raw } = reservation.base;
        self.call(&mut state, owner, "disabling peer access")?;
        if let Some(reservation) = state.cards[owner].reservations.get_mut(&raw) {
            reservation.peers.retain(|peer| *peer != reader);
        }
        Ok(())
    }

    fn allow_peer(&self, reservation: &Reservation, reader: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        let Address { card: owner, raw } = reservation.base;
        self.call(&mut state, owner, "enabling peer access")?;
        if reader == owner {
            // A card can access its own memory.
            return Ok(());
        }
        let refused = match self.spec.fault {
            Some(SimFault::RefusePeerAccess) => Some("injected refusal"),
            _ => (!self.spec.has_peers()).then_some("the cards have no peer access"),
        };
        if let Some(what) = refused.map(str::to_owned) {
            return Err(DeviceError::Failed { card: owner, during: "enabling peer access", what });
        }
        for card in [owner, reader] {
            let (asked, free) = (DriverCost::SIMULATED_PEER_BYTES, self.free_bytes(&state, card));
            if !state.cards[card].maps_peers && asked > free {
                return Err(DeviceError::OutOfMemory { card, asked, free, total: self.spec.card_bytes[card] });
            }
            state.cards[card].maps_peers = true;
        }
        if state.trace.len() < TRACE_LENGTH {
            state.trace.push(DriverCall::AllowPeer { reader, owner });
        }
        if let Some(reservation) = state.cards[owner].reservations.get_mut(&raw) {
            reservation.peers.push(reader);
        }
        Ok(())
    }

    fn card_of(&self, at: Address) -> Result<usize, DeviceError> {
        let state = lock(&self.state);
        let holds = |card: &CardState| {
            let mut reservations = card.reservations.values();
            reservations.any(|reservation| reservation.memory.holds(at.raw, at.raw + 1))
        };
        let what = "address outside any reservation".to_owned();
        let card = state.cards.iter().position(holds);
        card.ok_or(DeviceError::Failed { card: at.card, during: "looking up an address", what })
    }

    fn now_ns(&self) -> u64 {
        lock(&self.state).latest_ns()
    }

    fn driver_version(&self) -> String {
        "simulated".to_owned()
    }
}

#[cfg(test)]
mod tests;
