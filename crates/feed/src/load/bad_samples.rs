//! Recordings that cannot be used: counted, listed, replaced, and too many of them end the run.
//!
//! Decode threads report what they could not use. A sample counts once in every epoch that meets it, and has one line
//! of `bad_samples.jsonl` for the whole run, also when the run is resumed. What took its place is a [`Replacement`],
//! kept with a checkpoint so that a resumed run sees the same batches, even if the bad file was mended meanwhile.

mod listed;
mod replacements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem_corpus::{Sample, SampleIndex};

use self::listed::Listed;
pub use self::replacements::{Replacement, Replacements};
use crate::FeedError;

/// How many are named in a message. The file names all.
const MAX_SHOWN: usize = 20;
/// Epochs that are counted at a time: decoding is never so far ahead.
const MAX_EPOCHS: usize = 4;

/// The bad samples of one corpus. One for all threads.
#[derive(Debug)]
pub struct BadSamples {
    path: Option<PathBuf>,
    max_fraction: f64,
    samples_per_epoch: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `id: reason` of every one, in the order they were met.
    known: Vec<String>,
    /// Where each is in `known`.
    places: HashMap<SampleIndex, usize>,
    /// Which of `known` each of the latest epochs has met.
    epochs: BTreeMap<u64, BTreeSet<usize>>,
    listed: Option<Listed>,
}

/// More of an epoch is bad than is allowed.
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
    /// Where all of them are listed, if they are.
    pub path: Option<PathBuf>,
}

impl BadSamples {
    /// None yet. `path` is the list to append to, made when there is something to put into it; up to `max_fraction` of
    /// `samples_per_epoch` are allowed.
    ///
    /// Reads a list that is there already, and fails with [`FeedError::Unusable`] when it cannot be read. Counting
    /// starts anew: what an earlier run met may have been mended.
    pub fn new(path: Option<PathBuf>, max_fraction: f64, samples_per_epoch: usize) -> Result<BadSamples, FeedError> {
        let listed = path.as_deref().map(Listed::open).transpose()?;
        let state = State { known: Vec::new(), places: HashMap::new(), epochs: BTreeMap::new(), listed };
        Ok(BadSamples { path, max_fraction, samples_per_epoch, state: Mutex::new(state) })
    }

    /// Counts and lists `sample`, which should have been at `position` of batch `k` of `epoch`; `replaced_by` is the id
    /// of what is there now. Its first reason is the one that is kept.
    ///
    /// Cost: a lock; for a sample not listed yet, one write. Fails once the epoch has more of them than are allowed, and
    /// from then on; a list that cannot be written is no failure, see [`BadSamples::write_error`].
    #[expect(clippy::too_many_arguments, reason = "they are the columns of the list")]
    pub fn report(
        &self,
        epoch: u64,
        k: u64,
        position: usize,
        sample: &Sample<'_>,
        index: SampleIndex,
        reason: &str,
        replaced_by: Option<&str>,
    ) -> Result<(), TooManyBad> {
        let mut state = self.lock();
        let bad = state.count(epoch, sample, index, reason);
        if let Some(listed) = &mut state.listed {
            listed.add(&listed::BadSampleLine { epoch, k, position, sample, reason, replaced_by });
        }
        if bad > self.max_bad() { Err(self.too_many(&state, epoch)) } else { Ok(()) }
    }

    /// Distinct bad samples of `epoch`, which is one of the last four.
    pub fn count(&self, epoch: u64) -> usize {
        self.lock().epochs.get(&epoch).map_or(0, BTreeSet::len)
    }

    /// Distinct bad samples of the run.
    pub fn total(&self) -> usize {
        self.lock().known.len()
    }

    /// All of the run as `id: reason`, in the order they were met.
    pub fn known(&self) -> Vec<String> {
        self.lock().known.clone()
    }

    /// Why the list is not whole, if it is not: the first thing that went wrong while writing it.
    pub fn write_error(&self) -> Option<String> {
        self.lock().listed.as_ref().and_then(Listed::write_error)
    }

    /// How many an epoch may have. The little that is added is for products like 0.07 * 100, which is above 7.
    fn max_bad(&self) -> usize {
        (self.max_fraction * self.samples_per_epoch as f64 + 1e-6).floor() as usize
    }

    fn too_many(&self, state: &State, epoch: u64) -> TooManyBad {
        let met = state.epochs.get(&epoch);
        TooManyBad {
            bad: met.map_or(0, BTreeSet::len),
            of: self.samples_per_epoch,
            epoch,
            max_fraction: self.max_fraction,
            list: met.into_iter().flatten().take(MAX_SHOWN).map(|place| state.known[*place].clone()).collect(),
            // A list that is not whole is no place to send anybody to.
            path: self.path.clone().filter(|_| state.listed.as_ref().and_then(Listed::write_error).is_none()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked may have left a sample that is known and not counted; the next report of it counts it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a sample in its epoch. How many the epoch has now.
    fn count(&mut self, epoch: u64, sample: &Sample<'_>, index: SampleIndex, reason: &str) -> usize {
        let place = *self.places.entry(index).or_insert_with(|| {
            self.known.push(format!("{}: {reason}", sample.id));
            self.known.len() - 1
        });
        let met = self.epochs.entry(epoch).or_default();
        met.insert(place);
        let bad = met.len();
        while self.epochs.len() > MAX_EPOCHS {
            self.epochs.pop_first();
        }
        bad
    }
}

impl fmt::Display for TooManyBad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooManyBad { bad, of, epoch, max_fraction, list, path } = self;
        let percent = max_fraction * 100.0;
        write!(f, "{bad} of the {of} samples of epoch {epoch} cannot be used, and {percent} % may be ")?;
        write!(f, "(data.max_bad_fraction: {max_fraction}); mend them, take them out, or allow more:")?;
        for line in list {
            write!(f, "\n  {line}")?;
        }
        if *bad > list.len() {
            write!(f, "\n  and {} more", bad - list.len())?;
        }
        match path {
            Some(path) => write!(f, "\nall of them with file and line: {}", path.display()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TooManyBad {}
