//! The CPU as a device: host memory, and work that the calling thread runs at once.
//!
//! Running work at once is a valid order, so every recorded event has been reached. Two threads that queue work on the
//! same bytes without an event between them would race; this is detected and refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::card::{Card, CardReading, PeerAttributes};
use crate::driver::{Address, CopyPath, Driver, EventId, GraphId, HostSpan, KernelId, RawArg, Reservation, StreamId};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::host_exec::{AccessRange, accessed, accessed_by_copy, run_copy, run_fill, run_host};
use crate::host_gemm::run_gemm;
use crate::host_graph::{HostGraphs, HostOp};
use crate::host_limits::HostReading;
use crate::host_memory::{HostMemory, alloc_span, free_span};
use crate::kernel::{Grid, Kernel};
use crate::machine::{DeviceKind, lock};
use crate::workers::Workers;

/// The one card of a CPU machine.
pub(crate) struct CpuDriver {
    card: [Card; 1],
    start: Instant,
    next_id: AtomicU64,
    reservations: Mutex<HashMap<u64, HostMemory>>,
    reached_ns: Mutex<HashMap<EventId, u64>>,
    /// Memory that running operations access.
    busy: Mutex<Vec<AccessRange>>,
    workers: Arc<Workers>,
    graphs: HostGraphs,
}

/// The memory that a running operation accesses. Dropping it ends the access.
struct Claim<'a> {
    driver: &'a CpuDriver,
    ranges: Vec<AccessRange>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut busy = lock(&self.driver.busy);
        for range in &self.ranges {
            if let Some(at) = busy.iter().position(|other| other == range) {
                busy.swap_remove(at);
            }
        }
    }
}

impl CpuDriver {
    pub(crate) fn new(workers: Arc<Workers>) -> CpuDriver {
        let total_bytes = HostReading::now().total_bytes;
        let card = Card {
            index: 0,
            name: "CPU".to_owned(),
            uuid: "CPU".to_owned(),
            bus_id: String::new(),
            total_bytes,
            capability: (0, 0),
            hidden_by: None,
        };
        CpuDriver {
            card: [card],
            start: Instant::now(),
            next_id: AtomicU64::new(1),
            reservations: Mutex::default(),
            reached_ns: Mutex::default(),
            busy: Mutex::default(),
            workers,
            graphs: HostGraphs::default(),
        }
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn claim(&self, ranges: Vec<AccessRange>, what: &'static str) -> Result<Claim<'_>, DeviceError> {
        let mut busy = lock(&self.busy);
        if ranges.iter().any(|range| busy.iter().any(|other| range.races_with(other))) {
            return Err(DeviceError::Race { what });
        }
        busy.extend(&ranges);
        Ok(Claim { driver: self, ranges })
    }
}

impl Driver for CpuDriver {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn cards(&self) -> &[Card] {
        &self.card
    }

    fn read(&self, _card: usize) -> Result<CardReading, DeviceError> {
        let HostReading { total_bytes, available_bytes: free_bytes, .. } = HostReading::now();
        Ok(CardReading { free_bytes, total_bytes, ..CardReading::default() })
    }

    /// Host memory is shared with the rest of the process: there is no number for the device alone.
    fn process_bytes(&self, _card: usize) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    fn open(&self, _card: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&self, _card: usize) {}

    fn reserve(&self, card: usize, bytes: u64, _capped: bool) -> Result<Reservation, DeviceError> {
        let HostReading { total_bytes: total, available_bytes: free, .. } = HostReading::now();
        let refused = DeviceError::OutOfMemory { card, asked: bytes, free, total };
        if bytes > free {
            return Err(refused);
        }
        let memory = HostMemory::reserve(bytes, false).map_err(|_| refused)?;
        let base = memory.base();
        lock(&self.reservations).insert(base, memory);
        Ok(Reservation { base: Address { card, raw: base }, bytes, pool: 0 })
    }

    fn release(&self, reservation: Reservation) {
        lock(&self.reservations).remove(&reservation.base.raw);
    }

    fn pool_refuses_more(&self, _reservation: &Reservation) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn alloc_host(&self, _card: usize, bytes: u64) -> Result<HostSpan, DeviceError> {
        alloc_span(bytes).ok_or(DeviceError::OutOfPinned { asked: bytes })
    }

    fn free_host(&self, _card: usize, span: HostSpan) {
        // SAFETY: `Pinned` frees each span once, after its last use.
        unsafe { free_span(span) }
    }

    fn create_stream(&self, _card: usize, _high_priority: bool) -> Result<StreamId, DeviceError> {
        Ok(self.id())
    }

    fn destroy_stream(&self, _card: usize, _stream: StreamId) {}

    fn create_event(&self, _card: usize, _timed: bool) -> Result<EventId, DeviceError> {
        Ok(self.id())
    }

    fn destroy_event(&self, _card: usize, event: EventId) {
        lock(&self.reached_ns).remove(&event);
    }

    fn record(&self, _card: usize, _stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        lock(&self.reached_ns).insert(event, self.now_ns());
        Ok(())
    }

    fn wait(&self, _card: usize, _stream: StreamId, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reached(&self, _card: usize, _event: EventId) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn synchronize(&self, _card: usize, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronize_within(&self, _card: usize, _event: EventId, _longest: Duration) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError> {
        Ok(self.reached_at_ns(card, to)?.saturating_sub(self.reached_at_ns(card, from)?))
    }

    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError> {
        let what = || "it has not been reached".to_owned();
        let reached_ns = lock(&self.reached_ns).get(&event).copied();
        reached_ns.ok_or_else(|| DeviceError::Failed { card, during: "reading a timer", what: what() })
    }

    fn copy(&self, _card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        if self.graphs.captures(stream, || HostOp::Copy(path)) {
            return Ok(());
        }
        let _claim = self.claim(accessed_by_copy(&path), "copy")?;
        // SAFETY: views are in live reservations; nothing else accesses these bytes (`claim`), and `Pinned` guards the
        // host side.
        unsafe { run_copy(&path) };
        Ok(())
    }

    fn fill(&self, _card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError> {
        if self.graphs.captures(stream, || HostOp::Fill { at, bytes, value }) {
            return Ok(());
        }
        let _claim = self.claim(vec![AccessRange::new(at, bytes, true)], "fill")?;
        // SAFETY: as above.
        unsafe { run_fill(at, bytes, value) };
        Ok(())
    }

    fn load(&self, _card: usize, _kernel: &'static Kernel) -> Result<KernelId, DeviceError> {
        Ok(0)
    }

    fn launch(
        &self,
        _card: usize,
        stream: StreamId,
        (kernel, _): (&'static Kernel, KernelId),
        grid: Grid,
        args: &[RawArg],
    ) -> Result<(), DeviceError> {
        if self.graphs.captures(stream, || HostOp::Launch { kernel, grid, args: args.to_vec() }) {
            return Ok(());
        }
        let _claim = self.claim(accessed(args), kernel.name)?;
        // SAFETY: views are in live reservations, and nothing else accesses these bytes (`claim`).
        unsafe { run_host(kernel, args, &self.workers) };
        Ok(())
    }

    fn gemm(&self, _card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError> {
        if self.graphs.captures(stream, || HostOp::Gemm(*gemm)) {
            return Ok(());
        }
        let _claim = self.claim(accessed(&gemm.args()), "gemm")?;
        // SAFETY: as above.
        unsafe { run_gemm(gemm, &self.workers) };
        Ok(())
    }

    fn trap(&self, card: usize, _stream: StreamId) -> Result<(), DeviceError> {
        let what = "the CPU cannot be lost: inject it on a card, real or simulated".to_owned();
        Err(DeviceError::Failed { card, during: "injecting a trap", what })
    }

    fn begin_capture(&self, _card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.graphs.begin(stream);
        Ok(())
    }

    fn end_capture(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError> {
        self.graphs.end(card, stream)
    }

    fn abandon_capture(&self, _card: usize, stream: StreamId) {
        self.graphs.take(stream);
    }

    /// A graph does not own its memory: it is looked up again, and locked while an operation uses it.
    fn replay(&self, card: usize, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        for op in &*self.graphs.get(card, graph)? {
            let reservations = lock(&self.reservations);
            let is_live = |range: &AccessRange| reservations.values().any(|memory| memory.holds(range.from, range.to));
            if !op.accesses().iter().all(is_live) {
                let what = "its memory was freed".to_owned();
                return Err(DeviceError::Failed { card, during: "launching a graph", what });
            }
            op.queue(self, card, stream)?;
        }
        Ok(())
    }

    fn destroy_graph(&self, _card: usize, graph: GraphId) {
        self.graphs.destroy(graph);
    }

    fn can_access_peer(&self, _reader: usize, _owner: usize) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn peer_attributes(&self, _reader: usize, _owner: usize) -> Result<PeerAttributes, DeviceError> {
        Ok(PeerAttributes { performance_rank: 0, access_supported: false, native_atomics: false, array_access: false })
    }

    fn allow_peer(&self, _reservation: &Reservation, _reader: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn card_of(&self, at: Address) -> Result<usize, DeviceError> {
        Ok(at.card)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn driver_version(&self) -> String {
        "none (CPU)".to_owned()
    }
}

/// Resident set size of this process; `None` if the kernel does not report it.
///
/// Reads one line of `/proc`, which takes some microseconds. The kernel's count may lag by some dozen pages per core.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * PAGE_BYTES)
}

/// The page size of x86-64, which this is built for.
const PAGE_BYTES: u64 = 4096;
