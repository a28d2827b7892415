//! The transform of the log-mel kernel on the host: `kernels/mel.cu` step by step, with the same tables, the same
//! transposes and the same order of sums, lanes in sequence.
//!
//! In [`TwoFloat`](crate::two_float::TwoFloat) it is the host kernel, with the kernel's bits. In f64 and f32 the tests use
//! it as a model of the kernel: there the CPU has a faster transform.

use std::ops::{Add, Mul, Neg, Sub};

use crate::on_device::tables::{self, WEIGHTS_AT_ONCE};
use crate::{FeatureSettings, HOP_SAMPLES, MelFrames};

/// Real and imaginary part.
pub(crate) type Complex<T> = (T, T);

/// The numbers of the transform. `kernels/f64.cuh` and `kernels/two_float.cuh` have these functions.
pub(crate) trait TransformReal:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// The number nearest to `value`.
    fn of(value: f64) -> Self;
    /// `self * b + c`.
    fn fused(self, b: Self, c: Self) -> Self;
    /// `self / 2`.
    fn half(self) -> Self;
    /// `2 self - b`.
    fn twice_minus(self, b: Self) -> Self;
    /// `(far + v apart) / 65536`, of differences and sums of two samples.
    fn windowed(apart: i32, far: i32, v: Self) -> Self;
    /// The squared magnitude.
    fn power(z: Complex<Self>) -> f32;
    /// The natural logarithm of a positive, normal number.
    fn ln(x: f32) -> f32;
}

const N_FFT: usize = 1024;
const BINS: usize = 513;
/// cos(2 pi i / 32), with the digits of the kernel.
const COS: [f64; 9] = [
    1.0,
    0.980_785_280_403_230_4,
    0.923_879_532_511_286_7,
    0.831_469_612_302_545_2,
    0.707_106_781_186_547_5,
    0.555_570_233_019_602_2,
    0.382_683_432_365_089_8,
    0.195_090_322_016_128_27,
    0.0,
];

fn add<T: TransformReal>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    (a.0 + b.0, a.1 + b.1)
}

fn sub<T: TransformReal>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    (a.0 - b.0, a.1 - b.1)
}

fn times<T: TransformReal>(a: Complex<T>, w: Complex<T>) -> Complex<T> {
    (a.0.fused(w.0, -(a.1 * w.1)), a.0.fused(w.1, a.1 * w.0))
}

/// `sum + a w`.
fn multiply_add<T: TransformReal>(sum: Complex<T>, a: Complex<T>, w: Complex<T>) -> Complex<T> {
    (a.0.fused(w.0, (-a.1).fused(w.1, sum.0)), a.0.fused(w.1, a.1.fused(w.0, sum.1)))
}

/// `a - b`, where `sum` is `a + b`.
fn difference_of<T: TransformReal>(a: Complex<T>, sum: Complex<T>) -> Complex<T> {
    (a.0.twice_minus(sum.0), a.1.twice_minus(sum.1))
}

fn times_minus_i<T: TransformReal>(a: Complex<T>) -> Complex<T> {
    (a.1, -a.0)
}

/// exp(-2 pi i k / 32) for k <= 24.
fn root32<T: TransformReal>(k: usize) -> Complex<T> {
    let cos = |i: usize| T::of(COS[i]);
    match k {
        0..=8 => (cos(k), -cos(8 - k)),
        9..=16 => (-cos(16 - k), -cos(k - 8)),
        _ => (-cos(k - 16), cos(24 - k)),
    }
}

fn digit_reversed(p: usize) -> usize {
    4 * (p & 3) + (p >> 2)
}

/// A 4-point DFT, from its sums and differences `s`, `t`, `u` and `v`.
fn dft4_combine<T: TransformReal>(x: &mut [Complex<T>; 16], [a, b, c, d]: [usize; 4], [s, t, u, v]: [Complex<T>; 4]) {
    (x[a], x[b], x[c], x[d]) = (add(s, u), add(t, times_minus_i(v)), sub(s, u), sub(t, times_minus_i(v)));
}

fn dft4<T: TransformReal>(x: &mut [Complex<T>; 16], at: [usize; 4]) {
    let [a, b, c, d] = at.map(|i| x[i]);
    dft4_combine(x, at, [add(a, c), sub(a, c), add(b, d), sub(b, d)]);
}

fn dft4_twiddled<T: TransformReal>(x: &mut [Complex<T>; 16], at: [usize; 4], [wb, wc, wd]: [Complex<T>; 3]) {
    let [a, b, c, d] = at.map(|i| x[i]);
    let (s, twiddled) = (multiply_add(a, c, wc), times(b, wb));
    let u = multiply_add(twiddled, d, wd);
    dft4_combine(x, at, [s, difference_of(a, s), u, difference_of(twiddled, u)]);
}

fn dft16_second<T: TransformReal>(x: &mut [Complex<T>; 16]) {
    dft4(x, [0, 1, 2, 3]);
    dft4_twiddled(x, [4, 5, 6, 7], [2, 4, 6].map(root32));
    let (twiddled, far) = (times(x[9], root32(4)), times_minus_i(x[10]));
    let u = multiply_add(twiddled, x[11], root32(12));
    dft4_combine(x, [8, 9, 10, 11], [add(x[8], far), sub(x[8], far), u, difference_of(twiddled, u)]);
    dft4_twiddled(x, [12, 13, 14, 15], [6, 12, 18].map(root32));
}

fn powers<T: TransformReal>(a: Complex<T>, b: Complex<T>, w: Complex<T>) -> [f32; 2] {
    let (even, odd) = ((a.0 + b.0, a.1 - b.1), (a.1 + b.1, b.0 - a.0));
    let x = multiply_add(even, odd, w);
    [T::power(x), T::power(difference_of(even, x))]
}

/// Log-mel frames and energies of clips, by the kernel's transform.
pub(crate) struct KernelMel<T: TransformReal> {
    twiddles: Vec<Complex<T>>,
    bands: Vec<u32>,
    weights: Vec<f32>,
    n_mels: usize,
    floor: f32,
    frame: [i16; N_FFT],
    /// Three zeros more than bins, because bands are read four bins at a time.
    magnitudes: [f32; BINS + WEIGHTS_AT_ONCE - 1],
}

impl<T: TransformReal> KernelMel<T> {
    /// The settings have the geometry that the kernels support.
    pub(crate) fn new(settings: &FeatureSettings) -> KernelMel<T> {
        let (bands, weights) = tables::mel_tables(settings);
        KernelMel {
            twiddles: tables::twiddles().map(|[re, im]| (T::of(re), T::of(im))).collect(),
            bands,
            weights,
            n_mels: settings.n_mels,
            floor: settings.floor as f32,
            frame: [0; N_FFT],
            magnitudes: [0.0; BINS + WEIGHTS_AT_ONCE - 1],
        }
    }

    /// Fills `out`, and calls `each` with the energy of every frame. `samples` are enough for a frame.
    pub(crate) fn run(&mut self, samples: &[i16], out: &mut MelFrames, mut each: impl FnMut(f32)) {
        out.values.resize(samples.len() / HOP_SAMPLES * self.n_mels, 0.0);
        for (index, row) in out.values.chunks_exact_mut(self.n_mels).enumerate() {
            self.stage(samples, index);
            let energies = [0, 1].map(|h| self.spectrum(h));
            each(sum16(std::array::from_fn(|lane| energies[0][lane] + energies[1][lane])).sqrt());
            self.write_bands(row);
        }
    }

    /// Copies the samples of frame `index`, with reflect padding at both ends.
    fn stage(&mut self, samples: &[i16], index: usize) {
        let (length, start) = (samples.len() as i64, (index * HOP_SAMPLES) as i64 - ((N_FFT - HOP_SAMPLES) / 2) as i64);
        for (i, sample) in (start..).zip(&mut self.frame) {
            let at = i.abs();
            *sample = samples[if at >= length { 2 * (length - 1) - at } else { at } as usize];
        }
    }

    /// The inputs of the first DFT of lane `t` in pass `h`.
    fn load(&self, t: usize, h: usize) -> [Complex<T>; 16] {
        let halved = |(re, im): Complex<T>| (re.half(), im.half());
        let (even, odd) = (halved(self.twiddles[512 + 2 * t]), halved(self.twiddles[512 + 2 * t + 1]));
        let (half, cos) = (T::of(0.5), |i: usize| T::of(COS[i]));
        let window = |a: usize, angle: Complex<T>| match a {
            0 => half - angle.0,
            8 => half - angle.1,
            _ => {
                // The kernel computes a and 16 - a together; their cosines have opposite signs.
                let near = if a < 8 { a } else { 16 - a };
                let c = if a < 8 { -cos(near) } else { cos(near) };
                c.fused(angle.0, (-cos(8 - near)).fused(angle.1, half))
            }
        };
        let folded = |n: usize, v: T| {
            let far = i32::from(self.frame[n + 512]) * (1 - 2 * h as i32);
            T::windowed(i32::from(self.frame[n]) - far, far, v)
        };
        let mut x = std::array::from_fn(|a| {
            let n = 2 * (16 * a + t);
            (folded(n, window(a, even)), folded(n + 1, window(a, odd)))
        });
        if h == 1 {
            (1..16).for_each(|a| x[a] = if a == 8 { times_minus_i(x[a]) } else { times(x[a], root32(a)) });
        }
        x
    }

    /// The magnitudes of the bins of parity `h`. Returns each lane's part of the sum of squares.
    fn spectrum(&mut self, h: usize) -> [f32; 16] {
        let twiddle_512 = |t: usize, p: usize| self.twiddles[256 * h + 16 * t + p];
        let first = |t: usize| {
            let mut x = self.load(t, h);
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
        let mut energies = [0.0_f32; 16];
        for p in 0..16 {
            let (mirror, own) = ((16 - h - p) & 15, p + h == 0);
            let twiddle = self.twiddles[512 + 2 * p + h];
            for q in 0..8 {
                let b = lanes[mirror][digit_reversed(if own { (16 - q) & 15 } else { 15 - q })];
                let w = if q == 0 { twiddle } else { times(twiddle, root32(q)) };
                let k = 2 * p + h + 32 * q;
                let [low, high] = powers(lanes[p][digit_reversed(q)], b, w);
                [self.magnitudes[k], self.magnitudes[512 - k]] = [low, high].map(f32::sqrt);
                energies[p] += low + high;
            }
            if own {
                // Bin 256 is its own mirror image.
                let power = 4.0 * T::power(lanes[p][digit_reversed(8)]);
                self.magnitudes[256] = power.sqrt();
                energies[p] += power;
            }
        }
        energies
    }

    fn write_bands(&self, row: &mut [f32]) {
        for (band, (out, span)) in row.iter_mut().zip(self.bands.chunks_exact(2)).enumerate() {
            let (first, bins) = (span[0] as usize, (span[1] as usize).next_multiple_of(WEIGHTS_AT_ONCE));
            let mel = (0..bins).fold(0.0_f32, |sum, i| {
                self.weights[tables::weight_at(self.n_mels, band, i)].mul_add(self.magnitudes[first + i], sum)
            });
            *out = if mel > self.floor { T::ln(mel) } else { self.floor.ln() };
        }
    }
}

/// The sum over 16 lanes, in the order of the kernel's shuffles.
fn sum16(mut x: [f32; 16]) -> f32 {
    for step in [8, 4, 2, 1] {
        (0..step).for_each(|lane| x[lane] += x[lane + step]);
    }
    x[0]
}
