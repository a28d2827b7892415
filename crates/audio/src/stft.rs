//! Short-time spectra: mirrored ends, frames a hop apart, a periodic Hann window, a real Fourier transform.
//!
//! Generic over f32 (the fast path) and f64 (the reference). Plans and scratch are made once per [`Stft`].

use std::f64::consts::TAU;
use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{FftNum, RealFftPlanner, RealToComplex};

use crate::clip::FULL_SCALE;
use crate::{FeatureSettings, Spectrum};

/// f32 or f64.
pub(crate) trait StftFloat: FftNum {
    fn of(value: f64) -> Self;
    fn sqrt(self) -> Self;
}

impl StftFloat for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
}

impl StftFloat for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
}

/// The samples, full scale ±1, with `pad` more on each side mirrored about the first and the last one.
///
/// The clip must have more than `pad` samples.
pub(crate) fn mirror_into<T: StftFloat>(samples: &[i16], pad: usize, padded: &mut Vec<T>) {
    let scale = T::of(1.0 / FULL_SCALE);
    let wave = |x: &i16| T::of(f64::from(*x)) * scale;
    padded.clear();
    padded.extend(samples[1..=pad].iter().rev().map(wave));
    padded.extend(samples.iter().map(wave));
    padded.extend(samples[samples.len() - 1 - pad..samples.len() - 1].iter().rev().map(wave));
}

/// A periodic Hann window of `win` samples, centred in `n_fft`.
pub(crate) fn hann(win: usize, n_fft: usize) -> impl Iterator<Item = f64> {
    let before = (n_fft - win) / 2;
    (0..n_fft).map(move |i| {
        let i = i.wrapping_sub(before);
        if i < win { 0.5 - 0.5 * (TAU * i as f64 / win as f64).cos() } else { 0.0 }
    })
}

/// Spectra of frames of one size.
pub(crate) struct Stft<T: StftFloat> {
    window: Vec<T>,
    plan: Arc<dyn RealToComplex<T>>,
    frame: Vec<T>,
    spectrum: Vec<Complex<T>>,
    scratch: Vec<Complex<T>>,
    power_epsilon: T,
    takes_root: bool,
    bins: Vec<T>,
}

impl<T: StftFloat> Stft<T> {
    pub(crate) fn new(settings: &FeatureSettings) -> Stft<T> {
        let plan = RealFftPlanner::new().plan_fft_forward(settings.n_fft);
        Stft {
            window: hann(settings.win_samples, settings.n_fft).map(T::of).collect(),
            frame: plan.make_input_vec(),
            spectrum: plan.make_output_vec(),
            scratch: plan.make_scratch_vec(),
            power_epsilon: T::of(settings.power_epsilon),
            takes_root: settings.spectrum == Spectrum::Magnitude,
            bins: vec![T::zero(); settings.num_bins()],
            plan,
        }
    }

    /// The spectrum of the `n_fft` samples in `frame`.
    pub(crate) fn spectrum(&mut self, frame: &[T]) -> &[Complex<T>] {
        for ((out, &x), &w) in self.frame.iter_mut().zip(frame).zip(&self.window) {
            *out = x * w;
        }
        let done = self.plan.process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch);
        assert!(done.is_ok(), "the buffers are the plan's own");
        &self.spectrum
    }

    /// The magnitudes or powers of that spectrum, as the settings say.
    pub(crate) fn bins(&mut self, frame: &[T]) -> &[T] {
        self.spectrum(frame);
        for (out, bin) in self.bins.iter_mut().zip(&self.spectrum) {
            let power = bin.re * bin.re + bin.im * bin.im + self.power_epsilon;
            *out = if self.takes_root { power.sqrt() } else { power };
        }
        &self.bins
    }
}

/// The frames of a padded clip, one hop apart.
pub(crate) fn frames<'p, T>(padded: &'p [T], settings: &FeatureSettings) -> impl Iterator<Item = &'p [T]> + use<'p, T> {
    let num_frames = settings.num_frames(padded.len() - 2 * settings.pad_samples());
    padded.windows(settings.n_fft).step_by(settings.hop_samples).take(num_frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_mirrored_about_the_end_samples() {
        let mut padded: Vec<f64> = Vec::new();
        mirror_into(&[0, 1, 2, 3, 4], 3, &mut padded);
        let steps: Vec<f64> = padded.iter().map(|x| x * FULL_SCALE).collect();
        assert_eq!(steps, [3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn the_window_is_periodic_and_centred() {
        let window: Vec<f64> = hann(4, 8).collect();
        let expected = [0.0, 0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 0.0];
        assert!(window.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{window:?}");
    }

    #[test]
    fn a_whole_number_of_periods_is_one_bin() {
        let settings = FeatureSettings::default();
        let frame: Vec<f64> = (0..1024).map(|i| (TAU * 10.0 * f64::from(i) / 1024.0).cos()).collect();
        let magnitudes = Stft::<f64>::new(&settings).bins(&frame).to_vec();
        // A Hann window spreads a tone to its neighbours, half as high, and no further.
        for (bin, &magnitude) in magnitudes.iter().enumerate() {
            let expected = [256.0, 128.0].get(bin.abs_diff(10)).copied().unwrap_or(0.0);
            assert!((magnitude - expected).abs() < 1e-9, "bin {bin}: {magnitude}");
        }
    }
}
