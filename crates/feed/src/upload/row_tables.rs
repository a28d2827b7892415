//! Row starts of every shape, on the data device. Kernels find their row with them.
//!
//! They depend only on the shapes and are uploaded once, before the first batch. They are not part of every upload, although
//! they are small: a kernel that read them too early would write to wrong addresses.

use tandem_audio::Starts;
use tandem_device::{Arena, Block, Device, DeviceError, Stream};

use crate::batch::feed_plan::{FeedPlan, ROW_TABLES, UploadLayout};
use crate::load::input::BatchLayout;

/// The tables of all shapes.
pub(crate) struct RowTables {
    memory: Block,
    /// Byte offset of each shape's tables.
    offsets: Vec<u64>,
}

/// Row starts of one shape.
#[derive(Clone, Copy)]
pub(crate) struct RowStarts<'a> {
    /// In samples, as uploaded.
    pub(crate) audio: Starts<'a>,
    /// In samples, after resampling.
    pub(crate) resampled: Starts<'a>,
    pub(crate) frames: Starts<'a>,
}

impl RowTables {
    /// Uploads them into `arena`, and waits for the copy.
    pub(crate) fn create(
        device: &Device,
        arena: &Arena,
        stream: &Stream,
        plan: &FeedPlan,
    ) -> Result<RowTables, DeviceError> {
        let bytes = plan.row_table_bytes();
        let memory = arena.take(ROW_TABLES, bytes)?;
        let mut host = device.pinned(bytes)?;
        let all = host.bytes_mut()?;
        all.fill(0);
        let (mut offsets, mut end) = (Vec::with_capacity(plan.buckets.len()), 0);
        for upload in plan.buckets.iter().map(|bucket| plan.upload(bucket)) {
            offsets.push(end as u64);
            let UploadLayout { audio_starts, resampled_starts, frame_starts, .. } = &upload;
            for start in audio_starts.iter().chain(resampled_starts).chain(frame_starts) {
                all[end..end + 4].copy_from_slice(&start.to_le_bytes());
                end += 4;
            }
        }
        stream.upload(&host, 0..bytes, memory.view())?;
        stream.drain()?;
        Ok(RowTables { memory, offsets })
    }

    /// Row starts of a batch of `layout`.
    pub(crate) fn starts<'a>(&'a self, layout: &'a BatchLayout) -> RowStarts<'a> {
        let mut offset = self.offsets[layout.index];
        let mut next = |host: &'a [u32]| {
            let bytes = 4 * host.len() as u64;
            let device = self.memory.part(offset, bytes);
            offset += bytes;
            Starts { host, device }
        };
        let UploadLayout { audio_starts, resampled_starts, frame_starts, .. } = &layout.upload;
        RowStarts { audio: next(audio_starts), resampled: next(resampled_starts), frames: next(frame_starts) }
    }
}
