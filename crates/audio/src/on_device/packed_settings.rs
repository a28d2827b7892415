//! The feature settings packed into 64-bit words, the form in which kernels and host kernels read them.

use crate::normalization::Normalization;
use crate::{Arithmetic, AudioError, FeatureSettings, Framing, LogBase, MelNorm, MelScale, PitchSettings, Spectrum};

/// Words of the packed settings.
pub(crate) const WORDS: usize = 29;

/// Packs the settings, in the order that the kernels expect. Integers as they are, real numbers as the bits of an f64.
///
/// Fails with [`AudioError::Settings`].
pub(crate) fn pack(settings: &FeatureSettings, pitch: &PitchSettings) -> Result<[u64; WORDS], AudioError> {
    let (min_period, max_period) = pitch.periods(settings)?;
    // Padding has the same bits on every device.
    let log_floor = Normalization::of(settings).log_floor;
    Ok([
        u64::from(settings.rate_hz),
        settings.n_fft as u64,
        settings.win_samples as u64,
        settings.hop_samples as u64,
        settings.n_mels as u64,
        settings.fmin_hz.to_bits(),
        settings.fmax_hz.to_bits(),
        settings.floor.to_bits(),
        pitch.fmin_hz.to_bits(),
        pitch.fmax_hz.to_bits(),
        pitch.trough_threshold.to_bits(),
        pitch.max_aperiodicity.to_bits(),
        pitch.silence_rms.to_bits(),
        min_period as u64,
        max_period as u64,
        u64::from(log_floor.to_bits()),
        settings.arithmetic as u64,
        settings.framing as u64,
        settings.spectrum as u64,
        settings.power_epsilon.to_bits(),
        settings.mel_scale as u64,
        settings.mel_norm as u64,
        settings.log as u64,
        settings.top_range.unwrap_or(f64::INFINITY).to_bits(),
        settings.shift.to_bits(),
        settings.scale.to_bits(),
        settings.pad_samples() as u64,
        settings.min_samples() as u64,
        settings.extra_frames() as u64,
    ])
}

/// The settings that were packed into `words`.
pub(crate) fn unpack(words: &[u64; WORDS]) -> (FeatureSettings, PitchSettings) {
    let real = |i: usize| f64::from_bits(words[i]);
    let settings = FeatureSettings {
        rate_hz: words[0] as u32,
        n_fft: words[1] as usize,
        win_samples: words[2] as usize,
        hop_samples: words[3] as usize,
        n_mels: words[4] as usize,
        fmin_hz: real(5),
        fmax_hz: real(6),
        floor: real(7),
        arithmetic: Arithmetic::ALL[words[16] as usize],
        framing: Framing::ALL[words[17] as usize],
        spectrum: Spectrum::ALL[words[18] as usize],
        power_epsilon: real(19),
        mel_scale: MelScale::ALL[words[20] as usize],
        mel_norm: MelNorm::ALL[words[21] as usize],
        log: LogBase::ALL[words[22] as usize],
        top_range: Some(real(23)).filter(|range| range.is_finite()),
        shift: real(24),
        scale: real(25),
    };
    let pitch = PitchSettings {
        fmin_hz: real(8),
        fmax_hz: real(9),
        trough_threshold: real(10),
        max_aperiodicity: real(11),
        silence_rms: real(12),
    };
    (settings, pitch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FeaturePreset;

    #[test]
    fn settings_survive_packing() {
        let mut settings = FeatureSettings { n_mels: 77, fmin_hz: 12.5, ..FeatureSettings::default() };
        let pitch = PitchSettings { fmin_hz: 80.0, silence_rms: 0.01, ..PitchSettings::default() };
        for arithmetic in Arithmetic::ALL {
            settings.arithmetic = arithmetic;
            assert_eq!(unpack(&pack(&settings, &pitch).unwrap()), (settings.clone(), pitch.clone()));
        }
        let words = pack(&settings, &pitch).unwrap();
        assert_eq!((words[13], words[14], words[15]), (36, 276, u64::from(1e-5_f32.ln().to_bits())));
        assert_eq!((words[26], words[27], words[28]), (384, 385, 0));
        for preset in FeaturePreset::ALL {
            let settings = preset.settings();
            assert_eq!(unpack(&pack(&settings, &pitch).unwrap()), (settings, pitch.clone()));
        }
    }
}
