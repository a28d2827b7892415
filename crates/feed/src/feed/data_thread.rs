//! The data thread: loaded batches become complete batches in slots of the data ring, in order.
//!
//! Loaded batches arrive in the order in which their last rows are done; this thread restores the order of the corpus. It
//! queues the upload on one stream, features and collating on another. On the host it waits only for the next loaded batch and
//! the next free slot. Self-tuning uses these two waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tandem_device::{Route, Stream};
use tandem_events::{Emitter, RunEvent, TimeSpan};

use super::rings::BatchFiller;
use crate::batch::info::{BatchInfo, Utterance};
use crate::collate::Collator;
use crate::error::FeedError;
use crate::featurize::on_device::FeatureMaker;
use crate::load::input::{BatchLayout, Input};
use crate::load::loaded::{LoadedBatch, LoadedRow, LoadedSlot, LoadedTaker};
use crate::tune::self_tuning::SelfTuning;
use crate::upload::uploader::{BatchDeviceTimes, Uploader};
use crate::waits;

/// The stages of the data device and their rings.
pub(crate) struct DataThread {
    pub(crate) input: Arc<Input>,
    pub(crate) loaded: LoadedTaker,
    pub(crate) uploader: Uploader,
    /// Shared with the start gate, which drains it once.
    pub(crate) stream: Arc<Stream>,
    pub(crate) features: FeatureMaker,
    pub(crate) collator: Collator,
    pub(crate) slots: BatchFiller,
    pub(crate) tuning: SelfTuning,
    pub(crate) emitter: Emitter,
}

/// Times of one stage for one batch.
struct StageTimes {
    ns: u64,
    busy_ns: u64,
    wait_ns: u64,
    spans: Vec<TimeSpan>,
}

impl From<TimeSpan> for StageTimes {
    fn from(span: TimeSpan) -> StageTimes {
        StageTimes { ns: span.ns, busy_ns: span.ns, wait_ns: 0, spans: vec![span] }
    }
}

impl DataThread {
    /// Runs until the feed ends. When it returns, no queued work uses the memory.
    pub(crate) fn run(mut self) -> Result<(), FeedError> {
        let outcome = self.make_all();
        // Both, even if the first fails: the other may still be running.
        let drained = [self.uploader.drain(), self.stream.drain()];
        outcome.and(drained.into_iter().collect::<Result<(), _>>().map_err(FeedError::from))
    }

    fn make_all(&mut self) -> Result<(), FeedError> {
        let mut early: BTreeMap<u64, LoadedSlot> = BTreeMap::new();
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

    fn make(&mut self, ready: LoadedSlot, load_wait_ns: u64) -> Result<(), FeedError> {
        let input = Arc::clone(&self.input);
        let loaded = ready.payload();
        let layout = input.layout_of(&loaded.batch);
        let info = Arc::new(info_of(loaded, layout));
        let busy_ns = loaded.rows.iter().map(|row| row.busy_ns).sum();
        let load = StageTimes { ns: loaded.wall_ns, busy_ns, wait_ns: load_wait_ns, spans: Vec::new() };
        self.emit("load", info.sequence, load);
        while let Some(BatchDeviceTimes { batch, upload, features }) = self.uploader.take_times()? {
            self.emit("upload", batch, upload.into());
            self.emit("features", batch, features.into());
        }
        let uploaded = self.uploader.upload(ready, layout, &self.stream)?;
        let wait = if input.plan.route == Route::Handover { waits::RELEASED } else { waits::SENT };
        let slot = self.slots.take()?.claim(|freed| self.stream.wait(freed, wait))?;
        uploaded.begin(&self.stream)?;
        self.stream.queue_features(|stream| self.features.featurize(stream, &uploaded, slot.memory()))?;
        self.collator.collate(&self.stream, &uploaded, slot.memory())?;
        uploaded.consumed(&self.stream)?;
        slot.publish(info, |written| self.stream.record(written))?;
        self.tuning.count_batch(load_wait_ns, busy_ns, &self.slots);
        Ok(())
    }

    fn emit(&self, stage: &str, batch: u64, times: StageTimes) {
        let StageTimes { ns, busy_ns, wait_ns, spans } = times;
        self.emitter.emit(RunEvent::Stage { stage: stage.to_owned(), batch, ns, busy_ns, wait_ns, spans });
    }
}

fn info_of(loaded: &LoadedBatch, layout: &BatchLayout) -> BatchInfo {
    let utterance = |row: &LoadedRow| {
        let (frames, tokens) = (row.frames, row.tokens.len() as u32);
        row.sample.map(|sample| Utterance { sample, frames, tokens })
    };
    BatchInfo {
        sequence: loaded.sequence,
        cursor: loaded.batch.cursor,
        group: loaded.group,
        bucket_index: layout.index,
        bucket: layout.bucket.clone(),
        layout: Arc::clone(&layout.slot),
        utterances: loaded.rows.iter().map(utterance).collect(),
        replacements: loaded.rows.iter().filter_map(|row| row.replacement).collect(),
    }
}
