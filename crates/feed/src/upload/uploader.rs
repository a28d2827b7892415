//! A loaded batch crosses to the data device: one copy.
//!
//! In comes page-locked memory (samples row by row, and behind them small tables: lengths, tokens, speakers), out goes
//! the same on the device, in one of two blocks that take turns, so that one batch crosses while features are made of
//! the other. The page-locked memory goes home with the event after which it may be written again.

use tandem_corpus::Batch;
use tandem_device::{Arena, Block, Device, DeviceError, Event, Fault, Slow, Stream, View};
use tandem_events::TimeSpan;
use tandem_pipeline::ReadySlot;
use tandem_text::SymbolTable;

use crate::batch::feed_plan::{ByteSpan, FeedPlan, UPLOADS};
use crate::batch::shape::RowShape;
use crate::collate::reference_pick;
use crate::load::input::{BatchLayout, Input};
use crate::load::row_queue::{LoadedBatch, LoadedRow, UploadMemory};
use crate::upload::stopwatch::Stopwatches;
use crate::waits;

/// Copies batches up. Has a stream of its own.
pub(crate) struct Uploader {
    stream: Stream,
    blocks: Vec<UploadBlock>,
    turn: usize,
    watches: Stopwatches<Timers>,
    /// How often a batch is copied: once, unless slow copies are planted.
    times: u32,
}

struct UploadBlock {
    memory: Block,
    uploaded: Event,
    consumed: Event,
}

/// Beginning and end of what a batch has done to it on the data device.
struct Timers {
    upload: [Event; 2],
    features: [Event; 2],
}

/// When the data device was at a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchDeviceTimes {
    pub(crate) batch: u64,
    pub(crate) upload: TimeSpan,
    pub(crate) features: TimeSpan,
}

/// A batch on the device, before it is features. [`consumed`](Uploaded::consumed) must be called behind its last use.
pub(crate) struct Uploaded<'a> {
    block: &'a UploadBlock,
    timers: &'a Timers,
}

impl Uploader {
    pub(crate) fn create(device: &Device, arena: &Arena, plan: &FeedPlan) -> Result<Uploader, DeviceError> {
        let stream = device.stream(false)?;
        let block = |_| {
            let memory = arena.take(UPLOADS, plan.upload_bytes())?;
            // Where it lies in the host's memory it is all there from now on: none of it comes while the run goes on.
            stream.fill(memory.view(), 0)?;
            Ok::<_, DeviceError>(UploadBlock { memory, uploaded: device.event()?, consumed: device.event()? })
        };
        let blocks = (0..plan.uploads).map(block).collect::<Result<_, _>>()?;
        let pair = || Ok::<_, DeviceError>([device.timer()?, device.timer()?]);
        let watches = Stopwatches::new(plan.data_slots + plan.model_slots + SPARE_WATCHES, || {
            Ok(Timers { upload: pair()?, features: pair()? })
        })?;
        Ok(Uploader { stream, blocks, turn: 0, watches, times: Fault::from_env()?.times(Slow::Upload) })
    }

    /// Queues the copy of a loaded batch; `reader` waits for it. Returns what is known of the batch, and where it is.
    pub(crate) fn upload(
        &mut self,
        ready: ReadySlot<UploadMemory, LoadedBatch, Event>,
        shape: &BatchLayout,
        reader: &Stream,
    ) -> Result<Uploaded<'_>, DeviceError> {
        // The host wrote it: nothing to wait for.
        let host = ready.lease(|_| Ok::<_, DeviceError>(()))?;
        let turn = self.turn % self.blocks.len();
        self.turn += 1;
        let (block, timers) = (&self.blocks[turn], self.watches.start(host.payload().sequence));
        self.stream.wait(&block.consumed, waits::CONSUMED)?;
        self.stream.record(&timers.upload[0])?;
        let Some(memory) = host.memory() else { unreachable!("a loaded batch is whole") };
        let bytes = shape.upload.bytes;
        (0..self.times).try_for_each(|_| self.stream.upload(memory, 0..bytes, block.memory.part(0, bytes)))?;
        self.stream.record(&timers.upload[1])?;
        self.stream.record(&block.uploaded)?;
        host.release(|copied| self.stream.record(copied))?;
        reader.wait(&block.uploaded, waits::UPLOADED)?;
        Ok(Uploaded { block, timers })
    }
}

/// Batches under way beside those in slots: the one being made, those being uploaded, those the step has ahead of its device.
const SPARE_WATCHES: u64 = 8;

impl Uploader {
    /// When the device was at the oldest batch that it is done with, and that nobody asked about before.
    pub(crate) fn take_times(&mut self) -> Result<Option<BatchDeviceTimes>, DeviceError> {
        let stopped = self.watches.take(|timers| {
            let Timers { upload, features } = timers;
            match features[1].reached()? {
                true => Ok(Some((upload[1].span_since(&upload[0])?, features[1].span_since(&features[0])?))),
                false => Ok(None),
            }
        })?;
        Ok(stopped.map(|(batch, (upload, features))| BatchDeviceTimes { batch, upload, features }))
    }

    /// The stream it copies on.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Blocks the host until every copy queued so far is done.
    pub(crate) fn drain(&self) -> Result<(), DeviceError> {
        self.stream.drain()
    }
}

impl Uploaded<'_> {
    /// A part of it.
    pub(crate) fn part(&self, span: ByteSpan) -> View<'_> {
        self.block.memory.part(span.offset, span.bytes)
    }

    /// Marks on `reader` that the work on it begins.
    pub(crate) fn begin(&self, reader: &Stream) -> Result<(), DeviceError> {
        reader.record(&self.timers.features[0])
    }

    /// Marks on `reader` that nobody needs it any more.
    pub(crate) fn consumed(&self, reader: &Stream) -> Result<(), DeviceError> {
        reader.record(&self.timers.features[1])?;
        reader.record(&self.block.consumed)
    }
}

/// Writes what stands behind the samples of a batch: `rest` is its memory from the end of the last row on.
pub(crate) fn write_tables(input: &Input, batch: &Batch, rows: &[LoadedRow], rest: &mut [u8]) {
    let shape = input.shape_of(batch);
    let layout = &shape.upload;
    let base = layout.audio.bytes;
    let mut put = |span: ByteSpan, values: &mut dyn Iterator<Item = u32>| {
        let at = (span.offset - base) as usize;
        let words = rest[at..][..span.bytes as usize].chunks_exact_mut(4);
        words.zip(values).for_each(|(word, value)| word.copy_from_slice(&value.to_le_bytes()));
    };
    put(layout.in_lengths, &mut rows.iter().map(|row| row.in_samples));
    put(layout.out_lengths, &mut rows.iter().map(|row| row.out_samples));
    put(layout.rates, &mut rows.iter().map(|row| row.rate));
    if let Some(places) = layout.pitch_places {
        put(places, &mut rows.iter().map(|row| row.pitch_place));
    }
    let padded = |(row, room): (&LoadedRow, &RowShape)| {
        let mut ids = row.tokens.clone();
        ids.resize(room.tokens as usize, SymbolTable::PAD);
        ids
    };
    let small: [(Option<ByteSpan>, &mut dyn Iterator<Item = u32>); 4] = [
        (layout.text, &mut rows.iter().zip(shape.bucket.rows()).flat_map(padded)),
        (layout.text_lengths, &mut rows.iter().map(|row| row.tokens.len() as u32)),
        (layout.mel_lengths, &mut rows.iter().map(|row| row.frames)),
        (layout.speaker, &mut rows.iter().map(|row| row.speaker)),
    ];
    for (span, values) in small {
        if let Some(span) = span {
            put(span, values);
        }
    }
    if let Some(picks) = layout.picks {
        let pick = |position| reference_pick(input.seed, batch.cursor, rows, position);
        put(picks, &mut (0..rows.len()).flat_map(pick));
    }
}
