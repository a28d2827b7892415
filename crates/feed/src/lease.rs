//! The last stage: a batch leased to a stream of the consumer.

use std::sync::Arc;

use tandem_device::{Block, DType, DeviceError, Event, Stream, View};
use tandem_pipeline::LeasedSlot;

use crate::batch::info::BatchInfo;
use crate::batch::schema::Placed;

/// A leased batch. Holding one means that work queued on its stream may read the batch.
///
/// Dropping it frees the slot once the work queued on that stream so far is done. If recording that event fails, the card is
/// lost and the slot is never used again.
pub struct DeviceBatch<'s> {
    /// None only during release.
    slot: Option<LeasedSlot<Block, Arc<BatchInfo>, Event>>,
    stream: &'s Stream,
    wait_ns: u64,
}

/// A field of a batch: memory, element type and shape. Enough to wrap it as a tensor of another framework.
#[derive(Clone, Debug)]
pub struct BatchField<'a> {
    /// The memory.
    pub view: View<'a>,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, outermost first; contiguous.
    pub shape: &'a [u64],
}

impl<'a> BatchField<'a> {
    /// A field of the batch in a slot.
    pub(crate) fn of(slot: &'a LeasedSlot<Block, Arc<BatchInfo>, Event>, name: &str) -> Option<BatchField<'a>> {
        let placed: &Placed = slot.payload().layout.fields.iter().find(|placed| placed.field.name == name)?;
        let view = slot.memory().part(placed.offset, placed.bytes);
        Some(BatchField { view, dtype: placed.field.dtype, shape: &placed.shape })
    }
}

impl<'s> DeviceBatch<'s> {
    pub(crate) fn new(
        slot: LeasedSlot<Block, Arc<BatchInfo>, Event>,
        stream: &'s Stream,
        wait_ns: u64,
    ) -> DeviceBatch<'s> {
        DeviceBatch { slot: Some(slot), stream, wait_ns }
    }

    /// Its cursor, shape, layout and utterances.
    pub fn info(&self) -> &Arc<BatchInfo> {
        self.slot().payload()
    }

    /// How long the host waited for it.
    pub fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// All of its memory: the fields, and the gaps between them.
    pub fn memory(&self) -> View<'_> {
        self.slot().memory().part(0, self.info().layout.bytes)
    }

    /// A part of its memory.
    pub fn part(&self, offset: u64, bytes: u64) -> View<'_> {
        self.slot().memory().part(offset, bytes)
    }

    /// A field by its name in the schema; none if the schema has no such field.
    pub fn field(&self, name: &str) -> Option<BatchField<'_>> {
        BatchField::of(self.slot(), name)
    }

    /// Frees the slot once the work queued on `reader` so far is done: for a reader other than the stream of the lease.
    pub fn release(mut self, reader: &Stream) -> Result<(), DeviceError> {
        self.free_slot(reader)
    }

    fn free_slot(&mut self, reader: &Stream) -> Result<(), DeviceError> {
        match self.slot.take() {
            Some(slot) => slot.release(|freed| reader.record(freed)),
            None => Ok(()),
        }
    }

    fn slot(&self) -> &LeasedSlot<Block, Arc<BatchInfo>, Event> {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("a released batch is consumed"),
        }
    }
}

impl Drop for DeviceBatch<'_> {
    fn drop(&mut self) {
        // The step's kernels are queued, not done: the next copy waits for them on the device, the host does not.
        let _ = self.free_slot(self.stream);
    }
}
