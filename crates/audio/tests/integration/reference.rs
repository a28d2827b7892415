//! Features and resampling against numbers that librosa and scipy gave (`tools/reference/audio/make.py`).

use crate::common::{clip, f32s, i16s};
use proptest::prelude::*;
use tandem_audio::{
    Arithmetic, Clip, FeatureSettings, LogMel, Lowpass, MelFrames, PitchSettings, PitchTracker, Resampler, mel,
};
use tandem_test_support::largest;

/// What the fast path promises at this log-mel value.
fn fast_bound(log_mel: f64) -> f64 {
    if log_mel >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 }
}

fn largest_difference(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    largest(a.into_iter().zip(b).map(|(a, b)| (a - b).abs()))
}

#[test]
fn mel_in_f64_is_librosas() {
    for name in ["speech", "tones"] {
        let found = mel::reference(&clip(name), &FeatureSettings::default()).unwrap();
        let expected = f32s(&format!("{name}_mel"));
        assert_eq!(found.len(), expected.len());
        let difference = largest_difference(found, expected.into_iter().map(f64::from));
        assert!(difference < 1e-4, "{name}: {difference}");
    }
}

/// Each arithmetic, by its settings.
fn both_arithmetics() -> [FeatureSettings; 2] {
    Arithmetic::ALL.map(|arithmetic| FeatureSettings { arithmetic, ..FeatureSettings::default() })
}

#[test]
fn fast_mel_is_librosas_within_the_bounds() {
    let mut found = MelFrames::default();
    for settings in both_arithmetics() {
        let mut log_mel = LogMel::new(&settings).unwrap();
        for name in ["speech", "tones"] {
            log_mel.mel_into(&clip(name), &mut found).unwrap();
            let expected = f32s(&format!("{name}_mel"));
            assert_eq!(found.values.len(), expected.len());
            for (i, (&found, expected)) in found.values.iter().zip(expected).enumerate() {
                let difference = f64::from((found - expected).abs());
                let within = difference <= fast_bound(expected.into());
                assert!(within, "{name} {i} in {}: {found} for {expected}", settings.arithmetic.name());
            }
        }
    }
}

/// Any samples, loud and soft: noise of any level, and a tone of any frequency and level on it.
fn any_samples() -> impl Strategy<Value = Vec<i16>> {
    let parts = (385..3000_usize, 0.0..15.0_f64, 0.0..15.0_f64, 0.0..3.2_f64, any::<u32>());
    parts.prop_map(|(num_samples, noise_bits, tone_bits, step, seed)| {
        let mut state = seed;
        let mut at = |i: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = f64::from(state >> 8) / f64::from(1 << 23) - 1.0;
            noise_bits.exp2() * noise + tone_bits.exp2() * (step * i as f64).sin()
        };
        (0..num_samples).map(|i| at(i).round() as i16).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn fast_mel_of_any_samples_is_within_the_bounds(samples in any_samples()) {
        let (clip, mut found) = (Clip { samples, rate_hz: 22_050 }, MelFrames::default());
        for settings in both_arithmetics() {
            LogMel::new(&settings).unwrap().mel_into(&clip, &mut found).unwrap();
            let expected = mel::reference(&clip, &settings).unwrap();
            for (i, (&found, expected)) in found.values.iter().zip(expected).enumerate() {
                let within = (f64::from(found) - expected).abs() <= fast_bound(expected);
                prop_assert!(within, "{i} in {}: {found} for {expected}", settings.arithmetic.name());
            }
        }
    }
}

/// The hardest case: a band with next to nothing in it beside a tone at full scale.
#[test]
fn fast_mel_stays_within_the_bounds_beside_a_tone_at_full_scale() {
    both_arithmetics().iter().for_each(check_tones_at_full_scale);
}

fn check_tones_at_full_scale(settings: &FeatureSettings) {
    let mut log_mel = LogMel::new(settings).unwrap();
    let mut found = MelFrames::default();
    for hz in [50.0, 440.0, 1000.0, 3333.3, 7900.0, 10_500.0] {
        let at = |i: i32| 32_767.0 * (std::f64::consts::TAU * hz * f64::from(i) / 22_050.0).sin();
        let tone = Clip { samples: (0..8192).map(|i| at(i).round() as i16).collect(), rate_hz: 22_050 };
        log_mel.mel_into(&tone, &mut found).unwrap();
        let expected = mel::reference(&tone, settings).unwrap();
        for (i, (&found, expected)) in found.values.iter().zip(expected).enumerate() {
            assert!((f64::from(found) - expected).abs() <= fast_bound(expected), "{hz} Hz {i}: {found} for {expected}");
        }
    }
}

#[test]
fn energy_is_the_norm_numpy_takes() {
    both_arithmetics().iter().for_each(check_energy);
}

fn check_energy(settings: &FeatureSettings) {
    let mut log_mel = LogMel::new(settings).unwrap();
    let (mut mel, mut found) = (MelFrames::default(), Vec::new());
    for name in ["speech", "tones"] {
        log_mel.mel_energy_into(&clip(name), &mut mel, &mut found).unwrap();
        let expected = f32s(&format!("{name}_energy"));
        assert_eq!((found.len(), found.len()), (expected.len(), mel.num_frames()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{name}: {found} for {expected}");
        }
    }
}

#[test]
fn pitch_is_librosas_yin() {
    let mut tracker = PitchTracker::new(&FeatureSettings::default(), &PitchSettings::default()).unwrap();
    let mut found = Vec::new();
    for name in ["speech", "tones"] {
        tracker.yin_into(&clip(name), &mut found).unwrap();
        let expected = f32s(&format!("{name}_yin"));
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found.hz / f64::from(expected) - 1.0).abs() < 1e-5, "{name} {i}: {found:?} for {expected}");
        }
    }
}

#[test]
fn voiced_where_it_sings_and_nowhere_else() {
    let mut tracker = PitchTracker::new(&FeatureSettings::default(), &PitchSettings::default()).unwrap();
    let mut pitch = Vec::new();
    tracker.pitch_into(&clip("speech"), &mut pitch).unwrap();
    let at = |seconds: f64| &pitch[(seconds * 22_050.0 / 256.0) as usize];
    // Hiss, pause and the silent end; then the middles of the vowels.
    for seconds in [0.55, 0.60, 1.17] {
        assert_eq!(*at(seconds), 0.0, "{seconds} s");
    }
    for seconds in [0.05, 0.15, 0.25, 0.35, 0.45, 0.70, 0.80, 1.0] {
        let t = seconds * std::f64::consts::TAU;
        let sung = 180.0 + 40.0 * (0.9 * t).sin() + 3.0 * (5.5 * t).sin();
        assert!((f64::from(*at(seconds)) / sung - 1.0).abs() < 0.06, "{seconds} s: {} for {sung}", at(seconds));
    }
}

#[test]
fn resampling_is_scipys_with_the_same_taps() {
    for rate_hz in [44_100, 48_000, 16_000] {
        let clip = Clip { samples: i16s(&format!("resample_{rate_hz}_in")), rate_hz };
        let wave: Vec<f32> = clip.samples.iter().map(|&x| f32::from(x) / 32_768.0).collect();
        let expected = f32s(&format!("resample_{rate_hz}_out"));
        let mut resampler = Resampler::new(22_050);
        let mut found = Vec::new();
        resampler.wave_into(&wave, rate_hz, &mut found).unwrap();
        assert_eq!(found.len(), expected.len());
        assert_eq!(found.len(), Lowpass::design(rate_hz, 22_050).unwrap().output_len(wave.len()));
        let exact = || expected.iter().copied().map(f64::from);
        let difference = largest_difference(found.into_iter().map(f64::from), exact());
        assert!(difference <= 1e-5, "{rate_hz}: {difference}");
        // As clips: the same, rounded; a sample next to a half may fall either way.
        let mut rounded = Clip::default();
        resampler.clip_into(&clip, &mut rounded).unwrap();
        let steps = rounded.samples.iter().map(|&x| f64::from(x));
        assert!(largest_difference(steps, exact().map(|x| (x * 32_768.0).clamp(-32_768.0, 32_767.0))) < 0.51);
    }
}

#[test]
fn resampling_agrees_with_another_resampler_on_what_both_keep() {
    let wave: Vec<f32> = i16s("resample_soxr_in").iter().map(|&x| f32::from(x) / 32_768.0).collect();
    let expected = f32s("resample_soxr_out");
    let mut found = Vec::new();
    Resampler::new(22_050).wave_into(&wave, 48_000, &mut found).unwrap();
    assert_eq!(found.len(), expected.len());
    let difference = largest_difference(found.into_iter().map(f64::from), expected.into_iter().map(f64::from));
    assert!(difference < 1e-4, "{difference}");
}
