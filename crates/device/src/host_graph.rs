//! Recordings on devices of the host: the list of what was queued.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::driver::{Address, CopyPath, Driver, RawArg, RecordedId, StreamId};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::host_exec::{touched, touched_by_copy};
use crate::kernel::{Grid, Kernel};
use crate::machine::lock;

/// One piece of recorded work.
pub(crate) enum CapturedWork {
    Copy(CopyPath),
    Fill { at: Address, bytes: u64, value: u8 },
    Launch { kernel: &'static Kernel, grid: Grid, args: Vec<RawArg> },
    Gemm(RawGemm),
}

impl CapturedWork {
    /// Queues it, as it was queued when it was recorded.
    pub(crate) fn queue(&self, driver: &impl Driver, card: usize, stream: StreamId) -> Result<(), DeviceError> {
        match self {
            CapturedWork::Copy(path) => driver.copy(card, stream, *path),
            CapturedWork::Fill { at, bytes, value } => driver.fill(card, stream, *at, *bytes, *value),
            CapturedWork::Launch { kernel, grid, args } => driver.launch(card, stream, (kernel, 0), *grid, args),
            CapturedWork::Gemm(gemm) => driver.gemm(card, stream, gemm),
        }
    }

    /// The parts of device memory it touches: `(from, to, writes)`.
    pub(crate) fn touches(&self) -> Vec<(u64, u64, bool)> {
        match self {
            CapturedWork::Copy(path) => touched_by_copy(path),
            CapturedWork::Fill { at, bytes, .. } => vec![(at.raw, at.raw + bytes, true)],
            CapturedWork::Launch { args, .. } => touched(args),
            CapturedWork::Gemm(gemm) => touched(&gemm.args()),
        }
    }
}

/// The recordings of a machine.
#[derive(Default)]
pub(crate) struct HostGraphs {
    /// How many streams record: nearly always none, and then nothing is locked.
    open: AtomicUsize,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    in_flight: HashMap<StreamId, Vec<CapturedWork>>,
    finished: HashMap<RecordedId, Arc<[CapturedWork]>>,
    next: RecordedId,
}

impl HostGraphs {
    pub(crate) fn begin(&self, stream: StreamId) {
        if lock(&self.books).in_flight.insert(stream, Vec::new()).is_none() {
            self.open.fetch_add(1, Ordering::Release);
        }
    }

    /// Keeps the work if the stream records; `false` when it is to be done.
    pub(crate) fn keeps(&self, stream: StreamId, work: impl FnOnce() -> CapturedWork) -> bool {
        self.any() && self.keep(stream, work()).is_none()
    }

    /// The same, with the work back when it is to be done.
    pub(crate) fn keep(&self, stream: StreamId, work: CapturedWork) -> Option<CapturedWork> {
        if !self.any() {
            return Some(work);
        }
        match lock(&self.books).in_flight.get_mut(&stream) {
            Some(list) => {
                list.push(work);
                None
            }
            None => Some(work),
        }
    }

    fn any(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    pub(crate) fn end(&self, card: usize, stream: StreamId) -> Result<RecordedId, DeviceError> {
        let Some(list) = self.take(stream) else {
            let what = "the stream does not record".to_owned();
            return Err(DeviceError::Failed { card, during: "recording work", what });
        };
        let mut books = lock(&self.books);
        books.next += 1;
        let id = books.next;
        books.finished.insert(id, list.into());
        Ok(id)
    }

    /// Ends a recording that nobody wants, or takes what it holds.
    pub(crate) fn take(&self, stream: StreamId) -> Option<Vec<CapturedWork>> {
        let list = lock(&self.books).in_flight.remove(&stream);
        if list.is_some() {
            self.open.fetch_sub(1, Ordering::Release);
        }
        list
    }

    pub(crate) fn get(&self, card: usize, id: RecordedId) -> Result<Arc<[CapturedWork]>, DeviceError> {
        lock(&self.books).finished.get(&id).cloned().ok_or_else(|| DeviceError::Failed {
            card,
            during: "replaying work",
            what: "there is no such recording".to_owned(),
        })
    }

    pub(crate) fn forget(&self, id: RecordedId) {
        lock(&self.books).finished.remove(&id);
    }
}
