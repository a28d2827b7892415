//! `bench shards`: a large corpus in tar shards, from its files to batches.
//!
//! Four questions: how fast shards are indexed, compared with reading their bytes; how long it takes until a corpus with an
//! index is ready, and how much memory that costs; how long until the first batch of a run that resumes in the middle of an
//! epoch; how many clips per second become batches.

mod serving;
mod written;

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_audio::FeatureSettings;
use tandem_corpus::{Cursor, Dataset, LengthIndex, OpenOptions};
use tandem_feed::{
    BatchSchema, FeedState, NUM_BUCKETS, OpenedCorpus, TrainingSet, TrainingSetOptions, open_corpus, scan_lengths,
};
use tandem_launch::inventory::host_facts;

use self::serving::{SAMPLES_ONLY, ShardFeed};
pub use self::written::{ShardContents, WrittenShards, write};
use super::BenchError;
use super::serve::{BenchContext, MEL_ONLY};
use super::spread::Spread;

/// Each of the first measurements is repeated so often; medians count.
const ROUNDS: usize = 3;
/// Read at once when files are read from beginning to end.
const READ_BYTES: usize = 8 << 20;
/// Threads that scan shards, as in a run.
const SCANNERS: usize = 8;
const SEED: u64 = 1234;
/// From so many utterances on, memory is measured. The strings of fewer fit into memory that the allocator has kept: glibc asks
/// the system for every block above 32 MiB, and gives it back.
const MIN_MEASURED: usize = 1_000_000;
/// The epoch to resume in, from 0.
const RESUME_EPOCH: u64 = 3;
/// Clips are counted for so long, or for an epoch if that is shorter.
const COUNTED: Duration = Duration::from_secs(10);

/// Drops the pages of a file from the page cache; false where that is not possible.
pub type DropPages<'a> = &'a dyn Fn(&File) -> bool;

/// How fast shards are indexed.
#[derive(Clone, Copy, Debug)]
pub struct IndexSpeed {
    /// Utterances.
    pub rows: usize,
    /// Bytes of the shards.
    pub num_bytes: u64,
    /// Seconds to read the files from beginning to end, on one thread.
    pub sequential_s: f64,
    /// Seconds from their names to a dataset, without an index. The index is written.
    pub index_s: f64,
    /// Recordings whose headers were read, because nothing else says how long they are.
    pub num_measured: u64,
    /// Whether the files were not in the page cache, in both cases.
    pub is_cold: bool,
}

/// What it costs to open a corpus whose shards have an index.
#[derive(Clone, Copy, Debug)]
pub struct ReadyTimes {
    /// Utterances.
    pub rows: usize,
    /// Seconds from the names of the shards to a dataset.
    pub seconds: f64,
    /// Memory of the process that the dataset added, per utterance; none for fewer
    /// than a million, and where the system does not say.
    pub bytes_per_row: Option<f64>,
    /// Bytes of texts and names of members, per utterance: part of it.
    pub string_bytes_per_row: f64,
    /// Size of the index on the disk.
    pub index_bytes: u64,
}

/// How long a run takes from its dataset to the batch it resumes at.
#[derive(Clone, Debug)]
pub struct ResumeTimes {
    /// What was done, in order, and its seconds.
    pub parts: Vec<(&'static str, f64)>,
    /// The batch that was leased.
    pub cursor: Cursor,
    /// Batches of an epoch.
    pub num_batches: u64,
}

/// How many clips per second become batches.
#[derive(Clone, Copy, Debug)]
pub struct ClipRate {
    /// What batches hold.
    pub fields: ClipFields,
    /// Clips of a batch.
    pub batch: u32,
    /// Decode threads.
    pub threads: usize,
    /// Clips that were counted.
    pub num_clips: u64,
    /// In so many seconds.
    pub seconds: f64,
    /// Seconds of audio of a clip, in the mean.
    pub clip_s: f64,
}

/// What a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipFields {
    /// Samples in pinned memory, and on the data device.
    Samples,
    /// Log-mel of them, on the model device.
    LogMel,
}

impl IndexSpeed {
    /// Speed of indexing as a share of the speed of reading.
    pub fn of_sequential(&self) -> f64 {
        self.sequential_s / self.index_s
    }
}

impl ReadyTimes {
    /// Memory per utterance without its strings.
    pub fn bytes_beside_strings(&self) -> Option<f64> {
        self.bytes_per_row.map(|bytes| bytes - self.string_bytes_per_row)
    }
}

impl ResumeTimes {
    /// Seconds from the dataset to the leased batch.
    pub fn total_s(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }
}

impl ClipRate {
    /// Clips per second.
    pub fn clips_per_s(&self) -> f64 {
        self.num_clips as f64 / self.seconds
    }
}

impl ClipFields {
    /// Its name in tables, and in the output of peers.
    pub fn slug(self) -> &'static str {
        match self {
            ClipFields::Samples => "samples",
            ClipFields::LogMel => "log-mel",
        }
    }

    fn schema(self) -> BatchSchema {
        match self {
            ClipFields::Samples => SAMPLES_ONLY,
            ClipFields::LogMel => MEL_ONLY,
        }
    }
}

/// Reads the files of `shards`, then indexes them, with the page cache dropped before each. The last index stays in
/// `index_folder`, which is made.
pub fn index(shards: &WrittenShards, index_folder: &Path, drop_pages: DropPages<'_>) -> Result<IndexSpeed, BenchError> {
    let (mut sequential, mut indexed) = (Vec::new(), Vec::new());
    let (mut is_cold, mut num_measured) = (true, 0);
    for _ in 0..ROUNDS {
        is_cold &= drop_files(&shards.files, drop_pages)?;
        let began = Instant::now();
        read_all(&shards.files)?;
        sequential.push(began.elapsed().as_secs_f64());
        if index_folder.exists() {
            fs::remove_dir_all(index_folder).map_err(unusable(index_folder))?;
        }
        is_cold &= drop_files(&shards.files, drop_pages)?;
        let began = Instant::now();
        let opened = open(shards, index_folder)?;
        indexed.push(began.elapsed().as_secs_f64());
        check_rows(shards, &opened, 0)?;
        num_measured = opened.num_measured;
    }
    Ok(IndexSpeed {
        rows: shards.contents.rows,
        num_bytes: shards.num_bytes,
        sequential_s: Spread::of(sequential).median,
        index_s: Spread::of(indexed).median,
        num_measured,
        is_cold,
    })
}

/// Opens `shards` by their index in `index_folder`. Neither shards nor index are in the page cache.
pub fn open_indexed(
    shards: &WrittenShards,
    index_folder: &Path,
    drop_pages: DropPages<'_>,
) -> Result<(ReadyTimes, Dataset), BenchError> {
    let (mut seconds, mut growth) = (Vec::new(), Vec::new());
    let indexes = files_in(index_folder).map_err(unusable(index_folder))?;
    let mut last = None;
    for _ in 0..ROUNDS {
        // Its memory must be gone before the next one is measured.
        drop(last.take());
        drop_files(&shards.files, drop_pages)?;
        drop_files(&indexes, drop_pages)?;
        let (began, before) = (Instant::now(), process_bytes());
        let opened = open(shards, index_folder)?;
        seconds.push(began.elapsed().as_secs_f64());
        growth.extend(before.zip(process_bytes()).map(|(before, after)| after as f64 - before as f64));
        check_rows(shards, &opened, shards.files.len())?;
        last = Some(opened.dataset);
    }
    let Some(dataset) = last else { unreachable!("there is more than one round") };
    let rows = dataset.samples().len();
    let strings = dataset.samples().iter().map(|(_, sample)| sample.audio.key.len() + sample.text.len());
    let per_row = |bytes: f64| bytes / rows.max(1) as f64;
    let mut index_bytes = 0;
    for path in &indexes {
        index_bytes += fs::metadata(path).map_err(unusable(path))?.len();
    }
    let ready = ReadyTimes {
        rows,
        seconds: Spread::of(seconds).median,
        bytes_per_row: (growth.len() == ROUNDS && rows >= MIN_MEASURED).then(|| per_row(Spread::of(growth).median)),
        string_bytes_per_row: per_row(strings.sum::<usize>() as f64),
        index_bytes,
    };
    Ok((ready, dataset))
}

/// Times everything from an opened dataset to the leased batch in the middle of epoch 3.
pub fn resume(context: &BenchContext, dataset: Dataset, batch: u32) -> Result<ResumeTimes, BenchError> {
    let mut last = Instant::now();
    let mut parts = Vec::new();
    let mut done = |part: &'static str| {
        let now = Instant::now();
        parts.push((part, now.duration_since(last).as_secs_f64()));
        last = now;
    };
    let (mut lengths, _) = LengthIndex::open(Path::new(""), &dataset);
    let scanned = scan_lengths(dataset, &mut lengths, num_scanners(), |_| ControlFlow::Continue(()))?;
    done("look for lengths");
    let dataset = scanned.dataset;
    let split = dataset.split(SEED);
    done("split");
    let options = TrainingSetOptions { with_text: true, features: FeatureSettings::default(), ..Default::default() };
    let training_set = TrainingSet::survey(Arc::new(dataset), &split.train, &options)?;
    done("survey");
    let buckets = training_set.bucket_plan(NUM_BUCKETS, batch).ok_or_else(nothing_to_serve)?;
    done("bucket plan");
    let num_batches = buckets.order(SEED).num_batches();
    let cursor = Cursor { epoch: RESUME_EPOCH, k: num_batches / 2 };
    let from = FeedState { next: cursor, ..FeedState::default() };
    let mut serving = ShardFeed::start(context, &training_set, buckets, MEL_ONLY, from, SEED)?;
    done("order, memory and threads of the feed");
    let stream = serving.roles.model.device.stream(true)?;
    let leased = serving.feed.lease(&stream)?;
    let found = leased.info().cursor;
    drop(leased);
    stream.drain()?;
    done("first batch");
    serving.feed.stop()?;
    if found != cursor {
        return Err(BenchError::Clips(format!("expected batch {cursor:?}, found {found:?}")));
    }
    Ok(ResumeTimes { parts, cursor, num_batches })
}

/// The rows of `shards` as a training set. Their files are read once before, so that they are in the page cache if they fit.
pub fn training_set(shards: &WrittenShards, index_folder: &Path) -> Result<Arc<TrainingSet>, BenchError> {
    let dataset = open(shards, index_folder)?.dataset;
    let rows = dataset.train_rows();
    let options = TrainingSetOptions {
        max_frames: Some(u32::MAX),
        with_text: false,
        features: FeatureSettings::default(),
        ..TrainingSetOptions::default()
    };
    let training_set = TrainingSet::survey(Arc::new(dataset), &rows, &options)?;
    read_all(&shards.files)?;
    Ok(Arc::new(training_set))
}

/// Counts the clips that become batches of `fields`, with all cores.
pub fn clip_rate(
    context: &BenchContext,
    training_set: &TrainingSet,
    batch: u32,
    fields: ClipFields,
) -> Result<ClipRate, BenchError> {
    let threads = host_facts().cores;
    let context = BenchContext { threads: [threads; 2], ..context.clone() };
    let buckets = training_set.bucket_plan(NUM_BUCKETS, batch).ok_or_else(nothing_to_serve)?;
    let (schema, from) = (fields.schema(), FeedState::default());
    let mut serving = ShardFeed::start(&context, training_set, buckets, schema, from, SEED)?;
    let stream = serving.roles.model.device.stream(true)?;
    // What was made before anybody asked does not count.
    let held = context.slots.iter().sum::<u64>() + context.pinned_uploads;
    for _ in 0..held {
        drop(serving.feed.lease(&stream)?);
    }
    stream.drain()?;
    let (began, mut num_clips) = (Instant::now(), 0);
    for _ in 0..serving.feed.batches_per_epoch() {
        let leased = serving.feed.lease(&stream)?;
        num_clips += leased.info().utterances.iter().flatten().count() as u64;
        drop(leased);
        stream.drain()?;
        if began.elapsed() >= COUNTED {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    serving.feed.stop()?;
    let clip_s = training_set.audio_seconds() / training_set.rows().len().max(1) as f64;
    Ok(ClipRate { fields, batch, threads, num_clips, seconds, clip_s })
}

fn open(shards: &WrittenShards, index_folder: &Path) -> Result<OpenedCorpus, BenchError> {
    let options = OpenOptions { index_folder: Some(index_folder.to_owned()), ..OpenOptions::default() };
    Ok(open_corpus(std::slice::from_ref(&shards.pattern), &options, num_scanners(), |_| ())?)
}

/// A figure about other rows, or about shards that were scanned instead of loaded, would be wrong.
fn check_rows(shards: &WrittenShards, opened: &OpenedCorpus, num_indexed: usize) -> Result<(), BenchError> {
    let rows = opened.dataset.samples().len();
    if let Some(error) = &opened.index_error {
        return Err(BenchError::Clips(format!("the index was not stored: {error}")));
    }
    if (rows, opened.num_indexed) == (shards.contents.rows, num_indexed) {
        return Ok(());
    }
    let (expected, found) = (shards.contents.rows, opened.num_indexed);
    Err(BenchError::Clips(format!(
        "expected {expected} rows and {num_indexed} shards of the index, found {rows} and {found}"
    )))
}

fn num_scanners() -> usize {
    host_facts().cores.min(SCANNERS)
}

fn nothing_to_serve() -> BenchError {
    BenchError::Clips("there is nothing to serve".to_owned())
}

/// True if none of the files is in the page cache afterwards.
fn drop_files(files: &[impl AsRef<Path>], drop_pages: DropPages<'_>) -> Result<bool, BenchError> {
    let mut all = true;
    for path in files {
        let file = File::open(path).map_err(unusable(path.as_ref()))?;
        // Pages that are not on the disk yet cannot be dropped.
        file.sync_all().map_err(unusable(path.as_ref()))?;
        all &= drop_pages(&file);
    }
    Ok(all)
}

/// Reads files from beginning to end, with large reads.
fn read_all(files: &[impl AsRef<Path>]) -> Result<(), BenchError> {
    let mut buffer = vec![0; READ_BYTES];
    for path in files {
        let mut file = File::open(path).map_err(unusable(path.as_ref()))?;
        while file.read(&mut buffer).map_err(unusable(path.as_ref()))? > 0 {}
    }
    Ok(())
}

fn files_in(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    move |error| BenchError::Clips(format!("{error}: {}", path.display()))
}

/// Memory of this process that is no file's; none where the system does not say.
fn process_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: ShardContents = ShardContents {
        name: "few",
        rows: 130,
        num_shards: 4,
        rate_hz: 1050,
        seconds: [1.3, 1.9],
        has_durations: false,
    };

    #[test]
    fn shards_are_indexed_and_opened_again_by_their_index() {
        let folder = tempfile::tempdir().unwrap();
        let index_folder = folder.path().join("index");
        for (name, has_durations) in [("measured", false), ("listed", true)] {
            let contents = ShardContents { name, has_durations, ..FEW };
            let shards = write(folder.path(), contents).unwrap();
            assert!(shards.files.len() == 4 && shards.num_bytes <= contents.max_bytes(), "{shards:?}");
            let speed = index(&shards, &index_folder, &|_| true).unwrap();
            assert_eq!((speed.rows, speed.num_bytes, speed.is_cold), (130, shards.num_bytes, true));
            assert_eq!(speed.num_measured, if has_durations { 0 } else { 130 });
            let (ready, dataset) = open_indexed(&shards, &index_folder, &|_| true).unwrap();
            assert_eq!((ready.rows, dataset.problems().len()), (130, 0));
            assert!(ready.bytes_per_row.is_none() && ready.string_bytes_per_row == 50.0, "{ready:?}");
            assert!(dataset.samples().iter().all(|(_, sample)| sample.duration_s.is_some()));
        }
    }

    #[test]
    fn a_page_cache_that_stays_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let shards = write(folder.path(), FEW).unwrap();
        let speed = index(&shards, &folder.path().join("index"), &|_| false).unwrap();
        assert!(!speed.is_cold);
    }

    #[test]
    fn an_index_that_is_not_there_is_no_figure() {
        let folder = tempfile::tempdir().unwrap();
        let shards = write(folder.path(), FEW).unwrap();
        let index_folder = folder.path().join("index");
        fs::create_dir(&index_folder).unwrap();
        let error = open_indexed(&shards, &index_folder, &|_| true).unwrap_err().to_string();
        assert!(error.contains("expected 130 rows and 4 shards of the index, found 130 and 0"), "{error}");
    }

    #[test]
    fn recordings_differ_and_can_be_decoded() {
        let folder = tempfile::tempdir().unwrap();
        let shards = write(folder.path(), FEW).unwrap();
        let dataset = open(&shards, &folder.path().join("index")).unwrap().dataset;
        let load = |row: u32| {
            let mut clip = tandem_audio::Clip::default();
            let sample = dataset.get(tandem_corpus::SampleIndex(row)).unwrap();
            tandem_feed::load_into(&sample.audio, &mut clip).unwrap();
            assert!((clip.seconds() - sample.duration_s.unwrap()).abs() < 1e-9);
            clip.samples
        };
        assert!(load(0) != load(1) && load(129).len() >= 1365);
    }
}
