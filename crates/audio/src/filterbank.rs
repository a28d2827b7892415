//! Triangles on the mel scale: from the bins of a spectrum to bands, and back as well as that can be done.
//!
//! Slaney's mel scale (linear to 1 kHz, logarithmic above) or that of HTK, and Slaney's normalisation (every triangle has
//! the same area) or none.

use crate::{FeatureSettings, MelNorm, MelScale};

/// Where the scale turns from linear to logarithmic, in Hz and in mel.
const KNEE_HZ: f64 = 1000.0;
const KNEE_MEL: f64 = 15.0;
const HZ_PER_MEL: f64 = 200.0 / 3.0;
/// Above the knee, 27 mel are a factor of 6.4.
const LOG_STEP: f64 = 0.068_751_777_420_949_12;

/// The HTK scale: mel for a factor of ten, and where the factor begins to matter.
const HTK_MEL: f64 = 2595.0;
const HTK_HZ: f64 = 700.0;

/// The mel bands of [`FeatureSettings`], as weights on spectrum bins.
#[derive(Clone, Debug, PartialEq)]
pub struct Filterbank {
    num_bins: usize,
    bands: Vec<Band>,
}

/// The bins a band looks at; its triangle is 0 everywhere else.
#[derive(Clone, Debug, PartialEq)]
struct Band {
    first_bin: usize,
    weights: Vec<f64>,
}

impl Filterbank {
    /// Computes the weights, in f64.
    pub fn new(settings: &FeatureSettings) -> Filterbank {
        let scale = settings.mel_scale;
        let (low, high) = (scale.mel_of(settings.fmin_hz), scale.mel_of(settings.fmax_hz));
        let corner_hz = |i: usize| scale.hz_of(low + (high - low) * i as f64 / (settings.n_mels + 1) as f64);
        let bin_hz = f64::from(settings.rate_hz) / settings.n_fft as f64;
        let num_bins = settings.num_bins();
        let bands = (0..settings.n_mels)
            .map(|i| [corner_hz(i), corner_hz(i + 1), corner_hz(i + 2)])
            .map(|corners_hz| Band::triangle(corners_hz, settings.mel_norm, bin_hz, num_bins))
            .collect();
        Filterbank { num_bins, bands }
    }

    /// The weights of every band on every bin: `n_mels` rows of `n_fft / 2 + 1`.
    pub fn dense(&self) -> Vec<f64> {
        let mut rows = vec![0.0; self.bands.len() * self.num_bins];
        for (row, band) in rows.chunks_mut(self.num_bins).zip(&self.bands) {
            row[band.first_bin..][..band.weights.len()].copy_from_slice(&band.weights);
        }
        rows
    }

    /// Bands as (first bin, weights), low to high.
    pub(crate) fn bands(&self) -> impl Iterator<Item = (usize, &[f64])> {
        self.bands.iter().map(|band| (band.first_bin, band.weights.as_slice()))
    }

    /// The Moore-Penrose inverse: `n_fft / 2 + 1` rows of `n_mels`, which turns bands into the smallest spectrum that
    /// gives them. `Fᵀ (F Fᵀ)⁻¹`, since bands are independent; those too narrow to see a bin give nothing back.
    pub(crate) fn pseudo_inverse(&self) -> Vec<f64> {
        let (n, rows) = (self.bands.len(), self.dense());
        let row = |i: usize| &rows[i * self.num_bins..][..self.num_bins];
        let mut gram = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..n {
                gram[i * n + j] = row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum();
            }
        }
        let lower = cholesky(gram, n);
        let mut inverse = vec![0.0; self.num_bins * n];
        for (bin, out) in inverse.chunks_mut(n).enumerate() {
            (0..n).for_each(|i| out[i] = rows[i * self.num_bins + bin]);
            solve(&lower, n, out);
        }
        inverse
    }
}

impl Band {
    fn triangle([left, top, right]: [f64; 3], norm: MelNorm, bin_hz: f64, num_bins: usize) -> Band {
        let height = match norm {
            MelNorm::Slaney => 2.0 / (right - left),
            MelNorm::None => 1.0,
        };
        let weight = |bin: usize| {
            let hz = bin as f64 * bin_hz;
            height * f64::max(0.0, f64::min((hz - left) / (top - left), (right - hz) / (right - top)))
        };
        let first_bin = (0..num_bins).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
        let weights = (first_bin..num_bins).map(weight).take_while(|&weight| weight > 0.0).collect();
        Band { first_bin, weights }
    }
}

impl MelScale {
    fn mel_of(self, hz: f64) -> f64 {
        match self {
            MelScale::Slaney if hz < KNEE_HZ => hz / HZ_PER_MEL,
            MelScale::Slaney => KNEE_MEL + (hz / KNEE_HZ).ln() / LOG_STEP,
            MelScale::Htk => HTK_MEL * (1.0 + hz / HTK_HZ).log10(),
        }
    }

    fn hz_of(self, mel: f64) -> f64 {
        match self {
            MelScale::Slaney if mel < KNEE_MEL => mel * HZ_PER_MEL,
            MelScale::Slaney => KNEE_HZ * (LOG_STEP * (mel - KNEE_MEL)).exp(),
            MelScale::Htk => HTK_HZ * (10.0_f64.powf(mel / HTK_MEL) - 1.0),
        }
    }
}

/// The lower triangle `L` of `L Lᵀ = matrix`, which is symmetric. A row that depends on others (or is 0) would divide
/// by nothing; it is taken out by an infinite pivot, and its unknown comes out 0.
fn cholesky(mut matrix: Vec<f64>, n: usize) -> Vec<f64> {
    let largest = (0..n).map(|i| matrix[i * n + i]).fold(0.0, f64::max);
    for j in 0..n {
        let pivot = matrix[j * n + j] - (0..j).map(|k| matrix[j * n + k].powi(2)).sum::<f64>();
        let pivot = if pivot > 1e-12 * largest { pivot.sqrt() } else { f64::INFINITY };
        matrix[j * n + j] = pivot;
        for i in j + 1..n {
            let below: f64 = (0..j).map(|k| matrix[i * n + k] * matrix[j * n + k]).sum();
            matrix[i * n + j] = (matrix[i * n + j] - below) / pivot;
        }
    }
    matrix
}

/// Replaces `x` by the solution of `L Lᵀ y = x`.
fn solve(lower: &[f64], n: usize, x: &mut [f64]) {
    for i in 0..n {
        let known: f64 = (0..i).map(|k| lower[i * n + k] * x[k]).sum();
        x[i] = (x[i] - known) / lower[i * n + i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| lower[k * n + i] * x[k]).sum();
        x[i] = (x[i] - known) / lower[i * n + i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slaneys_scale_is_linear_then_logarithmic() {
        for (hz, mel) in [(0.0, 0.0), (200.0, 3.0), (1000.0, 15.0), (6400.0, 42.0)] {
            let scale = MelScale::Slaney;
            assert!((scale.mel_of(hz) - mel).abs() < 1e-12 && (scale.hz_of(mel) - hz).abs() < 1e-9);
        }
        assert!((LOG_STEP - 6.4_f64.ln() / 27.0).abs() < 1e-17);
    }

    #[test]
    fn htks_scale_is_logarithmic_and_leads_back() {
        let scale = MelScale::Htk;
        for (hz, mel) in [(0.0, 0.0), (6300.0, 2595.0), (1000.0, 999.985_537_139_624_4)] {
            assert!((scale.mel_of(hz) - mel).abs() < 1e-9 && (scale.hz_of(mel) - hz).abs() < 1e-9, "{hz} {mel}");
        }
    }

    #[test]
    fn without_a_norm_triangles_have_height_1() {
        let settings = FeatureSettings { n_fft: 8192, mel_norm: MelNorm::None, ..FeatureSettings::default() };
        for (band, (_, weights)) in Filterbank::new(&settings).bands().enumerate() {
            let top = weights.iter().copied().fold(0.0, f64::max);
            assert!(top > 0.9 && top <= 1.0, "{band}: {top}");
        }
    }

    #[test]
    fn there_and_back_through_the_inverse_changes_nothing() {
        let settings = FeatureSettings::default();
        let filterbank = Filterbank::new(&settings);
        let (rows, inverse) = (filterbank.dense(), filterbank.pseudo_inverse());
        for i in 0..80 {
            for j in 0..80 {
                let product: f64 = (0..513).map(|bin| rows[i * 513 + bin] * inverse[bin * 80 + j]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-9, "{i} {j}: {product}");
            }
        }
    }

    #[test]
    fn bands_between_two_bins_do_no_harm() {
        let settings = FeatureSettings { n_mels: 400, ..FeatureSettings::default() };
        let filterbank = Filterbank::new(&settings);
        assert!(filterbank.bands().any(|(_, weights)| weights.is_empty()));
        assert!(filterbank.pseudo_inverse().iter().all(|x| x.is_finite()));
    }
}
