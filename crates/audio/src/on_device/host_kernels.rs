//! The kernels' maths on host memory: the CPU path itself, row by row, so that its bits are the host kernels' bits.
//!
//! Plans and scratch are kept per thread: a host kernel is called with nothing but its arguments.

use std::cell::RefCell;

use tandem_device::HostArgs;

use super::numbers::{self, WORDS};
use super::tables::FILTER_WORDS;
use super::{NOT_CACHED, NOTHING_YET};
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

/// Row after row of `all`, which begin at `starts`.
fn cut<'a, T>(mut all: &'a mut [T], starts: &'a [u32], per: usize) -> impl Iterator<Item = &'a mut [T]> {
    starts.windows(2).map(move |pair| {
        let (row, rest) = std::mem::take(&mut all).split_at_mut((pair[1] - pair[0]) as usize * per);
        all = rest;
        row
    })
}

/// The samples of a row.
fn row_of<'a>(audio: &'a [i16], starts: &[u32], lengths: &[u32], row: usize) -> &'a [i16] {
    let room = &audio[starts[row] as usize..starts[row + 1] as usize];
    &room[..room.len().min(lengths[row] as usize)]
}

pub(crate) fn log_mel(args: &mut HostArgs<'_>) {
    let (audio, lengths, words) = (args.read::<i16>(0), args.read::<u32>(1), args.read::<u64>(4));
    let rows = args.u32(11) as usize;
    let [sample_starts, frame_starts] = [2, 3].map(|i| &args.read::<u32>(i)[..=rows]);
    let (mel, energy) = (args.write::<f32>(8), args.write::<f32>(9));
    let with_energy = args.u32(10) == 1;
    with_plans(words, |plans| {
        let n_mels = plans.settings.n_mels;
        // Without energies there is no memory to cut.
        let mut energies = with_energy.then(|| cut(energy, frame_starts, 1));
        for (row, out) in cut(mel, frame_starts, n_mels).enumerate() {
            let own = if plans.fill(row_of(audio, sample_starts, lengths, row)) {
                let made = plans.log_mel.mel_energy_into(&plans.clip, &mut plans.mel, &mut plans.values);
                assert!(made.is_ok(), "rate and length are right: {made:?}");
                plans.mel.num_frames().min(out.len() / n_mels)
            } else {
                0
            };
            fill_row(out, &plans.mel.values[..own * n_mels], numbers::ln_floor(&plans.words));
            if let Some(energy) = energies.as_mut().and_then(Iterator::next) {
                fill_row(energy, &plans.values[..own], 0.0);
            }
        }
    });
}

/// An element of memory in which nothing is kept yet.
const NOTHING_YET_BITS: u32 = u32::from_ne_bytes([NOTHING_YET; 4]);

pub(crate) fn pitch(args: &mut HostArgs<'_>) {
    let (audio, lengths, words) = (args.read::<i16>(0), args.read::<u32>(1), args.read::<u64>(4));
    let (keeps, rows) = (args.u32(8) == 1, args.u32(9) as usize);
    let [sample_starts, frame_starts] = [2, 3].map(|i| &args.read::<u32>(i)[..=rows]);
    let (out, places, kept) = (args.write::<f32>(5), args.read::<u32>(6), args.write::<f32>(7));
    with_plans(words, |plans| {
        for (row, out) in cut(out, frame_starts, 1).enumerate() {
            plans.values.clear();
            let place = if keeps { places[row] } else { NOT_CACHED };
            if plans.fill(row_of(audio, sample_starts, lengths, row)) {
                let own = plans.settings.num_frames(plans.clip.samples.len()).min(out.len());
                let known = (place != NOT_CACHED).then(|| &mut kept[place as usize..][..own]);
                match known {
                    Some(known) if known.iter().all(|hz| hz.to_bits() != NOTHING_YET_BITS) => {
                        plans.values.extend_from_slice(known);
                    }
                    known => {
                        let made = plans.tracker.pitch_into(&plans.clip, &mut plans.values);
                        assert!(made.is_ok(), "rate and length are right: {made:?}");
                        if let Some(known) = known {
                            known.copy_from_slice(&plans.values[..own]);
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
    let rows = args.u32(10) as usize;
    let [in_starts, out_starts] = [1, 7].map(|i| &args.read::<u32>(i)[..=rows]);
    let (audio, in_lengths, rates) = (args.read::<i16>(0), args.read::<u32>(2), args.read::<u32>(3));
    let (filters, out, out_lengths) = (args.read::<u32>(4), args.write::<i16>(6), args.read::<u32>(8));
    let (mut clip, mut at_rate) = (Clip::default(), Clip::default());
    for (row, out) in cut(out, out_starts, 1).enumerate() {
        let samples = row_of(audio, in_starts, in_lengths, row);
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
        let len = made.len().min(out_lengths[row] as usize).min(out.len());
        fill_row(out, &made[..len], 0);
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
