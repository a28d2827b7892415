//! `bench start`: from a list on disk to the first batch on the model device.
//!
//! The list is large and gives durations, nothing of it was seen before, and no lengths are kept. Its rows are pieces
//! of a few real recordings, so that the first batch is a real one. What a list without durations costs is measured
//! apart: there every recording is opened once.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tandem_audio::{Clip, FeatureSettings, wav};
use tandem_corpus::{Dataset, LengthIndex, OpenOptions};
use tandem_feed::{
    CacheSpec, FeedError, FromFiles, NUM_BUCKETS, RATE_HZ, TrainingSet, TrainingSetOptions, scan_lengths,
};

use super::serve::Served;
use super::{BenchContext, BenchError};

/// Recordings behind all rows.
const RECORDINGS: usize = 64;
/// Seconds of each: the longest piece, and the room to move it in.
const RECORDING_S: f64 = 12.0;
/// Pieces are so long, in seconds.
const SHORTEST_S: f64 = 1.5;
const LONGEST_S: f64 = 8.0;
/// Threads that open recordings of which no list gives the length.
const SCANNERS: usize = 8;
const SEED: u64 = 1234;

/// How long it took to the first batch, and what that is made of.
#[derive(Clone, Debug)]
pub struct Start {
    /// Rows of the list.
    pub rows: usize,
    /// Bytes of the list.
    pub list_bytes: u64,
    /// What was done, in order, and its seconds. They add up to all of it.
    pub parts: Vec<(&'static str, f64)>,
    /// Seconds of the order alone, which is part of starting the feed.
    pub order_s: f64,
}

impl Start {
    /// Seconds from nothing to the first batch.
    pub fn total_s(&self) -> f64 {
        self.parts.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// What finding lengths costs.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Recordings that were opened.
    pub recordings: usize,
    /// How long that took.
    pub seconds: f64,
}

/// Writes a list of `rows` pieces with durations into `folder`, and the recordings they are of.
pub fn write_list(folder: &Path, rows: usize) -> Result<PathBuf, BenchError> {
    let write = || {
        write_recordings(folder, RECORDINGS, RECORDING_S)?;
        let path = folder.join("list.jsonl");
        let mut list = BufWriter::new(File::create(&path)?);
        let per_recording = rows.div_ceil(RECORDINGS) as f64;
        for row in 0..rows {
            let (recording, piece) = (row % RECORDINGS, (row / RECORDINGS) as f64);
            let duration_s = SHORTEST_S + (row * 7919 % 10_007) as f64 / 10_007.0 * (LONGEST_S - SHORTEST_S);
            let offset_s = piece / per_recording * (RECORDING_S - LONGEST_S);
            writeln!(
                list,
                "{{\"audio_filepath\":\"{recording}.wav\",\"text\":\"Row {row} of a long list says this.\",\
                 \"offset\":{offset_s:.6},\"duration\":{duration_s:.4}}}"
            )?;
        }
        list.flush()?;
        Ok(path)
    };
    write().map_err(|error: std::io::Error| BenchError::Clips(format!("{error}: {}", folder.display())))
}

/// Times everything from opening `list` to a leased batch of `batch` recordings. `index_folder` keeps no lengths.
pub fn measure(context: &BenchContext, list: &Path, index_folder: &Path, batch: u32) -> Result<Start, BenchError> {
    let mut clock = Clock { last: Instant::now(), parts: Vec::new() };
    let dataset = open(list)?;
    clock.done("open the list");
    let dataset = with_lengths(dataset, index_folder)?.0;
    clock.done("look for lengths");
    let split = dataset.split(SEED);
    clock.done("split");
    let options = TrainingSetOptions { with_text: true, features: FeatureSettings::default(), ..Default::default() };
    let training_set = Arc::new(TrainingSet::survey(Arc::new(dataset), &split.train, &options)?);
    clock.done("survey");
    let buckets = training_set.bucket_plan(NUM_BUCKETS, batch);
    let buckets = buckets.ok_or_else(|| BenchError::Clips("the list has no rows".to_owned()))?;
    clock.done("bucket plan");
    let recordings = Arc::new(FromFiles);
    let served = Served { training_set: Arc::clone(&training_set), recordings, batch, cache: CacheSpec::default() };
    let mut serving = context.serve_in(&served, buckets.clone(), |_| 0)?;
    clock.done("order, memory and threads of the feed");
    let stream = serving.roles.model.device.stream(true)?;
    let Some(feed) = serving.feed.as_mut() else { return Err(FeedError::Ended.into()) };
    drop(feed.lease(&stream)?);
    stream.drain()?;
    clock.done("first batch");
    drop(serving);
    let began = Instant::now();
    let _ = buckets.order(SEED).batch(0, 0);
    let order_s = began.elapsed().as_secs_f64();
    let list_bytes = fs::metadata(list).map_or(0, |list| list.len());
    Ok(Start { rows: training_set.dataset().samples().len(), list_bytes, parts: clock.parts, order_s })
}

/// Times the scan of a list of `recordings` without durations, which is written into `folder` first.
pub fn scan(folder: &Path, recordings: usize) -> Result<Scan, BenchError> {
    let write = || {
        write_recordings(folder, recordings, 2.0)?;
        let mut list = String::new();
        for number in 0..recordings {
            let _ = writeln!(list, "{{\"audio_filepath\":\"{number}.wav\",\"text\":\"No duration is given.\"}}");
        }
        fs::write(folder.join("list.jsonl"), list)
    };
    write().map_err(|error| BenchError::Clips(format!("{error}: {}", folder.display())))?;
    let dataset = open(&folder.join("list.jsonl"))?;
    let began = Instant::now();
    let (_, recordings) = with_lengths(dataset, &folder.join("lengths"))?;
    Ok(Scan { recordings, seconds: began.elapsed().as_secs_f64() })
}

fn open(list: &Path) -> Result<Dataset, BenchError> {
    Dataset::open(list, &OpenOptions::default()).map_err(|error| BenchError::Clips(error.to_string()))
}

/// The same with the lengths no list gives, and how many that were.
fn with_lengths(dataset: Dataset, index_folder: &Path) -> Result<(Dataset, usize), BenchError> {
    let (mut index, _) = LengthIndex::open(index_folder, &dataset);
    let workers = tandem_launch::inventory::host_facts().cores.min(SCANNERS);
    let scanned = scan_lengths(dataset, &mut index, workers, |_| ControlFlow::Continue(()))?;
    Ok((scanned.dataset, scanned.measured))
}

/// `count` recordings of noise, named by their number.
fn write_recordings(folder: &Path, count: usize, seconds: f64) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let num_samples = (seconds * f64::from(RATE_HZ)) as i32;
    let noise = |i: i32| (i.wrapping_mul(7919) % 16_001 - 8000) as i16;
    let mut file = Vec::new();
    let clip = Clip { samples: (0..num_samples).map(noise).collect(), rate_hz: RATE_HZ };
    wav::write(&clip, &mut file).map_err(std::io::Error::other)?;
    (0..count).try_for_each(|number| fs::write(folder.join(format!("{number}.wav")), &file))
}

struct Clock {
    last: Instant,
    parts: Vec<(&'static str, f64)>,
}

impl Clock {
    fn done(&mut self, part: &'static str) {
        let now = Instant::now();
        self.parts.push((part, now.duration_since(self.last).as_secs_f64()));
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_piece_of_its_own_that_lies_in_its_recording() {
        let folder = tempfile::tempdir().unwrap();
        let dataset = open(&write_list(folder.path(), 1000).unwrap()).unwrap();
        assert_eq!((dataset.samples().len(), dataset.problems().len()), (1000, 0));
        let (dataset, measured) = with_lengths(dataset, &folder.path().join("lengths")).unwrap();
        assert_eq!(measured, 0);
        let mut clip = Clip::default();
        for index in [0, 1, 500, 999] {
            let sample = dataset.get(tandem_corpus::SampleIndex(index)).unwrap();
            tandem_feed::load_into(&sample.audio, &mut clip).unwrap();
            assert!(clip.samples.len() >= (SHORTEST_S * f64::from(RATE_HZ)) as usize);
        }
    }

    #[test]
    fn a_list_without_durations_is_opened_recording_by_recording() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(scan(folder.path(), 10).unwrap().recordings, 10);
    }
}
