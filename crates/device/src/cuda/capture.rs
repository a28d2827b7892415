//! Recording work on a card as a CUDA graph, and replaying it.

use super::CudaDriver;
use super::api::{self, Handle};
use super::gate::GATE;
use crate::driver::{RecordedId, StreamId};
use crate::error::DeviceError;

const DURING: &str = "recording work";

impl CudaDriver {
    /// Begins a recording in the thread-local mode: [`super::gate`] says what that asks of other threads.
    pub(super) fn start_recording(&self, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        let device = self.device(card)?;
        self.enter(card, DURING)?;
        GATE.recording_begins(device);
        // SAFETY: the stream is of this card and alive.
        let code = unsafe { (self.api.cuStreamBeginCapture_v2)(stream as Handle, api::CAPTURE_THREAD_LOCAL) };
        self.check(card, DURING, code).inspect_err(|_| GATE.recording_ends(device))
    }

    /// Ends the recording and puts the graph on the card, so that the first replay costs what the others do.
    pub(super) fn finish_recording(&self, card: usize, stream: StreamId) -> Result<RecordedId, DeviceError> {
        let graph = self.stop_recording(card, stream)?;
        let mut ready = 0;
        // SAFETY: one handle is written; the graph was made above and is needed no longer once it was instantiated.
        let code = unsafe {
            let code = (self.api.cuGraphInstantiateWithFlags)(&raw mut ready, graph, 0);
            (self.api.cuGraphDestroy)(graph);
            code
        };
        self.check(card, DURING, code)?;
        // SAFETY: both handles are alive.
        let code = unsafe { (self.api.cuGraphUpload)(ready, stream as Handle) };
        if let Err(error) = self.check(card, DURING, code) {
            self.drop_recording(card, ready as RecordedId);
            return Err(error);
        }
        Ok(ready as RecordedId)
    }

    /// Ends a recording that nobody wants. Failures are left alone: it may have broken already.
    pub(super) fn abandon_recording(&self, card: usize, stream: StreamId) {
        if let Ok(graph) = self.stop_recording(card, stream) {
            // SAFETY: made by the recording, and destroyed once.
            unsafe { (self.api.cuGraphDestroy)(graph) };
        }
    }

    /// Takes the stream out of its recording, whatever became of it: a broken one leaves an error and no graph.
    fn stop_recording(&self, card: usize, stream: StreamId) -> Result<Handle, DeviceError> {
        let stopped = self.enter(card, DURING).and_then(|_| {
            let mut graph = 0;
            // SAFETY: one handle is written; the stream is alive.
            let code = unsafe { (self.api.cuStreamEndCapture)(stream as Handle, &raw mut graph) };
            self.check(card, DURING, code).map(|()| graph)
        });
        GATE.recording_ends(self.device(card)?);
        stopped
    }

    pub(super) fn replay_recording(
        &self,
        card: usize,
        stream: StreamId,
        recorded: RecordedId,
    ) -> Result<(), DeviceError> {
        let during = "replaying work";
        self.enter(card, during)?;
        // SAFETY: both handles are alive; the memory the graph names is kept by whoever replays it.
        self.check(card, during, unsafe { (self.api.cuGraphLaunch)(recorded as Handle, stream as Handle) })
    }

    pub(super) fn drop_recording(&self, card: usize, recorded: RecordedId) {
        if self.enter(card, "dropping a recording").is_ok() {
            // SAFETY: instantiated once and destroyed once; the driver waits with it for replays under way.
            unsafe { (self.api.cuGraphExecDestroy)(recorded as Handle) };
        }
    }
}
