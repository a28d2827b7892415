//! Which settings the kernels support. Host kernels support the same ones, so that what runs on the CPU runs on a card.

use crate::normalization::Normalization;
use crate::{Arithmetic, AudioError, FeatureSettings, Framing, HOP_SAMPLES, LogBase, PitchSettings, Spectrum};

/// The transform of the kernels for one geometry.
const N_FFT: usize = 1024;
/// The most mel bands that those kernels support.
const MAX_MELS: usize = 128;
/// The longest transform of the kernel for any settings: two buffers of it fill the shared memory of compute capability 7.5.
pub(crate) const MAX_N_FFT: usize = 4096;
/// The longest period that the pitch kernels look for: four lags a thread.
pub(crate) const MAX_PERIOD: usize = 1024;

/// Whether the log-mel kernels for one geometry compute these settings. The filterbank's scale and norm are in its weights.
pub(crate) fn fits_mel_1024(settings: &FeatureSettings) -> bool {
    fits_pitch_1024(settings)
        && settings.win_samples == N_FFT
        && settings.n_mels <= MAX_MELS
        && settings.spectrum == Spectrum::Magnitude
        && settings.power_epsilon == 0.0
        && settings.log == LogBase::E
        && Normalization::of(settings).is_identity()
}

/// Whether the pitch kernel for one geometry computes these settings.
pub(crate) fn fits_pitch_1024(settings: &FeatureSettings) -> bool {
    (settings.n_fft, settings.hop_samples, settings.framing) == (N_FFT, HOP_SAMPLES, Framing::Hop)
}

/// Fails with [`AudioError::Settings`] on settings that [`Arithmetic::TwoFloat`] does not support.
pub(crate) fn check_two_float(settings: &FeatureSettings) -> Result<(), AudioError> {
    match fits_mel_1024(settings) {
        true => Ok(()),
        false => Err(AudioError::Settings {
            what: format!(
                "arithmetic two-float supports n_fft and win_samples of {N_FFT}, hop_samples of {HOP_SAMPLES}, at most \
                 {MAX_MELS} bands, and the default framing, spectrum, power_epsilon, log, top_range, shift and scale: use \
                 arithmetic f64, found {settings:?}"
            ),
        }),
    }
}

/// Fails with [`AudioError::Settings`] on settings that no log-mel kernel supports.
pub(crate) fn check_log_mel(settings: &FeatureSettings) -> Result<(), AudioError> {
    if settings.arithmetic == Arithmetic::TwoFloat {
        return check_two_float(settings);
    }
    let n_fft = settings.n_fft;
    if is_supported(n_fft) {
        return Ok(());
    }
    let below = (2..n_fft.min(MAX_N_FFT + 1)).rev().find(|&n| is_supported(n));
    let above = (n_fft..=MAX_N_FFT).find(|&n| is_supported(n));
    let sizes: Vec<String> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
    let what = format!(
        "the kernels support an even n_fft of up to {MAX_N_FFT} without prime factors above 5, found {n_fft}: use {}",
        sizes.join(" or ")
    );
    Err(AudioError::Settings { what })
}

/// Whether the log-mel kernel for any settings has the radices for `n_fft`.
fn is_supported(n_fft: usize) -> bool {
    let mut rest = n_fft;
    for prime in [2, 3, 5] {
        while rest.is_multiple_of(prime) {
            rest /= prime;
        }
    }
    n_fft.is_multiple_of(2) && n_fft <= MAX_N_FFT && rest == 1
}

/// Fails with [`AudioError::Settings`] on periods that no pitch kernel supports.
pub(crate) fn check_pitch(settings: &FeatureSettings, pitch: &PitchSettings) -> Result<(), AudioError> {
    let (_, max_period) = pitch.periods(settings)?;
    if max_period <= MAX_PERIOD {
        return Ok(());
    }
    let what = format!(
        "the pitch kernel supports periods of up to {MAX_PERIOD} samples, found {max_period}: raise fmin_hz of the pitch"
    );
    Err(AudioError::Settings { what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FeaturePreset;
    use crate::on_device::tables::Tables;

    fn refusal(change: impl FnOnce(&mut FeatureSettings)) -> String {
        let mut settings = FeatureSettings::default();
        change(&mut settings);
        settings.check().unwrap();
        Tables::new(&settings, &PitchSettings::default(), &[]).err().unwrap().to_string()
    }

    #[test]
    fn two_floats_have_one_geometry() {
        for preset in FeaturePreset::ALL {
            let settings = preset.settings();
            let fits = preset == FeaturePreset::Tandem;
            assert_eq!(fits_mel_1024(&settings), fits, "{preset:?}");
            assert!(Tables::new(&settings, &PitchSettings::default(), &[]).is_ok());
            let two_float = FeatureSettings { arithmetic: Arithmetic::TwoFloat, ..settings };
            assert_eq!(Tables::new(&two_float, &PitchSettings::default(), &[]).is_ok(), fits, "{preset:?}");
        }
        let check = |change: fn(&mut FeatureSettings)| {
            let message = refusal(|settings| {
                settings.arithmetic = Arithmetic::TwoFloat;
                change(settings);
            });
            assert!(message.contains("two-float supports n_fft and win_samples of 1024"), "{message}");
        };
        check(|s| s.n_fft = 2048);
        check(|s| s.win_samples = 800);
        check(|s| s.hop_samples = 128);
        check(|s| s.n_mels = 129);
        check(|s| s.framing = Framing::CenteredWithoutLast);
        check(|s| s.spectrum = Spectrum::Power);
        check(|s| s.power_epsilon = 1e-9);
        check(|s| s.log = LogBase::Ten);
        check(|s| s.top_range = Some(8.0));
        check(|s| s.shift = 1.0);
        check(|s| s.scale = 0.5);
    }

    #[test]
    fn sizes_without_radices_are_refused_with_the_nearest_that_work() {
        let of = |n_fft: usize| refusal(|s| (s.n_fft, s.win_samples, s.hop_samples) = (n_fft, n_fft, 2));
        assert!(of(1022).ends_with("found 1022: use 1000 or 1024"), "{}", of(1022));
        assert!(of(442).ends_with("found 442: use 432 or 450"), "{}", of(442));
        assert!(of(8192).ends_with("found 8192: use 4096"), "{}", of(8192));
        for n_fft in [400, 480, 600, 1536, 2048, 4096] {
            assert!(is_supported(n_fft));
        }
    }

    #[test]
    fn periods_that_the_pitch_kernel_does_not_support_are_refused() {
        let message = refusal(|s| (s.rate_hz, s.n_fft) = (96_000, 4096));
        assert!(message.contains("periods of up to 1024 samples, found 1477"), "{message}");
    }
}
