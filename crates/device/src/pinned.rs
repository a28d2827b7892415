//! Page-locked host memory, and the rule that host and device never touch it at once.
//!
//! The rule is kept here and not by the caller's care: each copy leaves an event behind, and the host gets at the
//! bytes only once that event has been reached. A forgotten wait is a typed error on every kind of device, never
//! a torn batch.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::driver::{HostSpan, StreamId};
use crate::error::DeviceError;
use crate::machine::lock;
use crate::stream::{Event, Stream};

/// Page-locked host memory. Holding a slice of it means no copy is touching those bytes.
pub struct Pinned {
    device: Device,
    span: HostSpan,
    reads: Use,
    writes: Use,
}

/// The latest use by the device in one direction.
struct Use {
    done: Event,
    on: Mutex<Option<StreamId>>,
}

impl Use {
    fn new(device: &Device) -> Result<Use, DeviceError> {
        Ok(Use { done: device.event()?, on: Mutex::new(None) })
    }

    fn over(&self) -> Result<bool, DeviceError> {
        Ok(lock(&self.on).is_none() || self.done.reached()?)
    }

    /// A second use on another stream would overwrite the event of the first: only once that is over.
    fn begin(&self, stream: &Stream, what: &'static str) -> Result<(), DeviceError> {
        let elsewhere = lock(&self.on).is_some_and(|id| id != stream.id);
        match elsewhere && !self.done.reached()? {
            true => Err(DeviceError::StillInUse { what }),
            false => Ok(()),
        }
    }

    fn end(&self, stream: &Stream) -> Result<(), DeviceError> {
        *lock(&self.on) = Some(stream.id);
        stream.record(&self.done)
    }
}

impl Pinned {
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Pinned, DeviceError> {
        let reads = Use::new(device)?;
        let writes = Use::new(device)?;
        let span = device.open.driver().alloc_host(device.index(), bytes)?;
        let counts = device.machine().counts(device.index());
        counts.pinned_allocations.fetch_add(1, Ordering::Relaxed);
        counts.live_pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Pinned { device: device.clone(), span, reads, writes })
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.span.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.span.bytes == 0
    }

    /// The bytes, to read. Refused while a copy into them is under way.
    pub fn bytes(&self) -> Result<&[u8], DeviceError> {
        if !self.writes.over()? {
            return Err(DeviceError::StillInUse { what: "a copy into it has not finished" });
        }
        // SAFETY: the span lives until drop; no copy writes it (checked above, and starting one takes `&mut self`).
        Ok(unsafe { std::slice::from_raw_parts(self.span.ptr, self.span.bytes as usize) })
    }

    /// The bytes, to write. Refused while any copy from or into them is under way.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        if !self.reads.over()? {
            return Err(DeviceError::StillInUse { what: "a copy out of it has not finished" });
        }
        self.bytes()?;
        // SAFETY: no copy reads or writes the span (both checked above), and `&mut self` keeps new ones from starting.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.span.ptr, self.span.bytes as usize) })
    }

    pub(crate) fn span(&self) -> HostSpan {
        self.span
    }

    pub(crate) fn about_to_be_read(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.reads.begin(stream, "two streams read it at once")
    }

    pub(crate) fn read_by(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.reads.end(stream)
    }

    pub(crate) fn about_to_be_written(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.writes.begin(stream, "two streams write it at once")
    }

    pub(crate) fn written_by(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        self.writes.end(stream)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let driver = self.device.open.driver();
        for usage in [&self.reads, &self.writes] {
            if lock(&usage.on).is_some() {
                // A lost card reaches nothing any more, and touches nothing either: its error changes nothing here.
                let _ = driver.synchronize(self.device.index(), usage.done.id);
            }
        }
        driver.free_host(self.device.index(), self.span);
        self.device
            .machine()
            .counts(self.device.index())
            .live_pinned_bytes
            .fetch_sub(self.span.bytes, Ordering::Relaxed);
    }
}
