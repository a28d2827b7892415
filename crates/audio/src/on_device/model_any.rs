//! `mel_any.cu` on the host, as `model.rs` does it for the other kernels: the same tables, packed settings, buffers, passes
//! and blocks, threads in sequence.

use std::f64::consts::LN_10;

use tandem_test_support::largest;

use super::model::{frame_of, hostile};
use super::tables::{Tables, weight_at};
use super::{Blocks, packed_settings};
use crate::{
    Clip, FeaturePreset, FeatureSettings, Framing, LogBase, LogMel, MelFrames, MelNorm, MelScale, PitchSettings,
    Spectrum, mel,
};

type Complex = [f64; 2];

const MIN_BUFFER: usize = 16;
const ZEROS: usize = 3;
const MAX_THREADS: usize = 256;

fn add(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn sub(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

fn scaled(a: f64, b: Complex) -> Complex {
    [a * b[0], a * b[1]]
}

fn times(a: Complex, w: Complex) -> Complex {
    [a[0].mul_add(w[0], -(a[1] * w[1])), a[0].mul_add(w[1], a[1] * w[0])]
}

fn times_minus_i(a: Complex) -> Complex {
    [a[1], -a[0]]
}

/// `dft` of the kernel, by the length of `v`.
fn dft(v: &mut [Complex]) {
    match *v {
        [a, b] => v.copy_from_slice(&[add(a, b), sub(a, b)]),
        [a, b, c] => {
            let (s, d) = (add(b, c), times_minus_i(scaled(0.866_025_403_784_438_6, sub(b, c))));
            let m = sub(a, scaled(0.5, s));
            v.copy_from_slice(&[add(a, s), add(m, d), sub(m, d)]);
        }
        [a, b, c, d] => {
            let (s, t, u, d) = (add(a, c), sub(a, c), add(b, d), times_minus_i(sub(b, d)));
            v.copy_from_slice(&[add(s, u), add(t, d), sub(s, u), sub(t, d)]);
        }
        [a, b, c, d, e] => {
            let (cos72, cos144) = (0.309_016_994_374_947_4, -0.809_016_994_374_947_5);
            let (sin72, sin144) = (0.951_056_516_295_153_5, 0.587_785_252_292_473_1);
            let (s1, s2, d1, d2) = (add(b, e), add(c, d), sub(b, e), sub(c, d));
            let m1 = add(a, add(scaled(cos72, s1), scaled(cos144, s2)));
            let m2 = add(a, add(scaled(cos144, s1), scaled(cos72, s2)));
            let n1 = times_minus_i(add(scaled(sin72, d1), scaled(sin144, d2)));
            let n2 = times_minus_i(sub(scaled(sin144, d1), scaled(sin72, d2)));
            v.copy_from_slice(&[add(a, add(s1, s2)), add(m1, n1), add(m2, n2), sub(m2, n2), sub(m1, n1)]);
        }
        _ => panic!("no radix {}", v.len()),
    }
}

/// The kernel with its tables.
struct Model {
    words: Vec<u64>,
    table: Vec<f64>,
    bands: Vec<u32>,
    weights: Vec<f32>,
    blocks: Blocks,
}

impl Model {
    fn new(settings: &FeatureSettings) -> Model {
        let pitch = PitchSettings { fmin_hz: 100.0, fmax_hz: 3000.0, ..PitchSettings::default() };
        let mut tables = Tables::without_pitch(settings, &[]).unwrap();
        // Frames too short for any pitch are no reason to have no log-mel here.
        let packed = packed_settings::pack(settings, &pitch).unwrap_or_else(|_| {
            let long = FeatureSettings { n_fft: 4096, ..settings.clone() };
            let mut words = packed_settings::pack(&long, &pitch).unwrap();
            words[1] = settings.n_fft as u64;
            words[26] = settings.pad_samples() as u64;
            words[27] = settings.min_samples() as u64;
            words
        });
        tables.settings_words = packed.to_vec();
        Model {
            words: tables.settings_words,
            table: tables.twiddles.iter().map(|bits| f64::from_bits(*bits)).collect(),
            bands: tables.bands,
            weights: tables.mel_weights,
            blocks: Blocks::of_mel(settings),
        }
    }

    fn real(&self, i: usize) -> f64 {
        f64::from_bits(self.words[i])
    }

    fn log_floor(&self) -> f32 {
        f32::from_bits(self.words[15] as u32)
    }

    fn shifted_and_scaled(&self, log: f32) -> f32 {
        (log + self.real(24) as f32) * self.real(25) as f32
    }

    fn row_frames(&self, length: usize) -> usize {
        let [hop, min_samples, extra_frames] = [3, 27, 28].map(|i| self.words[i] as usize);
        if length >= min_samples { length / hop + extra_frames } else { 0 }
    }

    fn root(&self, k: usize) -> Complex {
        [self.table[2 * k], self.table[2 * k + 1]]
    }

    /// `pass`. The buffers are poisoned before they are written.
    fn pass(&self, radix: usize, from: &[Complex], to: &mut [Complex], n: usize, done: usize) {
        let (butterflies, step) = (n / radix, 2 * (n / radix / done));
        to.fill([f64::NAN; 2]);
        for thread in 0..self.blocks.threads as usize {
            for j in (thread..butterflies).step_by(self.blocks.threads as usize) {
                let k = j % done;
                let mut v: Vec<Complex> = (0..radix)
                    .map(|i| match i {
                        0 => from[j],
                        _ => times(from[j + i * butterflies], self.root(k * i * step)),
                    })
                    .collect();
                dft(&mut v);
                let first = (j - k) * radix + k;
                (0..radix).for_each(|i| to[first + i * done] = v[i]);
            }
        }
    }

    /// `log_mel_any` for one frame of a row that has it. Returns its energy.
    fn frame(&self, samples: &[i16], frame: usize, out: &mut [f32]) -> f32 {
        let (n_fft, threads) = (self.words[1] as usize, self.blocks.threads as usize);
        let n = n_fft / 2;
        let mut buffers = [(); 2].map(|()| vec![[f64::NAN; 2]; n.max(MIN_BUFFER)]);
        assert_eq!(self.blocks.shared_bytes as usize, buffers.iter().map(|buffer| 16 * buffer.len()).sum::<usize>());
        let wave = frame_of(samples, &self.words, frame);
        let windowed = |i: usize| f64::from(wave[i]) * self.table[2 * n_fft + i];
        let [from, to] = &mut buffers;
        (0..n).for_each(|i| from[i] = [windowed(2 * i), windowed(2 * i + 1)]);
        let (mut from, mut to, mut done) = (from, to, 1);
        while done < n {
            let rest = n / done;
            let radix = if rest % 4 == 0 { 4 } else { [2, 3, 5].into_iter().find(|radix| rest % radix == 0).unwrap() };
            self.pass(radix, from, to, n, done);
            (from, to) = (to, from);
            done *= radix;
        }
        // The sums of warps and the bins fit into the other buffer.
        assert!(8 * (MAX_THREADS / 32) + 4 * (n + 1 + ZEROS) <= 16 * to.len());
        let mut bins = vec![f32::NAN; n + 1 + ZEROS];
        let mut sums = vec![0.0_f64; threads];
        for k in 0..=n {
            let (a, b) = (from[if k == n { 0 } else { k }], from[if k == 0 { 0 } else { n - k }]);
            let (even, odd) = ([a[0] + b[0], a[1] - b[1]], [a[1] + b[1], b[0] - a[0]]);
            let x = add(even, times(odd, self.root(k)));
            let power = 0.25 * x[0].mul_add(x[0], x[1] * x[1]);
            let value = (power + self.real(19)) as f32;
            bins[k] = if self.words[18] == 0 { value.sqrt() } else { value };
            sums[k % threads] += power;
        }
        bins[n + 1..].fill(0.0);
        self.write_bands(&bins, out);
        (sums.iter().sum::<f64>()).sqrt() as f32
    }

    fn write_bands(&self, bins: &[f32], out: &mut [f32]) {
        let (n_mels, floor) = (self.words[4] as usize, self.real(7) as f32);
        for (band, (out, span)) in out.iter_mut().zip(self.bands.chunks_exact(2)).enumerate() {
            let (first, count) = (span[0] as usize, (span[1] as usize).next_multiple_of(4));
            let weight = |i: usize| self.weights[weight_at(n_mels, band, i)];
            let mel = (0..count).fold(0.0_f32, |sum, i| weight(i).mul_add(bins[first + i], sum));
            let log = |x: f32| if self.words[22] == 0 { x.ln() } else { x.log10() };
            let log = if mel > floor { log(mel) } else { self.log_floor() };
            *out = if self.real(23).is_infinite() { self.shifted_and_scaled(log) } else { log };
        }
    }

    /// Both kernels for a row with room for `room` frames.
    fn row(&self, samples: &[i16], room: usize) -> (Vec<f32>, Vec<f32>) {
        let n_mels = self.words[4] as usize;
        let frames = self.row_frames(samples.len());
        let (mut mel, mut energies) = (vec![f32::NAN; room * n_mels], Vec::new());
        for (frame, out) in mel.chunks_exact_mut(n_mels).enumerate() {
            if frame < frames {
                energies.push(self.frame(samples, frame, out));
            } else {
                out.fill(self.shifted_and_scaled(self.log_floor()));
                energies.push(0.0);
            }
        }
        if self.real(23).is_finite() {
            let own = frames.min(room) * n_mels;
            let maximum = mel[..own].iter().copied().fold(self.log_floor(), f32::max);
            let lowest = maximum - self.real(23) as f32;
            for (i, value) in mel.iter_mut().enumerate() {
                let log = if i < own { *value } else { self.log_floor() };
                *value = self.shifted_and_scaled(log.max(lowest));
            }
        }
        (mel, energies)
    }
}

/// The error of a log-mel value relative to its bound, both in natural logarithms of magnitudes.
fn of_the_bound(settings: &FeatureSettings, found: f32, expected: f64) -> f64 {
    let base = if settings.log == LogBase::E { 1.0 } else { LN_10 };
    let root = if settings.spectrum == Spectrum::Power { 0.5 } else { 1.0 };
    let magnitude = (expected / settings.scale - settings.shift) * base * root;
    let bound = if magnitude >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 };
    (f64::from(found) - expected).abs() / settings.scale * base / bound
}

/// The largest error of the model relative to its bound.
fn worst(settings: &FeatureSettings, num_samples: usize) -> f64 {
    let (model, mut log_mel) = (Model::new(settings), LogMel::new(settings).unwrap());
    let (mut cpu, mut cpu_energies, mut worst) = (MelFrames::default(), Vec::new(), 0.0_f64);
    for (name, samples) in hostile() {
        let clip = Clip { samples: samples[..num_samples].to_vec(), rate_hz: settings.rate_hz };
        let expected = mel::reference(&clip, settings).unwrap();
        log_mel.mel_energy_into(&clip, &mut cpu, &mut cpu_energies).unwrap();
        let room = cpu.num_frames() + 3;
        let (found, energies) = model.row(&clip.samples, room);
        let (found, padding) = found.split_at(expected.len());
        worst = worst.max(largest(found.iter().zip(&expected).map(|(&f, &e)| of_the_bound(settings, f, e))));
        worst = worst.max(largest(cpu.values.iter().zip(&expected).map(|(&f, &e)| of_the_bound(settings, f, e))));
        assert!(padding.iter().all(|x| (x - log_mel.padding()).abs() < 1e-4), "{name}: {padding:?}");
        for (found, expected) in energies.iter().zip(&cpu_energies) {
            assert!((found - expected).abs() <= 1e-6 * expected, "{name}: {found} for {expected}");
        }
    }
    worst
}

fn check(settings: &FeatureSettings, num_samples: usize) {
    settings.check().unwrap();
    let over = worst(settings, num_samples);
    println!("{} {} {}: {over:.5} of the bound", settings.n_fft, settings.hop_samples, settings.framing.name());
    assert!(over < 0.1, "{over} of the bound with {settings:?}");
}

#[test]
fn every_preset_holds_the_bounds_with_room_to_spare() {
    for preset in FeaturePreset::ALL.into_iter().filter(|preset| *preset != FeaturePreset::Tandem) {
        check(&preset.settings(), 5_000);
    }
}

#[test]
fn every_radix_and_any_framing_hold_the_bounds() {
    let sizes = [2, 4, 6, 10, 16, 30, 50, 72, 128, 250, 400, 450, 480, 486, 600, 1000, 1024, 1536, 2048, 3750, 4096];
    for (i, n_fft) in sizes.into_iter().enumerate() {
        for framing in Framing::ALL {
            let settings = FeatureSettings {
                n_fft,
                // Shorter than the transform, and a hop that divides nothing.
                win_samples: n_fft - n_fft / 5,
                hop_samples: if framing == Framing::Hop { n_fft.min(346) } else { n_fft.min(347) },
                n_mels: [1, 20, 80, 129][i % 4],
                framing,
                spectrum: Spectrum::ALL[i % 2],
                mel_scale: MelScale::ALL[i / 2 % 2],
                mel_norm: MelNorm::ALL[i / 3 % 2],
                log: LogBase::ALL[i / 2 % 2],
                power_epsilon: [0.0, 1e-9, 1e-6][i % 3],
                top_range: [None, Some(2.0)][i / 4 % 2],
                shift: 0.5,
                scale: 2.0,
                ..FeatureSettings::default()
            };
            // Few frames of the short transforms.
            check(&settings, (8 * settings.hop_samples).max(settings.min_samples()).min(6_000));
        }
    }
}

#[test]
fn a_row_with_less_room_counts_from_the_maximum_of_its_own_frames() {
    let settings = FeaturePreset::Whisper.settings();
    let mut samples = vec![0_i16; 3200];
    (0..3200).for_each(|i| samples[i] = ((i * 7919) % 2001) as i16 / if i < 1600 { 100 } else { 1 } - 5);
    let (model, mut cpu) = (Model::new(&settings), MelFrames::default());
    let mut log_mel = LogMel::new(&settings).unwrap();
    log_mel.logs_into(&Clip { samples: samples.clone(), rate_hz: 16_000 }, &mut cpu, None).unwrap();
    let (found, _) = model.row(&samples, 5);
    cpu.values.truncate(5 * 80);
    crate::normalization::Normalization::of(&settings).apply(&mut cpu.values);
    assert!(largest(found.iter().zip(&cpu.values).map(|(a, b)| f64::from((a - b).abs()))) < 1e-4);
}
