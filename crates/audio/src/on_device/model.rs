//! The index arithmetic of the CUDA kernels, step by step on the host: the same tables, the same transposes, lanes in
//! sequence. Without a card, this model is the evidence that the text in `kernels/` is right. The transform of log-mel is in
//! `transform.rs`, because in two floats it is the host kernel; here it runs in f64 and f32 too.

use tandem_test_support::largest;

use super::tables::{FILTER_WORDS, Tables};
use crate::clip::round_to_i16;
use crate::pitch::{find_dip, parabola_shift};
use crate::transform::{Complex, KernelMel, TransformReal};
use crate::two_float::TwoFloat;
use crate::{
    Clip, FeaturePreset, FeatureSettings, Framing, Lowpass, MelFrames, PitchSettings, PitchTracker, Resampler, mel,
};

impl TransformReal for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn fused(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn half(self) -> f64 {
        0.5 * self
    }
    fn twice_minus(self, b: f64) -> f64 {
        2.0_f64.mul_add(self, -b)
    }
    fn windowed(apart: i32, far: i32, v: f64) -> f64 {
        (f64::from(apart) / 65_536.0).mul_add(v, f64::from(far) / 65_536.0)
    }
    fn power((re, im): Complex<f64>) -> f32 {
        re.mul_add(re, im * im) as f32
    }
    fn ln(x: f32) -> f32 {
        x.ln()
    }
}

impl TransformReal for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn fused(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    fn half(self) -> f32 {
        0.5 * self
    }
    fn twice_minus(self, b: f32) -> f32 {
        2.0_f32.mul_add(self, -b)
    }
    fn windowed(apart: i32, far: i32, v: f32) -> f32 {
        (apart as f32 / 65_536.0).mul_add(v, far as f32 / 65_536.0)
    }
    fn power((re, im): Complex<f32>) -> f32 {
        re.mul_add(re, im * im)
    }
    fn ln(x: f32) -> f32 {
        x.ln()
    }
}

/// The largest error relative to its bound, over clips that are difficult for the transform.
fn worst<T: TransformReal>() -> Vec<(&'static str, f64)> {
    let settings = FeatureSettings::default();
    let (mut kernel, mut found) = (KernelMel::<T>::new(&settings), MelFrames::default());
    let mut worst = Vec::new();
    for (name, samples) in hostile() {
        kernel.run(&samples, &mut found, |_| ());
        let found = &found.values;
        let expected = mel::reference(&Clip { samples, rate_hz: 22_050 }, &settings).unwrap();
        assert_eq!(found.len(), expected.len());
        let bound = |mel: f64| if mel >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 };
        let over = |(&found, &expected): (&f32, &f64)| (f64::from(found) - expected).abs() / bound(expected);
        worst.push((name, largest(found.iter().zip(&expected).map(over))));
    }
    worst
}

pub(super) fn hostile() -> Vec<(&'static str, Vec<i16>)> {
    let tone = |hz: f64, amplitude: f64| {
        move |i: i32| amplitude * (std::f64::consts::TAU * hz * f64::from(i) / 22_050.0).sin()
    };
    let mut state = 7_u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    let clip = |at: &mut dyn FnMut(i32) -> f64| -> Vec<i16> { (0..20_000).map(|i| round_to_i16(at(i))).collect() };
    vec![
        ("noise", clip(&mut |_| 9000.0 * noise())),
        ("tone 50 Hz", clip(&mut |i| tone(50.0, 32_767.0)(i))),
        ("tone 440 Hz", clip(&mut |i| tone(440.0, 32_767.0)(i))),
        ("tone on a bin", clip(&mut |i| tone(22_050.0 / 32.0, 32_767.0)(i))),
        ("tone 3333.3 Hz", clip(&mut |i| tone(3333.3, 32_767.0)(i))),
        ("tone 10500 Hz", clip(&mut |i| tone(10_500.0, 32_767.0)(i))),
        ("square wave", clip(&mut |i| if tone(441.0, 1.0)(i) >= 0.0 { 32_767.0 } else { -32_768.0 })),
        ("square wave of 64", clip(&mut |i| if i & 32 == 0 { 32_767.0 } else { -32_768.0 })),
        ("click", clip(&mut |i| if i == 9_999 { 32_767.0 } else { 0.0 })),
        ("tone 90 dB above noise", clip(&mut |i| tone(1000.0, 32_767.0)(i) + noise())),
        ("constant", clip(&mut |_| -32_768.0)),
        ("silence", clip(&mut |_| 0.0)),
    ]
}

#[test]
fn the_transform_in_f64_holds_the_bounds_with_room_to_spare() {
    for (name, over) in worst::<f64>() {
        println!("f64 {name}: {over:.5} of the bound");
        assert!(over < 0.1, "{name}: {over} of the bound");
    }
}

#[test]
fn the_transform_in_two_floats_holds_the_bounds_with_room_to_spare() {
    for (name, over) in worst::<TwoFloat>() {
        println!("two floats {name}: {over:.5} of the bound");
        assert!(over < 0.1, "{name}: {over} of the bound");
    }
}

/// The reason for f64 and two floats in the kernel's transform. If this ever fails, one f32 is enough.
#[test]
fn single_precision_does_not_hold_the_bounds() {
    let found = worst::<f32>();
    for (name, over) in &found {
        println!("f32 {name}: {over:.3} of the bound");
    }
    assert!(found.iter().any(|(_, over)| *over > 1.0), "{found:?}");
}

/// `convolve` of `resample.cu`.
fn convolve(samples: &[i16], filter: &[u32], weights: &[f32], m: u32) -> i16 {
    let [up, down, delay, taps, start] = [0, 1, 2, 3, 4].map(|i| filter[i] as usize);
    let weight = |tap: usize| weights[start + m as usize % up + tap * up];
    let at = ((m as usize * down + delay) / up) as i64 - (taps as i64 - 1);
    let sample = |tap: usize| usize::try_from(at + tap as i64).ok().and_then(|i| samples.get(i)).copied().unwrap_or(0);
    let product = |tap: usize| weight(tap) * f32::from(sample(tap));
    let (mut sums, whole) = ([0.0_f32; 8], taps / 8 * 8);
    (0..whole).for_each(|tap| sums[tap % 8] += product(tap));
    let rest = (whole..taps).fold(0.0_f32, |rest, tap| rest + product(tap));
    let sum = sums[1..].iter().fold(sums[0], |sum, x| sum + x) + rest;
    sum.clamp(-32_768.0, 32_767.0).round_ties_even() as i16
}

#[test]
fn resampling_gives_the_cpus_bits() {
    let rates_hz = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
    let tables = Tables::new(&FeatureSettings::default(), &PitchSettings::default(), &rates_hz).unwrap();
    let mut resampler = Resampler::new(22_050);
    let mut expected = Clip::default();
    for (name, samples) in hostile() {
        for (filter, rate_hz) in tables.filters.chunks(FILTER_WORDS).zip(rates_hz) {
            let clip = Clip { samples: samples[..4_321].to_vec(), rate_hz };
            resampler.clip_into(&clip, &mut expected).unwrap();
            let length = Lowpass::design(rate_hz, 22_050).unwrap().output_len(4_321);
            let there = |m: u64| m * u64::from(filter[1]) < 4_321 * u64::from(filter[0]);
            assert!(there(length as u64 - 1) && !there(length as u64), "{rate_hz}");
            let found: Vec<i16> =
                (0..length as u32).map(|m| convolve(&clip.samples, filter, &tables.filter_weights, m)).collect();
            assert!(found == expected.samples, "{name} from {rate_hz} Hz");
        }
    }
}

/// Two samples times two bytes.
fn dp2a(samples: u32, bytes: [i32; 2]) -> i32 {
    i32::from(samples as i16) * bytes[0] + i32::from((samples >> 16) as i16) * bytes[1]
}

/// `pitch.cuh` for one frame: its correlations by groups and parts, then the rest in the same order.
fn pitch_of(frame: &[i16], settings: &FeatureSettings, pitch: &PitchSettings) -> f32 {
    const LAGS: usize = 8;
    const PADDED_LAGS: usize = 9;
    const BURST: usize = 16;
    let (min_period, max_period) = pitch.periods(settings).unwrap();
    let staged_at = |i: usize| i / LAGS * PADDED_LAGS + i % LAGS;
    let sample_groups = frame.len().div_ceil(LAGS);
    let words = (sample_groups + 1) * PADDED_LAGS;
    let (mut pairs, mut bytes) = (vec![0_u32; words], vec![0_u32; words]);
    for n in 0..(sample_groups + 1) * LAGS {
        let [a, b] = [n, n + 1].map(|n| frame.get(n).map_or(0, |x| i32::from(*x) as u32));
        pairs[staged_at(n)] = (a & 0xffff) | b << 16;
        bytes[staged_at(n)] = (a & 0xff) | (b & 0xff) << 8 | (a & 0xff00) << 8 | (b & 0xff00) << 16;
    }
    let groups = max_period.div_ceil(LAGS);
    let parts = 256 / groups;
    let mut partial = vec![0_i64; 256 * LAGS];
    for tid in 0..groups * parts {
        let (group, part) = (tid % groups, tid / groups);
        let mut low = [0_i32; LAGS];
        let mut high = [0_i32; LAGS];
        let mut put_away = |low: &mut [i32; LAGS], high: &mut [i32; LAGS]| {
            for l in 0..LAGS {
                partial[tid * LAGS + l] += i64::from(high[l]) * 256 + i64::from(low[l]);
            }
            (*low, *high) = ([0; LAGS], [0; LAGS]);
        };
        for (i, m) in (part..).step_by(parts).take_while(|m| m + group < sample_groups).enumerate() {
            let (here, there) = (m * PADDED_LAGS, (m + group) * PADDED_LAGS);
            let y: Vec<u32> = (0..2 * LAGS).map(|i| bytes[there + i / LAGS * PADDED_LAGS + i % LAGS]).collect();
            for j in (0..LAGS).step_by(2) {
                for l in 0..LAGS {
                    // Debug builds trap on overflow: that none happens is part of what is tested.
                    low[l] += dp2a(pairs[here + j], [0, 8].map(|shift| (y[j + l + 1] >> shift) as u8 as i32));
                    high[l] += dp2a(pairs[here + j], [16, 24].map(|shift| i32::from((y[j + l + 1] >> shift) as i8)));
                }
            }
            if i % BURST == BURST - 1 {
                put_away(&mut low, &mut high);
            }
        }
        put_away(&mut low, &mut high);
    }
    // The samples of `prefix_sums`, four a thread, and those of `energy_beyond`.
    let square = |n: usize| i64::from(pairs[staged_at(n)] as i16).pow(2);
    let near: i64 = (0..1024).map(|n| if 1024 <= frame.len() || n < frame.len() { square(n) } else { 0 }).sum();
    let energy = near + (1024..frame.len()).map(square).sum::<i64>();
    assert_eq!(energy, frame.iter().map(|x| i64::from(*x).pow(2)).sum::<i64>());
    let (mut head, mut sum, mut differences) = (0, 0, Vec::new());
    for lag in 1..=max_period {
        head += i64::from(frame[lag - 1]).pow(2);
        let correlation: i64 = (0..parts).map(|part| partial[part * groups * LAGS + lag - 1]).sum();
        let direct: i64 = frame.iter().zip(&frame[lag..]).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum();
        assert_eq!(correlation, direct, "lag {lag}");
        let difference = 2 * (energy - correlation) - if lag == 1 { 0 } else { head };
        sum += difference;
        if lag >= min_period {
            let scale = 2.0_f64.powi(-30);
            let mean = sum as f64 * scale / lag as f64;
            differences.push(difference as f64 * scale / (mean + f64::MIN_POSITIVE));
        }
    }
    let dip = find_dip(&differences, pitch.trough_threshold);
    let period = (min_period + dip) as f64 + parabola_shift(&differences, dip);
    let rms = (energy as f64 * 2.0_f64.powi(-30) / frame.len() as f64).sqrt();
    let voiced = differences[dip] <= pitch.max_aperiodicity && rms >= pitch.silence_rms;
    if voiced { (f64::from(settings.rate_hz) / period) as f32 } else { 0.0 }
}

/// The samples of a frame, by the packed settings: `sample_at` of `pitch.cuh` and `windowed` of `mel_any.cu`.
pub(super) fn frame_of(samples: &[i16], words: &[u64], frame: usize) -> Vec<i16> {
    let ([n_fft, hop, pad], length) = ([1, 3, 26].map(|i| words[i] as i64), samples.len() as i64);
    let at = |n: i64| {
        let at = (frame as i64 * hop + n - pad).abs();
        samples[if at >= length { 2 * (length - 1) - at } else { at } as usize]
    };
    (0..n_fft).map(at).collect()
}

/// A voice that glides from 90 to 290 Hz, with breath.
fn glide() -> Vec<i16> {
    let at = |i: i32| {
        let (t, breath) = (f64::from(i) / 22_050.0, f64::from((i.wrapping_mul(7919)) % 601 - 300));
        let phase = std::f64::consts::TAU * (90.0 * t + 110.0 * t * t);
        let voice: f64 = (1..=8).map(|k| (phase * f64::from(k)).sin() / f64::from(k)).sum();
        5000.0 * voice * (2.0 * t).sin().abs() + breath
    };
    (0..20_000).map(|i| round_to_i16(at(i))).collect()
}

#[test]
fn pitch_by_integers_is_the_trackers() {
    // The second range needs all lags, and the most groups.
    for fmin_hz in [65.0, 21.6] {
        let pitch = PitchSettings { fmin_hz, ..PitchSettings::default() };
        let mut tracker = PitchTracker::new(&FeatureSettings::default(), &pitch).unwrap();
        let mut expected = Vec::new();
        let (mut frames, mut voiced) = (0, 0);
        for (name, samples) in hostile().into_iter().chain([("glide", glide())]) {
            let clip = Clip { samples, rate_hz: 22_050 };
            tracker.pitch_into(&clip, &mut expected).unwrap();
            // Frames that need no mirroring.
            for (t, &expected) in expected.iter().enumerate().skip(2).step_by(9).take(8) {
                let found = pitch_of(&clip.samples[t * 256 - 384..][..1024], &FeatureSettings::default(), &pitch);
                assert!((found - expected).abs() <= 1e-6 * expected, "{name} {t}: {found} for {expected}");
                frames += 1;
                voiced += u32::from(expected > 0.0);
            }
        }
        assert!(voiced > 20 && frames - voiced > 20, "{voiced} of {frames}");
    }
}

#[test]
fn pitch_by_integers_is_the_trackers_with_any_settings() {
    let sizes = [(400, 160_usize), (450, 147), (600, 600), (1000, 333), (2048, 512), (4096, 1001)];
    let any = sizes.into_iter().zip(Framing::ALL.into_iter().cycle()).map(|((n_fft, hop_samples), framing)| {
        let hop_samples = if framing == Framing::Hop { hop_samples.next_multiple_of(2) } else { hop_samples };
        FeatureSettings { n_fft, win_samples: n_fft / 2, hop_samples, framing, ..FeatureSettings::default() }
    });
    let presets = FeaturePreset::ALL.into_iter().map(FeaturePreset::settings);
    let pitch = PitchSettings::default();
    let (mut expected, mut frames, mut voiced) = (Vec::new(), 0, 0);
    for settings in any.chain(presets) {
        let words = Tables::new(&settings, &pitch, &[]).unwrap().settings_words;
        let mut tracker = PitchTracker::new(&settings, &pitch).unwrap();
        for (name, samples) in [("glide", glide()), hostile().swap_remove(0), hostile().swap_remove(2)] {
            let clip = Clip { samples, rate_hz: settings.rate_hz };
            tracker.pitch_into(&clip, &mut expected).unwrap();
            assert_eq!(expected.len(), settings.num_frames(clip.samples.len()));
            // The first, the last, and some between.
            let last = expected.len() - 1;
            for t in (0..8).map(|i| i * last / 7) {
                let (found, expected) = (pitch_of(&frame_of(&clip.samples, &words, t), &settings, &pitch), expected[t]);
                let (n_fft, hop) = (settings.n_fft, settings.hop_samples);
                assert!(
                    (found - expected).abs() <= 1e-6 * expected,
                    "{name} {n_fft} {hop} {t}: {found} for {expected}"
                );
                frames += 1;
                voiced += u32::from(expected > 0.0);
            }
        }
    }
    assert!(voiced > 50 && frames - voiced > 50, "{voiced} of {frames}");
}
