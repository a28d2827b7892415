//! Where the rows of every shape begin, on the data device: what kernels find their row with.
//!
//! Constants of the shapes, so they go up once, before the first batch. Not with every upload, small as they are: a
//! kernel that read them before they were there would write wherever they point.

use tandem_audio::Starts;
use tandem_device::{Arena, Block, Device, DeviceError, Stream};

use crate::batch::feed_plan::{FeedPlan, ROW_TABLES, UploadLayout};
use crate::load::input::BatchLayout;

/// The tables of all shapes.
pub(crate) struct RowTables {
    memory: Block,
    /// Where each shape's begin.
    offsets: Vec<u64>,
}

impl RowTables {
    /// Puts them into `arena`; they are there when it returns.
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
            for start in tables(&upload).into_iter().flatten() {
                all[end..end + 4].copy_from_slice(&start.to_le_bytes());
                end += 4;
            }
        }
        stream.upload(&host, 0..bytes, memory.view())?;
        stream.drain()?;
        Ok(RowTables { memory, offsets })
    }

    /// Where rows of `shape` begin: in samples as uploaded, in samples resampled, in frames.
    pub(crate) fn starts<'a>(&'a self, shape: &'a BatchLayout) -> [Starts<'a>; 3] {
        let mut offset = self.offsets[shape.index];
        tables(&shape.upload).map(|host| {
            let bytes = 4 * host.len() as u64;
            let device = self.memory.part(offset, bytes);
            offset += bytes;
            Starts { host, device }
        })
    }
}

fn tables(upload: &UploadLayout) -> [&[u32]; 3] {
    [&upload.audio_starts, &upload.resampled_starts, &upload.frame_starts]
}
