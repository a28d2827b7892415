//! The host kernels: the CPU path itself, row by row, so that both have the same bits.
//!
//! FFT plans and scratch memory are thread-local, because a host kernel gets nothing but its arguments.

use std::cell::RefCell;

use tandem_device::HostArgs;

use super::packed_settings::{self, WORDS};
use super::tables::FILTER_WORDS;
use super::{NOT_CACHED, NOTHING_YET};
use crate::kernels::{LogMelArgs, NormalizeArgs, PitchArgs, ResampleArgs};
use crate::normalization::Normalization;
use crate::{AudioError, Clip, FeatureSettings, LogMel, MelFrames, PitchTracker, Resampler};

thread_local! {
    static PLANS: RefCell<Option<Plans>> = const { RefCell::new(None) };
    static RESAMPLERS: RefCell<Vec<(u32, Resampler)>> = const { RefCell::new(Vec::new()) };
}

/// Plans and scratch memory for features with one set of settings.
struct Plans {
    words: [u64; WORDS],
    settings: FeatureSettings,
    normalization: Normalization,
    log_mel: LogMel,
    tracker: PitchTracker,
    clip: Clip,
    mel: MelFrames,
    values: Vec<f32>,
}

impl Plans {
    fn new(words: [u64; WORDS]) -> Result<Plans, AudioError> {
        let (settings, pitch) = packed_settings::unpack(&words);
        Ok(Plans {
            words,
            log_mel: LogMel::new(&settings)?,
            tracker: PitchTracker::new(&settings, &pitch)?,
            normalization: Normalization::of(&settings),
            settings,
            clip: Clip::default(),
            mel: MelFrames::default(),
            values: Vec::new(),
        })
    }

    /// Makes `samples` the clip. False if they are too few for a frame.
    fn fill(&mut self, samples: &[i16]) -> bool {
        self.clip.clear();
        self.clip.rate_hz = self.settings.rate_hz;
        self.clip.samples.extend_from_slice(samples);
        samples.len() >= self.settings.min_samples()
    }
}

/// Runs `work` with the plans for the settings in `words`.
fn with_plans(words: &[u64], work: impl FnOnce(&mut Plans)) {
    let mut key = [0; WORDS];
    key.copy_from_slice(&words[..WORDS]);
    PLANS.with_borrow_mut(|plans| {
        let plans = match plans {
            Some(known) if known.words == key => known,
            other => match Plans::new(key) {
                Ok(made) => other.insert(made),
                Err(error) => panic!("the settings were checked when the tables were made: {error}"),
            },
        };
        work(plans);
    });
}

/// The rows of `all`: slices of `per` elements for each index between neighbouring `starts`.
fn split_rows<'a, T>(mut all: &'a mut [T], starts: &'a [u32], per: usize) -> impl Iterator<Item = &'a mut [T]> {
    starts.windows(2).map(move |pair| {
        let (row, rest) = std::mem::take(&mut all).split_at_mut((pair[1] - pair[0]) as usize * per);
        all = rest;
        row
    })
}

/// The samples of a row.
fn row_of<'a>(audio: &'a [i16], starts: &[u32], lengths: &[u32], row: usize) -> &'a [i16] {
    let capacity = &audio[starts[row] as usize..starts[row + 1] as usize];
    &capacity[..capacity.len().min(lengths[row] as usize)]
}

pub(crate) fn log_mel(args: &mut HostArgs<'_>) {
    let LogMelArgs { audio, lengths, sample_starts, frame_starts, settings, mel, energy, with_energy, rows, .. } =
        LogMelArgs::host(args);
    let [sample_starts, frame_starts] = [sample_starts, frame_starts].map(|starts| &starts[..=rows as usize]);
    with_plans(settings, |plans| {
        let (n_mels, normalization) = (plans.settings.n_mels, plans.normalization);
        // Without energies there is no memory to split.
        let mut energies = (with_energy == 1).then(|| split_rows(energy, frame_starts, 1));
        for (row, out) in split_rows(mel, frame_starts, n_mels).enumerate() {
            let own = if plans.fill(row_of(audio, sample_starts, lengths, row)) {
                let made = plans.log_mel.logs_into(&plans.clip, &mut plans.mel, Some(&mut plans.values));
                assert!(made.is_ok(), "rate and length are right: {made:?}");
                plans.mel.num_frames().min(out.len() / n_mels)
            } else {
                0
            };
            fill_row(out, &plans.mel.values[..own * n_mels], plans.settings.silence());
            // If it needs the maximum of the row, the next kernel does it.
            if !normalization.needs_maximum() {
                normalization.apply(&mut out[..own * n_mels]);
            }
            if let Some(energy) = energies.as_mut().and_then(Iterator::next) {
                fill_row(energy, &plans.values[..own], 0.0);
            }
        }
    });
}

pub(crate) fn normalize_log_mel(args: &mut HostArgs<'_>) {
    let NormalizeArgs { lengths, sample_starts, frame_starts, settings, mel, rows } = NormalizeArgs::host(args);
    let [sample_starts, frame_starts] = [sample_starts, frame_starts].map(|starts| &starts[..=rows as usize]);
    with_plans(settings, |plans| {
        let n_mels = plans.settings.n_mels;
        for (row, out) in split_rows(mel, frame_starts, n_mels).enumerate() {
            let num_samples = lengths[row].min(sample_starts[row + 1] - sample_starts[row]) as usize;
            let frames = match num_samples >= plans.settings.min_samples() {
                true => plans.settings.num_frames(num_samples),
                false => 0,
            };
            let (own, padding) = out.split_at_mut(frames.min(out.len() / n_mels) * n_mels);
            padding.fill(plans.normalization.apply(own));
        }
    });
}

/// An element of the cache that has not been computed.
const NOTHING_YET_BITS: u32 = u32::from_ne_bytes([NOTHING_YET; 4]);

pub(crate) fn pitch(args: &mut HostArgs<'_>) {
    let PitchArgs { audio, lengths, sample_starts, frame_starts, settings, out, cache_offsets, cache, has_cache, rows } =
        PitchArgs::host(args);
    let [sample_starts, frame_starts] = [sample_starts, frame_starts].map(|starts| &starts[..=rows as usize]);
    with_plans(settings, |plans| {
        for (row, out) in split_rows(out, frame_starts, 1).enumerate() {
            plans.values.clear();
            let offset = if has_cache == 1 { cache_offsets[row] } else { NOT_CACHED };
            if plans.fill(row_of(audio, sample_starts, lengths, row)) {
                let own = plans.settings.num_frames(plans.clip.samples.len()).min(out.len());
                let cached = (offset != NOT_CACHED).then(|| &mut cache[offset as usize..][..own]);
                match cached {
                    Some(cached) if cached.iter().all(|hz| hz.to_bits() != NOTHING_YET_BITS) => {
                        plans.values.extend_from_slice(cached);
                    }
                    cached => {
                        let made = plans.tracker.pitch_into(&plans.clip, &mut plans.values);
                        assert!(made.is_ok(), "rate and length are right: {made:?}");
                        if let Some(cached) = cached {
                            cached.copy_from_slice(&plans.values[..own]);
                        }
                    }
                }
            }
            let own = plans.values.len().min(out.len());
            fill_row(out, &plans.values[..own], 0.0);
        }
    });
}

pub(crate) fn resample(args: &mut HostArgs<'_>) {
    let ResampleArgs { audio, in_starts, in_lengths, rates, filters, out, out_starts, out_lengths, rows, .. } =
        ResampleArgs::host(args);
    let [in_starts, out_starts] = [in_starts, out_starts].map(|starts| &starts[..=rows as usize]);
    let (mut clip, mut at_rate) = (Clip::default(), Clip::default());
    for (row, out) in split_rows(out, out_starts, 1).enumerate() {
        let samples = row_of(audio, in_starts, in_lengths, row);
        let resampled = match filters.chunks_exact(FILTER_WORDS).nth(rates[row] as usize) {
            Some(filter) => {
                clip.rate_hz = filter[5];
                clip.samples.clear();
                clip.samples.extend_from_slice(samples);
                resample_clip(&clip, filter[6], &mut at_rate);
                &at_rate.samples[..]
            }
            None => samples,
        };
        let len = resampled.len().min(out_lengths[row] as usize).min(out.len());
        fill_row(out, &resampled[..len], 0);
    }
}

fn resample_clip(clip: &Clip, to_hz: u32, out: &mut Clip) {
    RESAMPLERS.with_borrow_mut(|resamplers| {
        let at = resamplers.iter().position(|(hz, _)| *hz == to_hz).unwrap_or_else(|| {
            resamplers.push((to_hz, Resampler::new(to_hz)));
            resamplers.len() - 1
        });
        let made = resamplers[at].1.clip_into(clip, out);
        assert!(made.is_ok(), "the filter was designed when the tables were made: {made:?}");
    });
}

/// `values`, then `padding` to the end.
fn fill_row<T: Copy>(out: &mut [T], values: &[T], padding: T) {
    let (own, rest) = out.split_at_mut(values.len());
    own.copy_from_slice(values);
    rest.fill(padding);
}
