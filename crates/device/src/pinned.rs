//! Pinned (page-locked) host memory. Host and device never access it at once.
//!
//! This is enforced here, not left to the caller: each copy records an event, and the host can access the bytes only once
//! that event has been reached. A missing wait is a typed error on every kind of device, never a torn batch.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::device::Device;
use crate::driver::{HostSpan, TEARDOWN_DEADLINE};
use crate::error::DeviceError;
use crate::machine::lock;
use crate::stream::{Event, Stream};

/// Pinned (page-locked) host memory. Holding a slice of it means that no copy accesses those bytes.
pub struct Pinned {
    device: Device,
    span: HostSpan,
    reads: Uses,
    writes: Uses,
}

/// The latest use in one direction, per card that used the memory. In a bounce one card writes it and another reads it,
/// and an event can be recorded on its own card only.
#[derive(Default)]
struct Uses {
    latest: Mutex<Vec<Use>>,
}

struct Use {
    card: usize,
    stream: u64,
    done: Event,
}

impl Uses {
    fn over(&self) -> Result<bool, DeviceError> {
        for latest in lock(&self.latest).iter() {
            if !latest.done.reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Queues `copy` on `stream` and records its event. Only one stream at a time: a second stream's event would replace
    /// the first's.
    fn queue(
        &self,
        stream: &Stream,
        what: &'static str,
        copy: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut latest = lock(&self.latest);
        for other in latest.iter().filter(|other| other.stream != stream.serial) {
            if !other.done.reached()? {
                return Err(DeviceError::StillInUse { what });
            }
        }
        let card = stream.device().index();
        let at = match latest.iter().position(|latest| latest.card == card) {
            Some(at) => at,
            None => {
                latest.push(Use { card, stream: stream.serial, done: stream.device().event()? });
                latest.len() - 1
            }
        };
        copy()?;
        latest[at].stream = stream.serial;
        stream.record(&latest[at].done)
    }

    /// Waits for all uses. Errors are ignored: a lost card never reaches an event, but does not access memory either. A card
    /// whose use does not end in time is abandoned: then the memory is not freed.
    fn wait(&self) {
        for latest in lock(&self.latest).iter() {
            let driver = latest.done.open.driver();
            if let Ok(false) = driver.synchronize_within(latest.card, latest.done.id, TEARDOWN_DEADLINE) {
                driver.abandon(latest.card);
            }
        }
    }
}

impl Pinned {
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Pinned, DeviceError> {
        let span = device.open.driver().alloc_host(device.index(), bytes)?;
        let counts = device.machine().counts(device.index());
        counts.pinned_allocations.fetch_add(1, Ordering::Relaxed);
        counts.live_pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Pinned { device: device.clone(), span, reads: Uses::default(), writes: Uses::default() })
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.span.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.bytes == 0
    }

    /// The bytes, to read. Refused while a copy into them is in flight.
    pub fn bytes(&self) -> Result<&[u8], DeviceError> {
        if !self.writes.over()? {
            return Err(DeviceError::StillInUse { what: "a copy into it has not finished" });
        }
        // SAFETY: the span lives until drop; no copy writes it (checked above, and starting one takes `&mut self`).
        Ok(unsafe { std::slice::from_raw_parts(self.span.ptr, self.span.bytes as usize) })
    }

    /// The bytes, to write. Refused while any copy from or into them is in flight.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        if !self.reads.over()? {
            return Err(DeviceError::StillInUse { what: "a copy out of it has not finished" });
        }
        self.bytes()?;
        // SAFETY: no copy reads or writes the span (both checked above), and `&mut self` keeps new ones from starting.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.span.ptr, self.span.bytes as usize) })
    }

    /// Splits the memory at the offsets `cuts`, which must be sorted, so that several threads can write at once. The
    /// result has one part more than there are cuts. Refused like [`Pinned::bytes_mut`].
    ///
    /// No copy can access split memory; [`Pinned::rejoin`] joins the parts again.
    pub fn split(mut self, cuts: &[u64]) -> Result<Vec<PinnedPart>, DeviceError> {
        self.bytes_mut()?;
        let edges: Vec<u64> = [&[0], cuts, &[self.len()]].concat();
        assert!(edges.is_sorted(), "cuts {cuts:?} in {} bytes", self.len());
        let whole = Arc::new(self);
        Ok(edges.windows(2).map(|edge| PinnedPart { whole: whole.clone(), range: edge[0]..edge[1] }).collect())
    }

    /// Joins the parts of [`Pinned::split`]. Panics unless they are all parts of one memory, in order.
    pub fn rejoin(parts: Vec<PinnedPart>) -> Pinned {
        let joined = parts.iter().try_fold(0, |end, part| (part.range.start == end).then_some(part.range.end));
        let mut wholes = parts.into_iter().map(|part| part.whole);
        let Some(whole) = wholes.next() else { panic!("no parts") };
        assert_eq!(joined, Some(whole.len()), "parts that are not all of the memory, or not in order");
        assert!(wholes.all(|other| Arc::ptr_eq(&whole, &other)), "parts of different memory");
        match Arc::try_unwrap(whole) {
            Ok(whole) => whole,
            Err(_) => panic!("parts that are not all of the memory"),
        }
    }

    pub(crate) fn span(&self) -> HostSpan {
        self.span
    }

    /// Queues a copy that reads the bytes.
    pub(crate) fn read_by(
        &self,
        stream: &Stream,
        copy: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.reads.queue(stream, "two streams read it at once", copy)
    }

    /// Queues a copy that writes the bytes.
    pub(crate) fn written_by(
        &mut self,
        stream: &Stream,
        copy: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.writes.queue(stream, "two streams write it at once", copy)
    }
}

/// A part of split pinned memory. Holding one means exclusive access to its bytes.
pub struct PinnedPart {
    whole: Arc<Pinned>,
    range: Range<u64>,
}

impl PinnedPart {
    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let span = self.whole.span.part(self.range.start, self.range.end - self.range.start);
        // SAFETY: the span lives as long as `whole`. Parts of one memory do not overlap (only `Pinned::split` makes them,
        // from one sorted list of edges), each is borrowed mutably to get here, and no copy can start while the memory is
        // split: starting one takes the `Pinned` itself.
        unsafe { std::slice::from_raw_parts_mut(span.ptr, span.bytes as usize) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.reads.wait();
        self.writes.wait();
        self.device.open.driver().free_host(self.device.index(), self.span);
        let counts = self.device.machine().counts(self.device.index());
        counts.live_pinned_bytes.fetch_sub(self.span.bytes, Ordering::Relaxed);
    }
}
