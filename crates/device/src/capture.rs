//! Work that was recorded once and is replayed as one: on NVIDIA cards a CUDA graph, elsewhere the list of what was
//! queued.
//!
//! What a recording holds is launches, GEMMs, fills and copies within the card, with their addresses. Copies from and
//! to the host, and events, stay outside: a replay must mean the same every time. Only the marks by which two lines of
//! one recording part and meet again are inside, and become its order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::OpenDevice;
use crate::driver::RecordedId;
use crate::error::DeviceError;
use crate::stream::{Event, Stream};

/// A stream that records. What is queued on it is not done but kept, until [`Capture::end`]; dropping this throws it
/// away.
#[must_use = "dropping it throws the recording away"]
pub struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

/// Work that can be replayed on a stream of its card, see [`Stream::replay`].
///
/// It names memory and does not hold it: whoever replays it keeps the blocks. A replay after they were given back works
/// on whatever lies there now, or fails.
pub struct CapturedGraph {
    open: Arc<OpenDevice>,
    id: RecordedId,
}

impl Stream {
    /// From now on what is queued here is recorded instead of done. One thread begins, queues and ends.
    ///
    /// On NVIDIA cards every kernel must have run before, and every GEMM of the same shape: loading code while
    /// recording is not allowed. Other streams and threads go on as ever: they may queue, load kernels and take memory. One
    /// that gives an arena back, or closes the card, waits until nobody records on it.
    pub fn begin_capture(&self) -> Result<Capture<'_>, DeviceError> {
        self.outside_capture("another recording")?;
        self.open.driver().begin_capture(self.open.card, self.id)?;
        self.capturing.store(true, Ordering::Relaxed);
        Ok(Capture { stream: self, ended: false })
    }

    /// Queues everything that was recorded, in its order. One call of the driver on NVIDIA cards; nothing is allocated.
    pub fn replay(&self, recorded: &CapturedGraph) -> Result<(), DeviceError> {
        self.outside_capture("a replay")?;
        if !Arc::ptr_eq(&recorded.open, &self.open) {
            let what = format!("it was recorded on GPU {}", recorded.open.card);
            return Err(DeviceError::Failed { card: self.open.card, during: "replaying work", what });
        }
        self.open.driver().replay(self.open.card, self.id, recorded.id)
    }

    /// Refuses what no recording can hold.
    pub(crate) fn outside_capture(&self, what: &str) -> Result<(), DeviceError> {
        if !self.capturing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = format!("{what} cannot be part of a recording");
        Err(DeviceError::Failed { card: self.open.card, during: "recording work", what })
    }
}

impl Capture<'_> {
    /// What is queued on `side` from now on is recorded as well: behind all that was recorded so far, beside what follows.
    /// It must be joined before the end. On NVIDIA cards; elsewhere recordings are one line of work.
    pub fn fork(&self, side: &Stream, mark: &Event) -> Result<(), DeviceError> {
        let driver = self.stream.open.driver();
        driver.record(self.stream.open.card, self.stream.id, mark.id)?;
        driver.wait(side.open.card, side.id, mark.id)
    }

    /// Marks how far `side` has come, for [`Capture::join`].
    pub fn mark(&self, side: &Stream, mark: &Event) -> Result<(), DeviceError> {
        side.open.driver().record(side.open.card, side.id, mark.id)
    }

    /// What is recorded from now on comes behind all that was queued on the side up to `mark`.
    pub fn join(&self, mark: &Event) -> Result<(), DeviceError> {
        self.stream.open.driver().wait(self.stream.open.card, self.stream.id, mark.id)
    }

    /// Ends the recording and makes it ready: on NVIDIA cards it is put on the card, which takes device memory of the
    /// driver's own, some kilobytes for each piece of work.
    pub fn end(mut self) -> Result<CapturedGraph, DeviceError> {
        self.ended = true;
        self.stream.capturing.store(false, Ordering::Relaxed);
        let open = &self.stream.open;
        let id = open.driver().end_capture(open.card, self.stream.id)?;
        Ok(CapturedGraph { open: open.clone(), id })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.stream.capturing.store(false, Ordering::Relaxed);
            self.stream.open.driver().abandon_capture(self.stream.open.card, self.stream.id);
        }
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        self.open.driver().drop_recorded(self.open.card, self.id);
    }
}

impl std::fmt::Debug for CapturedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorded({:#x} on GPU {})", self.id, self.open.card)
    }
}
