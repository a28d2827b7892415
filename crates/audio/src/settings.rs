//! The numbers that define the features. Stored with a model: other numbers are another model's features.

use serde::{Deserialize, Serialize};

use crate::AudioError;

/// The arithmetic of the Fourier transform of log-mel frames. Both keep the same error bounds; their results differ in the
/// last bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arithmetic {
    /// 64-bit floating point.
    #[default]
    F64,
    /// Pairs of 32-bit floating-point numbers: about ten operations for each of f64. Faster on cards whose f64 rate is 1/32
    /// of their f32 rate or less.
    TwoFloat,
}

impl Arithmetic {
    /// Both.
    pub const ALL: [Arithmetic; 2] = [Arithmetic::F64, Arithmetic::TwoFloat];

    /// Its name in flags, files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::F64 => "f64",
            Arithmetic::TwoFloat => "two-float",
        }
    }
}

/// How samples become log-mel frames.
///
/// A clip of `n` samples gives `n / hop_samples` frames, rounded down: the padding of `(n_fft - hop_samples) / 2` on
/// both sides is made for that, so frame `t` is centred on the middle of the samples `t * hop .. (t + 1) * hop`.
/// Energy and pitch follow the same frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSettings {
    /// Samples per second of the clips.
    pub rate_hz: u32,
    /// Samples of a Fourier transform, even.
    pub n_fft: usize,
    /// Samples of the (periodic Hann) window, centred in the transform.
    pub win_samples: usize,
    /// Samples from one frame to the next.
    pub hop_samples: usize,
    /// Mel bands.
    pub n_mels: usize,
    /// Where the lowest band begins.
    pub fmin_hz: f64,
    /// Where the highest band ends.
    pub fmax_hz: f64,
    /// Smaller mel magnitudes count as this one, before the logarithm.
    pub floor: f64,
    /// The arithmetic of the transform. Models from before it was stored have f64.
    #[serde(default)]
    pub arithmetic: Arithmetic,
}

/// Samples per second of the features, unless set otherwise. All recordings are resampled to it.
pub const RATE_HZ: u32 = 22_050;
/// Samples from one frame to the next, unless set otherwise. The feature kernels support no other.
pub const HOP_SAMPLES: usize = 256;
/// Mel bands, unless set otherwise.
pub const N_MELS: usize = 80;
/// Frames of a voice reference: 4.6 s.
pub const REFERENCE_FRAMES: u32 = 400;

impl Default for FeatureSettings {
    fn default() -> Self {
        FeatureSettings {
            rate_hz: RATE_HZ,
            n_fft: 1024,
            win_samples: 1024,
            hop_samples: HOP_SAMPLES,
            n_mels: N_MELS,
            fmin_hz: 0.0,
            fmax_hz: 8000.0,
            floor: 1e-5,
            arithmetic: Arithmetic::F64,
        }
    }
}

impl FeatureSettings {
    /// Samples mirrored on each side of a clip.
    pub fn pad_samples(&self) -> usize {
        (self.n_fft - self.hop_samples) / 2
    }

    /// Frames of a clip of `num_samples`. A clip shorter than [`FeatureSettings::min_samples`] is refused instead.
    pub fn num_frames(&self, num_samples: usize) -> usize {
        num_samples / self.hop_samples
    }

    /// The shortest clip there are features for: mirroring `pad_samples` takes one sample more than those, and a frame
    /// takes a hop.
    pub fn min_samples(&self) -> usize {
        self.hop_samples.max(self.pad_samples() + 1)
    }

    /// Bins of a magnitude spectrum.
    pub fn num_bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Fails with [`AudioError::Settings`] and the first number that cannot be.
    pub fn check(&self) -> Result<(), AudioError> {
        let nyquist_hz = f64::from(self.rate_hz) / 2.0;
        let demands = [
            (self.rate_hz > 0, "rate_hz is above 0"),
            ((2..=1 << 16).contains(&self.n_fft) && self.n_fft.is_multiple_of(2), "n_fft is even, 2 to 65536"),
            ((1..=self.n_fft).contains(&self.win_samples), "win_samples is 1 to n_fft"),
            ((1..=self.n_fft).contains(&self.hop_samples), "hop_samples is 1 to n_fft"),
            (self.hop_samples.is_multiple_of(2), "hop_samples is even, so that both sides get the same padding"),
            ((1..=1024).contains(&self.n_mels), "n_mels is 1 to 1024"),
            (self.fmin_hz >= 0.0 && self.fmin_hz < self.fmax_hz, "fmin_hz is 0 or more and below fmax_hz"),
            (self.fmax_hz <= nyquist_hz, "fmax_hz is at most half of rate_hz"),
            (self.floor > 0.0 && self.floor.is_finite(), "floor is above 0"),
        ];
        match demands.iter().find(|(met, _)| !met) {
            Some((_, demand)) => Err(AudioError::Settings { what: format!("{demand}, found {self:?}") }),
            None => Ok(()),
        }
    }

    /// Fails when features of such a clip are not defined.
    pub(crate) fn check_clip(&self, clip: &crate::Clip) -> Result<(), AudioError> {
        if clip.rate_hz != self.rate_hz {
            return Err(AudioError::WrongRate { found_hz: clip.rate_hz, expected_hz: self.rate_hz });
        }
        let (samples, needed) = (clip.samples.len(), self.min_samples());
        if samples < needed { Err(AudioError::TooShort { samples, needed }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_hops() {
        let settings = FeatureSettings::default();
        assert_eq!((settings.pad_samples(), settings.min_samples(), settings.num_bins()), (384, 385, 513));
        for (num_samples, frames) in [(385, 1), (511, 1), (512, 2), (22_050, 86), (25_600, 100), (25_601, 100)] {
            assert_eq!(settings.num_frames(num_samples), frames);
            // What the padding gives, counted the long way.
            assert_eq!(1 + (num_samples + 2 * settings.pad_samples() - settings.n_fft) / settings.hop_samples, frames);
        }
    }

    #[test]
    fn impossible_numbers_are_named() {
        let check = |change: fn(&mut FeatureSettings), name: &str| {
            let mut settings = FeatureSettings::default();
            change(&mut settings);
            let message = settings.check().unwrap_err().to_string();
            assert!(message.starts_with(&format!("feature settings: {name} ")), "{message}");
        };
        FeatureSettings::default().check().unwrap();
        check(|s| s.rate_hz = 0, "rate_hz");
        check(|s| s.n_fft = 1023, "n_fft");
        check(|s| s.win_samples = 2048, "win_samples");
        check(|s| s.hop_samples = 0, "hop_samples");
        check(|s| s.hop_samples = 255, "hop_samples");
        check(|s| s.n_mels = 0, "n_mels");
        check(|s| s.fmin_hz = f64::NAN, "fmin_hz");
        check(|s| s.fmax_hz = 12_000.0, "fmax_hz");
        check(|s| s.floor = 0.0, "floor");
    }
}
