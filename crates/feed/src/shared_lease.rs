//! A batch leased to another program: it reads the batch on streams of its own, which it names one by one, and drops it on any
//! thread.
//!
//! A reader comes with a stream: that stream waits for the batch, and the slot becomes free only after the work that is queued
//! there when the batch is dropped. The host waits for neither. A reader without a stream of its own (the CPU, or one that says
//! that it synchronises by itself) has read the batch when it drops it.
//!
//! A batch may be dropped while one of its readers' streams is captured into a graph. An event that is recorded there would make
//! our streams a part of that graph. Such a slot is set aside, and released when the capture is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandem_device::{Block, Device, DeviceError, DeviceKind, Event, Stream};
use tandem_pipeline::LeasedSlot;

use crate::batch::info::BatchInfo;
use crate::error::FeedError;
use crate::lease::BatchField;
use crate::waits;

/// CUDA's handle of the default stream of the calling thread.
const THREAD_DEFAULT_STREAM: u64 = 2;
/// CUDA's handle of the legacy default stream, which every default stream of a thread waits for, and which waits for them.
const LEGACY_DEFAULT_STREAM: u64 = 1;

type Slot = LeasedSlot<Block, Arc<BatchInfo>, Event>;

/// A batch whose readers are streams of other libraries. Dropping it frees the slot once they are done.
pub struct SharedBatch {
    /// Both are none only while it is dropped.
    slot: Option<Slot>,
    returns: Option<Arc<ReturnStream>>,
    /// The handles of the streams that read it.
    readers: Mutex<Vec<u64>>,
    wait_ns: u64,
}

/// Where batches are released: a stream that waits for all readers of a batch.
pub(crate) struct ReturnStream {
    device: Device,
    stream: Stream,
    /// Slots whose readers were captured when they were dropped, with those readers.
    set_aside: Mutex<Vec<(Slot, Vec<u64>)>>,
    /// The first release that failed.
    error: Mutex<Option<DeviceError>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReturnStream {
    pub(crate) fn create(device: &Device) -> Result<ReturnStream, DeviceError> {
        let (set_aside, error) = (Mutex::default(), Mutex::default());
        Ok(ReturnStream { stream: device.stream(true)?, device: device.clone(), set_aside, error })
    }

    /// Releases what was set aside and can be released now. Fails with the first release that failed: its slot is never used
    /// again, because nobody knows when its reader ends.
    pub(crate) fn release_set_aside(&self) -> Result<(), FeedError> {
        let waiting = std::mem::take(&mut *lock(&self.set_aside));
        waiting.into_iter().for_each(|(slot, readers)| self.release(slot, readers));
        lock(&self.error).take().map_or(Ok(()), |error| Err(FeedError::Release(error)))
    }

    fn release(&self, slot: Slot, readers: Vec<u64>) {
        let captured = |reader: &u64| self.device.foreign_stream(*reader).is_captured();
        let is_captured = readers.iter().try_fold(false, |any, reader| Ok(any || captured(reader)?));
        let released = match is_captured {
            Ok(true) => {
                lock(&self.set_aside).push((slot, readers));
                return;
            }
            Ok(false) => slot.release(|freed| self.record_after(&readers, freed)),
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            lock(&self.error).get_or_insert(error);
        }
    }

    /// Records `freed` after all work that is queued on `readers` now.
    fn record_after(&self, readers: &[u64], freed: &Event) -> Result<(), DeviceError> {
        for &reader in readers {
            let read = self.device.event()?;
            self.device.foreign_stream(reader).record(&read)?;
            self.stream.wait(&read, waits::READ)?;
        }
        self.stream.record(freed)
    }
}

impl SharedBatch {
    pub(crate) fn new(slot: Slot, returns: Arc<ReturnStream>, wait_ns: u64) -> SharedBatch {
        SharedBatch { slot: Some(slot), returns: Some(returns), readers: Mutex::default(), wait_ns }
    }

    /// Its cursor, shape, layout and utterances.
    pub fn info(&self) -> &Arc<BatchInfo> {
        self.slot().payload()
    }

    /// How long the host waited for it.
    pub fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        match &self.returns {
            Some(returns) => &returns.device,
            None => unreachable!("only a drop takes it"),
        }
    }

    /// A field by its name in the schema; none if the schema has no such field.
    pub fn field(&self, name: &str) -> Option<BatchField<'_>> {
        BatchField::of(self.slot(), name)
    }

    /// Blocks the host until the batch is there: for readers on the host.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _thread = self.device().machine().enter_foreign_thread();
        self.slot().written().synchronize(waits::ARRIVED)
    }

    /// Makes the stream with this handle wait for the batch: work queued there from now on may read it. The slot is not reused
    /// before that work, as far as it is queued when the batch is dropped. The stream must exist until then.
    ///
    /// Fails with [`FeedError::CapturedReader`] if the stream is captured: a graph would replay with other batches in the slot.
    pub fn read_on(&self, handle: u64) -> Result<(), FeedError> {
        let _thread = self.device().machine().enter_foreign_thread();
        let stream = self.device().foreign_stream(handle);
        if stream.is_captured()? {
            return Err(FeedError::CapturedReader);
        }
        stream.wait(self.slot().written(), waits::ARRIVED)?;
        self.add_reader(handle);
        Ok(())
    }

    /// Adds a stream that reads the batch and has been made to wait for it by other means. It must exist until the batch is
    /// dropped.
    pub fn add_reader(&self, handle: u64) {
        // The default stream of a thread has one handle on every thread, and the batch may be dropped on another.
        let is_thread_default = handle == THREAD_DEFAULT_STREAM && self.device().machine().kind() == DeviceKind::Cuda;
        let handle = if is_thread_default { LEGACY_DEFAULT_STREAM } else { handle };
        let mut readers = lock(&self.readers);
        if !readers.contains(&handle) {
            readers.push(handle);
        }
    }

    fn slot(&self) -> &Slot {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("only a drop takes the slot"),
        }
    }
}

impl Drop for SharedBatch {
    fn drop(&mut self) {
        let (Some(slot), Some(returns)) = (self.slot.take(), self.returns.take()) else { return };
        let readers = std::mem::take(&mut *lock(&self.readers));
        let machine = returns.device.machine().clone();
        let _thread = machine.enter_foreign_thread();
        returns.release(slot, readers);
        // The last batch of a feed that is gone also closes the card: before the thread is given back.
        drop(returns);
    }
}
