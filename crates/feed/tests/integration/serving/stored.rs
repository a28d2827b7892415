//! Recordings in an object store and in shards: the batches of the same recordings on disk, and what ends a feed.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tandem_audio::Clip;
use tandem_corpus::{Dataset, OpenOptions, Sample};
use tandem_feed::{
    Cache, CacheSpec, CheckOptions, FeedError, FromFiles, RecordingFetch, RecordingHashes, Recordings, TrainingSet,
    check, load_into, open_corpus,
};
use tandem_storage::{Storage, StorageInterrupt, StorageSettings};
use tandem_test_support::object_server::{ObjectServer, ServerFaults};
use tempfile::TempDir;

use super::support::{Corpus, Generated, PATIENCE, Serving, clip, options, survey};

/// A corpus on disk that is in a bucket as well.
struct Bucket {
    corpus: Corpus,
    /// The folder of the bucket.
    _buckets: TempDir,
    server: ObjectServer,
    storage: Storage,
}

impl Bucket {
    fn new(seed: u64, count: u64, faults: ServerFaults) -> Bucket {
        Bucket::with_attempts(8, seed, count, faults)
    }

    fn with_attempts(max_attempts: u32, seed: u64, count: u64, faults: ServerFaults) -> Bucket {
        let corpus = Corpus::new(seed, count);
        let buckets = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(corpus.folder.path(), buckets.path().join("bucket")).unwrap();
        let server = ObjectServer::start(buckets.path(), faults);
        let wait = Duration::from_millis(1);
        let settings = StorageSettings { max_attempts, first_wait: wait, max_wait: wait, request_timeout: PATIENCE };
        let storage = Storage::with_variables(settings, server.variables());
        Bucket { corpus, _buckets: buckets, server, storage }
    }

    fn open(&self, name: &str) -> Dataset {
        let options = OpenOptions { storage: self.storage.clone(), ..OpenOptions::default() };
        Dataset::open(name, &options).unwrap()
    }

    fn training_set(&self) -> Arc<TrainingSet> {
        survey(self.open("s3://bucket"), &self.corpus.folder.path().join("remote run"))
    }
}

#[test]
fn batches_from_a_store_are_those_of_the_disk_whatever_the_server_does() {
    let faults = ServerFaults {
        unavailable_every: Some(20),
        cut_every: Some(33),
        wrong_range_every: Some(47),
        latency: Duration::from_millis(2),
        ..ServerFaults::default()
    };
    let bucket = Bucket::new(61, 40, faults);
    let expected = Serving::cpu().batches(&bucket.corpus.training_set, 25).unwrap();
    let training_set = bucket.training_set();
    for (read_ahead_bytes, workers) in [(0, 2), (100_000, 1), (1 << 30, 3)] {
        let serving = Serving { read_ahead_bytes, ..Serving::cpu() }.workers(workers);
        assert!(serving.batches(&training_set, 25).unwrap() == expected, "{read_ahead_bytes} bytes, {workers} threads");
    }
}

#[test]
fn one_decode_thread_has_many_requests_in_flight_within_the_budget() {
    let bucket = Bucket::new(62, 40, ServerFaults { latency: Duration::from_millis(5), ..ServerFaults::default() });
    let training_set = bucket.training_set();
    let serving = Serving { read_ahead_bytes: 400_000, ..Serving::cpu() }.workers(1);
    let stats = serving.serve(&training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        // A thread that fetches for itself has one request in flight. Reading ahead, four come soon.
        while bucket.server.max_in_flight() < 4 {
            feed.lease(&stream)?;
        }
        Ok(feed.stats().read_ahead)
    });
    let stats = stats.unwrap();
    // One of the four may be the decode thread's own, and one too new to be counted.
    assert!(stats.peak_bytes <= 400_000 && stats.fetched >= 2, "{stats:?}");
}

/// Recordings of the corpus, and the bytes of them that are on their way or here.
#[derive(Clone, Default)]
struct Metered {
    bytes: Arc<Mutex<MeteredBytes>>,
}

#[derive(Default)]
struct MeteredBytes {
    /// Of fetches that were started and are neither decoded nor dropped.
    live: u64,
    /// The most there ever were.
    peak: u64,
    /// Of each fetch that was started, by id and in order.
    started: Vec<(String, u64)>,
}

struct MeteredFetch {
    fetch: Option<Box<dyn RecordingFetch>>,
    id: String,
    num_bytes: u64,
    bytes: Arc<Mutex<MeteredBytes>>,
    is_started: bool,
}

impl Recordings for Metered {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        FromFiles.load_into(sample, clip)
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let metered = |fetch: Box<dyn RecordingFetch>| -> Box<dyn RecordingFetch> {
            let (id, num_bytes, bytes) = (sample.id.to_owned(), fetch.num_bytes(), Arc::clone(&self.bytes));
            Box::new(MeteredFetch { fetch: Some(fetch), id, num_bytes, bytes, is_started: false })
        };
        Ok(FromFiles.fetch(sample)?.map(metered))
    }
}

impl RecordingFetch for MeteredFetch {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn start(&mut self) {
        let mut bytes = self.bytes.lock().unwrap();
        bytes.live += self.num_bytes;
        bytes.peak = bytes.peak.max(bytes.live);
        bytes.started.push((self.id.clone(), self.num_bytes));
        self.is_started = true;
        self.fetch.iter_mut().for_each(|fetch| fetch.start());
    }

    fn load_into(mut self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.fetch.take().unwrap().load_into(sample, clip)
    }
}

impl Drop for MeteredFetch {
    fn drop(&mut self) {
        // Cancelled, if it was not decoded.
        drop(self.fetch.take());
        self.bytes.lock().unwrap().live -= if self.is_started { self.num_bytes } else { 0 };
    }
}

#[test]
fn bytes_on_their_way_from_a_store_are_never_a_byte_over_the_budget() {
    let bucket = Bucket::new(70, 40, ServerFaults::default());
    let training_set = bucket.training_set();
    let expected = Serving::cpu().batches(&bucket.corpus.training_set, 25).unwrap();
    let size = |id: &str| std::fs::metadata(bucket.corpus.folder.path().join(format!("wavs/{id}.wav"))).unwrap().len();
    let largest = (0..40).map(|number| size(&format!("u{number:03}"))).max().unwrap();
    // The largest recording fits to the byte, and does not fit.
    for read_ahead_bytes in [largest, largest - 1, 2 * largest] {
        let metered = Metered::default();
        let recordings = Arc::new(metered.clone());
        let serving = Serving { recordings, read_ahead_bytes, ..Serving::cpu() };
        assert!(serving.batches(&training_set, 25).unwrap() == expected, "{read_ahead_bytes} bytes");
        let bytes = metered.bytes.lock().unwrap();
        assert!(bytes.peak <= read_ahead_bytes, "{} of {read_ahead_bytes} bytes", bytes.peak);
        assert_eq!(bytes.live, 0);
        // Each counts with the size of its object.
        assert!(bytes.started.iter().all(|(id, num_bytes)| *num_bytes == size(id)), "{:?}", bytes.started);
    }
}

#[test]
fn a_fetch_knows_its_bytes_before_it_asks_for_any() {
    let bucket = Bucket::new(71, 8, ServerFaults::default());
    let dataset = bucket.open("s3://bucket");
    let samples: Vec<_> = dataset.samples().iter().collect();
    let before = bucket.server.requests();
    let mut fetches: Vec<_> = samples.iter().map(|(_, sample)| FromFiles.fetch(sample).unwrap().unwrap()).collect();
    // One list for all of them.
    assert_eq!(bucket.server.requests(), before + 1);
    let sent = bucket.server.bytes();
    for (fetch, number) in fetches.iter().zip(0..) {
        assert_eq!(fetch.num_bytes(), std::fs::metadata(bucket.corpus.wav(number)).unwrap().len());
    }
    // One that is started, and one that is not: its decode thread does that.
    fetches[0].start();
    bucket.server.wait_until_requests(before + 2);
    let mut loaded = Clip::default();
    for (fetch, number) in fetches.drain(..2).zip(0..) {
        let num_bytes = fetch.num_bytes();
        fetch.load_into(&samples[number as usize].1, &mut loaded).unwrap();
        assert_eq!(loaded, clip(71, number), "{num_bytes} bytes");
    }
    drop(fetches);
    assert_eq!(bucket.server.requests(), before + 3);
    assert!(bucket.server.bytes() > sent);
}

/// The recordings of a bucket over plain http, and on the disk. Each costs two requests: http has no lists, so its size is asked
/// for first. The lists have durations: no thread measures recordings, and opening a corpus makes the same requests every time.
fn over_http(bucket: &Bucket, seed: u64) -> [Arc<TrainingSet>; 2] {
    let folder = bucket.corpus.folder.path();
    let open = |list: &str, root: &str| {
        let row = |number: u64| {
            let seconds = clip(seed, number).seconds();
            let key = format!("{root}wavs/u{number:03}.wav");
            format!("{{\"audio_filepath\":\"{key}\",\"text\":\"one\",\"duration\":{seconds}}}\n")
        };
        std::fs::write(folder.join(list), (0..20).map(row).collect::<String>()).unwrap();
        survey(bucket.open(&format!("s3://bucket/{list}")), &folder.join("run"))
    };
    let local = format!("{}/", folder.display());
    [open("http.jsonl", &format!("{}/bucket/", bucket.server.url())), open("local.jsonl", &local)]
}

/// A bucket whose server never answers one request of whoever uses what `open` opens, and the number of that request. An attempt
/// that nothing ends fails after [`PATIENCE`].
fn hangs_on<T>(number: u64, max_attempts: u32, seed: u64, open: impl Fn(&Bucket) -> T) -> (Bucket, T, u64) {
    let bucket = |faults| Bucket::with_attempts(max_attempts, seed, 20, faults);
    let first = bucket(ServerFaults::default());
    drop(open(&first));
    let hangs = first.server.requests() + number;
    let bucket = bucket(ServerFaults { hang_on: Some(hangs), ..ServerFaults::default() });
    let opened = open(&bucket);
    assert_eq!(bucket.server.requests() + number, hangs, "opening a corpus makes the same requests every time");
    (bucket, opened, hangs)
}

#[test]
fn a_list_that_is_interrupted_is_asked_for_again_by_the_next() {
    let (bucket, dataset, hangs) = hangs_on(1, 1, 74, |bucket| bucket.open("s3://bucket"));
    let interrupt = StorageInterrupt::new();
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| {
            let (_, sample) = dataset.samples().iter().next().unwrap();
            interrupt.run(|| FromFiles.fetch(&sample).err().unwrap())
        });
        bucket.server.wait_until_requests(hangs);
        interrupt.raise();
        let error = fetched.join().unwrap();
        assert!(error.is_about_storage() && error.to_string().contains("interrupted"), "{error}");
    });
    // One list for all of them, and no request for a single one.
    dataset.samples().iter().for_each(|(_, sample)| drop(FromFiles.fetch(&sample).unwrap().unwrap()));
    assert_eq!(bucket.server.requests(), hangs + 1);
}

#[test]
fn a_feed_stops_while_a_decode_thread_waits_for_a_store_and_the_next_feed_works() {
    // Of one thread, the first request asks for a size, and the second for bytes.
    for (number, read_ahead_bytes, workers) in [(1, 0, 1), (2, 0, 1), (2, 1 << 30, 1), (5, 1 << 30, 3)] {
        // A wait that nothing ends is the last attempt, and its error ends the feed.
        let (bucket, [stored, local], hangs) = hangs_on(number, 1, 72, |bucket| over_http(bucket, 72));
        let serving = Serving { read_ahead_bytes, ..Serving::cpu() }.workers(workers);
        let mut num_bad = 0;
        let stopped = serving.serve(&stored, |feed, _| {
            bucket.server.wait_until_requests(hangs);
            num_bad = feed.num_bad();
            Ok(())
        });
        stopped.unwrap();
        bucket.server.wait_until_closed_early(1);
        assert_eq!(num_bad, 0);
        let expected = Serving::cpu().batches(&local, 10).unwrap();
        assert!(serving.batches(&stored, 10).unwrap() == expected, "{number} {read_ahead_bytes} {workers}");
    }
}

/// Recordings that only read-ahead asks a store for: whoever decodes has them already.
struct OnlyAhead;

impl Recordings for OnlyAhead {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        Generated { pause: Duration::ZERO }.load_into(sample, clip)
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        FromFiles.fetch(sample)
    }
}

#[test]
fn a_feed_stops_while_read_ahead_waits_for_a_size() {
    let (bucket, [stored, local], hangs) = hangs_on(1, 2, 73, |bucket| over_http(bucket, 73));
    let serving = Serving { recordings: Arc::new(OnlyAhead), read_ahead_bytes: 1 << 30, ..Serving::cpu() };
    let stopped = serving.serve(&stored, |feed, _| {
        bucket.server.wait_until_requests(hangs);
        // Everything but the walk is idle.
        let warm = feed.wait_full(PATIENCE)?;
        assert_eq!((warm.ready, bucket.server.requests()), (warm.of, hangs));
        Ok(())
    });
    stopped.unwrap();
    bucket.server.wait_until_closed_early(1);
    assert_eq!(bucket.server.requests(), hangs, "a wait that nothing ends is followed by another attempt");
    let expected = Serving::cpu().batches(&local, 10).unwrap();
    let serving = Serving { recordings: Arc::new(FromFiles), ..serving };
    assert!(serving.batches(&stored, 10).unwrap() == expected);
}

#[test]
fn a_missing_object_is_a_bad_sample() {
    let bucket = Bucket::new(63, 40, ServerFaults::default());
    let training_set = bucket.training_set();
    std::fs::remove_file(bucket.corpus.wav(8)).unwrap();
    let expected = Serving::cpu().batches(&bucket.corpus.training_set, 12).unwrap();
    for read_ahead_bytes in [0, 1 << 30] {
        let serving = Serving { read_ahead_bytes, ..Serving::cpu() };
        assert!(serving.batches(&training_set, 12).unwrap() == expected, "{read_ahead_bytes} bytes");
    }
}

/// The error that ends a feed, and how many samples are bad by then.
fn end_of(serving: &Serving, training_set: &TrainingSet) -> (FeedError, usize) {
    let mut num_bad = 0;
    let ended = serving.serve(training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        (0..100).try_for_each(|_| {
            let leased = feed.lease(&stream).map(drop);
            num_bad = feed.num_bad();
            leased
        })
    });
    (ended.unwrap_err(), num_bad)
}

#[test]
fn a_changed_object_ends_the_feed_and_is_named() {
    let bucket = Bucket::new(64, 40, ServerFaults::default());
    let training_set = bucket.training_set();
    let mut file = Vec::new();
    tandem_audio::wav::write(&clip(64, 9), &mut file).unwrap();
    std::fs::write(bucket.corpus.wav(8), file).unwrap();
    for read_ahead_bytes in [0, 1 << 30] {
        let (error, num_bad) = end_of(&Serving { read_ahead_bytes, ..Serving::cpu() }, &training_set);
        assert!(matches!(error, FeedError::CorpusChanged { .. }) && num_bad == 0, "{error}");
        assert!(error.to_string().contains("wavs/u008.wav"), "{error}");
    }
}

#[test]
fn a_server_that_is_gone_ends_the_feed_the_survey_and_the_check() {
    let bucket = Bucket::new(65, 40, ServerFaults::default());
    let (training_set, dataset) = (bucket.training_set(), bucket.open("s3://bucket"));
    let Bucket { server, corpus: _corpus, .. } = bucket;
    drop(server);
    for read_ahead_bytes in [0, 1 << 30] {
        let (error, num_bad) = end_of(&Serving { read_ahead_bytes, ..Serving::cpu() }, &training_set);
        assert!(matches!(error, FeedError::StorageUnreachable { .. }) && num_bad == 0, "{error}");
        assert!(error.to_string().starts_with("storage is unreachable: "), "{error}");
    }
    let rows = training_set.dataset().train_rows();
    let surveyed = TrainingSet::survey(Arc::clone(training_set.dataset()), &rows, &options());
    assert!(matches!(surveyed, Err(FeedError::StorageUnreachable { .. })), "{surveyed:?}");
    let checked = check(dataset, &CheckOptions { num_workers: 2, ..CheckOptions::default() }, |_| {});
    assert!(matches!(checked, Err(FeedError::StorageUnreachable { .. })), "{checked:?}");
}

/// Writes a tar archive of recordings and their texts.
fn write_tar(path: &Path, seed: u64, numbers: std::ops::Range<u64>) {
    let mut archive = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    };
    for (place, number) in numbers.enumerate() {
        let mut file = Vec::new();
        tandem_audio::wav::write(&clip(seed, number), &mut file).unwrap();
        // The same names in every shard.
        add(&format!("{place}.txt"), b"one two");
        add(&format!("{place}.wav"), &file);
    }
    archive.resize(archive.len() + 1024, 0);
    std::fs::write(path, archive).unwrap();
}

#[test]
fn a_local_shard_that_changed_ends_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("shard-0.tar");
    write_tar(&shard, 66, 0..20);
    let names = [shard.to_str().unwrap().to_owned()];
    let opened = open_corpus(&names, &OpenOptions::default(), 1, |_| {}).unwrap();
    let training_set = survey(opened.dataset, &folder.path().join("run"));
    let serving = Serving::cpu();
    assert_eq!(serving.batches(&training_set, 5).unwrap().len(), 5);
    write_tar(&shard, 67, 0..21);
    let (error, num_bad) = end_of(&serving, &training_set);
    assert!(matches!(error, FeedError::CorpusChanged { .. }) && num_bad == 0, "{error}");
    assert!(error.to_string().contains("shard-0.tar"), "{error}");
}

#[test]
fn members_of_the_same_name_in_two_shards_are_different_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let names = [0, 1].map(|shard| {
        let path = folder.path().join(format!("shard-{shard}.tar"));
        write_tar(&path, 68, 4 * shard..4 * shard + 4);
        path.to_str().unwrap().to_owned()
    });
    let dataset = open_corpus(&names, &OpenOptions::default(), 1, |_| {}).unwrap().dataset;
    let hashes = Arc::new(RecordingHashes::default());
    let recordings = hashes.wrap(Arc::new(FromFiles));
    let mut loaded = Clip::default();
    for _ in 0..2 {
        for (index, sample) in dataset.samples().iter() {
            recordings.load_into(&sample, &mut loaded).unwrap();
            assert_eq!(loaded, clip(68, index.0.into()));
        }
    }
    assert_eq!(hashes.take_changed(), [""; 0], "no recording changed");
}

#[test]
fn recordings_that_differ_only_in_the_query_of_their_url_are_cached_apart() {
    let bucket = Bucket::new(69, 4, ServerFaults::default());
    let row = |take: u32| {
        let url = format!("{}/bucket/wavs/u001.wav?take={take}", bucket.server.url());
        format!("{{\"id\":\"{take}\",\"audio_filepath\":\"{url}\",\"text\":\"one\",\"duration\":0.5}}\n")
    };
    std::fs::write(bucket.corpus.folder.path().join("list.jsonl"), row(1) + &row(2)).unwrap();
    let dataset = bucket.open("s3://bucket/list.jsonl");
    let cache = Cache::open(&CacheSpec::Memory { budget_bytes: 1 << 30 }, |_| {}).unwrap();
    let mut loaded = Clip::default();
    for (index, sample) in dataset.samples().iter() {
        assert!(!cache.holds(index, &sample.audio) && !cache.get_into(index, &sample.audio, &mut loaded));
        load_into(&sample.audio, &mut loaded).unwrap();
        cache.put(index, &sample.audio, &loaded);
        assert!(cache.holds(index, &sample.audio) && cache.get_into(index, &sample.audio, &mut loaded));
    }
    assert_eq!((cache.stats().entries, cache.stats().hits), (2, 2));
}
