//! The walk and the window without threads: which rows are fetched, when, and what becomes of their bytes.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tandem_audio::Clip;
use tandem_corpus::{Cursor, Sample, SampleIndex, Shard};
use tandem_pipeline::Worker;

use super::walk::WalkStep;
use super::{AheadRecording, ReadAheadWalk, ReadAheadWindow, RowPlace};
use crate::feed::messages::Messages;
use crate::fixture::{FeedFolder, feed_spec, sine};
use crate::load::context::LoadContext;
use crate::load::input::Input;
use crate::load::recordings::{FromFiles, RecordingFetch, Recordings};
use crate::{CacheSpec, FeedError, FeedSpec, Replacement};

const NUM_ROWS: usize = 40;
const BATCH: u32 = 4;
const PLENTY: u64 = 1 << 40;

/// Recordings in a store that is not there.
struct Stored {
    /// By sample.
    sizes: Vec<u64>,
    requests: Arc<Mutex<Requests>>,
}

/// What a store sees.
#[derive(Default)]
struct Requests {
    /// Fetches that were planned.
    num_planned: usize,
    /// Samples whose fetches were started, in order.
    started: Vec<u32>,
    /// Bytes of fetches that were started, and are neither decoded nor dropped.
    live_bytes: u64,
    /// The most there ever were.
    peak_bytes: u64,
}

struct StoredFetch {
    sample: u32,
    num_bytes: u64,
    is_started: bool,
    requests: Arc<Mutex<Requests>>,
}

impl Stored {
    fn new(sizes: Vec<u64>) -> Arc<Stored> {
        Arc::new(Stored { sizes, requests: Arc::default() })
    }

    fn num_planned(&self) -> usize {
        self.requests.lock().unwrap().num_planned
    }

    fn live_bytes(&self) -> u64 {
        self.requests.lock().unwrap().live_bytes
    }

    fn peak_bytes(&self) -> u64 {
        self.requests.lock().unwrap().peak_bytes
    }

    fn started(&self) -> Vec<u32> {
        self.requests.lock().unwrap().started.clone()
    }
}

fn number_of(sample: &Sample<'_>) -> u32 {
    sample.id.parse().unwrap()
}

impl Recordings for Stored {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        *clip = Clip { samples: vec![number_of(sample) as i16; 9], rate_hz: 22_050 };
        Ok(())
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let (sample, requests) = (number_of(sample), Arc::clone(&self.requests));
        requests.lock().unwrap().num_planned += 1;
        let num_bytes = self.sizes[sample as usize];
        Ok(Some(Box::new(StoredFetch { sample, num_bytes, is_started: false, requests })))
    }
}

impl RecordingFetch for StoredFetch {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn start(&mut self) {
        assert!(!self.is_started, "started twice");
        self.is_started = true;
        let mut requests = self.requests.lock().unwrap();
        requests.started.push(self.sample);
        requests.live_bytes += self.num_bytes;
        requests.peak_bytes = requests.peak_bytes.max(requests.live_bytes);
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, _: &mut Clip) -> Result<(), FeedError> {
        assert_eq!(self.sample, number_of(sample), "fetched for another sample");
        assert!(self.is_started, "handed out and not started");
        Ok(())
    }
}

impl Drop for StoredFetch {
    fn drop(&mut self) {
        if self.is_started {
            self.requests.lock().unwrap().live_bytes -= self.num_bytes;
        }
    }
}

/// A walk over batches of four rows, and the rows as the row queue hands them out.
struct Rig {
    folder: FeedFolder,
    context: Arc<LoadContext>,
    window: Arc<ReadAheadWindow>,
    walk: ReadAheadWalk,
    /// Rows that are not handed out yet, in order.
    rows: Box<dyn Iterator<Item = (RowPlace, SampleIndex)>>,
}

impl Rig {
    fn new(recordings: Arc<dyn Recordings>, budget_bytes: u64) -> Rig {
        Rig::with(recordings, budget_bytes, |_| {})
    }

    /// The same with another spec than the usual one.
    fn with(recordings: Arc<dyn Recordings>, budget_bytes: u64, change: impl FnOnce(&mut FeedSpec)) -> Rig {
        let folder = FeedFolder::new("read-ahead");
        let row = |i: usize| {
            let seconds = 1.0 + i as f64 / 40.0;
            format!("{{\"id\":\"{i}\",\"audio_filepath\":\"{i}.wav\",\"text\":\"a\",\"duration\":{seconds}}}\n")
        };
        folder.write("list.jsonl", (0..NUM_ROWS).map(row).collect::<String>());
        let mut spec = feed_spec(&folder.path().join("list.jsonl"));
        spec.buckets = spec.training_set.bucket_plan(2, BATCH).unwrap();
        spec.plan.buckets = spec.buckets.buckets().to_vec();
        spec.recordings = recordings;
        change(&mut spec);
        let input = Arc::new(Input::new(&spec).unwrap());
        let context = Arc::new(LoadContext::open(Arc::clone(&input), &spec, &Messages::default()).unwrap());
        let max_batches = ReadAheadWalk::max_batches(input.order.num_batches(), input.shard.world);
        let window = Arc::new(ReadAheadWindow::new(budget_bytes, max_batches));
        let walk = ReadAheadWalk::new(Arc::clone(&context), Arc::clone(&window), spec.from.next);
        Rig { folder, context, window, walk, rows: Box::new(rows_of(input, spec.from.next)) }
    }

    /// Walks until the window is full, or the walk is over.
    fn walk(&mut self) -> WalkStep {
        loop {
            match self.walk.step() {
                WalkStep::Passed => {}
                other => return other,
            }
        }
    }

    /// Hands out the next row.
    fn hand_out(&mut self) -> (SampleIndex, Option<AheadRecording>) {
        let (place, sample) = self.rows.next().unwrap();
        (sample, self.window.take(place))
    }
}

/// All rows of a feed in the order of the row queue, endless.
fn rows_of(input: Arc<Input>, from: Cursor) -> impl Iterator<Item = (RowPlace, SampleIndex)> {
    let mut group = from;
    (0_u64..).flat_map(move |sequence| {
        let batch = input.order.shard_batch(group, input.shard).unwrap();
        group = input.next_group(group);
        let rows = batch.rows.into_iter().enumerate();
        rows.filter_map(move |(position, sample)| Some((RowPlace { sequence, position }, sample?))).collect::<Vec<_>>()
    })
}

fn upcoming(rig: &Rig, count: usize) -> Vec<u32> {
    rows_of(Arc::clone(&rig.context.input), Cursor::START).take(count).map(|(_, sample)| sample.0).collect()
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Walk,
    HandOut,
    /// A decode thread finishes one of the rows that are handed out.
    Decode(usize),
    /// … or gives it up.
    Drop(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Walk),
        2 => Just(Action::HandOut),
        1 => any::<usize>().prop_map(Action::Decode),
        1 => any::<usize>().prop_map(Action::Drop),
    ]
}

proptest! {
    #[test]
    fn bytes_are_never_over_the_budget_and_never_lost(
        budget_bytes in 1_u64..200,
        sizes in prop::collection::vec(0_u64..60, NUM_ROWS),
        actions in prop::collection::vec(action(), 1..400),
    ) {
        let stored = Stored::new(sizes);
        let mut rig = Rig::new(stored.clone(), budget_bytes);
        let mut handed_out: Vec<(SampleIndex, Option<AheadRecording>)> = Vec::new();
        for action in actions {
            match action {
                Action::Walk => drop(rig.walk.step()),
                Action::HandOut => {
                    let (sample, ahead) = rig.hand_out();
                    prop_assert!(ahead.as_ref().is_none_or(|ahead| ahead.sample() == sample));
                    handed_out.push((sample, ahead));
                }
                Action::Decode(which) | Action::Drop(which) if !handed_out.is_empty() => {
                    let (sample, ahead) = handed_out.swap_remove(which % handed_out.len());
                    if let (Action::Decode(_), Some(ahead)) = (action, ahead) {
                        ahead.load_into(&rig.context.input.sample(sample), &mut Clip::default()).unwrap();
                    }
                }
                Action::Decode(_) | Action::Drop(_) => {}
            }
            let stats = rig.window.stats();
            prop_assert_eq!((stats.bytes, stats.peak_bytes), (stored.live_bytes(), stored.peak_bytes()));
            prop_assert!(stored.peak_bytes() <= budget_bytes, "{:?}", stats);
        }
        // Every change gives room: nothing is left behind that nobody asks for.
        drop(handed_out);
        rig.window.end();
        prop_assert_eq!((rig.window.stats().bytes, stored.live_bytes()), (0, 0));
        prop_assert_eq!(rig.walk.step(), WalkStep::Over);
    }

    #[test]
    fn with_room_for_one_recording_every_row_is_fetched_ahead(
        sizes in prop::collection::vec(1_u64..60, NUM_ROWS), budget_bytes in 60_u64..500,
    ) {
        let stored = Stored::new(sizes);
        let mut rig = Rig::new(stored.clone(), budget_bytes);
        // Two epochs.
        for _ in 0..2 * NUM_ROWS {
            rig.walk();
            let (sample, ahead) = rig.hand_out();
            let ahead = ahead.unwrap();
            ahead.load_into(&rig.context.input.sample(sample), &mut Clip::default()).unwrap();
        }
        // None is started in vain, and at most one is planned and waits for room.
        let (started, fetched) = (stored.started(), rig.window.stats().fetched);
        prop_assert_eq!(started.len() as u64, fetched);
        prop_assert_eq!(&started, &upcoming(&rig, started.len()));
        prop_assert!(started.len() >= 2 * NUM_ROWS && stored.num_planned() - started.len() <= 1);
    }

    #[test]
    fn the_next_recording_is_fetched_as_soon_as_its_bytes_fit_and_not_a_byte_before(
        sizes in prop::collection::vec(1_u64..60, NUM_ROWS), budget_bytes in 60_u64..200,
        decoded in prop::collection::vec(any::<usize>(), 1..60),
    ) {
        let stored = Stored::new(sizes.clone());
        let mut rig = Rig::new(stored.clone(), budget_bytes);
        let mut handed_out = Vec::new();
        for (num_handed_out, which) in decoded.into_iter().enumerate() {
            rig.walk();
            let num_started = stored.started().len();
            let next = upcoming(&rig, num_started + 1).pop().unwrap();
            let is_far = num_started >= num_handed_out + NUM_ROWS;
            prop_assert!(is_far || stored.live_bytes() + sizes[next as usize] > budget_bytes);
            // What is handed out first may be decoded last: room comes back in any order.
            handed_out.push(rig.hand_out());
            let (sample, ahead) = handed_out.swap_remove(which % handed_out.len());
            if let Some(ahead) = ahead {
                ahead.load_into(&rig.context.input.sample(sample), &mut Clip::default()).unwrap();
            }
        }
        prop_assert!(stored.peak_bytes() <= budget_bytes);
    }
}

#[test]
fn rows_are_fetched_in_the_order_in_which_they_are_asked_for() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::new(stored.clone(), 65);
    assert!(matches!(rig.walk(), WalkStep::Full { .. }));
    assert_eq!(stored.started(), upcoming(&rig, 6));
    // The bytes of the first row come back when it is decoded, not before.
    let (sample, ahead) = rig.hand_out();
    assert!(matches!(rig.walk(), WalkStep::Full { .. }) && stored.started().len() == 6);
    ahead.unwrap().load_into(&rig.context.input.sample(sample), &mut Clip::default()).unwrap();
    assert!(matches!(rig.walk(), WalkStep::Full { .. }));
    assert_eq!(stored.started(), upcoming(&rig, 7));
}

#[test]
fn a_recording_larger_than_the_budget_is_left_to_its_decode_thread() {
    let mut sizes = vec![10; NUM_ROWS];
    let first = upcoming(&Rig::new(Stored::new(sizes.clone()), 1), 2)[1];
    sizes[first as usize] = 66;
    let stored = Stored::new(sizes);
    let mut rig = Rig::new(stored.clone(), 65);
    rig.walk();
    assert!(!stored.started().contains(&first));
    assert!(rig.hand_out().1.is_some() && rig.hand_out().1.is_none() && rig.hand_out().1.is_some());
    assert!(stored.peak_bytes() <= 65);
}

#[test]
fn a_recording_waits_for_room_without_a_request_and_is_planned_once() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::new(stored.clone(), 19);
    let full = rig.walk();
    assert!(matches!(full, WalkStep::Full { .. }));
    assert_eq!((stored.num_planned(), stored.started().len()), (2, 1));
    // Without a change there is nothing to do.
    assert_eq!((rig.walk.step(), stored.num_planned()), (full, 2));
    // A row that is handed out while it waits is its decode thread's.
    drop((rig.hand_out(), rig.hand_out()));
    assert!(matches!(rig.walk(), WalkStep::Full { .. }));
    let upcoming = upcoming(&rig, 3);
    assert_eq!(stored.started(), [upcoming[0], upcoming[2]]);
}

/// A recording whose row is handed out while its fetch starts.
struct TooSlow {
    stored: Arc<Stored>,
    window: Mutex<Option<(Arc<ReadAheadWindow>, RowPlace)>>,
}

struct SlowStart {
    fetch: Box<dyn RecordingFetch>,
    meanwhile: Option<(Arc<ReadAheadWindow>, RowPlace)>,
}

impl Recordings for TooSlow {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.stored.load_into(sample, clip)
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let meanwhile = self.window.lock().unwrap().take();
        Ok(self.stored.fetch(sample)?.map(|fetch| Box::new(SlowStart { fetch, meanwhile }) as Box<dyn RecordingFetch>))
    }
}

impl RecordingFetch for SlowStart {
    fn num_bytes(&self) -> u64 {
        self.fetch.num_bytes()
    }

    fn start(&mut self) {
        self.fetch.start();
        if let Some((window, place)) = self.meanwhile.take() {
            assert!(window.take(place).is_none());
        }
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.fetch.load_into(sample, clip)
    }
}

#[test]
fn a_row_that_is_handed_out_while_its_fetch_starts_gives_its_bytes_back() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let slow = Arc::new(TooSlow { stored: stored.clone(), window: Mutex::default() });
    let mut rig = Rig::new(slow.clone(), 15);
    let (first, _) = rig.rows.next().unwrap();
    *slow.window.lock().unwrap() = Some((Arc::clone(&rig.window), first));
    assert_eq!(rig.walk.step(), WalkStep::Passed);
    assert_eq!((stored.live_bytes(), rig.window.stats().bytes, rig.window.stats().fetched), (0, 0, 0));
    assert!(matches!(rig.walk(), WalkStep::Full { .. }));
    assert_eq!((stored.started(), stored.live_bytes()), (upcoming(&rig, 2), 10));
    assert!(rig.hand_out().1.is_some());
}

#[test]
fn rows_that_are_handed_out_first_are_passed() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::new(stored.clone(), PLENTY);
    for _ in 0..7 {
        assert!(rig.hand_out().1.is_none());
    }
    rig.walk();
    assert_eq!(stored.started()[0], upcoming(&rig, 8)[7]);
    assert!(rig.hand_out().1.is_some());
}

#[test]
fn a_walk_is_at_most_an_epoch_ahead() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::new(stored.clone(), PLENTY);
    assert!(matches!(rig.walk(), WalkStep::Full { .. }));
    // The batch that is handed out, and as many as an epoch has.
    assert_eq!(stored.started().len(), NUM_ROWS + BATCH as usize);
    assert_eq!(ReadAheadWalk::max_batches(1_000_000, 8), 64);
    assert_eq!(ReadAheadWalk::max_batches(3, 8), 1);
}

#[test]
fn a_rank_fetches_its_own_rows_from_where_it_resumes() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let from = Cursor { epoch: 1, k: 4 };
    let mut rig = Rig::with(stored.clone(), PLENTY, |spec| {
        spec.shard = Shard { rank: 1, world: 2 };
        spec.from.next = from;
    });
    rig.walk();
    let order = &rig.context.input.order;
    let own = [5, 7, 9].into_iter().flat_map(|k| order.batch(1, k).unwrap().rows).map(|row| row.unwrap().0);
    assert_eq!(stored.started()[..12], own.collect::<Vec<_>>());
}

#[test]
fn the_replacement_of_a_checkpoint_is_fetched_in_place_of_its_row() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let planned = upcoming(&Rig::new(stored, PLENTY), 3);
    let other = SampleIndex((planned[1] + 1) % NUM_ROWS as u32);
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::with(stored.clone(), PLENTY, |spec| {
        spec.from.replacements.insert(Replacement { epoch: 0, k: 0, position: 1, sample: other, attempt: 0 });
    });
    rig.walk();
    assert_eq!(stored.started()[..3], [planned[0], other.0, planned[2]]);
    drop(rig.hand_out());
    assert_eq!(rig.hand_out().1.unwrap().sample(), other);
}

#[test]
fn what_the_cache_holds_is_not_fetched() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let mut rig = Rig::with(stored.clone(), PLENTY, |spec| {
        spec.cache = CacheSpec::Memory { budget_bytes: 1 << 30 };
    });
    (0..NUM_ROWS).for_each(|i| rig.folder.wav(&format!("{i}.wav"), &sine(8_000, 0.5)));
    let upcoming = upcoming(&rig, 8);
    let (input, cache) = (&rig.context.input, &rig.context.cache);
    for index in [upcoming[0], upcoming[2]].map(SampleIndex) {
        let audio = input.sample(index).audio;
        assert!(!cache.holds(index, &audio) && !cache.get_into(index, &audio, &mut Clip::default()));
        cache.put(index, &audio, &sine(8_000, 0.5));
        assert!(cache.holds(index, &audio));
    }
    let counted = (cache.stats().hits, cache.stats().misses);
    rig.walk();
    assert_eq!(stored.started()[..3], [upcoming[1], upcoming[3], upcoming[4]]);
    let stats = rig.context.cache.stats();
    assert_eq!((stats.hits, stats.misses), counted, "looking ahead is neither a hit nor a miss");
}

#[test]
fn a_walk_over_recordings_of_this_machine_ends() {
    let mut rig = Rig::new(Arc::new(FromFiles), PLENTY);
    let mut num_steps = 0;
    loop {
        match rig.walk.step() {
            WalkStep::Passed => num_steps += 1,
            WalkStep::Full { .. } => assert!(rig.hand_out().1.is_none()),
            WalkStep::Over => break,
        }
    }
    assert_eq!(num_steps, 4095);
    assert_eq!(rig.window.stats().fetched, 0);
}

#[test]
fn ending_a_window_ends_the_thread_that_waits_for_it_and_cancels_what_waits() {
    let stored = Stored::new(vec![10; NUM_ROWS]);
    let Rig { window, walk, .. } = Rig::new(stored.clone(), 35);
    // A stop before, during or after the wait: all of them end the thread.
    let thread = Worker::spawn("walk", move |_| walk.run()).unwrap();
    while window.stats().bytes < 30 {
        std::thread::yield_now();
    }
    window.end();
    thread.join().unwrap();
    assert_eq!((window.stats().bytes, stored.live_bytes()), (0, 0));
}
