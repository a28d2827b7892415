//! The rows of batches, in order, for decode threads to load.
//!
//! A task is one row of one batch, with the pinned memory for its samples. A batch is opened when a slot of the pinned
//! ring is free; waiting for that slot is the back-pressure of all later stages. The thread that finishes the last row of a
//! batch publishes it. Batches are therefore published complete, and possibly out of order: as many as the ring has slots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_corpus::{Batch, Cursor, SampleIndex};
use tandem_device::{DeviceError, Event, Pinned, PinnedPart};
use tandem_pipeline::{Closed, FillingSlot};

use super::input::Input;
use super::loaded::{LoadedBatch, LoadedFiller, LoadedRow, PINNED_RING, UploadMemory};
use super::read_ahead::{AheadRecording, ReadAheadWindow, RowPlace};
use crate::error::FeedError;
use crate::upload::tables::write_tables;
use crate::waits;

/// A row to load. A task that is dropped unfinished leaves its batch open: this happens only if the feed ends.
pub(crate) struct LoadTask {
    pub(crate) batch: Arc<OpenBatch>,
    pub(crate) position: usize,
    audio: PinnedPart,
    /// Its recording, if it was fetched ahead.
    ahead: Option<AheadRecording>,
}

/// A batch whose rows are being loaded.
pub(crate) struct OpenBatch {
    pub(crate) batch: Batch,
    group: Cursor,
    sequence: u64,
    opened: Instant,
    filling: Mutex<Filling>,
}

struct Filling {
    slot: Option<FillingSlot<UploadMemory, LoadedBatch, Event>>,
    /// The memory after the rows' samples, for the tables.
    tables: Option<PinnedPart>,
    rows: Vec<Option<FinishedRow>>,
    missing: usize,
}

struct FinishedRow {
    row: LoadedRow,
    audio: PinnedPart,
}

/// The queue of rows. Shared by all decode threads.
pub(crate) struct RowQueue {
    input: Arc<Input>,
    filler: LoadedFiller,
    state: Mutex<QueueState>,
    waited_ns: Arc<AtomicU64>,
    /// Where recordings that were fetched ahead wait for their rows.
    read_ahead: Option<Arc<ReadAheadWindow>>,
}

struct QueueState {
    /// The next group of batches, of which this rank takes one.
    next: Cursor,
    sequence: u64,
    open: Option<Arc<OpenBatch>>,
    /// The remaining rows of the open batch, last row first.
    pending: Vec<PendingRow>,
}

struct PendingRow {
    position: usize,
    audio: PinnedPart,
}

impl RowQueue {
    /// Starts at `from`. Adds the time threads wait for a slot, summed over threads, to `waited_ns`.
    pub(crate) fn new(input: Arc<Input>, filler: LoadedFiller, from: Cursor, waited_ns: Arc<AtomicU64>) -> RowQueue {
        let state = QueueState { next: from, sequence: 0, open: None, pending: Vec::new() };
        RowQueue { input, filler, state: Mutex::new(state), waited_ns, read_ahead: None }
    }

    /// The same with recordings that were fetched ahead.
    pub(crate) fn with_read_ahead(self, read_ahead: Option<Arc<ReadAheadWindow>>) -> RowQueue {
        RowQueue { read_ahead, ..self }
    }

    /// The next row to load. Opens the next batch when needed, and waits for a free slot then. Fails with
    /// [`FeedError::Closed`] when the feed ends.
    pub(crate) fn next(&self) -> Result<LoadTask, FeedError> {
        let asked = Instant::now();
        // The lock is held while waiting for a slot: the other threads have no rows to load until then. They wait for the
        // lock, so the wait is counted here; the ring sees one thread only.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pending.is_empty() {
            self.open_next(&mut state)?;
        }
        self.waited_ns.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match (state.pending.pop(), &state.open) {
            (Some(PendingRow { position, audio }), Some(batch)) => {
                let place = RowPlace { sequence: batch.sequence, position };
                let ahead = self.read_ahead.as_ref().and_then(|window| window.take(place));
                Ok(LoadTask { batch: Arc::clone(batch), position, audio, ahead })
            }
            _ => unreachable!("an open batch has rows"),
        }
    }

    fn open_next(&self, state: &mut QueueState) -> Result<(), FeedError> {
        let mut slot = self.filler.take()?.claim(|copied| copied.synchronize(waits::COPIED))?;
        let group = state.next;
        let batch = match self.input.order.shard_batch(group, self.input.shard) {
            Some(batch) => batch,
            None => unreachable!("the order is endless, and the rank is one of its world"),
        };
        let layout = self.input.layout_of(&batch);
        let cuts: Vec<u64> = layout.upload.audio_starts[1..].iter().map(|start| 2 * u64::from(*start)).collect();
        // Still split into rows: a thread failed and dropped its row before the ring was closed.
        let Some(memory) = slot.memory_mut().take() else { return Err(Closed { name: PINNED_RING }.into()) };
        let mut parts = memory.split(&cuts)?;
        let tables = parts.pop();
        let mut rows: Vec<Option<FinishedRow>> = Vec::with_capacity(parts.len());
        state.pending.clear();
        for (position, (audio, sample)) in parts.into_iter().zip(&batch.rows).enumerate() {
            match sample {
                Some(_) => {
                    rows.push(None);
                    state.pending.push(PendingRow { position, audio });
                }
                None => rows.push(Some(FinishedRow { row: LoadedRow::empty(), audio })),
            }
        }
        state.pending.reverse();
        let filling = Filling { slot: Some(slot), tables, rows, missing: state.pending.len() };
        state.next = self.input.next_group(group);
        let (sequence, opened) = (state.sequence, Instant::now());
        state.sequence += 1;
        state.open = Some(Arc::new(OpenBatch { batch, group, sequence, opened, filling: Mutex::new(filling) }));
        Ok(())
    }

    /// Takes back a loaded row. The last row of a batch publishes the batch.
    pub(crate) fn finish(&self, task: LoadTask, row: LoadedRow) -> Result<(), FeedError> {
        let open = task.batch;
        let mut filling = open.filling.lock().unwrap_or_else(PoisonError::into_inner);
        filling.rows[task.position] = Some(FinishedRow { row, audio: task.audio });
        filling.missing -= 1;
        if filling.missing > 0 {
            return Ok(());
        }
        let finished = filling.rows.drain(..).flatten().map(|finished| (finished.row, finished.audio));
        let (rows, mut parts): (Vec<LoadedRow>, Vec<PinnedPart>) = finished.unzip();
        let (Some(mut tables), Some(mut slot)) = (filling.tables.take(), filling.slot.take()) else {
            unreachable!("a batch is finished once")
        };
        drop(filling);
        write_tables(&self.input, &open.batch, &rows, tables.bytes_mut());
        parts.push(tables);
        *slot.memory_mut() = Some(Pinned::rejoin(parts));
        let wall_ns = open.opened.elapsed().as_nanos() as u64;
        let loaded =
            LoadedBatch { sequence: open.sequence, batch: open.batch.clone(), group: open.group, rows, wall_ns };
        // The host wrote it, and the ring's lock orders host threads: no event to record.
        slot.publish(loaded, |_| Ok::<_, DeviceError>(()))?;
        Ok(())
    }
}

impl LoadTask {
    /// The memory for the row's samples.
    pub(crate) fn samples_mut(&mut self) -> &mut [i16] {
        bytemuck::cast_slice_mut(self.audio.bytes_mut())
    }

    /// The recording of `sample`, if it was fetched ahead. That of another sample is given up: the row has a replacement.
    pub(crate) fn take_ahead(&mut self, sample: SampleIndex) -> Option<AheadRecording> {
        self.ahead.take().filter(|ahead| ahead.sample() == sample)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::Machine;
    use tandem_pipeline::{RingSlot, ring};

    use super::*;
    use crate::fixture::{FeedFolder, feed_spec};

    #[test]
    fn a_dropped_task_ends_the_thread_that_finds_its_memory() {
        let folder = FeedFolder::new("order");
        let row = |i: u32| format!("{{\"audio_filepath\":\"{i}.wav\",\"text\":\"a\",\"duration\":1.0}}\n");
        folder.write("list.jsonl", (0..8).map(row).collect::<String>());
        let spec = feed_spec(&folder.path().join("list.jsonl"));
        let input = Arc::new(Input::new(&spec).unwrap());
        let device = Machine::cpu().open(0).unwrap();
        let slot = |_| RingSlot {
            memory: Some(device.pinned(input.plan.upload_bytes()).unwrap()),
            written: device.event().unwrap(),
            freed: device.event().unwrap(),
        };
        let (filler, taker) = ring(PINNED_RING, (0..2).map(slot));
        let queue = RowQueue::new(Arc::clone(&input), filler, Cursor::START, Arc::default());
        let (dropped, in_hand) = (queue.next().unwrap(), queue.next().unwrap());
        // Its batch has no other row, and another batch is open: the slot is free again, with its memory still split.
        drop(dropped);
        assert!(matches!(queue.next(), Err(FeedError::Closed(_))));
        drop((in_hand, taker));
    }
}
