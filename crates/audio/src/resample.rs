//! A clip at one rate becomes a clip at another.
//!
//! In comes a [`Clip`] or a wave of f32, out goes the same in the caller's buffer, `ceil(n * up / down)` samples long,
//! time 0 on time 0. The filter for a pair of rates is designed once ([`Lowpass`]) and kept. The only bad item is a
//! clip at a rate no filter is made for.

use crate::clip::FULL_SCALE;
use crate::{AudioError, Clip, Lowpass};

/// Filters kept. A corpus has one rate or two; one with a rate per file must not fill the memory.
const MAX_FILTERS: usize = 8;

/// Brings sound to one rate.
///
/// Holds the filters of the rates it met and its scratch, so one of these per thread, kept. Cost: 186 products per
/// sample out from 48 kHz, 128 from 44.1 kHz, 64 from below 22 050 Hz.
#[derive(Debug)]
pub struct Resampler {
    to_hz: u32,
    filters: Vec<Lowpass>,
    padded: Vec<f32>,
    wave: Vec<f32>,
    resampled: Vec<f32>,
}

impl Resampler {
    /// One that makes sound at `to_hz`. Filters are designed when their first clip comes.
    pub fn new(to_hz: u32) -> Resampler {
        Resampler { to_hz, filters: Vec::new(), padded: Vec::new(), wave: Vec::new(), resampled: Vec::new() }
    }

    /// `clip` at this rate, in `out`; a clip that has the rate already is copied.
    ///
    /// Fails with [`AudioError::RatePair`].
    pub fn clip_into(&mut self, clip: &Clip, out: &mut Clip) -> Result<(), AudioError> {
        if clip.rate_hz == self.to_hz {
            out.clone_from(clip);
            return Ok(());
        }
        let mut wave = std::mem::take(&mut self.wave);
        let mut resampled = std::mem::take(&mut self.resampled);
        wave.clear();
        wave.extend(clip.samples.iter().map(|&x| f32::from(x) / FULL_SCALE as f32));
        let outcome = self.wave_into(&wave, clip.rate_hz, &mut resampled);
        if outcome.is_ok() {
            out.fill_from_wave(&resampled, self.to_hz);
        }
        (self.wave, self.resampled) = (wave, resampled);
        outcome
    }

    /// `wave`, which is at `from_hz`, at this rate, in `out`.
    ///
    /// Fails with [`AudioError::RatePair`].
    pub fn wave_into(&mut self, wave: &[f32], from_hz: u32, out: &mut Vec<f32>) -> Result<(), AudioError> {
        let filter = self.filter(from_hz)?;
        let filter = &self.filters[filter];
        pad_into(wave, filter, &mut self.padded);
        out.clear();
        out.resize(filter.output_len(wave.len()), 0.0);
        filter_into(&self.padded, filter, out);
        Ok(())
    }

    /// Where the filter for a rate is, designed now if it is new.
    fn filter(&mut self, from_hz: u32) -> Result<usize, AudioError> {
        if let Some(known) = self.filters.iter().position(|filter| filter.from_hz == from_hz) {
            return Ok(known);
        }
        let filter = Lowpass::design(from_hz, self.to_hz)?;
        if self.filters.len() == MAX_FILTERS {
            self.filters.remove(0);
        }
        self.filters.push(filter);
        Ok(self.filters.len() - 1)
    }
}

/// The wave between as many zeros as a row of taps can reach beyond it, so that the loop below has no ends to mind.
fn pad_into(wave: &[f32], filter: &Lowpass, padded: &mut Vec<f32>) {
    padded.clear();
    padded.resize(filter.taps_per_phase - 1, 0.0);
    padded.extend_from_slice(wave);
    padded.resize(padded.len() + filter.delay / filter.up + 1, 0.0);
}

fn filter_into(padded: &[f32], filter: &Lowpass, out: &mut [f32]) {
    let Lowpass { up, down, delay, taps_per_phase, ref phases, .. } = *filter;
    for (m, out) in out.iter_mut().enumerate() {
        let position = m * down + delay;
        let (newest, phase) = (position / up, position % up);
        let row = &phases[phase * taps_per_phase..][..taps_per_phase];
        // Padded by a row less one in front: the row that ends at `newest` begins at `newest` here.
        *out = dot(row, &padded[newest..][..taps_per_phase]);
    }
}

/// A dot product in eight independent sums: fast, and more accurate than one long one.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn sine(hz: f64, rate_hz: u32, num_samples: usize) -> Vec<f32> {
        (0..num_samples).map(|i| (TAU * hz * i as f64 / f64::from(rate_hz)).sin() as f32).collect()
    }

    /// Loudest sample away from the ends, where the tone starts and stops.
    fn peak(wave: &[f32]) -> f64 {
        wave[500..wave.len() - 500].iter().fold(0.0, |peak, x| f64::max(peak, f64::from(x.abs())))
    }

    fn decibels(ratio: f64) -> f64 {
        20.0 * ratio.max(1e-12).log10()
    }

    #[test]
    fn what_cannot_be_kept_is_80_db_down() {
        for from_hz in [32_000, 44_100, 48_000, 96_000] {
            let mut resampler = Resampler::new(22_050);
            let mut out = Vec::new();
            let mut hz = 11_025.0 + 50.0;
            while hz < f64::from(from_hz) / 2.0 {
                resampler.wave_into(&sine(hz, from_hz, from_hz as usize / 4), from_hz, &mut out).unwrap();
                assert!(decibels(peak(&out)) < -80.0, "{hz} Hz at {from_hz} Hz: {} dB", decibels(peak(&out)));
                hz += 487.0;
            }
        }
    }

    #[test]
    fn what_the_features_see_passes_unchanged() {
        for from_hz in [16_000, 24_000, 44_100, 48_000, 192_000] {
            let mut resampler = Resampler::new(22_050);
            let mut out = Vec::new();
            for hz in [50.0, 440.0, 3_000.0, 6_300.0, 8_000.0].into_iter().filter(|hz| hz / f64::from(from_hz) < 0.4) {
                resampler.wave_into(&sine(hz, from_hz, from_hz as usize / 4), from_hz, &mut out).unwrap();
                let error: Vec<f32> = out.iter().zip(sine(hz, 22_050, out.len())).map(|(a, b)| a - b).collect();
                assert!(peak(&error) < 2e-4, "{hz} Hz at {from_hz} Hz: off by {}", peak(&error));
            }
        }
    }

    #[test]
    fn lengths_follow_the_ratio_rounded_up() {
        let check = |from_hz: u32, num_samples: usize, expected: usize| {
            let clip = Clip { samples: vec![1000; num_samples], rate_hz: from_hz };
            let mut out = Clip::default();
            Resampler::new(22_050).clip_into(&clip, &mut out).unwrap();
            assert_eq!((out.samples.len(), out.rate_hz), (expected, 22_050), "{num_samples} at {from_hz}");
        };
        check(44_100, 0, 0);
        check(44_100, 1, 1);
        check(44_100, 3, 2);
        check(48_000, 48_000, 22_050);
        check(48_000, 48_001, 22_051);
        check(16_000, 1, 2);
        check(8_000, 8_000, 22_050);
        check(22_050, 77, 77);
    }

    #[test]
    fn many_rates_do_not_pile_up_and_answers_stay_the_same() {
        let mut resampler = Resampler::new(22_050);
        let wave = sine(300.0, 8_000, 2_000);
        let (mut first, mut again) = (Vec::new(), Vec::new());
        resampler.wave_into(&wave, 8_000, &mut first).unwrap();
        for from_hz in (9_000..21_000).step_by(1_000) {
            resampler.wave_into(&wave, from_hz, &mut again).unwrap();
        }
        assert_eq!(resampler.filters.len(), MAX_FILTERS);
        resampler.wave_into(&wave, 8_000, &mut again).unwrap();
        assert_eq!(first, again);
    }
}
