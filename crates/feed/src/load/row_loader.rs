//! A decode thread: loads rows into pinned memory.
//!
//! A [`LoadTask`] becomes a [`LoadedRow`]: samples in the upload's memory, tokens beside it. A sample that cannot be used
//! (undecodable, missing, longer than listed, shorter than its text, a bad text, a decoder that panics) is reported with the
//! reason and replaced by another sample of its row's part, until one is good. The replacement is a pure function of seed,
//! epoch, batch, position and attempt. An error of the storage says nothing about the sample, and ends the feed. Each thread has
//! its own scratch memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tandem_audio::{Clip, NOT_CACHED, Resampler};
use tandem_corpus::{Cursor, Sample, SampleIndex};
use tandem_text::Tokens;

use super::bad_samples::{BadSample, Replacement};
use super::context::LoadContext;
use super::decode::END_SLACK_S;
use super::decode_threads::DecodeThreads;
use super::loaded::{AT_FEATURES_RATE, LoadedRow};
use super::row_queue::{LoadTask, RowQueue};
use crate::error::FeedError;
use crate::featurize::on_host::{most_samples, num_resampled};

/// The loader of one decode thread.
pub(crate) struct RowLoader {
    context: Arc<LoadContext>,
    resampler: Resampler,
    clip: Clip,
    resampled: Clip,
    tokens: Tokens,
}

impl RowLoader {
    pub(crate) fn new(context: Arc<LoadContext>) -> RowLoader {
        let rate_hz = context.input.features().rate_hz;
        RowLoader {
            context,
            resampler: Resampler::new(rate_hz),
            clip: Clip::default(),
            resampled: Clip::default(),
            tokens: Tokens::default(),
        }
    }

    /// Loads rows as decode thread `number`, until the feed ends.
    pub(crate) fn run(mut self, number: usize, queue: &RowQueue, threads: &DecodeThreads) -> Result<(), FeedError> {
        while threads.wait_active(number) {
            let mut task = queue.next()?;
            let row = self.load(&mut task)?;
            queue.finish(task, row)?;
        }
        Ok(())
    }

    /// Loads the task's row, or a replacement. Fails if too many samples are bad, if none is left to try, and if the storage of
    /// the corpus fails.
    fn load(&mut self, task: &mut LoadTask) -> Result<LoadedRow, FeedError> {
        let started = Instant::now();
        let (cursor, position) = (task.batch.batch.cursor, task.position);
        let context = Arc::clone(&self.context);
        let Some(planned) = task.batch.batch.rows[position] else { unreachable!("empty rows are not queued") };
        let Cursor { epoch, k } = cursor;
        let resumed = context.resumed.get(epoch, k, position);
        let mut index = resumed.map_or(planned, |replacement| replacement.sample);
        for attempt in 0_u32.. {
            match self.try_load(task, index) {
                Ok(mut row) => {
                    if index != planned {
                        let replacement = Replacement { epoch, k, position, sample: index, attempt };
                        // The checkpoint's attempt count: its sample was not searched for again.
                        let replacement = resumed.filter(|_| attempt == 0).unwrap_or(replacement);
                        context.made().insert(replacement);
                        row.replacement = Some(replacement);
                    }
                    row.busy_ns = started.elapsed().as_nanos() as u64;
                    return Ok(row);
                }
                Err(error) if error.is_about_storage() => return Err(error),
                Err(error) => {
                    let next = context.input.order.replacement(epoch, k, position, attempt as usize);
                    let sample = context.input.sample(index);
                    context.bad.report(&BadSample {
                        cursor,
                        position,
                        sample: &sample,
                        index,
                        reason: &error.to_string(),
                        replaced_by: next.map(|next| context.input.sample(next).id),
                    })?;
                    index = next.ok_or_else(|| FeedError::NothingLeft { id: sample.id.to_owned() })?;
                }
            }
        }
        unreachable!("attempts are endless")
    }

    /// One attempt. A panic of the decoder is an error of the file; scratch memory is then replaced.
    fn try_load(&mut self, task: &mut LoadTask, index: SampleIndex) -> Result<LoadedRow, FeedError> {
        match catch_unwind(AssertUnwindSafe(|| self.load_sample(task, index))) {
            Ok(outcome) => outcome,
            Err(panic) => {
                *self = RowLoader::new(Arc::clone(&self.context));
                let message = panic.downcast_ref::<String>().cloned();
                let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Err(FeedError::Panicked {
                    message: message.unwrap_or_else(|| "(a panic without a message)".to_owned()),
                })
            }
        }
    }

    fn load_sample(&mut self, task: &mut LoadTask, index: SampleIndex) -> Result<LoadedRow, FeedError> {
        let context = Arc::clone(&self.context);
        let input = &context.input;
        let sample = input.sample(index);
        let room = input.layout_of(&task.batch.batch).bucket.rows()[task.position];
        self.encode(&sample, room.tokens)?;
        if !context.cache.get_into(index, &sample.audio, &mut self.clip) {
            match task.take_ahead(index) {
                Some(ahead) => ahead.load_into(&sample, &mut self.clip)?,
                None => input.recordings.load_into(&sample, &mut self.clip)?,
            }
            context.cache.put(index, &sample.audio, &self.clip);
        }
        let mut pitch_offset = context.pitches.offset(index, &self.clip);
        let rate = self.convert_to_planned_rate(&sample)?;
        let settings = input.features();
        let longest = most_samples(room.frames as usize, settings);
        let mut in_samples = self.clip.samples.len();
        let mut out_samples = num_resampled(in_samples, self.clip.rate_hz, settings);
        if out_samples > longest {
            // Another row may fit more of the recording, and its last frames depend on where it ends.
            pitch_offset = NOT_CACHED;
            let over_s = (out_samples - longest) as f64 / f64::from(settings.rate_hz);
            if over_s > END_SLACK_S {
                return Err(FeedError::LongerThanListed { over_s, location: sample.audio.show() });
            }
            in_samples = longest * self.clip.rate_hz as usize / settings.rate_hz as usize;
            out_samples = num_resampled(in_samples, self.clip.rate_hz, settings);
        }
        if out_samples < settings.min_samples() {
            let source = tandem_audio::AudioError::TooShort { samples: out_samples, needed: settings.min_samples() };
            return Err(FeedError::Undecodable { source, location: sample.audio.show() });
        }
        let (tokens, frames) = (self.tokens.ids.len() as u64, settings.num_frames(out_samples) as u64);
        // The survey checks this, but the recording may be shorter by now, and in a large corpus only some texts are counted.
        if tokens > frames && input.training_set.aligns_text() {
            return Err(FeedError::ShorterThanText { tokens, frames, location: sample.audio.show() });
        }
        task.samples_mut()[..in_samples].copy_from_slice(&self.clip.samples[..in_samples]);
        Ok(LoadedRow {
            sample: Some(index),
            in_samples: in_samples as u32,
            out_samples: out_samples as u32,
            rate,
            frames: frames as u32,
            pitch_offset,
            tokens: self.tokens.ids.clone(),
            speaker: input.speaker(index),
            language: input.training_set.tokenizer().map_or(0, |tokenizer| tokenizer.language_of(&sample)),
            replacement: None,
            busy_ns: 0,
        })
    }

    fn encode(&mut self, sample: &Sample<'_>, most: u64) -> Result<(), FeedError> {
        self.tokens.ids.clear();
        let Some(tokenizer) = self.context.input.training_set.tokenizer() else { return Ok(()) };
        tokenizer.encode_into(sample, &mut self.tokens)?;
        match self.tokens.ids.len() as u64 {
            found if found > most => Err(FeedError::TextTooLong { found, most }),
            _ => Ok(()),
        }
    }

    /// The device resamples from the plan's rates. Other rates are resampled here, by the same filter and to the same bits.
    /// Returns the index of the clip's rate in the plan.
    fn convert_to_planned_rate(&mut self, sample: &Sample<'_>) -> Result<u32, FeedError> {
        let input = &self.context.input;
        if self.clip.rate_hz == input.features().rate_hz {
            return Ok(AT_FEATURES_RATE);
        }
        if let Some(rate) = input.plan.rates_hz.iter().position(|rate_hz| *rate_hz == self.clip.rate_hz) {
            return Ok(rate as u32);
        }
        let resampled = self.resampler.clip_into(&self.clip, &mut self.resampled);
        resampled.map_err(|source| FeedError::Undecodable { source, location: sample.audio.show() })?;
        std::mem::swap(&mut self.clip, &mut self.resampled);
        Ok(AT_FEATURES_RATE)
    }
}
