//! Recordings in an object store and in shards: the batches of the same recordings on disk, and what ends a feed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tandem_audio::Clip;
use tandem_corpus::{Dataset, OpenOptions};
use tandem_feed::{
    Cache, CacheSpec, CheckOptions, FeedError, FromFiles, RecordingHashes, TrainingSet, check, load_into, open_corpus,
};
use tandem_storage::{Storage, StorageSettings};
use tandem_test_support::object_server::{ObjectServer, ServerFaults};
use tempfile::TempDir;

use super::support::{Corpus, PATIENCE, Serving, clip, options, survey};

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
        let corpus = Corpus::new(seed, count);
        let buckets = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(corpus.folder.path(), buckets.path().join("bucket")).unwrap();
        let server = ObjectServer::start(buckets.path(), faults);
        let wait = Duration::from_millis(1);
        let settings = StorageSettings { max_attempts: 8, first_wait: wait, max_wait: wait, request_timeout: PATIENCE };
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
