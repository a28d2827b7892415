//! The CPU as a device: host memory, and work done at once by the thread that queues it.
//!
//! Doing work at once is one of the orders the rules allow, so every event that was recorded has been reached. Two
//! threads that queue work on the same bytes without an event between them would race; that is caught and refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::card::{Card, CardReading};
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

/// The one card of a CPU machine.
pub(crate) struct CpuDriver {
    card: [Card; 1],
    start: Instant,
    next_id: AtomicU64,
    held: Mutex<HashMap<u64, HostMemory>>,
    reached_ns: Mutex<HashMap<EventId, u64>>,
    busy: Mutex<Vec<(u64, u64, bool)>>,
    workers: Arc<Workers>,
    recordings: HostGraphs,
}

/// Bytes that one operation is working on. Dropping it ends that.
struct Working<'a> {
    driver: &'a CpuDriver,
    spans: Vec<(u64, u64, bool)>,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut busy = lock(&self.driver.busy);
        for span in &self.spans {
            if let Some(at) = busy.iter().position(|other| other == span) {
                busy.swap_remove(at);
            }
        }
    }
}

impl CpuDriver {
    pub(crate) fn new(workers: Arc<Workers>) -> CpuDriver {
        let (total_bytes, _) = host_memory();
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
            held: Mutex::default(),
            reached_ns: Mutex::default(),
            busy: Mutex::default(),
            workers,
            recordings: HostGraphs::default(),
        }
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn work_on(&self, spans: Vec<(u64, u64, bool)>, what: &'static str) -> Result<Working<'_>, DeviceError> {
        let mut busy = lock(&self.busy);
        let meets = |a: &(u64, u64, bool), b: &(u64, u64, bool)| a.0 < b.1 && b.0 < a.1 && (a.2 || b.2);
        if spans.iter().any(|span| busy.iter().any(|other| meets(span, other))) {
            return Err(DeviceError::Race { what });
        }
        busy.extend(&spans);
        Ok(Working { driver: self, spans })
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
        let (total_bytes, free_bytes) = host_memory();
        Ok(CardReading { free_bytes, total_bytes, ..CardReading::default() })
    }

    /// The host's memory is shared with everything else in the process: no figure for the device alone exists.
    fn process_bytes(&self, _card: usize) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    fn open(&self, _card: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&self, _card: usize) {}

    fn reserve(&self, card: usize, bytes: u64, _capped: bool) -> Result<Reservation, DeviceError> {
        let (total, free) = host_memory();
        let refused = DeviceError::OutOfMemory { card, asked: bytes, free, total };
        if bytes > free {
            return Err(refused);
        }
        let memory = HostMemory::reserve(bytes, false).map_err(|_| refused)?;
        let base = memory.base();
        lock(&self.held).insert(base, memory);
        Ok(Reservation { base: Address { card, raw: base }, bytes, pool: 0 })
    }

    fn release(&self, held: Reservation) {
        lock(&self.held).remove(&held.base.raw);
    }

    fn pool_refuses_more(&self, _held: &Reservation) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn alloc_host(&self, _card: usize, bytes: u64) -> Result<HostSpan, DeviceError> {
        alloc_span(bytes).ok_or(DeviceError::OutOfPinned { asked: bytes })
    }

    fn free_host(&self, _card: usize, span: HostSpan) {
        // SAFETY: `Pinned` frees each span once, after its last use.
        unsafe { free_span(span) }
    }

    fn create_stream(&self, _card: usize, _urgent: bool) -> Result<StreamId, DeviceError> {
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

    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError> {
        Ok(self.reached_at_ns(card, to)?.saturating_sub(self.reached_at_ns(card, from)?))
    }

    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError> {
        let what = || "it was not reached yet".to_owned();
        let reached_ns = lock(&self.reached_ns).get(&event).copied();
        reached_ns.ok_or_else(|| DeviceError::Failed { card, during: "reading a timer", what: what() })
    }

    fn copy(&self, _card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        if self.recordings.keeps(stream, || CapturedWork::Copy(path)) {
            return Ok(());
        }
        let _working = self.work_on(touched_by_copy(&path), "copy")?;
        // SAFETY: views lie in live reservations; nothing else works on these bytes (`work_on`), and the host end
        // is guarded by `Pinned`.
        unsafe { run_copy(&path) };
        Ok(())
    }

    fn fill(&self, _card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError> {
        if self.recordings.keeps(stream, || CapturedWork::Fill { at, bytes, value }) {
            return Ok(());
        }
        let _working = self.work_on(vec![(at.raw, at.raw + bytes, true)], "fill")?;
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
        if self.recordings.keeps(stream, || CapturedWork::Launch { kernel, grid, args: args.to_vec() }) {
            return Ok(());
        }
        let _working = self.work_on(touched(args), kernel.name)?;
        // SAFETY: views lie in live reservations, and nothing else works on these bytes (`work_on`).
        unsafe { run_host(kernel, grid, args, &self.workers) };
        Ok(())
    }

    fn gemm(&self, _card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError> {
        if self.recordings.keeps(stream, || CapturedWork::Gemm(*gemm)) {
            return Ok(());
        }
        let _working = self.work_on(touched(&gemm.args()), "gemm")?;
        // SAFETY: as above.
        unsafe { run_gemm(gemm, &self.workers) };
        Ok(())
    }

    fn trap(&self, card: usize, _stream: StreamId) -> Result<(), DeviceError> {
        let what = "the CPU cannot be lost: plant it on a card, real or simulated".to_owned();
        Err(DeviceError::Failed { card, during: "planting a trap", what })
    }

    fn begin_capture(&self, _card: usize, stream: StreamId) -> Result<(), DeviceError> {
        self.recordings.begin(stream);
        Ok(())
    }

    fn end_capture(&self, card: usize, stream: StreamId) -> Result<RecordedId, DeviceError> {
        self.recordings.end(card, stream)
    }

    fn abandon_capture(&self, _card: usize, stream: StreamId) {
        self.recordings.take(stream);
    }

    /// The memory is looked up anew, and kept for as long as a piece of work is on it: nobody's view does that here.
    fn replay(&self, card: usize, stream: StreamId, recorded: RecordedId) -> Result<(), DeviceError> {
        for work in &*self.recordings.get(card, recorded)? {
            let held = lock(&self.held);
            let is_held = |from, to| held.values().any(|memory| memory.holds(from, to));
            if !work.touches().iter().all(|&(from, to, _)| is_held(from, to)) {
                let what = "its memory was given back".to_owned();
                return Err(DeviceError::Failed { card, during: "replaying work", what });
            }
            work.queue(self, card, stream)?;
        }
        Ok(())
    }

    fn drop_recorded(&self, _card: usize, recorded: RecordedId) {
        self.recordings.forget(recorded);
    }

    fn can_access_peer(&self, _reader: usize, _owner: usize) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn allow_peer(&self, _held: &Reservation, _reader: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn home_of(&self, at: Address) -> Result<usize, DeviceError> {
        Ok(at.card)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn driver_version(&self) -> String {
        "none (CPU)".to_owned()
    }
}

/// Total and available bytes of the host; zeros where the kernel does not say.
pub fn host_memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    (kib("MemTotal:").unwrap_or(0) * 1024, kib("MemAvailable:").unwrap_or(0) * 1024)
}

/// Bytes of this process that lie in the machine's memory now; `None` where the kernel does not say.
///
/// Reads one line of `/proc`: some microseconds. The kernel's own count is behind by up to some dozen pages per core.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * PAGE_BYTES)
}

/// Of x86-64, which is what this is built for.
const PAGE_BYTES: u64 = 4096;
