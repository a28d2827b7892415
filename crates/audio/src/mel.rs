//! Samples become log-mel frames.
//!
//! In comes a [`Clip`] at the settings' rate, out go frames of `log(max(mel, floor))` in the caller's [`MelFrames`]:
//! mirrored ends, a Hann window, spectra, a mel filterbank, the logarithm, and what the settings ask for after it.
//! [`LogMel`] does it fast and allocates nothing once it and the buffer have met the longest clip. [`reference()`] does it
//! in f64, plainly. A clip at another rate, or too short to be mirrored, is an error and leaves the buffer empty.

use realfft::num_complex::Complex;

use crate::normalization::Normalization;
use crate::on_device::supported::{check_two_float, fits_mel_1024};
use crate::stft::{Stft, frames, mirror_into};
use crate::transform::KernelMel;
use crate::two_float::TwoFloat;
use crate::{Arithmetic, AudioError, Clip, FeatureSettings, Filterbank, LogBase, Spectrum, frame_energy};

/// Log-mel frames, frame after frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MelFrames {
    /// The bands of frame 0, low to high, then those of frame 1, ...
    pub values: Vec<f32>,
    /// Bands of a frame.
    pub n_mels: usize,
}

impl MelFrames {
    /// How many frames there are.
    pub fn num_frames(&self) -> usize {
        self.values.len().checked_div(self.n_mels).unwrap_or(0)
    }

    /// The bands of frame `index`.
    ///
    /// # Panics
    ///
    /// When there are not that many frames.
    pub fn frame(&self, index: usize) -> &[f32] {
        &self.values[index * self.n_mels..][..self.n_mels]
    }

    fn clear(&mut self, n_mels: usize) {
        self.values.clear();
        self.n_mels = n_mels;
    }
}

/// Makes log-mel frames, fast, in f32 after the transform.
///
/// Within 1e-3 of the f64 reference where the mel magnitude is 1e-4 or more, and within 1e-2 below, in natural
/// logarithms. The transform is
/// in f64 or in two floats because in f32 it is not: beside a tone at full scale, a band near the floor came out 0.014
/// off. f64 costs a third of the speed; [`Arithmetic::TwoFloat`] is for the bits of cards that use it, and many times
/// slower here. Holds a Fourier plan and scratch: one per thread, kept.
pub struct LogMel {
    settings: FeatureSettings,
    transform: Transform,
    normalization: Normalization,
    padding: f32,
}

/// The transform, by its arithmetic.
enum Transform {
    F64(Box<FastMel>),
    TwoFloat(Box<KernelMel<TwoFloat>>),
}

/// Log-mel frames by a Fourier plan in f64.
struct FastMel {
    stft: Stft<f64>,
    bands: Vec<Band>,
    weights: Vec<f32>,
    padded: Vec<f64>,
    /// Magnitudes or powers.
    bins: Vec<f32>,
    /// Whether energy is a sum in f64 of powers without an epsilon, as in the kernel for any settings. It is a sum in f32
    /// where it has always been one.
    exact_energy: bool,
}

/// A band's bins, and where its weights end in the one list of them.
struct Band {
    first_bin: usize,
    num_bins: usize,
}

impl LogMel {
    /// Plans the transform and computes the bands.
    ///
    /// Fails with [`AudioError::Settings`]. [`Arithmetic::TwoFloat`] supports few settings.
    pub fn new(settings: &FeatureSettings) -> Result<LogMel, AudioError> {
        settings.check()?;
        let transform = match settings.arithmetic {
            Arithmetic::F64 => Transform::F64(Box::new(FastMel::new(settings))),
            Arithmetic::TwoFloat => {
                check_two_float(settings)?;
                Transform::TwoFloat(Box::new(KernelMel::new(settings)))
            }
        };
        let normalization = Normalization::of(settings);
        Ok(LogMel { settings: settings.clone(), transform, normalization, padding: settings.silence() })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &FeatureSettings {
        &self.settings
    }

    /// The value of frames that pad the last clip: that of digital silence beside the clip's frames.
    ///
    /// It is [`FeatureSettings::silence`], or more if `top_range` is set and the clip is loud.
    pub fn padding(&self) -> f32 {
        self.padding
    }

    /// The log-mel frames of `clip`, in `out`.
    ///
    /// Fails with [`AudioError::WrongRate`] and [`AudioError::TooShort`].
    pub fn mel_into(&mut self, clip: &Clip, out: &mut MelFrames) -> Result<(), AudioError> {
        self.run(clip, out, None)
    }

    /// [`LogMel::mel_into`], and the [energy](frame_energy) of every frame in `energy`.
    pub fn mel_energy_into(
        &mut self,
        clip: &Clip,
        out: &mut MelFrames,
        energy: &mut Vec<f32>,
    ) -> Result<(), AudioError> {
        self.run(clip, out, Some(energy))
    }

    fn run(&mut self, clip: &Clip, out: &mut MelFrames, energy: Option<&mut Vec<f32>>) -> Result<(), AudioError> {
        self.padding = self.settings.silence();
        self.logs_into(clip, out, energy)?;
        self.padding = self.normalization.apply(&mut out.values);
        Ok(())
    }

    /// The same without [`Normalization`].
    pub(crate) fn logs_into(
        &mut self,
        clip: &Clip,
        out: &mut MelFrames,
        mut energy: Option<&mut Vec<f32>>,
    ) -> Result<(), AudioError> {
        out.clear(self.settings.n_mels);
        if let Some(energy) = &mut energy {
            energy.clear();
        }
        self.settings.check_clip(clip)?;
        match &mut self.transform {
            Transform::F64(fast) => fast.run(&clip.samples, &self.settings, out, energy),
            Transform::TwoFloat(kernel) => kernel.run(&clip.samples, out, |value| {
                if let Some(energy) = &mut energy {
                    energy.push(value);
                }
            }),
        }
        Ok(())
    }
}

impl FastMel {
    fn new(settings: &FeatureSettings) -> FastMel {
        let filterbank = Filterbank::new(settings);
        let bands = filterbank.bands().map(|(first_bin, w)| Band { first_bin, num_bins: w.len() }).collect();
        let weights = filterbank.bands().flat_map(|(_, weights)| weights).map(|&w| w as f32).collect();
        FastMel {
            stft: Stft::new(settings),
            bands,
            weights,
            padded: Vec::new(),
            bins: vec![0.0; settings.num_bins()],
            exact_energy: !fits_mel_1024(settings),
        }
    }

    fn run(
        &mut self,
        samples: &[i16],
        settings: &FeatureSettings,
        out: &mut MelFrames,
        mut energy: Option<&mut Vec<f32>>,
    ) {
        mirror_into(samples, settings.pad_samples(), &mut self.padded);
        out.values.resize(settings.num_frames(samples.len()) * settings.n_mels, 0.0);
        let floor = settings.floor as f32;
        let rows = out.values.chunks_exact_mut(settings.n_mels);
        for (frame, row) in frames(&self.padded, settings).zip(rows) {
            let spectrum = self.stft.spectrum(frame);
            let power = |power: f64| (power + settings.power_epsilon) as f32;
            let bins = self.bins.iter_mut().zip(spectrum);
            match settings.spectrum {
                Spectrum::Magnitude => bins.for_each(|(out, bin)| *out = power(bin.norm_sqr()).sqrt()),
                Spectrum::Power => bins.for_each(|(out, bin)| *out = power(bin.norm_sqr())),
            }
            bands_into(&self.bins, &self.bands, &self.weights, row);
            match settings.log {
                LogBase::E => row.iter_mut().for_each(|mel| *mel = mel.max(floor).ln()),
                LogBase::Ten => row.iter_mut().for_each(|mel| *mel = mel.max(floor).log10()),
            }
            if let Some(energy) = &mut energy {
                energy.push(match self.exact_energy {
                    true => spectrum.iter().map(Complex::norm_sqr).sum::<f64>().sqrt() as f32,
                    false => frame_energy(&self.bins),
                });
            }
        }
    }
}

fn bands_into(bins: &[f32], bands: &[Band], mut weights: &[f32], row: &mut [f32]) {
    for (mel, band) in row.iter_mut().zip(bands) {
        let (own, others) = weights.split_at(band.num_bins);
        *mel = own.iter().zip(&bins[band.first_bin..]).map(|(w, x)| w * x).sum();
        weights = others;
    }
}

/// The same features in f64, frame after frame: what every faster way is measured against.
///
/// Cost: allocates, and looks at every bin for every band. Fails like [`LogMel::mel_into`].
pub fn reference(clip: &Clip, settings: &FeatureSettings) -> Result<Vec<f64>, AudioError> {
    settings.check()?;
    settings.check_clip(clip)?;
    let filterbank = Filterbank::new(settings).dense();
    let mut stft = Stft::<f64>::new(settings);
    let mut padded = Vec::new();
    mirror_into(&clip.samples, settings.pad_samples(), &mut padded);
    let mut values = Vec::with_capacity(settings.num_frames(clip.samples.len()) * settings.n_mels);
    for frame in frames(&padded, settings) {
        let bins = stft.bins(frame);
        for weights in filterbank.chunks(settings.num_bins()) {
            let mel: f64 = weights.iter().zip(bins).map(|(w, x)| w * x).sum::<f64>().max(settings.floor);
            values.push(if settings.log == LogBase::E { mel.ln() } else { mel.log10() });
        }
    }
    let maximum = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lowest = settings.top_range.map_or(f64::NEG_INFINITY, |range| maximum - range);
    values.iter_mut().for_each(|log| *log = (log.max(lowest) + settings.shift) * settings.scale);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(num_samples: usize) -> Clip {
        Clip { samples: (0..num_samples).map(|i| ((i * 7919) % 3001) as i16 - 1500).collect(), rate_hz: 22_050 }
    }

    #[test]
    fn every_length_gives_whole_hops() {
        let settings = FeatureSettings::default();
        let mut log_mel = LogMel::new(&settings).unwrap();
        let mut out = MelFrames::default();
        for (num_samples, num_frames) in [(385, 1), (511, 1), (512, 2), (1024, 4), (5119, 19), (5120, 20)] {
            log_mel.mel_into(&clip(num_samples), &mut out).unwrap();
            assert_eq!((out.num_frames(), out.n_mels), (num_frames, 80));
            assert_eq!(reference(&clip(num_samples), &settings).unwrap().len(), num_frames * 80);
        }
    }

    #[test]
    fn what_cannot_be_mirrored_or_is_at_another_rate_is_refused() {
        let mut log_mel = LogMel::new(&FeatureSettings::default()).unwrap();
        let mut out = MelFrames { values: vec![1.0; 80], n_mels: 80 };
        for num_samples in [0, 1, 255, 256, 384] {
            let refused = log_mel.mel_into(&clip(num_samples), &mut out).unwrap_err();
            assert!(matches!(refused, AudioError::TooShort { samples, needed: 385 } if samples == num_samples));
            assert_eq!(out.num_frames(), 0);
        }
        let refused = log_mel.mel_into(&Clip { rate_hz: 44_100, ..clip(5000) }, &mut out).unwrap_err();
        assert!(matches!(refused, AudioError::WrongRate { found_hz: 44_100, expected_hz: 22_050 }));
    }

    #[test]
    fn silence_is_the_floor() {
        let silence = Clip { samples: vec![0; 2048], rate_hz: 22_050 };
        let mut out = MelFrames::default();
        LogMel::new(&FeatureSettings::default()).unwrap().mel_into(&silence, &mut out).unwrap();
        assert!(out.values.iter().all(|&x| (x - 1e-5_f32.ln()).abs() < 1e-6));
    }

    #[test]
    fn nothing_is_allocated_again_for_a_clip_that_is_no_longer() {
        let mut log_mel = LogMel::new(&FeatureSettings::default()).unwrap();
        let mut out = MelFrames::default();
        let longest = clip(50_000);
        log_mel.mel_into(&longest, &mut out).unwrap();
        let memory = |log_mel: &LogMel, out: &MelFrames| {
            let Transform::F64(fast) = &log_mel.transform else { panic!("f64 is the default") };
            (fast.padded.as_ptr(), out.values.as_ptr())
        };
        let before = memory(&log_mel, &out);
        for num_samples in [50_000, 400, 30_000, 49_999, 50_000] {
            log_mel.mel_into(&clip(num_samples), &mut out).unwrap();
            assert_eq!(memory(&log_mel, &out), before);
        }
    }
}
