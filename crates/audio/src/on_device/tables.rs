//! Tables that the kernels read: packed settings, twiddle factors, mel weights, lowpass phases. Computed once, on the
//! host.
//!
//! All tables of a [`DeviceFeatures`](crate::DeviceFeatures) are in one block, each at a multiple of [`BLOCK_ALIGN`].

use std::f64::consts::TAU;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};

use super::packed_settings;
use crate::clip::FULL_SCALE;
use crate::normalization::Normalization;
use crate::stft::hann;
use crate::transform::TransformReal as _;
use crate::two_float::TwoFloat;
use crate::{
    Arithmetic, AudioError, FeatureSettings, Filterbank, Framing, HOP_SAMPLES, LogBase, Lowpass, PitchSettings,
    Spectrum,
};

/// The transform of the kernels for one geometry.
const N_FFT: usize = 1024;
/// The most mel bands that those kernels support.
const MAX_MELS: usize = 128;
/// The longest transform of the kernel for any settings: two buffers of it fill the shared memory of compute capability 7.5.
pub(crate) const MAX_N_FFT: usize = 4096;
/// The longest period that the pitch kernels look for: four lags a thread.
pub(crate) const MAX_PERIOD: usize = 1024;

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
        let (_, max_period) = pitch.periods(settings)?;
        if max_period > MAX_PERIOD {
            let what = format!(
                "the pitch kernel supports periods of up to {MAX_PERIOD} samples, found {max_period}: raise fmin_hz of the pitch"
            );
            return Err(AudioError::Settings { what });
        }
        Ok(Tables { settings_words: packed_settings::pack(settings, pitch)?.to_vec(), ..tables })
    }

    /// The same without pitch settings: equal sizes.
    pub(crate) fn without_pitch(settings: &FeatureSettings, rates_hz: &[u32]) -> Result<Tables, AudioError> {
        settings.check()?;
        check_kernels(settings)?;
        let (bands, mel_weights) = mel_tables(settings);
        let (filters, filter_weights) = filter_tables(settings.rate_hz, rates_hz)?;
        let settings_words = vec![0; packed_settings::WORDS];
        let twiddles = match fits_mel_1024(settings) {
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
fn check_kernels(settings: &FeatureSettings) -> Result<(), AudioError> {
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
    use crate::FeaturePreset;

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
    fn rates_and_periods_that_kernels_do_not_support_are_refused() {
        let refused = Tables::new(&FeatureSettings::default(), &PitchSettings::default(), &[0]);
        assert!(matches!(refused, Err(AudioError::RatePair { from_hz: 0, .. })));
        let message = refusal(|s| (s.rate_hz, s.n_fft) = (96_000, 4096));
        assert!(message.contains("periods of up to 1024 samples, found 1477"), "{message}");
    }
}
