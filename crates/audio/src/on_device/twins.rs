//! The kernels' maths on host memory: the CPU path itself, row by row, so that its bits are the twins' bits.
//!
//! Plans and scratch are kept per thread: a twin is called with nothing but its arguments.

use std::cell::RefCell;

use tandem_device::TwinArgs;

use super::numbers::{self, WORDS};
use super::tables::FILTER_WORDS;
use crate::{AudioError, Clip, FeatureSettings, LogMel, MelFrames, PitchTracker, Resampler};

thread_local! {
    static PLANS: RefCell<Option<Plans>> = const { RefCell::new(None) };
    static RESAMPLERS: RefCell<Vec<(u32, Resampler)>> = const { RefCell::new(Vec::new()) };
}

/// What features of one kind of settings take.
struct Plans {
    words: [u64; WORDS],
    settings: FeatureSettings,
    log_mel: LogMel,
    tracker: PitchTracker,
    clip: Clip,
    mel: MelFrames,
    values: Vec<f32>,
}

impl Plans {
    fn new(words: [u64; WORDS]) -> Result<Plans, AudioError> {
        let (settings, pitch) = numbers::unpack(&words);
        Ok(Plans {
            words,
            log_mel: LogMel::new(&settings)?,
            tracker: PitchTracker::new(&settings, &pitch)?,
            settings,
            clip: Clip::default(),
            mel: MelFrames::default(),
            values: Vec::new(),
        })
    }

    /// Makes `samples` the clip; false when there are no features of so few.
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

/// The samples of a row.
fn row_of<'a>(audio: &'a [i16], lengths: &[u32], row: usize, stride: usize) -> &'a [i16] {
    &audio[row * stride..][..(lengths[row] as usize).min(stride)]
}

pub(crate) fn log_mel(args: &mut TwinArgs<'_>) {
    let (audio, lengths, words) = (args.read::<i16>(0), args.read::<u32>(1), args.read::<u64>(2));
    let (mel, energy) = (args.write::<f32>(6), args.write::<f32>(7));
    let (with_energy, stride, frames) = (args.u32(8) == 1, args.u32(9) as usize, args.u32(10) as usize);
    let rows = (args.grid().blocks[0] / args.u32(11)) as usize;
    with_plans(words, |plans| {
        let n_mels = plans.settings.n_mels;
        for row in 0..rows {
            let own = if plans.fill(row_of(audio, lengths, row, stride)) {
                let made = plans.log_mel.mel_energy_into(&plans.clip, &mut plans.mel, &mut plans.values);
                assert!(made.is_ok(), "rate and length are right: {made:?}");
                plans.mel.num_frames().min(frames)
            } else {
                0
            };
            let out = &mut mel[row * frames * n_mels..][..frames * n_mels];
            fill_row(out, &plans.mel.values[..own * n_mels], numbers::ln_floor(&plans.words));
            if with_energy {
                fill_row(&mut energy[row * frames..][..frames], &plans.values[..own], 0.0);
            }
        }
    });
}

pub(crate) fn pitch(args: &mut TwinArgs<'_>) {
    let (audio, lengths, words) = (args.read::<i16>(0), args.read::<u32>(1), args.read::<u64>(2));
    let out = args.write::<f32>(3);
    let (stride, frames) = (args.u32(4) as usize, args.u32(5) as usize);
    let rows = args.grid().blocks[0] as usize / frames;
    with_plans(words, |plans| {
        for row in 0..rows {
            plans.values.clear();
            if plans.fill(row_of(audio, lengths, row, stride)) {
                let made = plans.tracker.pitch_into(&plans.clip, &mut plans.values);
                assert!(made.is_ok(), "rate and length are right: {made:?}");
            }
            let own = plans.values.len().min(frames);
            fill_row(&mut out[row * frames..][..frames], &plans.values[..own], 0.0);
        }
    });
}

pub(crate) fn resample(args: &mut TwinArgs<'_>) {
    let (audio, in_lengths, rates) = (args.read::<i16>(0), args.read::<u32>(1), args.read::<u32>(2));
    let (filters, out, out_lengths) = (args.read::<u32>(3), args.write::<i16>(5), args.read::<u32>(6));
    let (stride_in, stride_out) = (args.u32(8) as usize, args.u32(9) as usize);
    let rows = (args.grid().blocks[0] / args.u32(10)) as usize;
    let (mut clip, mut at_rate) = (Clip::default(), Clip::default());
    for row in 0..rows {
        let samples = row_of(audio, in_lengths, row, stride_in);
        let made = match filters.chunks_exact(FILTER_WORDS).nth(rates[row] as usize) {
            Some(filter) => {
                clip.rate_hz = filter[5];
                clip.samples.clear();
                clip.samples.extend_from_slice(samples);
                resample_clip(&clip, filter[6], &mut at_rate);
                &at_rate.samples[..]
            }
            None => samples,
        };
        let len = made.len().min(out_lengths[row] as usize).min(stride_out);
        fill_row(&mut out[row * stride_out..][..stride_out], &made[..len], 0);
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
