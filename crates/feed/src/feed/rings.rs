//! The rings of batches on the data device and on the model device, and the memory of their slots.

use std::sync::Arc;

use tandem_device::{Arena, Block, Device, DeviceError, Event};
use tandem_pipeline::{Filler, RingSlot, Taker};

use crate::batch::feed_plan::FeedPlan;
use crate::batch::info::BatchInfo;
use crate::load::loaded::UploadMemory;

/// The producer's end of a ring of batches.
pub(crate) type BatchFiller = Filler<Block, Arc<BatchInfo>, Event>;
/// The consumer's end of it.
pub(crate) type BatchTaker = Taker<Block, Arc<BatchInfo>, Event>;

/// The slots of the pinned ring.
pub(super) fn pinned_slots(
    device: &Device,
    plan: &FeedPlan,
) -> Result<Vec<RingSlot<UploadMemory, Event>>, DeviceError> {
    let slot = |_| {
        let memory = Some(device.pinned(plan.upload_bytes())?);
        Ok(RingSlot { memory, written: device.event()?, freed: device.event()? })
    };
    (0..plan.pinned_uploads).map(slot).collect()
}

/// `count` batch slots from `arena`, under the name `owner`.
pub(super) fn batch_slots(
    arena: &Arena,
    owner: &'static str,
    count: u64,
    plan: &FeedPlan,
) -> Result<Vec<RingSlot<Block, Event>>, DeviceError> {
    let device = arena.device();
    let slot = |_| {
        let memory = arena.take_for_peer(owner, plan.slot_bytes())?;
        Ok(RingSlot { memory, written: device.event()?, freed: device.event()? })
    };
    (0..count).map(slot).collect()
}
