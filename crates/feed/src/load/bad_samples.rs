//! Recordings that cannot be used: counted, listed and replaced. Too many of them end the run.
//!
//! Decode threads report them. A sample counts once per epoch, and has one line in `bad_samples.jsonl` for the whole run, also
//! if the run is resumed. Its [`Replacement`] is part of a checkpoint: a resumed run has the same batches, even if the bad
//! file has been repaired.

mod list_file;
mod replacements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem_corpus::{Cursor, Sample, SampleIndex};

use self::list_file::ListFile;
pub use self::replacements::{Replacement, Replacements};
use crate::FeedError;

/// How many a message names. The file names all.
const MAX_SHOWN: usize = 20;
/// Epochs that are counted at a time: decoding is never further ahead.
const MAX_EPOCHS: usize = 4;

/// The bad samples of one corpus. Shared by all threads.
#[derive(Debug)]
pub struct BadSamples {
    path: Option<PathBuf>,
    max_fraction: f64,
    samples_per_epoch: usize,
    /// Ranks that share an epoch.
    ranks: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `id: reason` of every bad sample, in the order of their reports.
    known: Vec<String>,
    /// Position of each in `known`.
    positions: HashMap<SampleIndex, usize>,
    /// Positions in `known` that each of the latest epochs has met.
    epochs: BTreeMap<u64, BTreeSet<usize>>,
    list: Option<ListFile>,
}

/// A bad sample: where it should have been, why it is bad, and its replacement.
#[derive(Clone, Copy, Debug)]
pub struct BadSample<'a> {
    /// The batch.
    pub cursor: Cursor,
    /// The row of the batch.
    pub position: usize,
    /// The row of the corpus.
    pub sample: &'a Sample<'a>,
    /// Its index.
    pub index: SampleIndex,
    /// Why it cannot be used.
    pub reason: &'a str,
    /// The id of its replacement.
    pub replaced_by: Option<&'a str>,
}

/// More samples of an epoch are bad than allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct TooManyBad {
    /// Distinct bad samples of the epoch.
    pub bad: usize,
    /// Samples of an epoch.
    pub of: usize,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The share that is allowed: `data.max_bad_fraction`.
    pub max_fraction: f64,
    /// The first of them, as `id: reason`.
    pub list: Vec<String>,
    /// The file that lists all of them, if it is complete.
    pub path: Option<PathBuf>,
}

impl BadSamples {
    /// No bad samples yet. `path` is the list to append to, created with its first line; up to `max_fraction` of
    /// `samples_per_epoch` are allowed.
    ///
    /// Reads an existing list, and fails with [`FeedError::Unusable`] if it cannot be read. Counts start at 0: files that were
    /// bad in an earlier run may have been repaired.
    pub fn new(path: Option<PathBuf>, max_fraction: f64, samples_per_epoch: usize) -> Result<BadSamples, FeedError> {
        let list = path.as_deref().map(ListFile::open).transpose()?;
        let state = State { known: Vec::new(), positions: HashMap::new(), epochs: BTreeMap::new(), list };
        Ok(BadSamples { path, max_fraction, samples_per_epoch, ranks: 1, state: Mutex::new(state) })
    }

    /// The same for one of `ranks` ranks, which meets its part of an epoch: it may have its part of the bad samples.
    pub fn of_ranks(self, ranks: u32) -> BadSamples {
        BadSamples { ranks: ranks.max(1) as usize, ..self }
    }

    /// Counts and lists a bad sample. The reason of its first report is the one that is listed.
    ///
    /// Cost: a lock, and one write for a sample that is not listed yet. Fails once the epoch has more than allowed, and from
    /// then on. A list that cannot be written is no failure, see [`BadSamples::write_error`].
    pub fn report(&self, bad: &BadSample<'_>) -> Result<(), TooManyBad> {
        let mut state = self.lock();
        let num_bad = state.count(bad);
        if let Some(list) = &mut state.list {
            list.add(bad);
        }
        if num_bad > self.max_bad() { Err(self.too_many(&state, bad.cursor.epoch)) } else { Ok(()) }
    }

    /// Distinct bad samples of `epoch`, one of the last four.
    pub fn count(&self, epoch: u64) -> usize {
        self.lock().epochs.get(&epoch).map_or(0, BTreeSet::len)
    }

    /// Distinct bad samples of the run.
    pub fn total(&self) -> usize {
        self.lock().known.len()
    }

    /// All of the run as `id: reason`, in the order of their reports.
    pub fn known(&self) -> Vec<String> {
        self.lock().known.clone()
    }

    /// Why the list is incomplete: the first error of writing it.
    pub fn write_error(&self) -> Option<String> {
        self.lock().list.as_ref().and_then(ListFile::write_error)
    }

    /// How many an epoch may have. The small addend is for rounded products: 0.07 * 100 is not 7. A part is rounded up: bad
    /// samples are not spread evenly.
    fn max_bad(&self) -> usize {
        let of_all = (self.max_fraction * self.samples_per_epoch as f64 + 1e-6).floor() as usize;
        of_all.div_ceil(self.ranks)
    }

    fn too_many(&self, state: &State, epoch: u64) -> TooManyBad {
        let met = state.epochs.get(&epoch);
        TooManyBad {
            bad: met.map_or(0, BTreeSet::len),
            of: self.samples_per_epoch.div_ceil(self.ranks),
            epoch,
            max_fraction: self.max_fraction,
            list: met.into_iter().flatten().take(MAX_SHOWN).map(|position| state.known[*position].clone()).collect(),
            // An incomplete list is not worth a look.
            path: self.path.clone().filter(|_| state.list.as_ref().and_then(ListFile::write_error).is_none()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic may leave a sample known and not counted; its next report counts it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a sample in its epoch. Returns the epoch's count.
    fn count(&mut self, bad: &BadSample<'_>) -> usize {
        let position = *self.positions.entry(bad.index).or_insert_with(|| {
            self.known.push(format!("{}: {}", bad.sample.id, bad.reason));
            self.known.len() - 1
        });
        let met = self.epochs.entry(bad.cursor.epoch).or_default();
        met.insert(position);
        let num_bad = met.len();
        while self.epochs.len() > MAX_EPOCHS {
            self.epochs.pop_first();
        }
        num_bad
    }
}

impl fmt::Display for TooManyBad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooManyBad { bad, of, epoch, max_fraction, list, path } = self;
        let percent = max_fraction * 100.0;
        write!(f, "{bad} of the {of} samples of epoch {epoch} cannot be used, and only {percent} % may be bad ")?;
        write!(f, "(data.max_bad_fraction: {max_fraction}); repair them, exclude them, or allow more:")?;
        for line in list {
            write!(f, "\n  {line}")?;
        }
        if *bad > list.len() {
            write!(f, "\n  and {} more", bad - list.len())?;
        }
        match path {
            Some(path) => write!(f, "\nall of them, with file and line: {}", path.display()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TooManyBad {}
