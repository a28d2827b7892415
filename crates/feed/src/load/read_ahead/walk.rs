//! The walk ahead of the row queue: fetches the recordings of rows in the order in which they will be asked for.

use std::sync::Arc;

use tandem_corpus::{Batch, Cursor, SampleIndex};

use super::window::{AddedFetch, ReadAheadWindow, RowPlace, WindowEntry};
use crate::load::context::LoadContext;
use crate::load::recordings::RecordingFetch;

/// Batches ahead of the row queue, at most: some seconds of training.
const MAX_BATCHES: u64 = 64;
/// After so many rows in a row whose recordings are on this machine, all of them are.
const LOCAL_ROWS: u64 = 4096;

/// A place in the order, ahead of the row queue.
pub(crate) struct ReadAheadWalk {
    context: Arc<LoadContext>,
    window: Arc<ReadAheadWindow>,
    /// The group of batches after that of `batch`.
    next_group: Cursor,
    next_sequence: u64,
    batch: Option<OpenBatchAhead>,
    /// The fetch of the next row, if it does not fit the window yet. It has asked for nothing.
    planned: Option<PlannedFetch>,
    num_local: u64,
}

/// A fetch and the sample that it is for.
type PlannedFetch = (SampleIndex, Box<dyn RecordingFetch>);

struct OpenBatchAhead {
    batch: Batch,
    sequence: u64,
    /// The next row.
    position: usize,
}

/// What a step of the walk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkStep {
    /// The row is fetched, or is none to fetch.
    Passed,
    /// Nothing: the window is full. With the number of its changes until then.
    Full { num_changes: u64 },
    /// Nothing, and never will: the feed ends, or all recordings are on this machine.
    Over,
}

impl ReadAheadWalk {
    /// Starts at the batches of `from`, as the row queue does.
    pub(crate) fn new(context: Arc<LoadContext>, window: Arc<ReadAheadWindow>, from: Cursor) -> ReadAheadWalk {
        ReadAheadWalk { context, window, next_group: from, next_sequence: 0, batch: None, planned: None, num_local: 0 }
    }

    /// How many batches a walk is ahead, at most. Never more than an epoch: an order prepares two epochs at a time.
    pub(crate) fn max_batches(batches_per_epoch: u64, world: u32) -> u64 {
        (batches_per_epoch / u64::from(world.max(1))).clamp(1, MAX_BATCHES)
    }

    /// Walks until the feed ends, or nothing is left to fetch.
    pub(crate) fn run(mut self) {
        loop {
            match self.step() {
                WalkStep::Passed => {}
                WalkStep::Full { num_changes } => self.window.wait_for_change(num_changes),
                WalkStep::Over => return,
            }
        }
    }

    /// One row, if the window has room for it.
    pub(crate) fn step(&mut self) -> WalkStep {
        let (place, row) = self.next_row();
        match self.window.entry(place) {
            (WindowEntry::Open, _) => {}
            (WindowEntry::TooLate, _) => return self.pass(),
            (WindowEntry::Closed, num_changes) => return WalkStep::Full { num_changes },
            (WindowEntry::Ended, _) => return WalkStep::Over,
        }
        if let Some((sample, fetch)) = self.planned.take().or_else(|| self.plan(place, row))
            && let AddedFetch::NoRoom { fetch, num_changes } = self.window.add(place, sample, fetch)
        {
            self.planned = Some((sample, fetch));
            return WalkStep::Full { num_changes };
        }
        self.pass()
    }

    /// The fetch of the recording of a row. None if there is none to fetch.
    fn plan(&mut self, place: RowPlace, row: SampleIndex) -> Option<PlannedFetch> {
        let context = &self.context;
        let Cursor { epoch, k } = self.batch.as_ref()?.batch.cursor;
        // A checkpoint's replacement is what the loader asks for first.
        let index = context.resumed.get(epoch, k, place.position).map_or(row, |replacement| replacement.sample);
        let sample = context.input.sample(index);
        if context.cache.holds(index, &sample.audio) {
            return None;
        }
        // The decode thread meets the same error, and knows what to do about it.
        let fetch = context.input.recordings.fetch(&sample).ok()?;
        self.num_local = if fetch.is_some() { 0 } else { self.num_local + 1 };
        Some((index, fetch?))
    }

    /// The row to fetch next.
    fn next_row(&mut self) -> (RowPlace, SampleIndex) {
        loop {
            let input = &self.context.input;
            let open = match &mut self.batch {
                Some(open) => open,
                None => {
                    let Some(batch) = input.order.shard_batch(self.next_group, input.shard) else {
                        unreachable!("the order is endless, and the rank is one of its world")
                    };
                    self.next_group = input.next_group(self.next_group);
                    self.next_sequence += 1;
                    self.batch.insert(OpenBatchAhead { batch, sequence: self.next_sequence - 1, position: 0 })
                }
            };
            match open.batch.rows.get(open.position) {
                Some(Some(sample)) => {
                    let place = RowPlace { sequence: open.sequence, position: open.position };
                    return (place, *sample);
                }
                Some(None) => open.position += 1,
                None => self.batch = None,
            }
        }
    }

    /// Leaves the row behind.
    fn pass(&mut self) -> WalkStep {
        self.planned = None;
        if let Some(open) = &mut self.batch {
            open.position += 1;
        }
        if self.num_local < LOCAL_ROWS { WalkStep::Passed } else { WalkStep::Over }
    }
}
