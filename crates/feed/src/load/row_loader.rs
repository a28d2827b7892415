//! One decode thread: recordings into page-locked rows.
//!
//! In come tasks, out go rows: samples written where they will be uploaded from, tokens beside. What cannot be used
//! (undecodable, vanished, longer than its list says, shorter than its text, a text without symbols, a decoder that
//! panics) is reported with its reason and replaced by another sample of its row's part, again and again until one is
//! good; which one is a pure function of seed, epoch, batch, position and try. Scratch is kept per thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_audio::{Clip, NOT_CACHED, Resampler};
use tandem_corpus::{Cursor, Sample, SampleIndex};
use tandem_device::Slow;
use tandem_text::Tokens;

use crate::error::FeedError;
use crate::featurize::on_host::num_resampled;
use crate::load::bad_samples::{BadSamples, Replacement, Replacements};
use crate::load::cache::Cache;
use crate::load::cached_pitch::KeptPitches;
use crate::load::decode::END_SLACK_S;
use crate::load::input::Input;
use crate::load::row_queue::{AT_FEATURES_RATE, LoadedRow, Task};

/// What every decode thread shares.
pub(crate) struct Library {
    pub(crate) input: Arc<Input>,
    pub(crate) cache: Cache,
    pub(crate) pitches: KeptPitches,
    pub(crate) bad: BadSamples,
    /// Samples that stood in for bad ones before the feed was last stopped.
    pub(crate) replayed: Replacements,
    /// Those that do since.
    pub(crate) made: Mutex<Replacements>,
}

/// A decode thread's own things.
pub(crate) struct RowLoader {
    library: Arc<Library>,
    resampler: Resampler,
    clip: Clip,
    resampled: Clip,
    tokens: Tokens,
    /// How often a recording is decoded: once, unless a slow decoder is planted.
    times: u32,
}

impl RowLoader {
    pub(crate) fn new(library: Arc<Library>) -> RowLoader {
        let rate_hz = library.input.features().rate_hz;
        let times = library.input.plant.times(Slow::Decode);
        RowLoader {
            library,
            resampler: Resampler::new(rate_hz),
            clip: Clip::default(),
            resampled: Clip::default(),
            tokens: Tokens::default(),
            times,
        }
    }

    /// Loads the task's row, or one that takes its place. Fails when too many samples are bad, or none is left to try.
    pub(crate) fn load(&mut self, task: &mut Task) -> Result<LoadedRow, FeedError> {
        let started = Instant::now();
        let (cursor, position) = (task.batch.batch.cursor, task.position);
        let library = Arc::clone(&self.library);
        let Some(planned) = task.batch.batch.rows[position] else { unreachable!("an empty row is nobody's task") };
        let replayed = library.replayed.get(cursor.epoch, cursor.k, position);
        let mut sample = replayed.map_or(planned, |instead| instead.sample);
        for attempt in 0_u32.. {
            match self.try_load(task, sample) {
                Ok(mut row) => {
                    if sample != planned {
                        let Cursor { epoch, k } = cursor;
                        let instead = Replacement { epoch, k, position, sample, attempt };
                        // Which try it was is known from then: it was not tried anew.
                        let instead = replayed.filter(|_| attempt == 0).unwrap_or(instead);
                        library.made.lock().unwrap_or_else(PoisonError::into_inner).insert(instead);
                        row.replacement = Some(instead);
                    }
                    row.busy_ns = started.elapsed().as_nanos() as u64;
                    return Ok(row);
                }
                Err(reason) => {
                    let next = library.input.order.replacement(cursor.epoch, cursor.k, position, attempt as usize);
                    let other = next.map(|next| library.input.sample(next).id);
                    let row = library.input.sample(sample);
                    library.bad.report(cursor.epoch, cursor.k, position, &row, sample, &reason.to_string(), other)?;
                    sample = next.ok_or_else(|| FeedError::NothingLeft { id: row.id.to_owned() })?;
                }
            }
        }
        unreachable!("attempts have no end")
    }

    /// One try. A decoder that panics has met a file it has a mistake for; the scratch it left behind is thrown away.
    fn try_load(&mut self, task: &mut Task, sample: SampleIndex) -> Result<LoadedRow, FeedError> {
        match catch_unwind(AssertUnwindSafe(|| self.load_sample(task, sample))) {
            Ok(outcome) => outcome,
            Err(panic) => {
                *self = RowLoader::new(Arc::clone(&self.library));
                let message = panic.downcast_ref::<String>().cloned();
                let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Err(FeedError::Panicked { message: message.unwrap_or_else(|| "(a panic without a text)".to_owned()) })
            }
        }
    }

    fn load_sample(&mut self, task: &mut Task, index: SampleIndex) -> Result<LoadedRow, FeedError> {
        let library = Arc::clone(&self.library);
        let input = &library.input;
        let sample = input.sample(index);
        let room = input.shape_of(&task.batch.batch).bucket.rows()[task.position];
        self.encode(&sample, room.tokens)?;
        if !library.cache.get_into(index, &sample.audio, &mut self.clip) {
            (0..self.times).try_for_each(|_| input.recordings.load_into(&sample, &mut self.clip))?;
            library.cache.put(index, &sample.audio, &self.clip);
        }
        let mut pitch_place = library.pitches.place(index, &self.clip);
        let rate = self.bring_to_a_planned_rate(&sample)?;
        let settings = input.features();
        let longest = (room.frames as usize + 1) * settings.hop_samples - 1;
        let mut in_samples = self.clip.samples.len();
        let mut out_samples = num_resampled(in_samples, self.clip.rate_hz, settings);
        if out_samples > longest {
            // Another row may have room for more of it, and the end of a recording decides what its last frames are.
            pitch_place = NOT_CACHED;
            let over_s = (out_samples - longest) as f64 / f64::from(settings.rate_hz);
            if over_s > END_SLACK_S {
                return Err(FeedError::LongerThanListed { over_s, place: sample.audio.show() });
            }
            in_samples = longest * self.clip.rate_hz as usize / settings.rate_hz as usize;
            out_samples = num_resampled(in_samples, self.clip.rate_hz, settings);
        }
        if out_samples < settings.min_samples() {
            let source = tandem_audio::AudioError::TooShort { samples: out_samples, needed: settings.min_samples() };
            return Err(FeedError::Undecodable { source, place: sample.audio.show() });
        }
        let (tokens, frames) = (self.tokens.ids.len() as u64, settings.num_frames(out_samples) as u64);
        // A symbol is aligned with one frame at least. The survey saw to it, but the recording may have shrunk since,
        // and of a large corpus it counts some texts only.
        if tokens > frames {
            return Err(FeedError::ShorterThanText { tokens, frames, place: sample.audio.show() });
        }
        task.samples_mut()[..in_samples].copy_from_slice(&self.clip.samples[..in_samples]);
        Ok(LoadedRow {
            sample: Some(index),
            in_samples: in_samples as u32,
            out_samples: out_samples as u32,
            rate,
            frames: frames as u32,
            pitch_place,
            tokens: self.tokens.ids.clone(),
            speaker: input.speaker(index),
            replacement: None,
            busy_ns: 0,
        })
    }

    fn encode(&mut self, sample: &Sample<'_>, most: u64) -> Result<(), FeedError> {
        self.tokens.ids.clear();
        let Some(texts) = self.library.input.material.texts() else { return Ok(()) };
        texts.encode_into(sample, &mut self.tokens)?;
        match self.tokens.ids.len() as u64 {
            found if found > most => Err(FeedError::TextTooLong { found, most }),
            _ => Ok(()),
        }
    }

    /// Rates the plan has filters for stay as they are and are resampled on the device; others are resampled here, by
    /// the same filter and to the same bits. Returns the rate's place in the plan.
    fn bring_to_a_planned_rate(&mut self, sample: &Sample<'_>) -> Result<u32, FeedError> {
        let input = &self.library.input;
        if self.clip.rate_hz == input.features().rate_hz {
            return Ok(AT_FEATURES_RATE);
        }
        if let Some(rate) = input.plan.rates_hz.iter().position(|rate_hz| *rate_hz == self.clip.rate_hz) {
            return Ok(rate as u32);
        }
        let resampled = self.resampler.clip_into(&self.clip, &mut self.resampled);
        resampled.map_err(|source| FeedError::Undecodable { source, place: sample.audio.show() })?;
        std::mem::swap(&mut self.clip, &mut self.resampled);
        Ok(AT_FEATURES_RATE)
    }
}
