//! Captured graphs of the CPU device and of simulated cards: lists of operations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::driver::{Address, CopyPath, Driver, GraphId, RawArg, StreamId};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::host_exec::{AccessRange, accessed, accessed_by_copy};
use crate::kernel::{Grid, Kernel};
use crate::machine::lock;

/// An operation on host memory, captured or queued.
pub(crate) enum HostOp {
    Copy(CopyPath),
    Fill { at: Address, bytes: u64, value: u8 },
    Launch { kernel: &'static Kernel, grid: Grid, args: Vec<RawArg> },
    Gemm(RawGemm),
}

impl HostOp {
    /// Queues it as it was queued when it was captured.
    pub(crate) fn queue(&self, driver: &impl Driver, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        match self {
            HostOp::Copy(path) => driver.copy(card, stream, *path),
            HostOp::Fill { at, bytes, value } => driver.fill(card, stream, *at, *bytes, *value),
            HostOp::Launch { kernel, grid, args } => driver.launch(card, stream, (kernel, 0), *grid, args),
            HostOp::Gemm(gemm) => driver.gemm(card, stream, gemm),
        }
    }

    /// The device memory it accesses.
    pub(crate) fn accesses(&self) -> Vec<AccessRange> {
        match self {
            HostOp::Copy(path) => accessed_by_copy(path),
            HostOp::Fill { at, bytes, .. } => vec![AccessRange::new(*at, *bytes, true)],
            HostOp::Launch { args, .. } => accessed(args),
            HostOp::Gemm(gemm) => accessed(&gemm.args()),
        }
    }
}

/// The captured graphs of a machine.
#[derive(Default)]
pub(crate) struct HostGraphs {
    /// Streams that are capturing. Usually none, and then no lock is taken.
    open: AtomicUsize,
    graphs: Mutex<Graphs>,
}

#[derive(Default)]
struct Graphs {
    capturing: HashMap<StreamId, Vec<HostOp>>,
    captured: HashMap<GraphId, Arc<[HostOp]>>,
    next: GraphId,
}

impl HostGraphs {
    pub(crate) fn begin(&self, stream: StreamId) {
        if lock(&self.graphs).capturing.insert(stream, Vec::new()).is_none() {
            self.open.fetch_add(1, Ordering::Release);
        }
    }

    /// Captures the operation if the stream is capturing; otherwise returns `false`, and the caller must run it.
    pub(crate) fn captures(&self, stream: StreamId, op: impl FnOnce() -> HostOp) -> bool {
        self.any() && self.capture(stream, op()).is_none()
    }

    /// The same; returns the operation if the stream is not capturing.
    pub(crate) fn capture(&self, stream: StreamId, op: HostOp) -> Option<HostOp> {
        if !self.any() {
            return Some(op);
        }
        match lock(&self.graphs).capturing.get_mut(&stream) {
            Some(list) => {
                list.push(op);
                None
            }
            None => Some(op),
        }
    }

    fn any(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    pub(crate) fn end(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError> {
        let Some(list) = self.take(stream) else {
            let what = "the stream is not capturing".to_owned();
            return Err(DeviceError::Failed { card, during: "capturing a graph", what });
        };
        let mut graphs = lock(&self.graphs);
        graphs.next += 1;
        let id = graphs.next;
        graphs.captured.insert(id, list.into());
        Ok(id)
    }

    /// Ends a capture and returns its operations.
    pub(crate) fn take(&self, stream: StreamId) -> Option<Vec<HostOp>> {
        let list = lock(&self.graphs).capturing.remove(&stream);
        if list.is_some() {
            self.open.fetch_sub(1, Ordering::Release);
        }
        list
    }

    pub(crate) fn get(&self, card: usize, id: GraphId) -> Result<Arc<[HostOp]>, DeviceError> {
        lock(&self.graphs).captured.get(&id).cloned().ok_or_else(|| DeviceError::Failed {
            card,
            during: "launching a graph",
            what: "there is no such graph".to_owned(),
        })
    }

    pub(crate) fn destroy(&self, id: GraphId) {
        lock(&self.graphs).captured.remove(&id);
    }
}
