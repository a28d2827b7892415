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
/// Bytes count from before the start of a fetch until its recording is decoded, and are never more than the budget.
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

impl State {
    /// Whether a fetch for the row at `place` is of use.
    fn wants(&self, place: RowPlace) -> bool {
        !self.has_ended && place >= self.first
    }
}

struct WaitingFetch {
    sample: SampleIndex,
    num_bytes: u64,
    fetch: Box<dyn RecordingFetch>,
}

/// Whether the recording of a row may be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowEntry {
    Open,
    /// Not before the window has changed: too many batches ahead.
    Closed,
    /// The row is handed out already.
    TooLate,
    Ended,
}

/// What became of a fetch that was planned.
pub(super) enum AddedFetch {
    /// It is started, and waits for its row.
    Started,
    /// It is not started: its bytes do not fit yet. With the number of changes until then.
    NoRoom { fetch: Box<dyn RecordingFetch>, num_changes: u64 },
    /// It is dropped: the bytes fit no window of this budget, or the row is handed out, or the feed ends.
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

    /// Whether the recording of the row at `place` may be fetched now. And the number of changes so far, to wait for the next.
    pub(super) fn entry(&self, place: RowPlace) -> (WindowEntry, u64) {
        let state = self.lock();
        let entry = if state.has_ended {
            WindowEntry::Ended
        } else if place < state.first {
            WindowEntry::TooLate
        } else if place.sequence > state.first.sequence.saturating_add(self.max_batches) {
            WindowEntry::Closed
        } else {
            WindowEntry::Open
        };
        (entry, state.num_changes)
    }

    /// Starts the fetch of the row at `place` once its bytes are reserved.
    pub(super) fn add(&self, place: RowPlace, sample: SampleIndex, mut fetch: Box<dyn RecordingFetch>) -> AddedFetch {
        let num_bytes = fetch.num_bytes();
        let mut state = self.lock();
        if !state.wants(place) || num_bytes > self.budget_bytes {
            return AddedFetch::NotWanted;
        }
        let sum = state.stats.bytes.saturating_add(num_bytes);
        if sum > self.budget_bytes {
            return AddedFetch::NoRoom { fetch, num_changes: state.num_changes };
        }
        state.stats.bytes = sum;
        state.stats.peak_bytes = state.stats.peak_bytes.max(sum);
        drop(state);
        // Outside the lock: the code of a source may take its time. The row may be handed out meanwhile.
        fetch.start();
        let mut state = self.lock();
        if state.wants(place) {
            state.stats.fetched += 1;
            state.waiting.insert(place, WaitingFetch { sample, num_bytes, fetch });
            return AddedFetch::Started;
        }
        drop(state);
        // Cancelled first: its bytes are free afterwards.
        drop(fetch);
        self.give_back(num_bytes);
        AddedFetch::NotWanted
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
        self.has_changed(state);
        let num_bytes = waiting.values().map(|waiting| waiting.num_bytes).sum();
        // Cancels outside the lock, and before the bytes are free.
        drop(waiting);
        self.give_back(num_bytes);
    }

    pub(crate) fn stats(&self) -> ReadAheadStats {
        self.lock().stats
    }

    fn give_back(&self, num_bytes: u64) {
        let mut state = self.lock();
        state.stats.bytes -= num_bytes;
        self.has_changed(state);
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
        self.window.give_back(self.num_bytes);
    }
}
