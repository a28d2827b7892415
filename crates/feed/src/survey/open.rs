//! Opens a corpus: shards without an index are scanned on a few threads, and their recordings measured on the way.
//!
//! An interrupted scan loses at most the shards in hand: each shard is stored in the index as soon as it is done.

use std::io::{Seek as _, SeekFrom};
use std::ops::ControlFlow;

use tandem_audio::{Clip, decode, probe};
use tandem_corpus::{
    CorpusError, CorpusOpening, Dataset, Length, LengthProbe, OpenOptions, ProbedLength, RecordingReader, ScannedShard,
};

use crate::FeedError;
use crate::survey::worker_pool;

/// How far the shards of a corpus are scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardProgress {
    /// Shards scanned.
    pub done: usize,
    /// Shards to scan.
    pub total: usize,
    /// Bytes of the shards scanned.
    pub done_bytes: u64,
    /// Bytes of all shards to scan.
    pub total_bytes: u64,
}

/// An opened corpus, and what it cost.
#[derive(Debug)]
pub struct OpenedCorpus {
    /// The corpus.
    pub dataset: Dataset,
    /// Shards whose rows came from the index.
    pub num_indexed: usize,
    /// Shards that were scanned now.
    pub num_scanned: usize,
    /// Bytes of the shards that were scanned now.
    pub scanned_bytes: u64,
    /// Recordings that were measured while their shards were scanned.
    pub num_measured: u64,
    /// Those of them whose header has no length: they were decoded from beginning to end.
    pub num_decoded: u64,
    /// Why the index could not be stored.
    pub index_error: Option<String>,
}

/// Opens the corpus that `names` stand for. Shards that are not in the index are scanned on `num_workers` threads; `progress`
/// is called after each.
///
/// Fails with [`FeedError::Corpus`] as [`Dataset::open`] does, and if a shard cannot be read at all.
pub fn open_corpus(
    names: &[String],
    options: &OpenOptions,
    num_workers: usize,
    mut progress: impl FnMut(ShardProgress),
) -> Result<OpenedCorpus, FeedError> {
    let mut opening = CorpusOpening::begin(names, options).map_err(FeedError::Corpus)?;
    let pending = opening.pending();
    let (total, total_bytes) = (pending.len(), pending.iter().map(|(_, shard)| shard.num_bytes()).sum());
    let num_bytes: Vec<u64> = pending.iter().map(|(_, shard)| shard.num_bytes()).collect();
    let mut shown = ShardProgress { done: 0, total, done_bytes: 0, total_bytes };
    let mut failed: Option<CorpusError> = None;
    worker_pool::for_each(
        num_workers,
        total,
        || (),
        move |(), item| pending[item].1.scan(Some(&HeaderProbe)),
        |item, scanned: Result<ScannedShard, CorpusError>| match scanned {
            Ok(scanned) => {
                opening.add(item, scanned);
                (shown.done, shown.done_bytes) = (shown.done + 1, shown.done_bytes + num_bytes[item]);
                progress(shown);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    if let Some(error) = failed {
        return Err(FeedError::Corpus(error));
    }
    let (num_measured, num_decoded) = opening.num_measured();
    Ok(OpenedCorpus {
        num_indexed: opening.num_indexed(),
        num_scanned: total,
        scanned_bytes: total_bytes,
        num_measured,
        num_decoded,
        index_error: opening.index_error().map(CorpusError::to_string),
        dataset: opening.finish().map_err(FeedError::Corpus)?,
    })
}

/// Measures recordings by their headers, and by decoding those whose header has no length.
struct HeaderProbe;

impl LengthProbe for HeaderProbe {
    fn length(&self, mut recording: RecordingReader) -> Result<ProbedLength, String> {
        let header = probe(&mut recording).map_err(|error| error.to_string())?;
        if let Some(num_samples) = header.num_samples {
            return Ok(ProbedLength { length: Length { num_samples, rate_hz: header.rate_hz }, is_decoded: false });
        }
        recording.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let mut clip = Clip::default();
        decode(recording, &mut clip).map_err(|error| error.to_string())?;
        let length = Length { num_samples: clip.samples.len() as u64, rate_hz: clip.rate_hz };
        Ok(ProbedLength { length, is_decoded: true })
    }
}
