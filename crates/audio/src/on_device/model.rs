//! The CUDA kernels' index maths, step by step on the host: the same tables, the same exchanges, lanes one after the
//! other. Where a card is not at hand, this is what says that the text in `kernels/` computes what it should.

use super::tables::{FILTER_WORDS, Tables};
use crate::clip::round_to_i16;
use crate::pitch::{find_dip, parabola_shift};
use crate::stft::Real;
use crate::{Clip, FeatureSettings, Lowpass, PitchSettings, PitchTracker, Resampler, mel};

const LINE: usize = 33;

type Point<T> = (T, T);

trait Fused: Real {
    /// `self * b + c`, rounded once, as a card does it.
    fn fused(self, b: Self, c: Self) -> Self;
    fn single(self) -> f32;
}

impl Fused for f32 {
    fn fused(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    fn single(self) -> f32 {
        self
    }
}

impl Fused for f64 {
    fn fused(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn single(self) -> f32 {
        self as f32
    }
}

fn add<T: Fused>(a: Point<T>, b: Point<T>) -> Point<T> {
    (a.0 + b.0, a.1 + b.1)
}

fn sub<T: Fused>(a: Point<T>, b: Point<T>) -> Point<T> {
    (a.0 - b.0, a.1 - b.1)
}

fn times<T: Fused>(a: Point<T>, w: Point<T>) -> Point<T> {
    (a.0.fused(w.0, -(a.1 * w.1)), a.0.fused(w.1, a.1 * w.0))
}

fn quarter<T: Fused>(a: Point<T>) -> Point<T> {
    (a.1, -a.0)
}

fn slot(p: usize) -> usize {
    4 * (p & 3) + (p >> 2)
}

fn fourier4<T: Fused>(x: &mut [Point<T>; 16], [a, b, c, d]: [usize; 4]) {
    let (s, t) = (add(x[a], x[c]), sub(x[a], x[c]));
    let (u, v) = (add(x[b], x[d]), quarter(sub(x[b], x[d])));
    (x[a], x[b], x[c], x[d]) = (add(s, u), add(t, v), sub(s, u), sub(t, v));
}

fn fourier16<T: Fused>(x: &mut [Point<T>; 16]) {
    let [c, s, h] = [0.923_879_532_511_286_7, 0.382_683_432_365_089_8, std::f64::consts::FRAC_1_SQRT_2].map(T::of);
    (0..4).for_each(|i| fourier4(x, [i, i + 4, i + 8, i + 12]));
    let turns = [
        (5, (c, -s)),
        (6, (h, -h)),
        (7, (s, -c)),
        (9, (h, -h)),
        (11, (-h, -h)),
        (13, (s, -c)),
        (14, (-h, -h)),
        (15, (-c, s)),
    ];
    turns.into_iter().for_each(|(i, w)| x[i] = times(x[i], w));
    x[10] = quarter(x[10]);
    (0..4).for_each(|k| fourier4(x, [4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3]));
}

fn magnitudes_of<T: Fused>(a: Point<T>, b: Point<T>, w: Point<T>) -> (f32, f32) {
    let (even, odd) = ((a.0 + b.0, a.1 - b.1), (a.1 + b.1, b.0 - a.0));
    let turned = times(odd, w);
    let norm = |x: Point<T>| x.0.fused(x.0, x.1 * x.1).single().sqrt();
    (norm(add(even, turned)), norm(sub(even, turned)))
}

/// `spectrum` of `mel.cu`.
fn spectrum<T: Fused>(samples: &[i16], transform: &[f64], magnitudes: &mut [f32]) {
    let point = |section: usize, i: usize| (T::of(transform[section + 2 * i]), T::of(transform[section + 2 * i + 1]));
    let (window, turns, half_turns) = (|i| point(0, i), |i| point(1024, i), |i| point(1024 + 2 * 16 * 32, i));
    let zero = (T::zero(), T::zero());
    let mut exchange = vec![zero; 16 * LINE];
    for lane in 0..32 {
        let mut x = [zero; 16];
        for (a, x) in x.iter_mut().enumerate() {
            let n = 32 * a + lane;
            let [re, im] = [samples[2 * n], samples[2 * n + 1]].map(|x| T::of(f64::from(x)));
            *x = (re * window(n).0, im * window(n).1);
        }
        fourier16(&mut x);
        exchange[lane] = x[0];
        (1..16).for_each(|f| exchange[f * LINE + lane] = times(x[slot(f)], turns(f * 32 + lane)));
    }
    let before = exchange.clone();
    for lane in 0..32 {
        let (p, h) = (lane % 16, lane / 16);
        let mut x = std::array::from_fn(|b| before[p * LINE + 2 * b + h]);
        fourier16(&mut x);
        exchange[256 * h + p] = x[0];
        (1..16).for_each(|r| exchange[256 * h + p + 16 * r] = times(x[slot(r)], turns(8 * 32 + 2 * r * h)));
    }
    for k in 0..128 {
        let m = (256 - k) & 255;
        let (a, a_far) = (add(exchange[k], exchange[256 + k]), sub(exchange[k], exchange[256 + k]));
        let (mut b, mut b_far) = (add(exchange[m], exchange[256 + m]), sub(exchange[m], exchange[256 + m]));
        if k == 0 {
            std::mem::swap(&mut b, &mut b_far);
        }
        let w = half_turns(k);
        (magnitudes[k], magnitudes[512 - k]) = magnitudes_of(a, b_far, w);
        (magnitudes[256 - k], magnitudes[256 + k]) = magnitudes_of(b, a_far, (-w.1, -w.0));
    }
    let (a, b) = (exchange[128], exchange[384]);
    (magnitudes[128], magnitudes[384]) = magnitudes_of(add(a, b), sub(a, b), half_turns(128));
}

/// The kernel's log-mel frames of a clip.
fn log_mel<T: Fused>(clip: &[i16], tables: &Tables, settings: &FeatureSettings) -> Vec<f32> {
    let (length, n_mels) = (clip.len() as i32, settings.n_mels);
    let mut magnitudes = vec![0.0; 513];
    let mut out = Vec::new();
    for frame in 0..settings.num_frames(clip.len()) as i32 {
        let mirrored = |i: i32| {
            let at = (frame * 256 - 384 + i).abs();
            clip[if at >= length { 2 * (length - 1) - at } else { at } as usize]
        };
        let samples: Vec<i16> = (0..1024).map(mirrored).collect();
        spectrum::<T>(&samples, &tables.transform, &mut magnitudes);
        for band in 0..n_mels {
            let (first, bins) = (tables.bands[2 * band] as usize, tables.bands[2 * band + 1] as usize);
            let mel = (0..bins)
                .fold(0.0_f32, |sum, i| tables.mel_weights[i * n_mels + band].mul_add(magnitudes[first + i], sum));
            out.push(mel.max(settings.floor as f32).ln());
        }
    }
    out
}

/// The largest error over its bound, over clips that are hard on a transform.
fn worst<T: Fused>() -> Vec<(&'static str, f64)> {
    let settings = FeatureSettings::default();
    let tables = Tables::new(&settings, &PitchSettings::default(), &[]).unwrap();
    let mut worst = Vec::new();
    for (name, samples) in hostile() {
        let found = log_mel::<T>(&samples, &tables, &settings);
        let expected = mel::reference(&Clip { samples, rate_hz: 22_050 }, &settings).unwrap();
        assert_eq!(found.len(), expected.len());
        let bound = |mel: f64| if mel >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 };
        let over = |(&found, &expected): (&f32, &f64)| (f64::from(found) - expected).abs() / bound(expected);
        worst.push((name, found.iter().zip(&expected).map(over).fold(0.0, f64::max)));
    }
    worst
}

fn hostile() -> Vec<(&'static str, Vec<i16>)> {
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

/// Why the kernel's transform is in f64. Should this fail one day, it can be made twice as fast.
#[test]
fn single_precision_does_not_hold_the_bounds() {
    let found = worst::<f32>();
    for (name, over) in &found {
        println!("f32 {name}: {over:.3} of the bound");
    }
    assert!(found.iter().any(|(_, over)| *over > 1.0), "{found:?}");
}

/// `filtered` of `resample.cu`.
fn filtered(samples: &[i16], filter: &[u32], weights: &[f32], m: u32) -> i16 {
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
                (0..length as u32).map(|m| filtered(&clip.samples, filter, &tables.filter_weights, m)).collect();
            assert!(found == expected.samples, "{name} from {rate_hz} Hz");
        }
    }
}

/// Two samples times two bytes.
fn dp2a(samples: u32, bytes: [i32; 2]) -> i32 {
    i32::from(samples as i16) * bytes[0] + i32::from((samples >> 16) as i16) * bytes[1]
}

/// `pitch.cu` for one frame: its correlations by groups and parts, then the rest in the same order.
fn pitch_of(frame: &[i16], pitch: &PitchSettings) -> f32 {
    const LAGS: usize = 8;
    const PLACES: usize = 9;
    const BURST: usize = 16;
    let (min_period, max_period) = pitch.periods(&FeatureSettings::default()).unwrap();
    let place = |i: usize| i / LAGS * PLACES + i % LAGS;
    let (mut pairs, mut bytes) = (vec![0_u32; 1032 / LAGS * PLACES], vec![0_u32; 1032 / LAGS * PLACES]);
    for n in 0..1032 {
        let [a, b] = [n, n + 1].map(|n| frame.get(n).map_or(0, |x| i32::from(*x) as u32));
        pairs[place(n)] = (a & 0xffff) | b << 16;
        bytes[place(n)] = (a & 0xff) | (b & 0xff) << 8 | (a & 0xff00) << 8 | (b & 0xff00) << 16;
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
        for (i, m) in (part..).step_by(parts).take_while(|m| m + group < 1024 / LAGS).enumerate() {
            let (here, there) = (m * PLACES, (m + group) * PLACES);
            let y: Vec<u32> = (0..2 * LAGS).map(|i| bytes[there + i / LAGS * PLACES + i % LAGS]).collect();
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
    let energy: i64 = frame.iter().map(|x| i64::from(*x).pow(2)).sum();
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
    let rms = (energy as f64 * 2.0_f64.powi(-30) / 1024.0).sqrt();
    let voiced = differences[dip] <= pitch.max_aperiodicity && rms >= pitch.silence_rms;
    if voiced { (22_050.0 / period) as f32 } else { 0.0 }
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
    // The second range needs every lag there is, and the most groups.
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
                let found = pitch_of(&clip.samples[t * 256 - 384..][..1024], &pitch);
                assert!((found - expected).abs() <= 1e-6 * expected, "{name} {t}: {found} for {expected}");
                frames += 1;
                voiced += u32::from(expected > 0.0);
            }
        }
        assert!(voiced > 20 && frames - voiced > 20, "{voiced} of {frames}");
    }
}
