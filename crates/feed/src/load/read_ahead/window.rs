//! Fetches that wait for their rows, and the bytes they may take.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tandem_audio::Clip;
use tandem_corpus::{Sample, SampleIndex};

use crate::FeedError;
use crate::load::recordings::RecordingFetch;

/// What read-ahead holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadStats {
    /// The most bytes it may hold.
    pub budget_bytes: u64,
    /// Bytes on their way, here, or being decoded.
    pub bytes: u64,
    /// The most there ever were.
    pub peak_bytes: u64,
    /// Rows whose recordings were fetched ahead.
    pub fetched: u64,
    /// Fetches that did not fit the budget and were cancelled at once.
    pub cancelled: u64,
}

/// A row of the batches of a feed: rows are handed out in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowPlace {
    /// The number of its batch since the feed started, from 0.
    pub(crate) sequence: u64,
    /// The row of the batch.
    pub(crate) position: usize,
}

/// The fetches of rows that are not handed out yet.
///
/// Bytes count from the start of a fetch until its recording is decoded, and are never more than the budget.
pub(crate) struct ReadAheadWindow {
    budget_bytes: u64,
    max_batches: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<RowPlace, WaitingFetch>,
    /// Rows before this one are handed out.
    first: RowPlace,
    stats: ReadAheadStats,
    /// Goes up when rows are handed out and when bytes come back.
    num_changes: u64,
    has_ended: bool,
}

struct WaitingFetch {
    sample: SampleIndex,
    num_bytes: u64,
    fetch: Box<dyn RecordingFetch>,
}

/// Whether the fetch of a row may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowEntry {
    Open,
    /// Not before the window has changed: too many batches ahead, or too many bytes.
    Closed,
    /// The row is handed out already.
    TooLate,
    Ended,
}

/// What became of a fetch that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddedFetch {
    Waits,
    /// Cancelled: the bytes do not fit now.
    NoRoom,
    /// Cancelled: the bytes fit no window of this budget, or the row is handed out, or the feed ends.
    NotWanted,
}

impl ReadAheadWindow {
    /// A window of at most `budget_bytes`, and at most `max_batches` batches ahead of the row that is handed out.
    pub(crate) fn new(budget_bytes: u64, max_batches: u64) -> ReadAheadWindow {
        let stats = ReadAheadStats { budget_bytes, ..ReadAheadStats::default() };
        let state = Mutex::new(State { stats, ..State::default() });
        ReadAheadWindow { budget_bytes, max_batches, state, changed: Condvar::new() }
    }

    /// Hands out the row at `place`, with its fetch if there is one. Rows are handed out in order, each once.
    pub(crate) fn take(self: &Arc<Self>, place: RowPlace) -> Option<AheadRecording> {
        let mut state = self.lock();
        state.first = RowPlace { position: place.position + 1, ..place };
        let waiting = state.waiting.remove(&place);
        self.has_changed(state);
        waiting.map(|WaitingFetch { sample, num_bytes, fetch }| AheadRecording {
            sample,
            fetch,
            room: Room { window: Arc::clone(self), num_bytes },
        })
    }

    /// Whether the fetch of the row at `place`, of about `likely_bytes`, may start now. And the number of changes so far, to
    /// wait for the next.
    pub(super) fn entry(&self, place: RowPlace, likely_bytes: u64) -> (WindowEntry, u64) {
        let state = self.lock();
        let is_far = place.sequence > state.first.sequence.saturating_add(self.max_batches);
        // A likely size is no reason to wait for more room than there ever is.
        let has_room = state.stats.bytes.saturating_add(likely_bytes.min(self.budget_bytes)) <= self.budget_bytes;
        let entry = if state.has_ended {
            WindowEntry::Ended
        } else if place < state.first {
            WindowEntry::TooLate
        } else if is_far || !has_room {
            WindowEntry::Closed
        } else {
            WindowEntry::Open
        };
        (entry, state.num_changes)
    }

    /// Adds the fetch of the row at `place`, or cancels it.
    pub(super) fn add(&self, place: RowPlace, sample: SampleIndex, fetch: Box<dyn RecordingFetch>) -> AddedFetch {
        let num_bytes = fetch.num_bytes();
        let mut state = self.lock();
        let sum = state.stats.bytes.saturating_add(num_bytes);
        if state.has_ended || place < state.first || sum > self.budget_bytes {
            state.stats.cancelled += 1;
            let may_fit = !state.has_ended && place >= state.first && num_bytes <= self.budget_bytes;
            // Cancels outside the lock.
            drop(state);
            drop(fetch);
            return if may_fit { AddedFetch::NoRoom } else { AddedFetch::NotWanted };
        }
        state.stats.bytes = sum;
        state.stats.peak_bytes = state.stats.peak_bytes.max(sum);
        state.stats.fetched += 1;
        state.waiting.insert(place, WaitingFetch { sample, num_bytes, fetch });
        AddedFetch::Waits
    }

    /// Waits until there was a change after the first `num_changes`, or the feed ends.
    pub(super) fn wait_for_change(&self, num_changes: u64) {
        let is_same = |state: &mut State| state.num_changes == num_changes && !state.has_ended;
        drop(self.changed.wait_while(self.lock(), is_same).unwrap_or_else(PoisonError::into_inner));
    }

    /// Cancels what waits, and lets nothing in any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        let waiting = std::mem::take(&mut state.waiting);
        state.stats.bytes -= waiting.values().map(|waiting| waiting.num_bytes).sum::<u64>();
        self.has_changed(state);
        // Cancels outside the lock.
        drop(waiting);
    }

    pub(crate) fn stats(&self) -> ReadAheadStats {
        self.lock().stats
    }

    fn has_changed(&self, mut state: MutexGuard<'_, State>) {
        state.num_changes += 1;
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before code that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recording that was fetched ahead. Dropping it cancels the fetch and gives its bytes back.
pub(crate) struct AheadRecording {
    sample: SampleIndex,
    fetch: Box<dyn RecordingFetch>,
    room: Room,
}

impl AheadRecording {
    /// Whose recording it is.
    pub(crate) fn sample(&self) -> SampleIndex {
        self.sample
    }

    /// Decodes it into `clip`. Its bytes are given back afterwards, also if it cannot be decoded.
    pub(crate) fn load_into(self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        let AheadRecording { fetch, room: _room, .. } = self;
        fetch.load_into(sample, clip)
    }
}

/// Bytes of the window. Dropping it gives them back.
struct Room {
    window: Arc<ReadAheadWindow>,
    num_bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.window.lock();
        state.stats.bytes -= self.num_bytes;
        self.window.has_changed(state);
    }
}
