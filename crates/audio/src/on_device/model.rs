//! The index arithmetic of the CUDA kernels, step by step on the host: the same tables, the same transposes, lanes in
//! sequence. Without a card, this model is the evidence that the text in `kernels/` is right.

use tandem_test_support::largest;

use super::tables::{FILTER_WORDS, Tables};
use crate::clip::round_to_i16;
use crate::pitch::{find_dip, parabola_shift};
use crate::stft::StftFloat;
use crate::{Clip, FeatureSettings, Lowpass, PitchSettings, PitchTracker, Resampler, mel};

type Complex<T> = (T, T);

trait Fused: StftFloat {
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

fn add<T: Fused>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    (a.0 + b.0, a.1 + b.1)
}

fn sub<T: Fused>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    (a.0 - b.0, a.1 - b.1)
}

fn times<T: Fused>(a: Complex<T>, w: Complex<T>) -> Complex<T> {
    (a.0.fused(w.0, -(a.1 * w.1)), a.0.fused(w.1, a.1 * w.0))
}

/// `sum + a w`.
fn multiply_add<T: Fused>(sum: Complex<T>, a: Complex<T>, w: Complex<T>) -> Complex<T> {
    (a.0.fused(w.0, (-a.1).fused(w.1, sum.0)), a.0.fused(w.1, a.1.fused(w.0, sum.1)))
}

/// `a - b`, where `sum` is `a + b`.
fn difference_of<T: Fused>(a: Complex<T>, sum: Complex<T>) -> Complex<T> {
    (T::of(2.0).fused(a.0, -sum.0), T::of(2.0).fused(a.1, -sum.1))
}

fn times_minus_i<T: Fused>(a: Complex<T>) -> Complex<T> {
    (a.1, -a.0)
}

fn root32<T: Fused>(k: usize) -> Complex<T> {
    let (sin, cos) = (std::f64::consts::TAU * k as f64 / 32.0).sin_cos();
    (T::of(cos), T::of(-sin))
}

fn digit_reversed(p: usize) -> usize {
    4 * (p & 3) + (p >> 2)
}

/// A 4-point DFT, from its sums and differences `s`, `t`, `u` and `v`.
fn dft4_combine<T: Fused>(x: &mut [Complex<T>; 16], [a, b, c, d]: [usize; 4], [s, t, u, v]: [Complex<T>; 4]) {
    (x[a], x[b], x[c], x[d]) = (add(s, u), add(t, times_minus_i(v)), sub(s, u), sub(t, times_minus_i(v)));
}

fn dft4<T: Fused>(x: &mut [Complex<T>; 16], at: [usize; 4]) {
    let [a, b, c, d] = at.map(|i| x[i]);
    dft4_combine(x, at, [add(a, c), sub(a, c), add(b, d), sub(b, d)]);
}

fn dft4_twiddled<T: Fused>(x: &mut [Complex<T>; 16], at: [usize; 4], [wb, wc, wd]: [Complex<T>; 3]) {
    let [a, b, c, d] = at.map(|i| x[i]);
    let (s, twiddled) = (multiply_add(a, c, wc), times(b, wb));
    let u = multiply_add(twiddled, d, wd);
    dft4_combine(x, at, [s, difference_of(a, s), u, difference_of(twiddled, u)]);
}

fn dft16_second<T: Fused>(x: &mut [Complex<T>; 16]) {
    dft4(x, [0, 1, 2, 3]);
    dft4_twiddled(x, [4, 5, 6, 7], [2, 4, 6].map(root32));
    let (twiddled, far) = (times(x[9], root32(4)), times_minus_i(x[10]));
    let u = multiply_add(twiddled, x[11], root32(12));
    dft4_combine(x, [8, 9, 10, 11], [add(x[8], far), sub(x[8], far), u, difference_of(twiddled, u)]);
    dft4_twiddled(x, [12, 13, 14, 15], [6, 12, 18].map(root32));
}

fn powers<T: Fused>(a: Complex<T>, b: Complex<T>, w: Complex<T>) -> [f32; 2] {
    let (even, odd) = ((a.0 + b.0, a.1 - b.1), (a.1 + b.1, b.0 - a.0));
    let x = multiply_add(even, odd, w);
    [x, difference_of(even, x)].map(|x| x.0.fused(x.0, x.1 * x.1).single())
}

/// `load` of `mel.cu`: the inputs of the first DFT of lane `t` in pass `h`.
fn load<T: Fused>(samples: &[i16], [even, odd]: [Complex<T>; 2], t: usize, h: usize) -> [Complex<T>; 16] {
    let (half, scaled) = (T::of(0.5), |x: i32| T::of(f64::from(x) / 65_536.0));
    let folded = |n: usize, v: T| {
        let far = i32::from(samples[n + 512]) * (1 - 2 * h as i32);
        scaled(i32::from(samples[n]) - far).fused(v, scaled(far))
    };
    let mut x = std::array::from_fn(|a| {
        // The kernel computes a and 16 - a together; their cosines have opposite signs.
        let (cos, sin): Complex<T> = root32(a);
        let window = |at: Complex<T>| (-cos).fused(half * at.0, sin.fused(half * at.1, half));
        let n = 2 * (16 * a + t);
        (folded(n, window(even)), folded(n + 1, window(odd)))
    });
    if h == 1 {
        (1..16).for_each(|a| x[a] = if a == 8 { times_minus_i(x[a]) } else { times(x[a], root32(a)) });
    }
    x
}

/// `spectrum` of `mel.cu`, all lanes of a frame: the magnitudes of the bins of parity `h`.
fn spectrum<T: Fused>(samples: &[i16], twiddles: &[f64], h: usize, magnitudes: &mut [f32]) {
    let twiddle_at = |i: usize| (T::of(twiddles[2 * i]), T::of(twiddles[2 * i + 1]));
    let (twiddle_512, twiddle_1024) =
        (|t: usize, p: usize| twiddle_at(256 * h + 16 * t + p), |k: usize| twiddle_at(512 + k));
    let first = |t: usize| {
        let mut x = load(samples, [twiddle_1024(2 * t), twiddle_1024(2 * t + 1)], t, h);
        (0..4).for_each(|i| dft4(&mut x, [i, i + 4, i + 8, i + 12]));
        dft16_second(&mut x);
        x
    };
    let lanes: [[Complex<T>; 16]; 16] = std::array::from_fn(first);
    let second = |p: usize| {
        let mut x: [Complex<T>; 16] = std::array::from_fn(|t| lanes[t][digit_reversed(p)]);
        for i in 0..4 {
            if i > 0 {
                x[i] = times(x[i], twiddle_512(i, p));
            }
            let (low, high, eight) = (twiddle_512(i, p), twiddle_512(i + 4, p), twiddle_512(8, p));
            let others = if i == 0 { [eight, twiddle_512(12, p)] } else { [times(low, eight), times(high, eight)] };
            dft4_twiddled(&mut x, [i, i + 4, i + 8, i + 12], [high, others[0], others[1]]);
        }
        dft16_second(&mut x);
        x
    };
    let lanes: [[Complex<T>; 16]; 16] = std::array::from_fn(second);
    for p in 0..16 {
        let (mirror, own) = ((16 - h - p) & 15, p + h == 0);
        for q in 0..8 {
            let b = lanes[mirror][digit_reversed(if own { (16 - q) & 15 } else { 15 - q })];
            let w = if q == 0 { twiddle_1024(2 * p + h) } else { times(twiddle_1024(2 * p + h), root32(q)) };
            let k = 2 * p + h + 32 * q;
            [magnitudes[k], magnitudes[512 - k]] = powers(lanes[p][digit_reversed(q)], b, w).map(f32::sqrt);
        }
        if own {
            let z = lanes[p][digit_reversed(8)];
            magnitudes[256] = (T::of(4.0) * z.0.fused(z.0, z.1 * z.1)).single().sqrt();
        }
    }
}

/// The kernel's log-mel frames of a clip.
fn log_mel<T: Fused>(clip: &[i16], tables: &Tables, settings: &FeatureSettings) -> Vec<f32> {
    let (length, n_mels) = (clip.len() as i32, settings.n_mels);
    // Three zeros more, because bands are read four bins at a time.
    let mut magnitudes = vec![0.0; 516];
    let mut out = Vec::new();
    for frame in 0..settings.num_frames(clip.len()) as i32 {
        let mirrored = |i: i32| {
            let at = (frame * 256 - 384 + i).abs();
            clip[if at >= length { 2 * (length - 1) - at } else { at } as usize]
        };
        let samples: Vec<i16> = (0..1024).map(mirrored).collect();
        (0..2).for_each(|h| spectrum::<T>(&samples, &tables.twiddles, h, &mut magnitudes));
        for band in 0..n_mels {
            let (first, bins) = (tables.bands[2 * band] as usize, tables.bands[2 * band + 1] as usize);
            let mel = (0..bins.next_multiple_of(4)).fold(0.0_f32, |sum, i| {
                tables.mel_weights[4 * (i / 4 * n_mels + band) + i % 4].mul_add(magnitudes[first + i], sum)
            });
            out.push(mel.max(settings.floor as f32).ln());
        }
    }
    out
}

/// The largest error relative to its bound, over clips that are difficult for the transform.
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
        worst.push((name, largest(found.iter().zip(&expected).map(over))));
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

/// The reason for f64 in the kernel's transform. If this ever fails, the kernel can be twice as fast in f32.
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

/// `pitch.cu` for one frame: its correlations by groups and parts, then the rest in the same order.
fn pitch_of(frame: &[i16], pitch: &PitchSettings) -> f32 {
    const LAGS: usize = 8;
    const PADDED_LAGS: usize = 9;
    const BURST: usize = 16;
    let (min_period, max_period) = pitch.periods(&FeatureSettings::default()).unwrap();
    let staged_at = |i: usize| i / LAGS * PADDED_LAGS + i % LAGS;
    let (mut pairs, mut bytes) = (vec![0_u32; 1032 / LAGS * PADDED_LAGS], vec![0_u32; 1032 / LAGS * PADDED_LAGS]);
    for n in 0..1032 {
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
        for (i, m) in (part..).step_by(parts).take_while(|m| m + group < 1024 / LAGS).enumerate() {
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
                let found = pitch_of(&clip.samples[t * 256 - 384..][..1024], &pitch);
                assert!((found - expected).abs() <= 1e-6 * expected, "{name} {t}: {found} for {expected}");
                frames += 1;
                voiced += u32::from(expected > 0.0);
            }
        }
        assert!(voiced > 20 && frames - voiced > 20, "{voiced} of {frames}");
    }
}
