//! Copies loaded batches to the data device.
//!
//! One copy moves the pinned memory of a batch (samples row by row, then tables) to one of two blocks on the device. The
//! blocks alternate: one is filled while features are made from the other. The pinned memory is freed with the event
//! after which it may be written again.

use tandem_device::{Arena, Block, Device, DeviceError, Event, Stream, View};
use tandem_events::TimeSpan;

use super::row_tables::{RowStarts, RowTables};
use super::stopwatch::Stopwatches;
use crate::batch::feed_plan::{ByteSpan, FeedPlan, UPLOADS};
use crate::load::input::BatchLayout;
use crate::load::loaded::{AT_FEATURES_RATE, LoadedSlot};
use crate::waits;

/// Copies batches to the device, on its own stream.
pub(crate) struct Uploader {
    stream: Stream,
    blocks: Vec<UploadBlock>,
    next: usize,
    tables: RowTables,
    watches: Stopwatches<BatchTimers>,
}

struct UploadBlock {
    memory: Block,
    uploaded: Event,
    consumed: Event,
}

/// Timers around the work of one batch on the data device.
struct BatchTimers {
    upload: TimerPair,
    features: TimerPair,
}

struct TimerPair {
    began: Event,
    ended: Event,
}

/// When the data device worked on a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchDeviceTimes {
    pub(crate) batch: u64,
    pub(crate) upload: TimeSpan,
    pub(crate) features: TimeSpan,
}

/// A batch on the device, before its features. [`consumed`](Uploaded::consumed) must be called after its last use.
pub(crate) struct Uploaded<'a> {
    block: &'a UploadBlock,
    timers: &'a BatchTimers,
    pub(crate) layout: &'a BatchLayout,
    pub(crate) starts: RowStarts<'a>,
    /// Whether any of its rows has another rate than the features.
    pub(crate) is_resampled: bool,
}

/// Timed batches beside those in slots: the one being made, those being uploaded, those the step has queued ahead.
const SPARE_WATCHES: u64 = 8;

impl Uploader {
    /// Takes its blocks and the row tables from `arena`. The tables are uploaded when it returns.
    pub(crate) fn create(device: &Device, arena: &Arena, plan: &FeedPlan) -> Result<Uploader, DeviceError> {
        let stream = device.stream(false)?;
        let tables = RowTables::create(device, arena, &stream, plan)?;
        let block = |_| {
            let memory = arena.take(UPLOADS, plan.upload_bytes())?;
            // On a CPU this faults all pages in, so that none is faulted in during the run.
            stream.fill(memory.view(), 0)?;
            Ok::<_, DeviceError>(UploadBlock { memory, uploaded: device.event()?, consumed: device.event()? })
        };
        let blocks = (0..plan.uploads).map(block).collect::<Result<_, _>>()?;
        let pair = || Ok::<_, DeviceError>(TimerPair { began: device.timer()?, ended: device.timer()? });
        let watches = Stopwatches::new(plan.data_slots + plan.model_slots + SPARE_WATCHES, || {
            Ok(BatchTimers { upload: pair()?, features: pair()? })
        })?;
        Ok(Uploader { stream, blocks, next: 0, tables, watches })
    }

    /// Queues the copy of a loaded batch, and makes `reader` wait for it.
    pub(crate) fn upload<'a>(
        &'a mut self,
        ready: LoadedSlot,
        layout: &'a BatchLayout,
        reader: &Stream,
    ) -> Result<Uploaded<'a>, DeviceError> {
        // The host wrote it: no event to wait for.
        let host = ready.lease(|_| Ok::<_, DeviceError>(()))?;
        let next = self.next % self.blocks.len();
        self.next += 1;
        let is_resampled = host.payload().rows.iter().any(|row| row.rate != AT_FEATURES_RATE);
        let (block, timers) = (&self.blocks[next], self.watches.start(host.payload().sequence));
        self.stream.wait(&block.consumed, waits::CONSUMED)?;
        self.stream.record(&timers.upload.began)?;
        let Some(memory) = host.memory() else { unreachable!("the memory of a loaded batch is joined") };
        let bytes = layout.upload.bytes;
        self.stream.upload_batch(memory, 0..bytes, block.memory.part(0, bytes))?;
        self.stream.record(&timers.upload.ended)?;
        self.stream.record(&block.uploaded)?;
        host.release(|copied| self.stream.record(copied))?;
        reader.wait(&block.uploaded, waits::UPLOADED)?;
        let starts = self.tables.starts(layout);
        Ok(Uploaded { block, timers, layout, starts, is_resampled })
    }

    /// The times of the oldest batch that the device has finished and that was not taken before.
    pub(crate) fn take_times(&mut self) -> Result<Option<BatchDeviceTimes>, DeviceError> {
        let stopped = self.watches.take(|BatchTimers { upload, features }| match features.ended.reached()? {
            true => Ok(Some((upload.span()?, features.span()?))),
            false => Ok(None),
        })?;
        Ok(stopped.map(|(batch, (upload, features))| BatchDeviceTimes { batch, upload, features }))
    }

    /// Blocks the host until every queued copy is done.
    pub(crate) fn drain(&self) -> Result<(), DeviceError> {
        self.stream.drain()
    }
}

impl TimerPair {
    fn span(&self) -> Result<TimeSpan, DeviceError> {
        self.ended.span_since(&self.began)
    }
}

impl Uploaded<'_> {
    /// A part of its memory.
    pub(crate) fn part(&self, span: ByteSpan) -> View<'_> {
        self.block.memory.part(span.offset, span.bytes)
    }

    /// Marks on `reader` where the work on it starts.
    pub(crate) fn begin(&self, reader: &Stream) -> Result<(), DeviceError> {
        reader.record(&self.timers.features.began)
    }

    /// Marks on `reader` where its memory may be overwritten.
    pub(crate) fn consumed(&self, reader: &Stream) -> Result<(), DeviceError> {
        reader.record(&self.timers.features.ended)?;
        reader.record(&self.block.consumed)
    }
}
