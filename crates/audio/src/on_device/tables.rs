//! Tables that the kernels read: packed settings, twiddle factors, mel weights, lowpass phases. Computed once, on the
//! host.
//!
//! All tables of a [`DeviceFeatures`](crate::DeviceFeatures) are in one block, each at a multiple of [`BLOCK_ALIGN`].

use std::f64::consts::TAU;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};

use super::{packed_settings, supported};
use crate::clip::FULL_SCALE;
use crate::stft::hann;
use crate::transform::TransformReal as _;
use crate::two_float::TwoFloat;
use crate::{Arithmetic, AudioError, FeatureSettings, Filterbank, Lowpass, PitchSettings};

/// Words of a filter in its table: up, down, delay, taps per phase, offset of its weights, both rates, and a 0.
pub(crate) const FILTER_WORDS: usize = 8;

/// Weights of a band that the log-mel kernel loads at once.
pub(crate) const WEIGHTS_AT_ONCE: usize = 4;

/// The tables, in the order of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableId {
    Settings,
    Twiddles,
    Bands,
    MelWeights,
    Filters,
    FilterWeights,
}

/// All tables, on the host.
pub(crate) struct Tables {
    pub(crate) settings_words: Vec<u64>,
    /// For the kernels of one geometry, real and imaginary parts in the arithmetic of the settings, 8 bytes each:
    /// `w512^((2 p + h) t)` as `[h: 2][t: 16][p: 16]`, then 32 twiddles `w1024^k`, from which the window is computed as well.
    ///
    /// For the kernel for any settings, f64: `n_fft` roots of unity, then the window, divided by full scale.
    pub(crate) twiddles: Vec<u64>,
    /// First bin and number of bins of every band.
    pub(crate) bands: Vec<u32>,
    /// The weights of the first [`WEIGHTS_AT_ONCE`] bins of every band, then of the next bins of every band, ...;
    /// padded with 0.
    pub(crate) mel_weights: Vec<f32>,
    pub(crate) filters: Vec<u32>,
    /// By filter, then by tap; within a tap, phases in the order in which output samples use them.
    pub(crate) filter_weights: Vec<f32>,
}

impl Tables {
    /// Computes them. Cost: a filter takes milliseconds.
    ///
    /// Fails with [`AudioError::Settings`] on invalid settings or settings that the kernels do not support, and with
    /// [`AudioError::RatePair`].
    pub(crate) fn new(
        settings: &FeatureSettings,
        pitch: &PitchSettings,
        rates_hz: &[u32],
    ) -> Result<Tables, AudioError> {
        let tables = Tables::without_pitch(settings, rates_hz)?;
        supported::check_pitch(settings, pitch)?;
        Ok(Tables { settings_words: packed_settings::pack(settings, pitch)?.to_vec(), ..tables })
    }

    /// The same without pitch settings: equal sizes.
    pub(crate) fn without_pitch(settings: &FeatureSettings, rates_hz: &[u32]) -> Result<Tables, AudioError> {
        settings.check()?;
        supported::check_log_mel(settings)?;
        let (bands, mel_weights) = mel_tables(settings);
        let (filters, filter_weights) = filter_tables(settings.rate_hz, rates_hz)?;
        let settings_words = vec![0; packed_settings::WORDS];
        let twiddles = match supported::fits_mel_1024(settings) {
            true => twiddles().flatten().map(|x| packed_real(x, settings.arithmetic)).collect(),
            false => any_transform(settings).map(f64::to_bits).collect(),
        };
        Ok(Tables { settings_words, twiddles, bands, mel_weights, filters, filter_weights })
    }

    /// The offset of `table` in the block, and its bytes.
    pub(crate) fn span(&self, table: TableId) -> (u64, u64) {
        let sizes = self.parts().map(|part| part.len() as u64);
        let before = &sizes[..table as usize];
        (before.iter().map(|bytes| round_up(*bytes, BLOCK_ALIGN)).sum(), sizes[table as usize])
    }

    /// Bytes of the block, a multiple of [`BLOCK_ALIGN`].
    pub(crate) fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| round_up(part.len() as u64, BLOCK_ALIGN)).sum()
    }

    /// Copies every table to its offset in `block`.
    pub(crate) fn write_to(&self, block: &mut [u8]) {
        let mut rest = block;
        for part in self.parts() {
            let (table, after) = rest.split_at_mut(round_up(part.len() as u64, BLOCK_ALIGN) as usize);
            table[..part.len()].copy_from_slice(part);
            rest = after;
        }
    }

    /// The tables as bytes, in the order of [`TableId`].
    fn parts(&self) -> [&[u8]; 6] {
        [
            bytemuck::cast_slice(&self.settings_words),
            bytemuck::cast_slice(&self.twiddles),
            bytemuck::cast_slice(&self.bands),
            bytemuck::cast_slice(&self.mel_weights),
            bytemuck::cast_slice(&self.filters),
            bytemuck::cast_slice(&self.filter_weights),
        ]
    }
}

/// The table of the kernel for any settings: roots of unity as real and imaginary part, then the window.
fn any_transform(settings: &FeatureSettings) -> impl Iterator<Item = f64> {
    let n_fft = settings.n_fft;
    let window = hann(settings.win_samples, n_fft).map(|x| x / FULL_SCALE);
    (0..n_fft).flat_map(move |k| root(k, n_fft)).chain(window)
}

/// The twiddles in the order of their table, as real and imaginary part.
pub(crate) fn twiddles() -> impl Iterator<Item = [f64; 2]> {
    let of_pass = |h: usize| (0..16).flat_map(move |t| (0..16).map(move |p| root((2 * p + h) * t, 512)));
    let real = (0..32).map(|k| root(k, 1024));
    of_pass(0).chain(of_pass(1)).chain(real)
}

/// A number of the transform in 8 bytes: the bits of an f64, or those of two f32, the larger one first in memory.
fn packed_real(x: f64, arithmetic: Arithmetic) -> u64 {
    match arithmetic {
        Arithmetic::F64 => x.to_bits(),
        Arithmetic::TwoFloat => {
            let TwoFloat { hi, lo } = TwoFloat::of(x);
            u64::from_ne_bytes(bytemuck::cast([hi, lo]))
        }
    }
}

/// `exp(-2 pi i k / n)`, exact at multiples of a quarter turn.
fn root(k: usize, n: usize) -> [f64; 2] {
    let k = k % n;
    // Angles up to an eighth of a turn only: there sine and cosine are within an ulp or two. In quarters of 1 / n turns.
    let (cos, sin) = match 8 * k / n {
        0 => angle(4 * k, n),
        1 => swap(angle(n - 4 * k, n)),
        2 => flip(swap(angle(4 * k - n, n))),
        3 => flip(angle(2 * n - 4 * k, n)),
        _ => {
            // Half a turn less, which need not be a multiple of 1 / n turns.
            let [re, im] = root(2 * k - n, 2 * n);
            return [-re, -im];
        }
    };
    [cos, -sin]
}

/// Cosine and sine of `quarters / (4 n)` turns.
fn angle(quarters: usize, n: usize) -> (f64, f64) {
    let (sin, cos) = (TAU * quarters as f64 / (4 * n) as f64).sin_cos();
    (cos, sin)
}

fn swap((cos, sin): (f64, f64)) -> (f64, f64) {
    (sin, cos)
}

/// Mirrors an angle at the quarter turn.
fn flip((cos, sin): (f64, f64)) -> (f64, f64) {
    (-cos, sin)
}

/// First bin and number of bins of every band, and their weights in the order of [`weight_at`].
pub(crate) fn mel_tables(settings: &FeatureSettings) -> (Vec<u32>, Vec<f32>) {
    let filterbank = Filterbank::new(settings);
    let widest = filterbank.bands().map(|(_, weights)| weights.len()).max().unwrap_or(0);
    let mut bands = Vec::new();
    let mut table = vec![0.0; widest.next_multiple_of(WEIGHTS_AT_ONCE) * settings.n_mels];
    for (band, (first_bin, weights)) in filterbank.bands().enumerate() {
        bands.extend([first_bin as u32, weights.len() as u32]);
        for (i, weight) in weights.iter().enumerate() {
            table[weight_at(settings.n_mels, band, i)] = *weight as f32;
        }
    }
    (bands, table)
}

/// The index of weight `i` of a band in its table.
pub(crate) fn weight_at(n_mels: usize, band: usize, i: usize) -> usize {
    (i / WEIGHTS_AT_ONCE * n_mels + band) * WEIGHTS_AT_ONCE + i % WEIGHTS_AT_ONCE
}

fn filter_tables(to_hz: u32, rates_hz: &[u32]) -> Result<(Vec<u32>, Vec<f32>), AudioError> {
    let (mut filters, mut table) = (Vec::new(), Vec::new());
    for &from_hz in rates_hz {
        let filter = Lowpass::design(from_hz, to_hz)?;
        let refused = AudioError::RatePair { from_hz, to_hz };
        let Ok(start) = u32::try_from(table.len()) else { return Err(refused) };
        let Lowpass { up, down, delay, taps_per_phase, ref phases, .. } = filter;
        // All of them below 2^32: the factors are below 2^17, and there are 64 taps per step of the larger one.
        filters.extend([up, down, delay, taps_per_phase].map(|n| n as u32));
        filters.extend([start, from_hz, to_hz, 0]);
        for tap in 0..taps_per_phase {
            table.extend((0..up).map(|m| phases[(m * down + delay) % up * taps_per_phase + tap]));
        }
    }
    Ok((filters, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(rates_hz: &[u32]) -> Tables {
        Tables::new(&FeatureSettings::default(), &PitchSettings::default(), rates_hz).unwrap()
    }

    #[test]
    fn roots_lie_on_the_circle_and_are_exact_at_the_quarters() {
        for n in [2, 6, 30, 225, 400, 486, 512, 1024, 3125] {
            for k in 0..n {
                let ([re, im], x) = (root(k, n), TAU * k as f64 / n as f64);
                // The angle itself is rounded, by up to 9e-16.
                assert!((re - x.cos()).abs() < 2e-15 && (im + x.sin()).abs() < 2e-15, "{k} of {n}: {re} {im}");
            }
        }
        let quarters = [0, 128, 256, 384].map(|k| root(k, 512));
        assert_eq!(quarters, [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 1.0]]);
    }

    #[test]
    fn both_arithmetics_have_tables_of_one_size() {
        let two_float = FeatureSettings { arithmetic: Arithmetic::TwoFloat, ..FeatureSettings::default() };
        let two_float = Tables::new(&two_float, &PitchSettings::default(), &[44_100]).unwrap();
        let f64 = tables(&[44_100]);
        assert_eq!(two_float.bytes(), f64.bytes());
        for (&packed, &bits) in two_float.twiddles.iter().zip(&f64.twiddles) {
            let ([hi, lo], expected): ([f32; 2], _) = (bytemuck::cast(packed), f64::from_bits(bits));
            assert!((f64::from(hi) + f64::from(lo) - expected).abs() < 2.0_f64.powi(-48), "{hi} + {lo} for {expected}");
        }
    }

    #[test]
    fn tables_are_adjacent() {
        let tables = tables(&[44_100, 48_000]);
        let mut block = vec![0xFF; tables.bytes() as usize];
        tables.write_to(&mut block);
        let mut end = 0;
        for table in [
            TableId::Settings,
            TableId::Twiddles,
            TableId::Bands,
            TableId::MelWeights,
            TableId::Filters,
            TableId::FilterWeights,
        ] {
            let (from, bytes) = tables.span(table);
            assert_eq!(from, round_up(end, BLOCK_ALIGN), "{table:?}");
            end = from + bytes;
            assert_eq!(&block[from as usize..end as usize], tables.parts()[table as usize]);
        }
        assert_eq!(tables.bytes(), round_up(end, BLOCK_ALIGN));
    }

    #[test]
    fn roots_of_powers_of_two_have_the_bits_of_the_first_release() {
        let hash = |n: usize| {
            let bits = (0..n).flat_map(|k| root(k, n)).map(f64::to_bits);
            bits.fold(0_u64, |hash, bits| (hash ^ bits).wrapping_mul(0x100_0000_01b3))
        };
        assert_eq!([hash(512), hash(1024)], [0xf468_54e1_4e42_f41c, 0xc02a_7f49_387f_836c]);
    }

    #[test]
    fn rates_without_a_filter_are_refused() {
        let refused = Tables::new(&FeatureSettings::default(), &PitchSettings::default(), &[0]);
        assert!(matches!(refused, Err(AudioError::RatePair { from_hz: 0, .. })));
    }
}
