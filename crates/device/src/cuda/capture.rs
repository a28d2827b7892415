//! Graph capture on a card, and graph launch.

use super::CudaDriver;
use super::api::{self, Handle};
use super::capture_lock::CAPTURE_LOCK;
use crate::driver::{GraphId, StreamId};
use crate::error::DeviceError;

const DURING: &str = "capturing a graph";

impl CudaDriver {
    /// Starts a capture in thread-local mode: [`super::capture_lock`] explains what this requires of other threads.
    pub(super) fn start_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        let key = self.capture_key(card)?;
        self.enter(card, DURING)?;
        CAPTURE_LOCK.begin_capture(key);
        // SAFETY: the stream is of this card and alive.
        let code = unsafe { (self.api.cuStreamBeginCapture_v2)(stream as Handle, api::CAPTURE_THREAD_LOCAL) };
        self.check(card, DURING, code).inspect_err(|_| CAPTURE_LOCK.end_capture(key))
    }

    /// Ends the capture, instantiates the graph and uploads it, so that the first launch is as fast as the others.
    pub(super) fn finish_capture(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError> {
        let graph = self.stop_capture(card, stream)?;
        let mut graph_exec = 0;
        // SAFETY: one handle is written; the graph was made above and is not needed after instantiation.
        let code = unsafe {
            let code = (self.api.cuGraphInstantiateWithFlags)(&raw mut graph_exec, graph, 0);
            (self.api.cuGraphDestroy)(graph);
            code
        };
        self.check(card, DURING, code)?;
        // SAFETY: both handles are alive.
        let code = unsafe { (self.api.cuGraphUpload)(graph_exec, stream as Handle) };
        if let Err(error) = self.check(card, DURING, code) {
            self.destroy_graph_exec(card, graph_exec as GraphId);
            return Err(error);
        }
        Ok(graph_exec as GraphId)
    }

    /// Ends a capture and discards its graph. Errors are ignored: the capture may be invalid already.
    pub(super) fn discard_capture(&self, card: usize, stream: StreamId) {
        if let Ok(graph) = self.stop_capture(card, stream) {
            // SAFETY: made by the capture, and destroyed once.
            unsafe { (self.api.cuGraphDestroy)(graph) };
        }
    }

    /// Ends the stream's capture; an invalidated capture gives an error and no graph.
    fn stop_capture(&self, card: usize, stream: StreamId) -> Result<Handle, DeviceError> {
        let stopped = self.enter(card, DURING).and_then(|_| {
            let mut graph = 0;
            // SAFETY: one handle is written; the stream is alive.
            let code = unsafe { (self.api.cuStreamEndCapture)(stream as Handle, &raw mut graph) };
            self.check(card, DURING, code).map(|()| graph)
        });
        CAPTURE_LOCK.end_capture(self.capture_key(card)?);
        stopped
    }

    pub(super) fn launch_graph(&self, card: usize, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        let during = "launching a graph";
        self.enter(card, during)?;
        // SAFETY: both handles are alive; the caller keeps the graph's memory alive.
        self.check(card, during, unsafe { (self.api.cuGraphLaunch)(graph as Handle, stream as Handle) })
    }

    pub(super) fn destroy_graph_exec(&self, card: usize, graph: GraphId) {
        if self.enter(card, "destroying a graph").is_ok() {
            // SAFETY: instantiated once and destroyed once; the driver defers it until launches in flight are done.
            unsafe { (self.api.cuGraphExecDestroy)(graph as Handle) };
        }
    }
}
