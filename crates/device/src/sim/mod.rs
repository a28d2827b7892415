//! Simulated cards: deferred, seeded, with memory that is enforced and spoiled.
//!
//! - Work is queued and runs later, in an order only stream order and event waits restrain (`queue.rs`). It runs
//!   when the host waits for an event, and at times before. A copy's bytes appear when it has run.
//! - Memory that was never written, or was given back, holds poison.
//! - The clock is the simulator's own: work takes the time its bytes take on the links of the spec, and nothing
//!   sleeps.
//! - Things go wrong on order: [`SimFault`].
//!
//! The maths is real: kernels run their Rust host kernels.

mod clock;
mod queue;
mod rng;
mod spec;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

pub use spec::{Link, SimFault, SimSpec, SimSpecError};

use crate::bytes::{MIB, round_up};
use crate::card::{Card, CardProcess, CardReading};
use crate::cost::DriverCost;
use crate::driver::{
    Address, CopyPath, Driver, EventId, HostSpan, KernelId, RawArg, RecordedId, Reservation, StreamId,
};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::host_exec::{run_copy, run_fill, run_host, touched, touched_by_copy};
use crate::host_gemm::run_gemm;
use crate::host_graph::{CapturedWork, HostGraphs};
use crate::host_memory::{HostMemory, alloc_span, free_span};
use crate::kernel::{Grid, Kernel};
use crate::machine::{DeviceKind, lock};
use crate::workers::Workers;
use queue::{QueuedOp, Queues};

/// Simulated cards and everything on them.
pub struct SimDriver {
    spec: SimSpec,
    cards: Vec<Card>,
    state: Mutex<State>,
    workers: Arc<Workers>,
    recordings: HostGraphs,
}

struct State {
    cards: Vec<CardState>,
    queues: Queues,
    /// How far each thread of the host has come: one that waits for a card holds up no other.
    hosts: HashMap<ThreadId, u64>,
    allocations: u64,
    copies: u64,
    calls: u64,
    pinned: u64,
    trace: Vec<DriverCall>,
}

#[derive(Default)]
struct CardState {
    /// How often it was opened and not closed: the last handle of one opening may close while the next opens.
    opens: u32,
    modules: BTreeSet<&'static str>,
    intruder: u64,
    /// What the driver takes beyond its table.
    grown: u64,
    /// Set once the card answers nothing any more.
    broken: Option<Broken>,
    held: BTreeMap<u64, Held>,
}

#[derive(Clone, Copy)]
enum Broken {
    Lost,
    Trapped,
    CopyFailed,
}

struct Held {
    memory: HostMemory,
    capped: bool,
    readers: Vec<usize>,
}

/// A driver call that matters for copies between cards, in the order it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCall {
    /// Whether `reader` can reach `owner` was asked.
    CanAccessPeer {
        /// The card that would reach.
        reader: usize,
        /// The card that would be reached.
        owner: usize,
    },
    /// `reader` was let into the memory of `owner`.
    AllowPeer {
        /// The card that may reach.
        reader: usize,
        /// The card that may be reached.
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

/// What is alive in the simulator: all zero once everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Open contexts.
    pub contexts: usize,
    /// Reservations of device memory.
    pub reservations: usize,
    /// Spans of page-locked memory.
    pub pinned: u64,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
}

/// How many peer calls are kept.
const TRACE_LENGTH: usize = 64;

impl SimDriver {
    pub(crate) fn new(spec: SimSpec, workers: Arc<Workers>) -> SimDriver {
        let hidden_by = |index| (spec.hidden == Some(index)).then(|| "--sim hidden".to_owned());
        let card = |index: usize| Card {
            index,
            name: format!("Simulated {} MB", spec.total_bytes / MIB),
            uuid: format!("SIM-{index:08x}-0000-0000-0000-{:012x}", spec.total_bytes / MIB),
            bus_id: format!("00000000:{:02x}:00.0", index + 1),
            total_bytes: spec.total_bytes,
            capability: spec.capability,
            hidden_by: hidden_by(index),
        };
        let state = State {
            cards: (0..spec.count).map(|_| CardState::default()).collect(),
            queues: Queues::new(spec.seed),
            hosts: HashMap::new(),
            allocations: 0,
            copies: 0,
            calls: 0,
            pinned: 0,
            trace: Vec::new(),
        };
        let (cards, recordings) = ((0..spec.count).map(card).collect(), HostGraphs::default());
        SimDriver { cards, spec, state: Mutex::new(state), workers, recordings }
    }

    /// What is alive now.
    pub fn alive(&self) -> Alive {
        let state = lock(&self.state);
        Alive {
            contexts: state.cards.iter().filter(|card| card.opens > 0).count(),
            reservations: state.cards.iter().map(|card| card.held.len()).sum(),
            pinned: state.pinned,
            streams: state.queues.streams.len(),
            events: state.queues.events.values().filter(|mark| !mark.dead).count(),
        }
    }

    /// The first peer calls that were made.
    pub fn trace(&self) -> Vec<DriverCall> {
        lock(&self.state).trace.clone()
    }

    /// How many driver calls, allocations and copies there have been: where faults can be planted.
    pub fn counted(&self) -> (u64, u64, u64) {
        let state = lock(&self.state);
        (state.calls, state.allocations, state.copies)
    }

    /// Counts a driver call; refuses it when the card is gone, or goes with it.
    fn call(&self, state: &mut State, card: usize, during: &'static str) -> Result<(), DeviceError> {
        let number = state.calls;
        state.calls += 1;
        *state.host_ns() += clock::CALL_NS;
        if self.spec.fault == Some(SimFault::LoseCard(number)) {
            state.break_card(card, Broken::Lost);
        }
        state.alive(card, during)
    }

    /// When timers were reached. One call of the host, however many.
    fn reached_ns<const N: usize>(&self, card: usize, events: [EventId; N]) -> Result<[u64; N], DeviceError> {
        let during = "reading a timer";
        let mut state = lock(&self.state);
        self.call(&mut state, card, during)?;
        let marks = events.map(|event| state.queues.events.get(&event).filter(|mark| mark.reached > 0));
        match marks.iter().all(Option::is_some) {
            true => Ok(marks.map(|mark| mark.map_or(0, |mark| mark.reached_ns))),
            false => Err(DeviceError::Failed { card, during, what: "it was not reached yet".to_owned() }),
        }
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

    /// Keeps the work if the stream records, queues it otherwise.
    fn record_or_enqueue(
        &self,
        card: usize,
        stream: StreamId,
        during: &'static str,
        work: CapturedWork,
    ) -> Result<(), DeviceError> {
        match self.recordings.keep(stream, work) {
            None => Ok(()),
            Some(work) => self.enqueue(card, stream, during, QueuedOp::CapturedWork(work)),
        }
    }

    /// Runs one queued entry; `false` when none can run.
    fn run_one(&self, state: &mut State) -> bool {
        let Some((stream, queued_ns, op)) = state.queues.next() else { return false };
        let takes_ns = match &op {
            QueuedOp::CapturedWork(work) => self.work_ns(state, work),
            QueuedOp::Record { .. } | QueuedOp::Wait { .. } | QueuedOp::Trap => 0,
        };
        let Some(queue) = state.queues.streams.get_mut(&stream) else { return true };
        let card = queue.card;
        queue.now_ns = queue.now_ns.max(queued_ns) + takes_ns;
        let now_ns = queue.now_ns;
        match op {
            QueuedOp::CapturedWork(CapturedWork::Copy(path)) => self.run_copy(state, card, &path),
            QueuedOp::CapturedWork(work) => self.run_work(state, &work),
            QueuedOp::Trap => state.break_card(card, Broken::Trapped),
            QueuedOp::Record { event, mark } => {
                if let Some(state) = state.queues.events.get_mut(&event) {
                    (state.reached, state.reached_ns) = (state.reached.max(mark), now_ns);
                }
            }
            QueuedOp::Wait { event, .. } => {
                let reached_ns = state.queues.events.get(&event).map_or(0, |mark| mark.reached_ns);
                if let Some(queue) = state.queues.streams.get_mut(&stream) {
                    queue.now_ns = now_ns.max(reached_ns);
                }
            }
        }
        true
    }

    fn work_ns(&self, state: &mut State, work: &CapturedWork) -> u64 {
        let rng = &mut state.queues.rng;
        match work {
            CapturedWork::Copy(path) => clock::copy_ns(path, self.spec.link, rng),
            CapturedWork::Fill { bytes, .. } => clock::fill_ns(*bytes, rng),
            CapturedWork::Launch { args, .. } => clock::kernel_ns(args, rng),
            CapturedWork::Gemm(gemm) => clock::gemm_ns(gemm, rng),
        }
    }

    fn run_work(&self, state: &mut State, work: &CapturedWork) {
        state.touch(&work.touches());
        // SAFETY: checked to lie in a live reservation when queued; releasing one drains first. All simulated work runs
        // under the lock we hold.
        unsafe {
            match work {
                CapturedWork::Copy(path) => run_copy(path),
                CapturedWork::Fill { at, bytes, value } => run_fill(*at, *bytes, *value),
                CapturedWork::Launch { kernel, grid, args } => run_host(kernel, *grid, args, &self.workers),
                CapturedWork::Gemm(gemm) => run_gemm(gemm, &self.workers),
            }
        }
    }

    fn run_copy(&self, state: &mut State, card: usize, path: &CopyPath) {
        let number = state.copies;
        state.copies += 1;
        if self.spec.fault == Some(SimFault::FailCopy(number)) {
            return state.break_card(card, Broken::CopyFailed);
        }
        let between_cards = matches!(path, CopyPath::Peer { from, to, .. } if from.card != to.card);
        if between_cards && self.spec.fault == Some(SimFault::CorruptPeer) {
            // As boards have been seen to do: the copy "succeeds", and the bytes are not there.
            return state.touch(&touched_by_copy(path));
        }
        // Host ends live until their last use was reached (`Pinned`).
        self.run_work(state, &CapturedWork::Copy(*path));
    }

    /// Runs work until `done`, or until nothing more can run.
    fn run_until(&self, state: &mut State, card: usize, done: impl Fn(&State) -> bool) -> Result<(), DeviceError> {
        let during = "waiting for an event";
        loop {
            state.alive(card, during)?;
            if done(state) {
                return Ok(());
            }
            if !self.run_one(state) {
                // What is waited for hangs on another card that is gone. Nothing else can stop it: a wait names
                // only records that were queued before it, so no two can wait for each other.
                (0..state.cards.len()).try_for_each(|other| state.alive(other, during))?;
                unreachable!("queued work cannot run although every card is alive");
            }
        }
    }

    fn free_bytes(&self, card: &CardState) -> u64 {
        let others = self.spec.held_bytes + card.intruder;
        self.spec.total_bytes.saturating_sub(others + card.process_bytes())
    }

    /// Refuses addresses that lie in no live reservation.
    fn check_range(&self, card: usize, spans: &[(u64, u64, bool)]) -> Result<(), DeviceError> {
        let state = lock(&self.state);
        let held = |from, to| state.cards.iter().flat_map(|card| card.held.values()).any(|h| h.memory.holds(from, to));
        match spans.iter().all(|&(from, to, _)| held(from, to)) {
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
    /// How far the thread that calls has come. One that was not seen before was started by one that had come furthest.
    fn host_ns(&mut self) -> &mut u64 {
        let furthest_ns = self.furthest_ns();
        self.hosts.entry(thread::current().id()).or_insert(furthest_ns)
    }

    fn furthest_ns(&self) -> u64 {
        self.hosts.values().copied().max().unwrap_or(0)
    }

    /// As a driver does: what broke the card is told by whatever call comes next, and by all after it.
    fn alive(&self, card: usize, during: &'static str) -> Result<(), DeviceError> {
        let lost = |what: &str| Err(DeviceError::Lost { card, during, what: what.to_owned() });
        match self.cards[card].broken {
            None => Ok(()),
            Some(Broken::Lost) => lost("it answers no more"),
            Some(Broken::Trapped) => lost("a kernel ended in a trap"),
            Some(Broken::CopyFailed) => {
                Err(DeviceError::Failed { card, during: "copy", what: "planted copy failure".to_owned() })
            }
        }
    }

    fn break_card(&mut self, card: usize, how: Broken) {
        self.cards[card].broken.get_or_insert(how);
        self.queues.abandon(card);
    }

    /// Writes poison down where work is about to look at memory that was never written.
    fn touch(&mut self, spans: &[(u64, u64, bool)]) {
        for &(from, to, _) in spans {
            let held = self.cards.iter_mut().flat_map(|card| card.held.values_mut());
            if let Some(held) = held.into_iter().find(|held| held.memory.holds(from, to)) {
                held.memory.touch(from, to);
            }
        }
    }
}

impl CardState {
    /// As a driver counts: context, modules, and reservations in 2 MiB pages.
    fn process_bytes(&self) -> u64 {
        let context = if self.opens > 0 { DriverCost::table().context_bytes + self.grown } else { 0 };
        let modules = self.modules.len() as u64 * 2 * MIB;
        context + modules + self.held.values().map(|held| round_up(held.memory.bytes(), 2 * MIB)).sum::<u64>()
    }
}

impl Driver for SimDriver {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Simulated
    }

    fn cards(&self) -> &[Card] {
        &self.cards
    }

    fn read(&self, card: usize) -> Result<CardReading, DeviceError> {
        let state = lock(&self.state);
        let now = &state.cards[card];
        let others = self.spec.held_bytes + now.intruder;
        let holder =
            (others > 0).then(|| CardProcess { pid: 1, name: Some("another process".to_owned()), bytes: others });
        Ok(CardReading {
            free_bytes: self.free_bytes(now),
            total_bytes: self.spec.total_bytes,
            holders: holder.into_iter().collect(),
            busy_percent: None,
            power_watts: None,
        })
    }

    fn process_bytes(&self, card: usize) -> Result<Option<u64>, DeviceError> {
        let bytes = lock(&self.state).cards[card].process_bytes();
        Ok((!self.spec.silent).then_some(bytes))
    }

    fn open(&self, card: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "opening")?;
        match self.spec.fault {
            Some(SimFault::Intruder(bytes)) => state.cards[card].intruder = bytes,
            Some(SimFault::DriverGrows(bytes)) => state.cards[card].grown = bytes,
            _ => {}
        }
        let (asked, free) = (DriverCost::table().context_bytes, self.free_bytes(&state.cards[card]));
        if state.cards[card].opens == 0 && asked > free {
            return Err(DeviceError::OutOfMemory { card, asked, free, total: self.spec.total_bytes });
        }
        state.cards[card].opens += 1;
        Ok(())
    }

    fn close(&self, card: usize) {
        let mut state = lock(&self.state);
        state.cards[card].opens -= 1;
        if state.cards[card].opens == 0 {
            state.cards[card].modules.clear();
        }
    }

    fn reserve(&self, card: usize, bytes: u64, capped: bool) -> Result<Reservation, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "reserving memory")?;
        let number = state.allocations;
        state.allocations += 1;
        let free = self.free_bytes(&state.cards[card]);
        let refused = DeviceError::OutOfMemory { card, asked: bytes, free, total: self.spec.total_bytes };
        if round_up(bytes, 2 * MIB) > free || self.spec.fault == Some(SimFault::RefuseAllocation(number)) {
            return Err(refused);
        }
        let memory = HostMemory::reserve(bytes, true).map_err(|_| refused)?;
        let base = memory.base();
        state.cards[card].held.insert(base, Held { memory, capped, readers: Vec::new() });
        Ok(Reservation { base: Address { card, raw: base }, bytes, pool: u64::from(capped) })
    }

    fn release(&self, held: Reservation) {
        let mut state = lock(&self.state);
        // As a real driver does: what still uses the memory finishes first.
        while self.run_one(&mut state) {}
        state.queues.abandon_all();
        state.cards[held.base.card].held.remove(&held.base.raw);
    }

    fn forget(&self, at: Address, bytes: u64) {
        let mut state = lock(&self.state);
        let held = state.cards[at.card].held.values_mut().find(|held| held.memory.holds(at.raw, at.raw + bytes));
        if let Some(held) = held {
            held.memory.spoil(at.raw, at.raw + bytes);
        }
    }

    fn pool_refuses_more(&self, held: &Reservation) -> Result<bool, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, held.base.card, "asking for a byte too many")?;
        Ok(state.cards[held.base.card].held.get(&held.base.raw).is_some_and(|held| held.capped))
    }

    fn alloc_host(&self, card: usize, bytes: u64) -> Result<HostSpan, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "locking host memory")?;
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
        lock(&self.state).pinned -= 1;
        // SAFETY: `Pinned` frees each span once, after its last use.
        unsafe { free_span(span) }
    }

    fn create_stream(&self, card: usize, _urgent: bool) -> Result<StreamId, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "creating a stream")?;
        Ok(state.queues.add_stream(card))
    }

    fn destroy_stream(&self, card: usize, stream: StreamId) {
        let mut state = lock(&self.state);
        // Work that is queued still runs, as on a real card.
        let idle = |state: &State| state.queues.streams.get(&stream).is_none_or(|queue| queue.ops.is_empty());
        // A card that is gone has dropped its queue already.
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
        if let Some(mark) = state.queues.events.get_mut(&event) {
            mark.dead = true;
        }
        state.queues.sweep();
    }

    fn record(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mark = {
            let mut state = lock(&self.state);
            let Some(mark) = state.queues.events.get_mut(&event) else { return Ok(()) };
            if mark.card != card {
                let what = format!("the event belongs to GPU {}", mark.card);
                return Err(DeviceError::Failed { card, during: "recording an event", what });
            }
            mark.recorded += 1;
            mark.recorded
        };
        self.enqueue(card, stream, "recording an event", QueuedOp::Record { event, mark })
    }

    fn wait(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mark = lock(&self.state).queues.events.get(&event).map_or(0, |mark| mark.recorded);
        self.enqueue(card, stream, "waiting for an event", QueuedOp::Wait { event, mark })
    }

    fn reached(&self, card: usize, event: EventId) -> Result<bool, DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "asking an event")?;
        Ok(state.queues.is_reached(event))
    }

    fn synchronize(&self, card: usize, event: EventId) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, card, "waiting for an event")?;
        self.run_until(&mut state, card, |state| state.queues.is_reached(event))?;
        let reached_ns = state.queues.events.get(&event).map_or(0, |mark| mark.reached_ns);
        let host_ns = state.host_ns();
        *host_ns = reached_ns.max(*host_ns);
        Ok(())
    }

    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError> {
        let [from_ns, to_ns] = self.reached_ns(card, [from, to])?;
        Ok(to_ns.saturating_sub(from_ns))
    }

    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError> {
        self.reached_ns(card, [event]).map(|[ns]| ns)
    }

    fn copy(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        self.check_range(card, &touched_by_copy(&path))?;
        if let CopyPath::Peer { from, to, .. } = path {
            let mut state = lock(&self.state);
            if state.trace.len() < TRACE_LENGTH {
                state.trace.push(DriverCall::CopyPeer { from: from.card, to: to.card });
            }
            let lets_in = |at: Address, reader: usize| {
                let held = state.cards[at.card].held.values().find(|held| held.memory.holds(at.raw, at.raw));
                held.is_some_and(|held| held.readers.contains(&reader))
            };
            if from.card != to.card && !(lets_in(from, to.card) && lets_in(to, from.card)) {
                let what = "peer access was not allowed both ways".to_owned();
                return Err(DeviceError::Failed { card, during: "peer copy", what });
            }
        }
        self.record_or_enqueue(card, stream, "copying", CapturedWork::Copy(path))
    }

    fn fill(&self, card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError> {
        self.check_range(card, &[(at.raw, at.raw + bytes, true)])?;
        self.record_or_enqueue(card, stream, "filling memory", CapturedWork::Fill { at, bytes, value })
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
        self.check_range(card, &touched(args))?;
        let work = CapturedWork::Launch { kernel, grid, args: args.to_vec() };
        self.record_or_enqueue(card, stream, "launching a kernel", work)
    }

    fn gemm(&self, card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError> {
        self.check_range(card, &touched(&gemm.args()))?;
        self.record_or_enqueue(card, stream, "queueing a GEMM", CapturedWork::Gemm(*gemm))
    }

    fn trap(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.enqueue(card, stream, "planting a trap", QueuedOp::Trap)
    }

    fn begin_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.call(&mut lock(&self.state), card, "recording work")?;
        self.recordings.begin(stream);
        Ok(())
    }

    fn end_capture(&self, card: usize, stream: StreamId) -> Result<RecordedId, DeviceError> {
        self.call(&mut lock(&self.state), card, "recording work")?;
        self.recordings.end(card, stream)
    }

    fn abandon_capture(&self, _card: usize, stream: StreamId) {
        self.recordings.take(stream);
    }

    /// Each piece is queued anew, and looks for its memory anew.
    fn replay(&self, card: usize, stream: StreamId, recorded: RecordedId) -> Result<(), DeviceError> {
        self.recordings.get(card, recorded)?.iter().try_for_each(|work| work.queue(self, card, stream))
    }

    fn drop_recorded(&self, _card: usize, recorded: RecordedId) {
        self.recordings.forget(recorded);
    }

    fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError> {
        if let Some(index) = [reader, owner].into_iter().find(|card| self.cards[*card].hidden_by.is_some()) {
            let Card { uuid, hidden_by, .. } = self.cards[index].clone();
            return Err(DeviceError::Hidden { index, uuid, by: hidden_by.unwrap_or_default() });
        }
        let mut state = lock(&self.state);
        self.call(&mut state, reader, "asking for peer access")?;
        if state.trace.len() < TRACE_LENGTH {
            state.trace.push(DriverCall::CanAccessPeer { reader, owner });
        }
        Ok(self.spec.link == Link::Nvlink && reader != owner)
    }

    fn allow_peer(&self, held: &Reservation, reader: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        self.call(&mut state, held.base.card, "allowing peer access")?;
        if state.trace.len() < TRACE_LENGTH {
            state.trace.push(DriverCall::AllowPeer { reader, owner: held.base.card });
        }
        if let Some(held) = state.cards[held.base.card].held.get_mut(&held.base.raw) {
            held.readers.push(reader);
        }
        Ok(())
    }

    fn home_of(&self, at: Address) -> Result<usize, DeviceError> {
        let state = lock(&self.state);
        let holds = |card: &CardState| card.held.values().any(|held| held.memory.holds(at.raw, at.raw + 1));
        let what = "address outside any reservation".to_owned();
        let home = state.cards.iter().position(holds);
        home.ok_or(DeviceError::Failed { card: at.card, during: "asking where memory lies", what })
    }

    fn now_ns(&self) -> u64 {
        lock(&self.state).furthest_ns()
    }

    fn driver_version(&self) -> String {
        "simulated".to_owned()
    }
}

#[cfg(test)]
mod tests;
