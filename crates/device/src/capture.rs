//! Captured graphs: work that is captured once and launched as one. On NVIDIA cards it is a CUDA graph, elsewhere a list
//! of operations.
//!
//! A graph contains kernel launches, GEMMs, fills and copies within the card, with their addresses. Copies from and to
//! the host, and events, are not allowed: every replay must do the same. The only exceptions are the events that fork and
//! join a side stream; they become edges of the graph.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::OpenDevice;
use crate::driver::GraphId;
use crate::error::DeviceError;
use crate::stream::{Event, Stream};

/// A graph capture in progress. Work queued on the stream is captured, not run, until [`Capture::end`]. Dropping this
/// discards the capture.
#[must_use = "dropping it discards the capture"]
pub struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

/// A graph that can be launched on a stream of its card, see [`Stream::replay`].
///
/// It stores addresses and does not own the memory: the caller must keep the blocks alive. A replay after they were freed
/// uses whatever is there now, or fails.
pub struct CapturedGraph {
    open: Arc<OpenDevice>,
    id: GraphId,
}

impl Stream {
    /// Starts a graph capture: from now on, work queued here is captured instead of run. One thread must begin, queue and
    /// end.
    ///
    /// On NVIDIA cards every kernel, and a GEMM of every shape, must have run before: code cannot be loaded during a
    /// capture. Other streams and threads are not affected: they may queue work, load kernels and allocate memory. A
    /// thread that releases an arena or closes the card waits until no capture is in progress there.
    pub fn begin_capture(&self) -> Result<Capture<'_>, DeviceError> {
        self.outside_capture("another capture")?;
        self.open.driver().begin_capture(self.open.card, self.id)?;
        self.capturing.store(true, Ordering::Relaxed);
        Ok(Capture { stream: self, ended: false })
    }

    /// Launches a captured graph. On NVIDIA cards this is one driver call; nothing is allocated.
    pub fn replay(&self, graph: &CapturedGraph) -> Result<(), DeviceError> {
        self.outside_capture("a replay")?;
        if !Arc::ptr_eq(&graph.open, &self.open) {
            let what = format!("it was captured on GPU {}", graph.open.card);
            return Err(DeviceError::Failed { card: self.open.card, during: "launching a graph", what });
        }
        self.open.driver().replay(self.open.card, self.id, graph.id)
    }

    /// Refuses work that a graph cannot contain.
    pub(crate) fn outside_capture(&self, what: &str) -> Result<(), DeviceError> {
        if !self.capturing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = format!("{what} cannot be part of a captured graph");
        Err(DeviceError::Failed { card: self.open.card, during: "capturing a graph", what })
    }
}

impl Capture<'_> {
    /// Forks a side stream: work queued on `side` from now on is captured too, after all that was captured so far and in
    /// parallel with what follows. It must be joined before the end. For NVIDIA cards; elsewhere a graph is sequential.
    pub fn fork(&self, side: &Stream, event: &Event) -> Result<(), DeviceError> {
        let driver = self.stream.open.driver();
        driver.record(self.stream.open.card, self.stream.id, event.id)?;
        driver.wait(side.open.card, side.id, event.id)
    }

    /// Records `event` on `side`, for [`Capture::join`].
    pub fn mark(&self, side: &Stream, event: &Event) -> Result<(), DeviceError> {
        side.open.driver().record(side.open.card, side.id, event.id)
    }

    /// Joins a side stream: what is captured from now on runs after all that was queued on the side before `event`.
    pub fn join(&self, event: &Event) -> Result<(), DeviceError> {
        self.stream.open.driver().wait(self.stream.open.card, self.stream.id, event.id)
    }

    /// Ends the capture and instantiates the graph. On NVIDIA cards it is also uploaded, which takes some kilobytes of the
    /// driver's device memory per node.
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
        self.open.driver().destroy_graph(self.open.card, self.id);
    }
}

impl std::fmt::Debug for CapturedGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CapturedGraph({:#x} on GPU {})", self.id, self.open.card)
    }
}
