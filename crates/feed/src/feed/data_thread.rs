//! The thread of the data device: loaded batches become whole batches in slots, in order.
//!
//! In come loaded batches, in whatever order their last rows came; out go batches in the order of the corpus. Between
//! them: upload on one stream, features and collating on another, nothing waited for on the host but the next loaded
//! batch and the next free slot. Those two waits are what self-tuning looks at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tandem_corpus::Cursor;
use tandem_device::{Block, Event, Route, Slow, Stream};
use tandem_events::{Emitter, RunEvent, TimeSpan};
use tandem_pipeline::{Filler, ReadySlot, Taker};

use crate::batch::schema::Layout;
use crate::batch::shape::Bucket;
use crate::collate::Collator;
use crate::error::FeedError;
use crate::featurize::on_device::FeatureMaker;
use crate::feed::injected_delays::InjectedDelays;
use crate::load::bad_samples::Replacement;
use crate::load::input::Input;
use crate::load::row_queue::{AT_FEATURES_RATE, LoadedBatch, LoadedRow, UploadMemory};
use crate::tune::self_tuning::SelfTuning;
use crate::upload::row_tables::RowTables;
use crate::upload::uploader::{BatchDeviceTimes, Uploader};
use crate::waits;

/// What is known of a batch that is in a slot.
#[derive(Clone, Debug)]
pub struct BatchInfo {
    /// Its number since the feed started, from 0.
    pub sequence: u64,
    /// Its place in the order.
    pub cursor: Cursor,
    /// Which of the plan's buckets it has, from 0.
    pub bucket_index: usize,
    /// That bucket: where each row's frames and tokens begin.
    pub bucket: Bucket,
    /// Where its fields lie.
    pub layout: Arc<Layout>,
    /// Its utterances, row by row; none in a row that an evaluation leaves empty.
    pub utterances: Vec<Option<Utterance>>,
    /// The rows in which another sample stands than the order says.
    pub replacements: Vec<Replacement>,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utterance {
    /// Which sample it is.
    pub sample: tandem_corpus::SampleIndex,
    /// Its frames, without padding.
    pub frames: u32,
    /// Its tokens, without padding.
    pub tokens: u32,
}

/// The ring of batches on the data device, and of those on the model device.
pub(crate) type BatchFiller = Filler<Block, Arc<BatchInfo>, Event>;
/// The other end of it.
pub(crate) type BatchTaker = Taker<Block, Arc<BatchInfo>, Event>;

/// Everything the data thread works with.
pub(crate) struct DataSide {
    pub(crate) input: Arc<Input>,
    pub(crate) loaded: Taker<UploadMemory, LoadedBatch, Event>,
    pub(crate) uploader: Uploader,
    /// Shared with the gate, which waits for it once.
    pub(crate) stream: Arc<Stream>,
    pub(crate) tables: RowTables,
    pub(crate) features: FeatureMaker,
    pub(crate) collator: Collator,
    pub(crate) slots: BatchFiller,
    pub(crate) tuning: SelfTuning,
    pub(crate) injected_delays: InjectedDelays,
    pub(crate) emitter: Emitter,
}

impl DataSide {
    /// Works until the feed ends. The memory goes home when this returns: nothing is at work in it then.
    pub(crate) fn run(mut self) -> Result<(), FeedError> {
        let outcome = self.work();
        // Both, whatever the first one says: the other may still be at work.
        let drained = [self.uploader.drain(), self.stream.drain()];
        outcome.and(drained.into_iter().collect::<Result<(), _>>().map_err(FeedError::from))
    }

    fn work(&mut self) -> Result<(), FeedError> {
        let mut early: BTreeMap<u64, ReadySlot<UploadMemory, LoadedBatch, Event>> = BTreeMap::new();
        for sequence in 0.. {
            let waiting = Instant::now();
            while !early.contains_key(&sequence) {
                let Some(ready) = self.loaded.take() else { return Ok(()) };
                early.insert(ready.payload().sequence, ready);
            }
            let waited_ns = waiting.elapsed().as_nanos() as u64;
            if let Some(ready) = early.remove(&sequence) {
                self.make(ready, waited_ns)?;
            }
        }
        Ok(())
    }

    fn make(&mut self, ready: ReadySlot<UploadMemory, LoadedBatch, Event>, load_wait_ns: u64) -> Result<(), FeedError> {
        let input = Arc::clone(&self.input);
        let loaded = ready.payload();
        let shape = input.shape_of(&loaded.batch);
        let info = Arc::new(info_of(loaded, &shape.bucket, &shape.slot));
        let is_resampled = loaded.rows.iter().any(|row| row.rate != AT_FEATURES_RATE);
        let busy_ns = loaded.rows.iter().map(|row| row.busy_ns).sum();
        self.tell("load", info.sequence, [loaded.wall_ns, busy_ns, load_wait_ns], Vec::new());
        while let Some(BatchDeviceTimes { batch, upload, features }) = self.uploader.take_times()? {
            self.tell("upload", batch, [upload.ns, upload.ns, 0], vec![upload]);
            self.tell("features", batch, [features.ns, features.ns, 0], vec![features]);
        }
        self.injected_delays.delay_upload(self.uploader.stream(), info.sequence)?;
        let uploaded = self.uploader.upload(ready, shape, &self.stream)?;
        self.injected_delays.delay_features(&self.stream, info.sequence)?;
        let site = if input.plan.route == Route::Handover { waits::RELEASED } else { waits::SENT };
        let slot = self.slots.take()?.claim(|freed| self.stream.wait(freed, site))?;
        uploaded.begin(&self.stream)?;
        let rows = (shape, &self.tables);
        // More than once only where slow features are planted.
        for _ in 0..input.plant.times(Slow::Features) {
            self.features.featurize(&self.stream, (&uploaded, is_resampled), rows, slot.memory())?;
        }
        self.collator.collate(&self.stream, &uploaded, rows, slot.memory())?;
        uploaded.consumed(&self.stream)?;
        slot.publish(info, |written| self.stream.record(written))?;
        self.tuning.made_one(load_wait_ns, busy_ns, &self.slots);
        Ok(())
    }

    fn tell(&self, stage: &str, batch: u64, [ns, busy_ns, wait_ns]: [u64; 3], spans: Vec<TimeSpan>) {
        self.emitter.emit(RunEvent::Stage { stage: stage.to_owned(), batch, ns, busy_ns, wait_ns, spans });
    }
}

fn info_of(loaded: &LoadedBatch, bucket: &Bucket, layout: &Arc<Layout>) -> BatchInfo {
    let utterance = |row: &LoadedRow| {
        let (frames, tokens) = (row.frames, row.tokens.len() as u32);
        row.sample.map(|sample| Utterance { sample, frames, tokens })
    };
    BatchInfo {
        sequence: loaded.sequence,
        cursor: loaded.batch.cursor,
        bucket_index: loaded.batch.bucket,
        bucket: bucket.clone(),
        layout: Arc::clone(layout),
        utterances: loaded.rows.iter().map(utterance).collect(),
        replacements: loaded.rows.iter().filter_map(|row| row.replacement).collect(),
    }
}
