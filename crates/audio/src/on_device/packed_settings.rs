//! The feature settings packed into 64-bit words, the form in which kernels and host kernels read them.

use crate::{Arithmetic, AudioError, FeatureSettings, PitchSettings};

/// Words of the packed settings.
pub(crate) const WORDS: usize = 17;

/// Packs the settings, in the order that the kernels expect. Integers as they are, real numbers as the bits of an f64.
///
/// Fails with [`AudioError::Settings`].
pub(crate) fn pack(settings: &FeatureSettings, pitch: &PitchSettings) -> Result<[u64; WORDS], AudioError> {
    let (min_period, max_period) = pitch.periods(settings)?;
    // The log-mel value of silence. Padding has the same bits on every device.
    let ln_floor = (settings.floor as f32).ln();
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
        u64::from(ln_floor.to_bits()),
        settings.arithmetic as u64,
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
        arithmetic: if words[16] == Arithmetic::F64 as u64 { Arithmetic::F64 } else { Arithmetic::TwoFloat },
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

/// The log-mel value of padding frames.
pub(crate) fn ln_floor(words: &[u64; WORDS]) -> f32 {
    f32::from_bits(words[15] as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_packing() {
        let mut settings = FeatureSettings { n_mels: 77, fmin_hz: 12.5, ..FeatureSettings::default() };
        let pitch = PitchSettings { fmin_hz: 80.0, silence_rms: 0.01, ..PitchSettings::default() };
        for arithmetic in Arithmetic::ALL {
            settings.arithmetic = arithmetic;
            assert_eq!(unpack(&pack(&settings, &pitch).unwrap()), (settings.clone(), pitch.clone()));
        }
        let words = pack(&settings, &pitch).unwrap();
        assert_eq!((words[13], words[14], ln_floor(&words)), (36, 276, 1e-5_f32.ln()));
    }
}
