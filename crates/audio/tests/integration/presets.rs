//! The presets against the models they are named after (`tools/reference/audio/presets.py`), and settings between them against
//! the f64 reference.

use crate::common::{f32s, i16s, of_the_bound};
use proptest::prelude::*;
use tandem_audio::{
    AudioError, Clip, FeaturePreset, FeatureSettings, Framing, GriffinLim, LogBase, LogMel, MelFrames, MelNorm,
    MelScale, PitchSettings, PitchTracker, Spectrum, mel,
};

/// The stored clips: a voice, tones, a tone at full scale before silence, silence before soft noise, the shortest.
const LENGTHS: [usize; 5] = [5003, 3999, 3000, 1999, 513];

fn stored_clips(rate_hz: u32) -> Vec<Clip> {
    let all = i16s("preset_clips");
    assert_eq!(all.len(), LENGTHS.iter().sum::<usize>());
    let mut rest = &all[..];
    let next = |length: usize| {
        let (samples, others) = rest.split_at(length);
        rest = others;
        Clip { samples: samples.to_vec(), rate_hz }
    };
    LENGTHS.map(next).to_vec()
}

fn stored_presets() -> impl Iterator<Item = FeaturePreset> {
    // Tandem's own is compared with librosa in `reference.rs`.
    FeaturePreset::ALL.into_iter().filter(|preset| *preset != FeaturePreset::Tandem)
}

#[test]
fn every_preset_is_its_models() {
    let mut found = MelFrames::default();
    for preset in stored_presets() {
        let settings = preset.settings();
        let expected = f32s(&format!("preset_{}", preset.name()));
        let mut expected = expected.as_slice();
        let mut log_mel = LogMel::new(&settings).unwrap();
        let mut worst = [0.0_f64; 2];
        for (clip, length) in stored_clips(settings.rate_hz).iter().zip(LENGTHS) {
            log_mel.mel_into(clip, &mut found).unwrap();
            let reference = mel::reference(clip, &settings).unwrap();
            let own = expected.split_off(..reference.len()).unwrap();
            assert_eq!((found.values.len(), found.num_frames()), (own.len(), settings.num_frames(length)));
            for (i, &expected) in own.iter().enumerate() {
                let over = [reference[i] as f32, found.values[i]].map(|x| of_the_bound(&settings, x, expected.into()));
                worst = [worst[0].max(over[0]), worst[1].max(over[1])];
                let (frame, band) = (i / settings.n_mels, i % settings.n_mels);
                let name = preset.name();
                assert!(
                    over[0].max(over[1]) <= 1.0,
                    "{name}, {length} samples, {frame} {band}: {over:?} for {expected}"
                );
            }
        }
        assert!(expected.is_empty(), "{} has more frames than we compute", preset.name());
        println!("{}: f64 {:.4} of the bound, fast {:.4}", preset.name(), worst[0], worst[1]);
    }
}

#[test]
fn a_clip_that_is_shorter_than_the_padding_is_refused() {
    let shortest = [385, 385, 513, 513, 201, 201];
    for (preset, shortest) in FeaturePreset::ALL.into_iter().zip(shortest) {
        let settings = preset.settings();
        assert_eq!(settings.min_samples(), shortest, "{preset:?}");
        let (mut log_mel, mut out) = (LogMel::new(&settings).unwrap(), MelFrames::default());
        let mut clip = Clip { samples: vec![1000; shortest], rate_hz: settings.rate_hz };
        log_mel.mel_into(&clip, &mut out).unwrap();
        assert_eq!(out.num_frames(), settings.num_frames(shortest));
        clip.samples.pop();
        let refused = log_mel.mel_into(&clip, &mut out);
        assert!(
            matches!(refused, Err(AudioError::TooShort { samples, needed }) if (samples, needed) == (shortest - 1, shortest))
        );
        assert_eq!((out.num_frames(), log_mel.padding()), (0, settings.silence()));
    }
}

#[test]
fn digital_silence_is_silence() {
    let expected = [1e-5_f32.ln(), 1e-5_f32.ln(), 1e-5_f32.ln(), 1e-7_f32.ln(), -1.5, -1.5];
    for (preset, expected) in FeaturePreset::ALL.into_iter().zip(expected) {
        let settings = preset.settings();
        let (mut log_mel, mut out) = (LogMel::new(&settings).unwrap(), MelFrames::default());
        log_mel.mel_into(&Clip { samples: vec![0; 4000], rate_hz: settings.rate_hz }, &mut out).unwrap();
        let bits = expected.to_bits();
        assert_eq!((settings.silence().to_bits(), log_mel.padding().to_bits()), (bits, bits), "{preset:?}");
        assert!(out.values.iter().all(|x| x.to_bits() == bits), "{preset:?}");
    }
}

#[test]
fn padding_with_a_top_range_is_silence_beside_the_clip() {
    let settings = FeaturePreset::Whisper.settings();
    let (mut log_mel, mut out) = (LogMel::new(&settings).unwrap(), MelFrames::default());
    let clips = stored_clips(16_000);
    log_mel.mel_into(&clips[2], &mut out).unwrap();
    let lowest = out.values.iter().copied().fold(f32::MAX, f32::min);
    let highest = out.values.iter().copied().fold(f32::MIN, f32::max);
    // The silent end of the clip has it too.
    assert_eq!(log_mel.padding(), lowest);
    assert!((highest - lowest - 2.0).abs() < 1e-6 && lowest > -1.0, "{lowest} {highest}");
    assert_eq!(log_mel.settings().silence(), -1.5);
}

#[test]
fn energy_and_pitch_have_the_frames_of_log_mel() {
    let pitch = PitchSettings::default();
    let (mut mel, mut energy, mut hz) = (MelFrames::default(), Vec::new(), Vec::new());
    for settings in FeaturePreset::ALL.map(FeaturePreset::settings) {
        let (mut log_mel, mut tracker) =
            (LogMel::new(&settings).unwrap(), PitchTracker::new(&settings, &pitch).unwrap());
        // A tone from the middle on: in frame t if t is past the middle, by the time that the frame is centred on.
        let rate_hz = f64::from(settings.rate_hz);
        let at = |i: i32| {
            if i < 8000 { 0.0 } else { 9000.0 * (std::f64::consts::TAU * 200.0 * f64::from(i) / rate_hz).sin() }
        };
        let clip = Clip { samples: (0..16_000).map(|i| at(i) as i16).collect(), rate_hz: settings.rate_hz };
        log_mel.mel_energy_into(&clip, &mut mel, &mut energy).unwrap();
        tracker.pitch_into(&clip, &mut hz).unwrap();
        let frames = settings.num_frames(16_000);
        assert_eq!((mel.num_frames(), energy.len(), hz.len()), (frames, frames, frames));
        let hop = settings.hop_samples;
        let centre = |t: usize| if settings.framing == Framing::Hop { t * hop + hop / 2 } else { t * hop };
        for t in 0..frames {
            let (from, to) =
                (centre(t) as i64 - settings.n_fft as i64 / 2, centre(t) as i64 + settings.n_fft as i64 / 2);
            if to <= 8000 {
                assert_eq!((energy[t], hz[t]), (0.0, 0.0), "{t}");
            }
            if from >= 8000 && to <= 16_000 {
                assert!(energy[t] > 1.0 && (hz[t] - 200.0).abs() < 8.0, "{t}: {} {}", energy[t], hz[t]);
            }
            // The energy of a frame that is half tone is about half of that: it is centred where it should be.
            if centre(t) == 8000 {
                assert!((energy[t] / energy[frames - 10] - 0.7).abs() < 0.1, "{t}: {}", energy[t]);
            }
        }
    }
}

#[test]
fn energy_does_not_depend_on_what_the_bands_are_made_of() {
    let plain = FeatureSettings::default();
    let others = [
        FeatureSettings { spectrum: Spectrum::Power, ..plain.clone() },
        FeatureSettings { power_epsilon: 1e-3, log: LogBase::Ten, shift: 1.0, scale: 2.0, ..plain.clone() },
    ];
    let (mut mel, mut expected, mut found) = (MelFrames::default(), Vec::new(), Vec::new());
    for clip in stored_clips(22_050) {
        LogMel::new(&plain).unwrap().mel_energy_into(&clip, &mut mel, &mut expected).unwrap();
        for settings in &others {
            LogMel::new(settings).unwrap().mel_energy_into(&clip, &mut mel, &mut found).unwrap();
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b), "{found:?} {expected:?}");
        }
    }
}

/// Sizes that the kernels do not have, and such that they have.
fn any_settings() -> impl Strategy<Value = FeatureSettings> {
    let sizes =
        prop_oneof![Just(400_usize), Just(480), Just(600), Just(1536), Just(2048), (1..700_usize).prop_map(|n| 2 * n)];
    let choices = (0..3_usize, 0..2_usize, 0..2_usize, 0..2_usize, 0..2_usize);
    let numbers = (0.0..1.0_f64, 0.0..1.0_f64, 1..140_usize, prop_oneof![Just(0.0), 1e-12..1e-3_f64]);
    let last = (prop_oneof![Just(None), (0.5..9.0_f64).prop_map(Some)], -5.0..5.0_f64, 0.1..4.0_f64);
    (sizes, choices, numbers, last).prop_map(|(n_fft, choices, (win, hop, n_mels, power_epsilon), last)| {
        let framing = Framing::ALL[choices.0];
        let hop = 1 + (hop * (n_fft - 1) as f64) as usize;
        FeatureSettings {
            n_fft,
            win_samples: 1 + (win * (n_fft - 1) as f64) as usize,
            hop_samples: if framing == Framing::Hop { hop.next_multiple_of(2) } else { hop },
            n_mels,
            fmax_hz: 11_025.0,
            framing,
            spectrum: Spectrum::ALL[choices.1],
            mel_scale: MelScale::ALL[choices.2],
            mel_norm: MelNorm::ALL[choices.3],
            log: LogBase::ALL[choices.4],
            power_epsilon,
            top_range: last.0,
            shift: last.1,
            scale: last.2,
            ..FeatureSettings::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn fast_mel_with_any_settings_is_within_the_bounds(settings in any_settings(), extra in 0..1500_usize, seed in any::<u32>()) {
        prop_assert!(settings.check().is_ok(), "{:?}", settings.check());
        let mut state = seed;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 17) as i16 / 4 - 2000
        };
        let samples: Vec<i16> = (0..settings.min_samples() + extra.min(30 * settings.hop_samples)).map(|_| noise()).collect();
        let clip = Clip { samples, rate_hz: settings.rate_hz };
        let (mut log_mel, mut found) = (LogMel::new(&settings).unwrap(), MelFrames::default());
        log_mel.mel_into(&clip, &mut found).unwrap();
        let expected = mel::reference(&clip, &settings).unwrap();
        prop_assert_eq!(found.values.len(), expected.len());
        prop_assert_eq!(found.num_frames(), settings.num_frames(clip.samples.len()));
        for (&found, expected) in found.values.iter().zip(expected) {
            // What is left of a sum after a shift has the rounding of the sum.
            let rounding = 1e-6 * settings.scale * (settings.shift.abs() + 20.0);
            let within = of_the_bound(&settings, found, expected) <= 1.0 || (f64::from(found) - expected).abs() < rounding;
            prop_assert!(within, "{} for {}", found, expected);
            prop_assert!(found >= settings.silence() - rounding as f32);
        }
    }
}

/// Log-mel frames of every preset become sound whose frames are near them.
#[test]
fn griffin_lim_inverts_every_preset() {
    let (mut before, mut after, mut copy) = (MelFrames::default(), MelFrames::default(), Clip::default());
    for preset in FeaturePreset::ALL {
        let settings = preset.settings();
        let mut log_mel = LogMel::new(&settings).unwrap();
        let voice = Clip { samples: i16s("speech")[..12_000].to_vec(), rate_hz: settings.rate_hz };
        log_mel.mel_into(&voice, &mut before).unwrap();
        GriffinLim::new(&settings).unwrap().clip_into(&before, 1234, &mut copy).unwrap();
        assert_eq!(copy.samples.len(), 12_000 / settings.hop_samples * settings.hop_samples, "{preset:?}");
        log_mel.mel_into(&copy, &mut after).unwrap();
        assert_eq!(after.num_frames(), before.num_frames());
        let squares = before.values.iter().zip(&after.values).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        let root = if settings.spectrum == Spectrum::Power { 0.5 } else { 1.0 };
        let base = if settings.log == LogBase::E { 1.0 } else { std::f64::consts::LN_10 };
        let distance = (squares / before.values.len() as f64).sqrt() / settings.scale * base * root;
        println!("{}: {distance:.3}", preset.name());
        assert!(distance < 0.6, "{preset:?}: {distance}");
    }
}
