//! What all decode threads share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bad_samples::{BadSamples, Replacements};
use super::cache::Cache;
use super::cached_pitch::CachedPitches;
use super::input::Input;
use crate::FeedError;
use crate::feed::messages::Messages;
use crate::feed::spec::FeedSpec;

/// What all decode threads share.
pub(crate) struct LoadContext {
    pub(crate) input: Arc<Input>,
    pub(crate) cache: Cache,
    pub(crate) pitches: CachedPitches,
    pub(crate) bad: BadSamples,
    /// Replacements from the checkpoint that the feed resumed from.
    pub(crate) resumed: Replacements,
    made: Mutex<Replacements>,
}

impl LoadContext {
    /// Opens the cache and the list of bad samples. Fails if they cannot be used, or if the checkpoint belongs to another
    /// corpus.
    pub(crate) fn open(input: Arc<Input>, spec: &FeedSpec, messages: &Messages) -> Result<LoadContext, FeedError> {
        let num_samples = input.training_set.dataset().samples().len();
        if let Some(foreign) = spec.from.replacements.iter().find(|one| one.sample.at() >= num_samples) {
            return Err(FeedError::ForeignState { sample: foreign.sample.0, num_samples });
        }
        let messages = messages.clone();
        let per_epoch = input.order.num_samples() - input.order.sitting_out(0).len();
        Ok(LoadContext {
            cache: Cache::open(&spec.cache, move |message| messages.push(message))?,
            pitches: CachedPitches::new(&input.plan),
            bad: BadSamples::new(spec.bad_samples.clone(), spec.max_bad_fraction, per_epoch)?
                .of_ranks(input.shard.world),
            resumed: spec.from.replacements.clone(),
            made: Mutex::default(),
            input,
        })
    }

    /// Replacements since the feed started.
    pub(crate) fn made(&self) -> MutexGuard<'_, Replacements> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
