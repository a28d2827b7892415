//! The numbers that define the features. Stored with a model: other numbers are another model's features.

use serde::{Deserialize, Serialize};

use crate::normalization::Normalization;
use crate::{Arithmetic, AudioError, Framing, LogBase, MelNorm, MelScale, Spectrum};

/// How samples become log-mel frames.
///
/// [`Framing`] says which samples a frame covers; energy and pitch follow the same frames. The window is a periodic Hann
/// window. [`FeaturePreset`](crate::FeaturePreset) has the settings of published models.
///
/// Settings that have their default are not stored, except for those that every model has stored from the beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSettings {
    /// Samples per second of the clips.
    pub rate_hz: u32,
    /// Samples of a Fourier transform, even.
    pub n_fft: usize,
    /// Samples of the window, centred in the transform.
    pub win_samples: usize,
    /// Samples from one frame to the next.
    pub hop_samples: usize,
    /// Mel bands.
    pub n_mels: usize,
    /// Where the lowest band begins.
    pub fmin_hz: f64,
    /// Where the highest band ends.
    pub fmax_hz: f64,
    /// Smaller mel values count as this one, before the logarithm.
    pub floor: f64,
    /// The arithmetic of the transform. Models from before it was stored have f64.
    #[serde(default)]
    pub arithmetic: Arithmetic,
    /// Which samples a frame covers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub framing: Framing,
    /// What the filterbank is applied to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spectrum: Spectrum,
    /// Added to the power of every bin, before the square root of a magnitude. HiFi-GAN has 1e-9.
    #[serde(default, skip_serializing_if = "is_default")]
    pub power_epsilon: f64,
    /// The scale of the mel bands.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mel_scale: MelScale,
    /// The height of their triangles.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mel_norm: MelNorm,
    /// The base of the logarithm.
    #[serde(default, skip_serializing_if = "is_default")]
    pub log: LogBase,
    /// Raises logarithms below the clip's maximum minus this one to that. Whisper has 8.
    #[serde(default, skip_serializing_if = "is_default")]
    pub top_range: Option<f64>,
    /// Added to the logarithm. Whisper has 4.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shift: f64,
    /// Multiplies the sum of logarithm and shift: the last step. Whisper has 0.25.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub scale: f64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

/// Samples per second of the features, unless set otherwise. All recordings are resampled to it.
pub const RATE_HZ: u32 = 22_050;
/// Samples from one frame to the next, unless set otherwise.
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
            framing: Framing::Hop,
            spectrum: Spectrum::Magnitude,
            power_epsilon: 0.0,
            mel_scale: MelScale::Slaney,
            mel_norm: MelNorm::Slaney,
            log: LogBase::E,
            top_range: None,
            shift: 0.0,
            scale: 1.0,
        }
    }
}

impl FeatureSettings {
    /// Samples mirrored on each side of a clip.
    pub fn pad_samples(&self) -> usize {
        match self.framing {
            Framing::Hop => (self.n_fft - self.hop_samples) / 2,
            Framing::Centered | Framing::CenteredWithoutLast => self.n_fft / 2,
        }
    }

    /// Frames of a clip of `num_samples`. A clip shorter than [`FeatureSettings::min_samples`] is refused instead.
    pub fn num_frames(&self, num_samples: usize) -> usize {
        num_samples / self.hop_samples + self.extra_frames()
    }

    /// Frames of a clip in addition to its whole hops.
    pub(crate) fn extra_frames(&self) -> usize {
        usize::from(self.framing == Framing::Centered)
    }

    /// The shortest clip there are features for: mirroring `pad_samples` takes one sample more than those, and a frame
    /// takes a hop, except for the last frame of [`Framing::Centered`].
    pub fn min_samples(&self) -> usize {
        let a_frame = if self.framing == Framing::Centered { 1 } else { self.hop_samples };
        a_frame.max(self.pad_samples() + 1)
    }

    /// The value of every band in a frame of digital silence, if the whole clip is silent. Frames that pad a clip have it.
    ///
    /// It is the value of a mel band at the floor. Beside louder frames, `top_range` raises it: see
    /// [`LogMel::padding`](crate::LogMel::padding).
    pub fn silence(&self) -> f32 {
        let normalization = Normalization::of(self);
        normalization.padding(normalization.log_floor)
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
            (
                self.framing != Framing::Hop || self.hop_samples.is_multiple_of(2),
                "hop_samples is even with the framing hop, so that both sides get the same padding",
            ),
            ((1..=1024).contains(&self.n_mels), "n_mels is 1 to 1024"),
            (self.fmin_hz >= 0.0 && self.fmin_hz < self.fmax_hz, "fmin_hz is 0 or more and below fmax_hz"),
            (self.fmax_hz <= nyquist_hz, "fmax_hz is at most half of rate_hz"),
            ((self.floor as f32).is_normal() && self.floor > 0.0, "floor is above 0 and a normal f32"),
            (self.power_epsilon >= 0.0 && self.power_epsilon.is_finite(), "power_epsilon is 0 or more"),
            (self.top_range.is_none_or(|range| range > 0.0 && range.is_finite()), "top_range is above 0, or none"),
            (self.shift.is_finite(), "shift is finite"),
            (self.scale > 0.0 && self.scale.is_finite(), "scale is above 0"),
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
    fn centered_frames_are_those_of_torch_stft() {
        for (n_fft, hop_samples) in [(400, 160), (400, 161), (1024, 256), (512, 512), (512, 300)] {
            let framing = Framing::Centered;
            let settings = FeatureSettings { n_fft, win_samples: n_fft, hop_samples, framing, ..Default::default() };
            settings.check().unwrap();
            assert_eq!((settings.pad_samples(), settings.min_samples()), (n_fft / 2, n_fft / 2 + 1));
            let without_last = FeatureSettings { framing: Framing::CenteredWithoutLast, ..settings.clone() };
            assert_eq!(without_last.min_samples(), hop_samples.max(n_fft / 2 + 1));
            for num_samples in [513, 600, 1599, 1600, 1601, 16_000] {
                let frames = 1 + (num_samples + 2 * settings.pad_samples() - n_fft) / hop_samples;
                assert_eq!(settings.num_frames(num_samples), frames);
                assert_eq!(without_last.num_frames(num_samples), frames - 1);
            }
        }
    }

    /// The bytes that models have been stored with.
    #[test]
    fn defaults_are_stored_as_before() {
        let stored = r#"{"rate_hz":22050,"n_fft":1024,"win_samples":1024,"hop_samples":256,"n_mels":80,"fmin_hz":0.0,"fmax_hz":8000.0,"floor":0.00001,"arithmetic":"f64"}"#;
        assert_eq!(serde_json::to_string(&FeatureSettings::default()).unwrap(), stored);
        assert_eq!(serde_json::from_str::<FeatureSettings>(stored).unwrap(), FeatureSettings::default());
    }

    #[test]
    fn silence_is_the_logarithm_of_the_floor_shifted_and_scaled() {
        let settings = FeatureSettings::default();
        assert_eq!(settings.silence().to_bits(), 1e-5_f32.ln().to_bits());
        let settings = FeatureSettings {
            log: LogBase::Ten,
            floor: 1e-10,
            shift: 4.0,
            scale: 0.25,
            top_range: Some(8.0),
            ..settings
        };
        assert_eq!(settings.silence(), -1.5);
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
        check(|s| s.floor = 1e-40, "floor");
        check(|s| s.power_epsilon = -1e-9, "power_epsilon");
        check(|s| s.power_epsilon = f64::INFINITY, "power_epsilon");
        check(|s| s.top_range = Some(0.0), "top_range");
        check(|s| s.top_range = Some(f64::NAN), "top_range");
        check(|s| s.shift = f64::NAN, "shift");
        check(|s| s.scale = 0.0, "scale");
        check(|s| s.scale = -1.0, "scale");
    }
}
