//! Rows of batches, dealt to decode threads in order.
//!
//! In comes the order of the corpus, out go tasks: one row of one batch, with the page-locked memory its samples belong
//! into. A batch is opened when its memory is free, and that waiting is the back-pressure of everything behind. The
//! thread that brings the last row of a batch sends it on; so batches leave complete, and may leave out of order: as
//! many as there is memory for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_audio::NOT_CACHED;
use tandem_corpus::{Batch, Cursor, SampleIndex};
use tandem_device::{DeviceError, Event, Pinned, PinnedPart};
use tandem_pipeline::{Closed, Filler, FillingSlot};

use crate::error::FeedError;
use crate::load::bad_samples::Replacement;
use crate::load::input::Input;
use crate::upload::uploader::write_tables;
use crate::waits;

/// Page-locked memory of one batch. Empty while it is in parts, one per row.
pub(crate) type UploadMemory = Option<Pinned>;
/// The name of the ring between decoding and upload.
pub(crate) const PINNED_RING: &str = "pinned ring";
/// The ring between decoding and upload.
pub(crate) type HostFiller = Filler<UploadMemory, LoadedBatch, Event>;

/// A row to be loaded. Dropping it unfinished leaves its batch open for ever: only a feed that ends does.
pub(crate) struct Task {
    pub(crate) batch: Arc<OpenBatch>,
    pub(crate) position: usize,
    audio: PinnedPart,
}

/// A batch whose rows are being loaded.
pub(crate) struct OpenBatch {
    pub(crate) batch: Batch,
    sequence: u64,
    opened: Instant,
    filling: Mutex<Filling>,
}

struct Filling {
    slot: Option<FillingSlot<UploadMemory, LoadedBatch, Event>>,
    /// What follows the rows' samples.
    rest: Option<PinnedPart>,
    rows: Vec<Option<(LoadedRow, PinnedPart)>>,
    missing: usize,
}

/// The rate of a row that needs no resampling, as the kernels know it.
pub(crate) const AT_FEATURES_RATE: u32 = u32::MAX;

/// What is known of a row once it is loaded.
#[derive(Clone, Debug)]
pub(crate) struct LoadedRow {
    /// None where the row stays empty: everything else is 0 then.
    pub(crate) sample: Option<SampleIndex>,
    /// Samples as they were written, and as they are at the features' rate.
    pub(crate) in_samples: u32,
    pub(crate) out_samples: u32,
    /// Which of the plan's rates they are at, or [`AT_FEATURES_RATE`].
    pub(crate) rate: u32,
    pub(crate) frames: u32,
    /// Where its pitch is kept, or [`NOT_CACHED`].
    pub(crate) pitch_place: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) speaker: u32,
    /// Set when another sample stood here.
    pub(crate) replacement: Option<Replacement>,
    /// What loading took, the failed tries included.
    pub(crate) busy_ns: u64,
}

impl LoadedRow {
    /// Nothing: a row that an evaluation has no sample for.
    fn empty() -> LoadedRow {
        LoadedRow {
            sample: None,
            in_samples: 0,
            out_samples: 0,
            rate: AT_FEATURES_RATE,
            frames: 0,
            pitch_place: NOT_CACHED,
            tokens: Vec::new(),
            speaker: 0,
            replacement: None,
            busy_ns: 0,
        }
    }
}

/// A loaded batch: what its memory holds.
pub(crate) struct LoadedBatch {
    pub(crate) sequence: u64,
    pub(crate) batch: Batch,
    pub(crate) rows: Vec<LoadedRow>,
    /// From its opening to its last row.
    pub(crate) wall_ns: u64,
}

/// Deals tasks to whoever asks.
pub(crate) struct RowQueue {
    input: Arc<Input>,
    filler: HostFiller,
    dealing: Mutex<Dealing>,
    waited_ns: Arc<AtomicU64>,
}

struct Dealing {
    next: Cursor,
    sequence: u64,
    open: Option<Arc<OpenBatch>>,
    /// The rows that are left, with their memory, last row first.
    parts: Vec<(usize, PinnedPart)>,
}

impl RowQueue {
    /// What threads wait for memory, summed over threads, is added to `waited_ns`.
    pub(crate) fn new(input: Arc<Input>, filler: HostFiller, from: Cursor, waited_ns: Arc<AtomicU64>) -> RowQueue {
        let dealing = Dealing { next: from, sequence: 0, open: None, parts: Vec::new() };
        RowQueue { input, filler, dealing: Mutex::new(dealing), waited_ns }
    }

    /// The next row to load; waits for memory when the next batch has none. Fails with [`FeedError::Closed`] when the
    /// feed ends.
    pub(crate) fn deal(&self) -> Result<Task, FeedError> {
        let asked = Instant::now();
        // Held while waiting: the others have nothing to do until there is a batch. They wait for the lock, so the
        // waiting is counted here: the ring sees one thread only.
        let mut dealing = self.dealing.lock().unwrap_or_else(PoisonError::into_inner);
        if dealing.parts.is_empty() {
            self.open_next(&mut dealing)?;
        }
        self.waited_ns.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match (dealing.parts.pop(), &dealing.open) {
            (Some((position, audio)), Some(batch)) => Ok(Task { batch: Arc::clone(batch), position, audio }),
            _ => unreachable!("a batch that was opened has rows"),
        }
    }

    fn open_next(&self, dealing: &mut Dealing) -> Result<(), FeedError> {
        let mut slot = self.filler.take()?.claim(|copied| copied.synchronize(waits::COPIED))?;
        let batch = match self.input.order.batches_from(dealing.next).next() {
            Some(batch) => batch,
            None => unreachable!("the order has no end"),
        };
        let shape = self.input.shape_of(&batch);
        let cuts: Vec<u64> = shape.upload.audio_starts[1..].iter().map(|start| 2 * u64::from(*start)).collect();
        // Still in parts: a thread that failed let go of its row before it could close the ring.
        let Some(memory) = slot.memory_mut().take() else { return Err(Closed { name: PINNED_RING }.into()) };
        let mut parts = memory.split(&cuts)?;
        let rest = parts.pop();
        let mut rows: Vec<Option<(LoadedRow, PinnedPart)>> = Vec::with_capacity(parts.len());
        dealing.parts.clear();
        for (position, (part, sample)) in parts.into_iter().zip(&batch.rows).enumerate() {
            match sample {
                Some(_) => {
                    rows.push(None);
                    dealing.parts.push((position, part));
                }
                None => rows.push(Some((LoadedRow::empty(), part))),
            }
        }
        dealing.parts.reverse();
        let filling = Filling { slot: Some(slot), rest, rows, missing: dealing.parts.len() };
        dealing.next = self.input.order.after(batch.cursor);
        let (sequence, opened) = (dealing.sequence, Instant::now());
        dealing.sequence += 1;
        dealing.open = Some(Arc::new(OpenBatch { batch, sequence, opened, filling: Mutex::new(filling) }));
        Ok(())
    }

    /// Takes a loaded row; with the last one of its batch, sends the batch on.
    pub(crate) fn finish(&self, task: Task, row: LoadedRow) -> Result<(), FeedError> {
        let open = task.batch;
        let mut filling = open.filling.lock().unwrap_or_else(PoisonError::into_inner);
        filling.rows[task.position] = Some((row, task.audio));
        filling.missing -= 1;
        if filling.missing > 0 {
            return Ok(());
        }
        let (rows, mut parts): (Vec<LoadedRow>, Vec<PinnedPart>) = filling.rows.drain(..).flatten().unzip();
        let (Some(mut rest), Some(mut slot)) = (filling.rest.take(), filling.slot.take()) else {
            unreachable!("a batch is finished once")
        };
        drop(filling);
        write_tables(&self.input, &open.batch, &rows, rest.bytes_mut());
        parts.push(rest);
        *slot.memory_mut() = Some(Pinned::rejoin(parts));
        let wall_ns = open.opened.elapsed().as_nanos() as u64;
        let loaded = LoadedBatch { sequence: open.sequence, batch: open.batch.clone(), rows, wall_ns };
        // The host wrote it, and the ring's lock orders host and host.
        slot.publish(loaded, |_| Ok::<_, DeviceError>(()))?;
        Ok(())
    }
}

impl Task {
    /// Where the row's samples go.
    pub(crate) fn samples_mut(&mut self) -> &mut [i16] {
        bytemuck::cast_slice_mut(self.audio.bytes_mut())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tandem_corpus::{Dataset, OpenOptions};
    use tandem_device::{Machine, Route};
    use tandem_pipeline::{RingSlot, ring};

    use super::*;
    use crate::fixture::FeedFolder;
    use crate::{FeedPlan, FromFiles, SPEECH, TrainingSet, TrainingSetOptions};

    /// Batches of one row of a list; no recording is there.
    fn input(list: &Path) -> Arc<Input> {
        let dataset = Arc::new(Dataset::open(list, &OpenOptions::default()).unwrap());
        let rows = dataset.train_rows();
        let material = Arc::new(TrainingSet::survey(dataset, &rows, &TrainingSetOptions::default()).unwrap());
        let buckets = material.bucket_plan(1, 1).unwrap();
        let plan = FeedPlan {
            schema: SPEECH,
            buckets: buckets.buckets().to_vec(),
            route: Route::Handover,
            data_slots: 1,
            model_slots: 1,
            rates_hz: Vec::new(),
            uploads: 2,
            pinned_uploads: 2,
            table_bytes: material.table_bytes(),
            kept_pitches: 0,
        };
        Arc::new(Input::new(material, (&buckets, false), plan, 7, Arc::new(FromFiles)).unwrap())
    }

    #[test]
    fn a_row_that_was_given_up_ends_whoever_finds_its_memory() {
        let folder = FeedFolder::new("order");
        let row = |i: u32| format!("{{\"audio_filepath\":\"{i}.wav\",\"text\":\"a\",\"duration\":1.0}}\n");
        folder.write("list.jsonl", (0..8).map(row).collect::<String>());
        let input = input(&folder.path().join("list.jsonl"));
        let device = Machine::cpu().open(0).unwrap();
        let slot = |_| RingSlot {
            memory: Some(device.pinned(input.plan.upload_bytes()).unwrap()),
            written: device.event().unwrap(),
            freed: device.event().unwrap(),
        };
        let (filler, taker) = ring(PINNED_RING, (0..2).map(slot));
        let dealer = RowQueue::new(Arc::clone(&input), filler, Cursor::START, Arc::default());
        let (given_up, in_hand) = (dealer.deal().unwrap(), dealer.deal().unwrap());
        // Its batch has no other row, and another batch is open: the slot goes home, its memory in parts.
        drop(given_up);
        assert!(matches!(dealer.deal(), Err(FeedError::Closed(_))));
        drop((in_hand, taker));
    }
}
