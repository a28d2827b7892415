//! Recordings that are fetched ahead: the same batches, within a budget, and nothing left behind. And a store that fails.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tandem_audio::Clip;
use tandem_corpus::{Cursor, Sample, Shard};
use tandem_device::Route;
use tandem_feed::{CacheSpec, FeedError, FeedState, FromFiles, RecordingFetch, Recordings};
use tandem_storage::StorageError;

use super::support::{Bytes, Corpus, PATIENCE, Serving, noise};

/// Files that are loaded as objects of a store are: fetched first, decoded later.
#[derive(Clone, Default)]
struct Objects {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Fetches that are neither decoded nor dropped.
    live: AtomicUsize,
    started: AtomicUsize,
    /// Bytes of those that were started, and the most there ever were.
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// Rows that were decoded from what was fetched ahead.
    loaded_ahead: AtomicUsize,
    /// Names of the threads that fetch.
    threads: Mutex<BTreeSet<String>>,
}

struct ObjectOnItsWay {
    shared: Arc<Shared>,
    num_bytes: u64,
    id: String,
    is_started: bool,
}

/// A different one for each recording, up to 1000 bytes.
fn size_of(id: &str) -> u64 {
    noise(&[id.len() as u64, id.bytes().map(u64::from).sum()]) % 1000 + 1
}

impl Recordings for Objects {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        FromFiles.load_into(sample, clip)
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let (shared, id) = (Arc::clone(&self.shared), sample.id.to_owned());
        shared.live.fetch_add(1, Ordering::Relaxed);
        shared.threads.lock().unwrap().extend(std::thread::current().name().map(str::to_owned));
        Ok(Some(Box::new(ObjectOnItsWay { shared, num_bytes: size_of(&id), id, is_started: false })))
    }
}

impl RecordingFetch for ObjectOnItsWay {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn start(&mut self) {
        assert!(!self.is_started, "started twice");
        self.is_started = true;
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        let before = self.shared.live_bytes.fetch_add(self.num_bytes, Ordering::Relaxed);
        self.shared.peak_bytes.fetch_max(before + self.num_bytes, Ordering::Relaxed);
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        assert!(self.is_started && self.id == sample.id, "fetched for another row");
        self.shared.loaded_ahead.fetch_add(1, Ordering::Relaxed);
        FromFiles.load_into(sample, clip)
    }
}

impl Drop for ObjectOnItsWay {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, Ordering::Relaxed);
        if self.is_started {
            self.shared.live_bytes.fetch_sub(self.num_bytes, Ordering::Relaxed);
        }
    }
}

/// The batches with a budget, which must be those of `expected`.
fn check(serving: &Serving, corpus: &Corpus, read_ahead_bytes: u64, workers: usize, expected: &[Bytes]) {
    let objects = Objects::default();
    let recordings = Arc::new(objects.clone());
    let serving = Serving { recordings, read_ahead_bytes, ..serving.clone() }.workers(workers);
    let found = serving.batches(&corpus.training_set, expected.len()).unwrap();
    assert!(found == expected, "{read_ahead_bytes} bytes, {workers} threads");
    let shared = &objects.shared;
    assert_eq!(shared.live.load(Ordering::Relaxed), 0, "fetches outlive their feed");
    assert!(shared.peak_bytes.load(Ordering::Relaxed) <= read_ahead_bytes, "{read_ahead_bytes} bytes");
    let (started, threads) = (shared.started.load(Ordering::Relaxed), shared.threads.lock().unwrap().clone());
    match read_ahead_bytes {
        0 => assert_eq!((started, threads), (0, BTreeSet::new())),
        _ => assert!(threads.is_empty() || threads == BTreeSet::from(["feed-read-ahead".to_owned()]), "{threads:?}"),
    }
}

const BUDGETS: [u64; 4] = [0, 1, 1500, 1 << 40];

#[test]
fn batches_are_the_same_with_any_budget_and_any_number_of_threads() {
    let corpus = Corpus::new(51, 40);
    let serving = Serving::cpu();
    let expected = serving.batches(&corpus.training_set, 25).unwrap();
    for budget_bytes in BUDGETS {
        for workers in [1, 3] {
            check(&serving, &corpus, budget_bytes, workers, &expected);
        }
    }
}

#[test]
fn batches_are_the_same_with_bad_recordings_a_cache_and_several_ranks() {
    let corpus = Corpus::new(52, 40);
    [3, 17, 30].into_iter().for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    std::fs::remove_file(corpus.wav(8)).unwrap();
    let shard = Shard { rank: 1, world: 2 };
    let from = FeedState { next: Cursor { epoch: 1, k: 5 }, ..FeedState::default() };
    let serving = Serving { max_bad_fraction: 0.5, shard, from, ..Serving::pair(3, Route::Bounce) };
    let expected = serving.batches(&corpus.training_set, 25).unwrap();
    for cache in [CacheSpec::None, CacheSpec::Memory { budget_bytes: 1 << 30 }] {
        let serving = Serving { cache, ..serving.clone() };
        for budget_bytes in BUDGETS {
            check(&serving, &corpus, budget_bytes, 2, &expected);
        }
    }
}

#[test]
fn bytes_in_flight_stay_within_the_budget_and_are_used() {
    let corpus = Corpus::new(53, 40);
    let objects = Objects::default();
    let serving = Serving { recordings: Arc::new(objects.clone()), read_ahead_bytes: 3000, ..Serving::cpu() };
    let stats = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        // Until rows were fetched before their decode threads asked for them.
        while objects.shared.loaded_ahead.load(Ordering::Relaxed) < 20 {
            feed.lease(&stream)?;
        }
        assert!(feed.read_ahead_bytes() <= 3000);
        Ok(feed.stats().read_ahead)
    });
    let stats = stats.unwrap();
    assert!((1..=3000).contains(&stats.peak_bytes) && stats.budget_bytes == 3000, "{stats:?}");
    assert!(stats.fetched >= 20, "{stats:?}");
    // As the source counts them: from the start of a fetch until it is decoded.
    assert!((1..=3000).contains(&objects.shared.peak_bytes.load(Ordering::Relaxed)));
    assert_eq!(objects.shared.live.load(Ordering::Relaxed), 0);
}

/// A store that does not answer any more after so many recordings.
struct LostStore {
    left: AtomicUsize,
    fetches: bool,
}

impl LostStore {
    fn next(&self) -> Result<(), FeedError> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let error = || StorageError::Unreachable { location: "s3://b/k".into(), attempts: 8, last: "503".into() };
        left.map(drop).map_err(|_| FeedError::StorageUnreachable { error: error() })
    }
}

impl Recordings for LostStore {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.next()?;
        FromFiles.load_into(sample, clip)
    }

    fn fetch(&self, _: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        Ok(self.fetches.then(|| Box::new(Answer(self.next())) as Box<dyn RecordingFetch>))
    }
}

/// The answer to a request, known when it is waited for.
struct Answer(Result<(), FeedError>);

impl RecordingFetch for Answer {
    fn num_bytes(&self) -> u64 {
        1
    }

    fn start(&mut self) {}

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.0?;
        FromFiles.load_into(sample, clip)
    }
}

#[test]
fn a_store_that_is_lost_ends_the_feed_and_replaces_nothing() {
    let corpus = Corpus::new(54, 40);
    for (fetches, workers) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
        let path = corpus.folder.path().join(format!("bad-{fetches}-{workers}.jsonl"));
        let recordings = Arc::new(LostStore { left: AtomicUsize::new(30), fetches });
        let bad_samples = Some(path.clone());
        let serving = Serving { recordings, bad_samples, read_ahead_bytes: 1000, ..Serving::cpu() }.workers(workers);
        let mut num_bad = None;
        let error = serving.serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            // Each batch takes four recordings, and 30 can be read.
            (0..10).try_for_each(|_| {
                let leased = feed.lease(&stream).map(drop);
                num_bad = Some(feed.num_bad());
                leased
            })
        });
        let error = error.unwrap_err();
        assert!(matches!(error, FeedError::StorageUnreachable { .. }), "{error}");
        assert_eq!((num_bad, path.exists()), (Some(0), false), "{fetches} {workers}");
    }
}

#[test]
fn a_feed_that_reads_ahead_stops_in_any_state() {
    let corpus = Corpus::new(55, 40);
    for leased in [0, 1, 7] {
        for is_warm in [false, true] {
            let objects = Objects::default();
            let serving = Serving { recordings: Arc::new(objects.clone()), read_ahead_bytes: 2000, ..Serving::cpu() };
            let stopped = serving.serve(&corpus.training_set, |feed, roles| {
                let stream = roles.model.device.stream(true)?;
                if is_warm {
                    feed.wait_full(PATIENCE)?;
                }
                (0..leased).try_for_each(|_| feed.lease(&stream).map(drop))
            });
            stopped.unwrap();
            assert_eq!(objects.shared.live.load(Ordering::Relaxed), 0);
        }
    }
}
