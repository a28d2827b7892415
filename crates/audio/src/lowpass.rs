//! The filter between two rates: a windowed sinc, designed in f64, cut into one short row of taps per phase.

use std::f64::consts::PI;

use crate::AudioError;

/// Zero crossings of the sinc on each side, counted at the lower of the two rates.
const ZEROS_PER_SIDE: usize = 32;
/// The -6 dB point as a share of the lower rate's half. With the two numbers around it, frequencies up to 0.8 of that
/// half pass (8.8 kHz at 22 050 Hz; features end at 8 kHz) and nothing above it comes back as an alias.
const CUTOFF: f64 = 0.9;
/// Kaiser's window shape for a stop band of 100 dB.
const KAISER_BETA: f64 = 10.06;
/// The largest ratio of two rates. A header that says 1 Hz would make five hours of a second.
const MAX_RATIO: u32 = 32;
/// Larger factors mean rates without a common divisor worth the name, and a filter of many megabytes.
const MAX_FACTOR: u32 = 1 << 16;

/// The filter from one rate to another: `up / down` is the ratio in lowest terms.
///
/// Output sample `m` is the dot product of row `(m * down + delay) % up` with the `taps_per_phase` input samples that
/// end at `(m * down + delay) / up`, zeros beyond both ends. That is all there is to it, here and on a GPU.
#[derive(Clone, Debug)]
pub struct Lowpass {
    /// The rate of the input.
    pub from_hz: u32,
    /// The rate of the output.
    pub to_hz: u32,
    /// Samples out per `down` samples in.
    pub up: usize,
    /// Samples in per `up` samples out.
    pub down: usize,
    /// Half the filter, in steps of `1 / up` of an input sample: where output sample 0 lies.
    pub delay: usize,
    /// Taps of a row.
    pub taps_per_phase: usize,
    /// `up` rows of `taps_per_phase`, each oldest sample first.
    pub phases: Vec<f32>,
}

impl Lowpass {
    /// Designs the filter. Cost: `64 * max(up, down)` Bessel functions; 5 ms from 48 kHz to 22 050 Hz.
    ///
    /// Fails with [`AudioError::RatePair`] when a rate is 0, when one is over 32 times the other, and when the two
    /// have no useful common divisor.
    pub fn design(from_hz: u32, to_hz: u32) -> Result<Lowpass, AudioError> {
        let divisor = gcd(from_hz, to_hz);
        let refused = AudioError::RatePair { from_hz, to_hz };
        let is_far = from_hz.max(to_hz) / MAX_RATIO > from_hz.min(to_hz);
        if from_hz == 0 || to_hz == 0 || is_far || from_hz.max(to_hz) / divisor > MAX_FACTOR {
            return Err(refused);
        }
        let (up, down) = ((to_hz / divisor) as usize, (from_hz / divisor) as usize);
        let taps = taps(up, down);
        let delay = (taps.len() - 1) / 2;
        let taps_per_phase = taps.len().div_ceil(up);
        let mut phases = vec![0.0; up * taps_per_phase];
        for (i, tap) in taps.iter().enumerate() {
            let (phase, age) = (i % up, i / up);
            // Zeros put between the input samples take away a factor `up`; it comes back here.
            phases[phase * taps_per_phase + taps_per_phase - 1 - age] = (tap * up as f64) as f32;
        }
        Ok(Lowpass { from_hz, to_hz, up, down, delay, taps_per_phase, phases })
    }

    /// Samples that come out of `num_samples`: the ratio, rounded up.
    pub fn output_len(&self, num_samples: usize) -> usize {
        (num_samples * self.up).div_ceil(self.down)
    }
}

/// The whole filter at `up` times the input rate: symmetric, odd length, sum 1.
pub(crate) fn taps(up: usize, down: usize) -> Vec<f64> {
    if up == down {
        return vec![1.0];
    }
    let slower = up.max(down);
    let half = (ZEROS_PER_SIDE * slower) as isize;
    let cutoff = CUTOFF / slower as f64;
    let tap = |n: isize| {
        let edge = n as f64 / half as f64;
        sinc(cutoff * n as f64) * bessel_i0(KAISER_BETA * (1.0 - edge * edge).sqrt())
    };
    let mut taps: Vec<f64> = (-half..=half).map(tap).collect();
    let sum: f64 = taps.iter().sum();
    taps.iter_mut().for_each(|tap| *tap /= sum);
    taps
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// The modified Bessel function of order 0, by its power series; every term is positive, so nothing cancels.
fn bessel_i0(x: f64) -> f64 {
    let quarter_square = x * x / 4.0;
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= quarter_square / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bessel_by_known_values() {
        for (x, expected) in [(0.0, 1.0), (1.0, 1.266_065_877_752_008_4), (10.0, 2_815.716_628_466_254)] {
            assert!((bessel_i0(x) / expected - 1.0).abs() < 1e-14);
        }
    }

    #[test]
    fn ratios_are_in_lowest_terms() {
        for (from_hz, to_hz, up, down) in
            [(44_100, 22_050, 1, 2), (48_000, 22_050, 147, 320), (16_000, 22_050, 441, 320), (22_050, 22_050, 1, 1)]
        {
            let filter = Lowpass::design(from_hz, to_hz).unwrap();
            assert_eq!((filter.up, filter.down), (up, down));
            assert_eq!(filter.phases.len(), up * filter.taps_per_phase);
        }
    }

    #[test]
    fn every_phase_passes_a_constant_unchanged() {
        let filter = Lowpass::design(48_000, 22_050).unwrap();
        for row in filter.phases.chunks(filter.taps_per_phase) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn rates_that_would_need_a_huge_filter_are_refused() {
        for (from_hz, to_hz) in [
            (0, 22_050),
            (22_050, 0),
            (1, 22_050),
            (600, 22_050),
            (22_050, 800_000),
            (4_294_967_291, 22_050),
            (22_050, 1_000_003),
        ] {
            assert!(matches!(Lowpass::design(from_hz, to_hz), Err(AudioError::RatePair { .. })), "{from_hz} {to_hz}");
        }
        for usual in
            [700, 8_000, 11_025, 12_000, 22_051, 24_000, 32_000, 37_799, 88_200, 96_000, 176_400, 192_000, 384_000]
        {
            Lowpass::design(usual, 22_050).unwrap();
        }
    }
}
