//! Rows of batches, dealt to decode threads in order.
//!
//! In comes the order of the corpus, out go tasks: one row of one batch, with the page-locked memory its samples belong
//! into. A batch is opened when its memory is free, and that waiting is the back-pressure of everything behind. The
//! thread that brings the last row of a batch sends it on; so batches leave complete, and may leave out of order: as
//! many as there is memory for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_corpus::{Batch, Cursor, SampleIndex};
use tandem_device::{DeviceError, Event, Pinned, PinnedPart};
use tandem_pipeline::{Filler, FillingSlot};

use crate::bad_samples::Replacement;
use crate::error::FeedError;
use crate::input::Input;
use crate::upload::write_tables;
use crate::waits;

/// Page-locked memory of one batch. Empty while it is in parts, one per row.
pub(crate) type HostMemory = Option<Pinned>;
/// The ring between decoding and upload.
pub(crate) type HostFiller = Filler<HostMemory, Loaded, Event>;

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
    slot: Option<FillingSlot<HostMemory, Loaded, Event>>,
    /// What follows the rows' samples.
    rest: Option<PinnedPart>,
    rows: Vec<Option<(Row, PinnedPart)>>,
    missing: usize,
}

/// What is known of a row once it is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) sample: SampleIndex,
    /// Samples as they were written, and as they are at the features' rate.
    pub(crate) in_samples: u32,
    pub(crate) out_samples: u32,
    /// Which of the plan's rates they are at; `u32::MAX` for the features' own.
    pub(crate) rate: u32,
    pub(crate) frames: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) speaker: u32,
    /// Set when another sample stood here.
    pub(crate) replacement: Option<Replacement>,
    /// What loading took, the failed tries included.
    pub(crate) busy_ns: u64,
}

/// A loaded batch: what its memory holds.
pub(crate) struct Loaded {
    pub(crate) sequence: u64,
    pub(crate) batch: Batch,
    pub(crate) rows: Vec<Row>,
    /// From its opening to its last row.
    pub(crate) wall_ns: u64,
}

/// Deals tasks to whoever asks.
pub(crate) struct Dealer {
    input: Arc<Input>,
    filler: HostFiller,
    dealing: Mutex<Dealing>,
    /// Summed over threads: one waits for memory, the others for that one.
    room_wait_ns: AtomicU64,
}

struct Dealing {
    next: Cursor,
    sequence: u64,
    open: Option<Arc<OpenBatch>>,
    /// The rows' memory that is left, last row first.
    parts: Vec<PinnedPart>,
}

impl Dealer {
    pub(crate) fn new(input: Arc<Input>, filler: HostFiller, from: Cursor) -> Dealer {
        let dealing = Dealing { next: from, sequence: 0, open: None, parts: Vec::new() };
        Dealer { input, filler, dealing: Mutex::new(dealing), room_wait_ns: AtomicU64::new(0) }
    }

    /// The next row to load; waits for memory when the next batch has none. Fails with [`FeedError::Closed`] when the
    /// feed ends.
    pub(crate) fn deal(&self) -> Result<Task, FeedError> {
        let asked = Instant::now();
        let task = self.deal_when_there_is_room();
        self.room_wait_ns.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        task
    }

    /// What all threads together have waited for room so far.
    pub(crate) fn room_wait_ns(&self) -> u64 {
        self.room_wait_ns.load(Ordering::Relaxed)
    }

    fn deal_when_there_is_room(&self) -> Result<Task, FeedError> {
        // Held while waiting: the others have nothing to do until there is a batch.
        let mut dealing = self.dealing.lock().unwrap_or_else(PoisonError::into_inner);
        if dealing.parts.is_empty() {
            self.open_next(&mut dealing)?;
        }
        match (dealing.parts.pop(), &dealing.open) {
            (Some(audio), Some(batch)) => {
                let position = batch.batch.samples.len() - 1 - dealing.parts.len();
                Ok(Task { batch: Arc::clone(batch), position, audio })
            }
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
        let row_bytes = 2 * shape.upload.stride_samples;
        let cuts: Vec<u64> = (1..=batch.samples.len() as u64).map(|row| row * row_bytes).collect();
        let Some(memory) = slot.memory_mut().take() else { unreachable!("memory in parts goes home whole") };
        let mut parts = memory.split(&cuts)?;
        let rest = parts.pop();
        parts.reverse();
        let filling = Filling {
            slot: Some(slot),
            rest,
            rows: batch.samples.iter().map(|_| None).collect(),
            missing: batch.samples.len(),
        };
        dealing.parts = parts;
        dealing.next = self.input.order.after(batch.cursor);
        let (sequence, opened) = (dealing.sequence, Instant::now());
        dealing.sequence += 1;
        dealing.open = Some(Arc::new(OpenBatch { batch, sequence, opened, filling: Mutex::new(filling) }));
        Ok(())
    }

    /// Takes a loaded row; with the last one of its batch, sends the batch on.
    pub(crate) fn finish(&self, task: Task, row: Row) -> Result<(), FeedError> {
        let open = task.batch;
        let mut filling = open.filling.lock().unwrap_or_else(PoisonError::into_inner);
        filling.rows[task.position] = Some((row, task.audio));
        filling.missing -= 1;
        if filling.missing > 0 {
            return Ok(());
        }
        let (rows, mut parts): (Vec<Row>, Vec<PinnedPart>) = filling.rows.drain(..).flatten().unzip();
        let (Some(mut rest), Some(mut slot)) = (filling.rest.take(), filling.slot.take()) else {
            unreachable!("a batch is finished once")
        };
        drop(filling);
        write_tables(&self.input, &open.batch, &rows, rest.bytes_mut());
        parts.push(rest);
        *slot.memory_mut() = Some(Pinned::rejoin(parts));
        let wall_ns = open.opened.elapsed().as_nanos() as u64;
        let loaded = Loaded { sequence: open.sequence, batch: open.batch.clone(), rows, wall_ns };
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
