//! A batch leased to another program: it reads the batch on streams of its own, which it names one by one, and drops it on any
//! thread.
//!
//! A reader comes with a stream: that stream waits for the batch, and the slot becomes free only after the work that is queued
//! there when the batch is dropped. The host waits for neither. A reader without a stream of its own (the CPU, or one that says
//! that it synchronises by itself) has read the batch when it drops it.

use std::sync::{Arc, Mutex, PoisonError};

use tandem_device::{Block, Device, DeviceError, DeviceKind, Event, Stream};
use tandem_pipeline::LeasedSlot;

use crate::batch::info::BatchInfo;
use crate::lease::BatchField;
use crate::waits;

/// CUDA's handle of the default stream of the calling thread.
const THREAD_DEFAULT_STREAM: u64 = 2;
/// CUDA's handle of the legacy default stream, which every default stream of a thread waits for, and which waits for them.
const LEGACY_DEFAULT_STREAM: u64 = 1;

/// A batch whose readers are streams of other libraries. Dropping it frees the slot once they are done.
pub struct SharedBatch {
    /// None only while it is dropped.
    slot: Option<LeasedSlot<Block, Arc<BatchInfo>, Event>>,
    /// The handles of the streams that read it.
    readers: Mutex<Vec<u64>>,
    returns: Arc<ReturnStream>,
    wait_ns: u64,
}

/// The stream on which batches with several readers are released.
pub(crate) struct ReturnStream {
    device: Device,
    stream: Stream,
}

impl ReturnStream {
    pub(crate) fn create(device: &Device) -> Result<ReturnStream, DeviceError> {
        Ok(ReturnStream { stream: device.stream(true)?, device: device.clone() })
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
    pub(crate) fn new(
        slot: LeasedSlot<Block, Arc<BatchInfo>, Event>,
        returns: Arc<ReturnStream>,
        wait_ns: u64,
    ) -> SharedBatch {
        SharedBatch { slot: Some(slot), readers: Mutex::default(), returns, wait_ns }
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
        &self.returns.device
    }

    /// A field by its name in the schema; none if the schema has no such field.
    pub fn field(&self, name: &str) -> Option<BatchField<'_>> {
        BatchField::of(self.slot(), name)
    }

    /// Blocks the host until the batch is there: for readers on the host.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.slot().written().synchronize(waits::ARRIVED)
    }

    /// Makes the stream with this handle wait for the batch: work queued there from now on may read it. The slot is not reused
    /// before that work, as far as it is queued when the batch is dropped.
    pub fn read_on(&self, handle: u64) -> Result<(), DeviceError> {
        let machine = self.returns.device.machine();
        let _thread = machine.enter_foreign_thread();
        self.returns.device.foreign_stream(handle).wait(self.slot().written(), waits::ARRIVED)?;
        self.add_reader(handle);
        Ok(())
    }

    /// Adds a stream that reads the batch and has been made to wait for it by other means.
    pub fn add_reader(&self, handle: u64) {
        // The default stream of a thread has one handle on every thread, and the batch may be dropped on another.
        let is_thread_default =
            handle == THREAD_DEFAULT_STREAM && self.returns.device.machine().kind() == DeviceKind::Cuda;
        let handle = if is_thread_default { LEGACY_DEFAULT_STREAM } else { handle };
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if !readers.contains(&handle) {
            readers.push(handle);
        }
    }

    fn slot(&self) -> &LeasedSlot<Block, Arc<BatchInfo>, Event> {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("only a drop takes the slot"),
        }
    }
}

impl Drop for SharedBatch {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let readers = std::mem::take(&mut *self.readers.lock().unwrap_or_else(PoisonError::into_inner));
        let _thread = self.returns.device.machine().enter_foreign_thread();
        // If an event cannot be recorded, the card is lost and the slot is never used again.
        let _ = slot.release(|freed| self.returns.record_after(&readers, freed));
    }
}
