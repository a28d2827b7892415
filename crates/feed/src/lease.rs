//! A batch in the hands of the step.

use std::sync::Arc;

use tandem_device::{Block, DType, DeviceError, Event, Stream, View};
use tandem_pipeline::LeasedSlot;

use crate::batch::schema::Placed;
use crate::feed::data_thread::BatchInfo;

/// Holding one of these means that work queued on its stream may read the batch.
///
/// Dropping it gives the slot back with the event behind the work queued on that stream so far; if even that fails, the
/// card is lost, and the slot is never used again.
pub struct DeviceBatch<'s> {
    /// Gone only while it is given back.
    slot: Option<LeasedSlot<Block, Arc<BatchInfo>, Event>>,
    stream: &'s Stream,
    wait_ns: u64,
}

/// A field of a batch: where it is, what it is. Enough to hand it to another framework as a tensor.
#[derive(Clone, Debug)]
pub struct BatchField<'a> {
    /// The memory.
    pub view: View<'a>,
    /// What its elements are.
    pub dtype: DType,
    /// Its shape, outermost first; rows follow each other without gaps.
    pub shape: &'a [u64],
}

impl<'s> DeviceBatch<'s> {
    pub(crate) fn new(
        slot: LeasedSlot<Block, Arc<BatchInfo>, Event>,
        stream: &'s Stream,
        wait_ns: u64,
    ) -> DeviceBatch<'s> {
        DeviceBatch { slot: Some(slot), stream, wait_ns }
    }

    /// What is known of it.
    pub fn info(&self) -> &Arc<BatchInfo> {
        self.slot().payload()
    }

    /// How long the host waited for it.
    pub fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// All of its memory: every field, and the gaps between them.
    pub fn memory(&self) -> View<'_> {
        self.slot().memory().part(0, self.info().layout.bytes)
    }

    /// A part of its memory.
    pub fn part(&self, offset: u64, bytes: u64) -> View<'_> {
        self.slot().memory().part(offset, bytes)
    }

    /// A field by its name in the schema; none when the schema has none of that name.
    pub fn field(&self, name: &str) -> Option<BatchField<'_>> {
        let placed: &Placed = self.info().layout.fields.iter().find(|placed| placed.field.name == name)?;
        let view = self.slot().memory().part(placed.offset, placed.bytes);
        Some(BatchField { view, dtype: placed.field.dtype, shape: &placed.shape })
    }

    /// Gives the slot back once `reader` has come so far: for a reader other than the stream of the lease.
    pub fn release(mut self, reader: &Stream) -> Result<(), DeviceError> {
        self.give_back(reader)
    }

    fn give_back(&mut self, reader: &Stream) -> Result<(), DeviceError> {
        match self.slot.take() {
            Some(slot) => slot.release(|freed| reader.record(freed)),
            None => Ok(()),
        }
    }

    fn slot(&self) -> &LeasedSlot<Block, Arc<BatchInfo>, Event> {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("a batch that was given back is gone"),
        }
    }
}

impl Drop for DeviceBatch<'_> {
    fn drop(&mut self) {
        // The step's kernels are queued, not done: the next copy must wait for them, we must not.
        let _ = self.give_back(self.stream);
    }
}
