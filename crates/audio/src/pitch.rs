//! The pitch of every mel frame, by YIN (de Cheveigné and Kawahara, 2002), in the form librosa gives it.
//!
//! In comes a [`Clip`], out go as many values as there are mel frames, over the very same (mirrored) samples: Hz, or 0
//! where nothing sings. A frame's difference function over lags is normalised by its running mean; the first dip below
//! `trough_threshold` is the period, else the deepest one, refined by a parabola. What is left of the difference there
//! is the aperiodicity, by which a frame counts as voiced or not. In f64: a dip is a small difference of large sums.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

use crate::stft::{frames, mirror_into};
use crate::{AudioError, Clip, FeatureSettings};

/// Where to look for a pitch, and when to believe it.
#[derive(Clone, Debug, PartialEq)]
pub struct PitchSettings {
    /// The deepest voice.
    pub fmin_hz: f64,
    /// The highest.
    pub fmax_hz: f64,
    /// The first dip below this is taken, before deeper ones at twice or three times the period.
    pub trough_threshold: f64,
    /// Above this a frame is unvoiced. (A frame of finite length leaves about `period / (2 * n_fft)` of a perfect
    /// tone: 0.1 at 108 Hz, 0.17 at 65 Hz. Noise is at 0.7 and above; in recorded speech, loud frames are fewest
    /// between 0.4 and 0.6.)
    pub max_aperiodicity: f64,
    /// Below this root mean square (full scale 1) a frame is silence, and silence is unvoiced.
    pub silence_rms: f64,
}

impl Default for PitchSettings {
    fn default() -> Self {
        PitchSettings { fmin_hz: 65.0, fmax_hz: 600.0, trough_threshold: 0.1, max_aperiodicity: 0.4, silence_rms: 1e-3 }
    }
}

impl PitchSettings {
    /// The shortest and the longest period looked for, in samples.
    ///
    /// Fails with [`AudioError::Settings`] when they do not lie inside a frame with room between them.
    pub(crate) fn periods(&self, settings: &FeatureSettings) -> Result<(usize, usize), AudioError> {
        let rate_hz = f64::from(settings.rate_hz);
        let min_period = (rate_hz / self.fmax_hz).floor() as usize;
        let max_period = ((rate_hz / self.fmin_hz).ceil() as usize).min(settings.n_fft - 1);
        if !(self.fmin_hz > 0.0 && min_period >= 1 && max_period >= min_period + 2) {
            let what = format!("pitch needs 0 < fmin_hz < fmax_hz and periods inside a frame, found {self:?}");
            return Err(AudioError::Settings { what });
        }
        Ok((min_period, max_period))
    }
}

/// What YIN finds in a frame, before anybody decides whether it is a voice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yin {
    /// The likeliest pitch.
    pub hz: f64,
    /// 0 for a perfect tone, around 1 for noise.
    pub aperiodicity: f64,
    /// Root mean square of the frame's samples, full scale 1.
    pub rms: f64,
}

/// Finds the pitch of frames of one size. Holds Fourier plans and scratch: one per thread, kept.
pub struct PitchTracker {
    settings: FeatureSettings,
    pitch: PitchSettings,
    min_period: usize,
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
    /// Twice a frame, so that a frame's end does not wrap into its start.
    signal: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    /// The normalised difference for lags `min_period ..= max_period`.
    difference: Vec<f64>,
    padded: Vec<f64>,
}

impl PitchTracker {
    /// Plans the transforms.
    ///
    /// Fails with [`AudioError::Settings`].
    pub fn new(settings: &FeatureSettings, pitch: &PitchSettings) -> Result<PitchTracker, AudioError> {
        settings.check()?;
        let (min_period, max_period) = pitch.periods(settings)?;
        let mut planner = RealFftPlanner::new();
        let forward = planner.plan_fft_forward(2 * settings.n_fft);
        let inverse = planner.plan_fft_inverse(2 * settings.n_fft);
        let scratch_len = forward.get_scratch_len().max(inverse.get_scratch_len());
        Ok(PitchTracker {
            settings: settings.clone(),
            pitch: pitch.clone(),
            min_period,
            signal: forward.make_input_vec(),
            spectrum: forward.make_output_vec(),
            scratch: vec![Complex::default(); scratch_len],
            difference: vec![0.0; max_period - min_period + 1],
            padded: Vec::new(),
            forward,
            inverse,
        })
    }

    /// The pitch of every mel frame of `clip`, in `out`: Hz, 0 where unvoiced or silent.
    ///
    /// Fails with [`AudioError::WrongRate`] and [`AudioError::TooShort`].
    pub fn pitch_into(&mut self, clip: &Clip, out: &mut Vec<f32>) -> Result<(), AudioError> {
        out.clear();
        let PitchSettings { max_aperiodicity, silence_rms, .. } = self.pitch;
        self.run(clip, |yin| {
            let voiced = yin.aperiodicity <= max_aperiodicity && yin.rms >= silence_rms;
            out.push(if voiced { yin.hz as f32 } else { 0.0 });
        })
    }

    /// What YIN finds in every mel frame, voiced or not, in `out`. Fails like [`PitchTracker::pitch_into`].
    pub fn yin_into(&mut self, clip: &Clip, out: &mut Vec<Yin>) -> Result<(), AudioError> {
        out.clear();
        self.run(clip, |yin| out.push(yin))
    }

    fn run(&mut self, clip: &Clip, mut each: impl FnMut(Yin)) -> Result<(), AudioError> {
        self.settings.check_clip(clip)?;
        let mut padded = std::mem::take(&mut self.padded);
        mirror_into(&clip.samples, self.settings.pad_samples(), &mut padded);
        let rate_hz = f64::from(self.settings.rate_hz);
        for frame in frames(&padded, &self.settings) {
            self.normalised_difference(frame);
            let dip = find_dip(&self.difference, self.pitch.trough_threshold);
            let period = (self.min_period + dip) as f64 + parabola_shift(&self.difference, dip);
            let power = frame.iter().map(|x| x * x).sum::<f64>() / frame.len() as f64;
            each(Yin { hz: rate_hz / period, aperiodicity: self.difference[dip], rms: power.sqrt() });
        }
        self.padded = padded;
        Ok(())
    }

    /// Fills `difference` for a frame. At lag `k` the difference is `2 (r(0) - r(k)) - (energy of the first k samples)`
    /// with `r` the autocorrelation: the frame against itself shifted, zeros shifted in.
    fn normalised_difference(&mut self, frame: &[f64]) {
        self.autocorrelate(frame);
        let correlation = &self.signal;
        let (mut energy, mut sum) = (0.0, 0.0);
        for k in 1..self.min_period + self.difference.len() {
            energy += frame[k - 1] * frame[k - 1];
            // At lag 1 librosa forgets the first sample's energy. So do we, to agree with it.
            let head = if k == 1 { 0.0 } else { energy };
            let difference = 2.0 * (correlation[0] - correlation[k]) - head;
            sum += difference;
            if k >= self.min_period {
                self.difference[k - self.min_period] = difference / (sum / k as f64 + f64::MIN_POSITIVE);
            }
        }
    }

    /// Leaves the frame's autocorrelation in `signal`.
    fn autocorrelate(&mut self, frame: &[f64]) {
        let (start, rest) = self.signal.split_at_mut(frame.len());
        start.copy_from_slice(frame);
        rest.fill(0.0);
        let len = self.forward.get_scratch_len();
        let there = self.forward.process_with_scratch(&mut self.signal, &mut self.spectrum, &mut self.scratch[..len]);
        let scale = 1.0 / self.signal.len() as f64;
        self.spectrum.iter_mut().for_each(|bin| *bin = Complex::new(bin.norm_sqr() * scale, 0.0));
        let len = self.inverse.get_scratch_len();
        let back = self.inverse.process_with_scratch(&mut self.spectrum, &mut self.signal, &mut self.scratch[..len]);
        assert!(there.is_ok() && back.is_ok(), "the buffers are the plans' own");
    }
}

/// The first local minimum below the threshold, else the lowest point of all.
pub(crate) fn find_dip(difference: &[f64], threshold: f64) -> usize {
    let last = difference.len() - 1;
    let is_dip = |i: usize| {
        let falls = i == 0 || difference[i] < difference[i - 1];
        let rises = match i {
            // At the ends there is one neighbour to compare with.
            0 => difference[0] < difference[1],
            _ if i == last => true,
            _ => difference[i] <= difference[i + 1],
        };
        falls && rises
    };
    let lowest = || (0..=last).fold(0, |best, i| if difference[i] < difference[best] { i } else { best });
    (0..=last).find(|&i| difference[i] < threshold && is_dip(i)).unwrap_or_else(lowest)
}

/// How far the minimum of the parabola through three points lies from the middle one: less than a lag, or not at all.
pub(crate) fn parabola_shift(difference: &[f64], i: usize) -> f64 {
    if i == 0 || i + 1 == difference.len() {
        return 0.0;
    }
    let (left, middle, right) = (difference[i - 1], difference[i], difference[i + 1]);
    let (bend, slope) = (left + right - 2.0 * middle, (right - left) / 2.0);
    if slope.abs() >= bend.abs() { 0.0 } else { -slope / bend }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn track(samples: Vec<i16>) -> Vec<f32> {
        let mut tracker = PitchTracker::new(&FeatureSettings::default(), &PitchSettings::default()).unwrap();
        let mut out = Vec::new();
        tracker.pitch_into(&Clip { samples, rate_hz: 22_050 }, &mut out).unwrap();
        out
    }

    /// A tone with six harmonics, as a voice has.
    fn voice(hz: f64, amplitude: f64) -> Vec<i16> {
        let at = |i: i32| (1..=6).map(|k| (TAU * hz * f64::from(i * k) / 22_050.0).sin() / f64::from(k)).sum::<f64>();
        (0..22_050).map(|i| (amplitude * at(i)) as i16).collect()
    }

    #[test]
    fn voices_from_deep_to_high() {
        for hz in [70.0, 85.0, 110.0, 150.0, 220.0, 330.0, 440.0, 590.0] {
            let pitch = track(voice(hz, 6000.0));
            assert_eq!(pitch.len(), 22_050 / 256);
            // The ends are mirrored: the tone has a kink there.
            for found in &pitch[3..pitch.len() - 3] {
                assert!((f64::from(*found) / hz - 1.0).abs() < 0.01, "{hz} Hz taken for {found} Hz");
            }
        }
    }

    #[test]
    fn noise_and_silence_have_no_pitch() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as i16) / 8
        };
        let pitch = track((0..22_050).map(|_| noise()).collect());
        assert!(pitch.iter().filter(|&&hz| hz > 0.0).count() <= 1, "{pitch:?}");
        assert!(track(vec![0; 22_050]).iter().all(|&hz| hz == 0.0));
        assert!(track(voice(200.0, 10.0)).iter().all(|&hz| hz == 0.0));
    }

    #[test]
    fn pitches_outside_a_frame_are_refused() {
        for (fmin_hz, fmax_hz) in [(0.0, 600.0), (600.0, 65.0), (f64::NAN, 600.0), (65.0, 1e9), (598.0, 600.0)] {
            let pitch = PitchSettings { fmin_hz, fmax_hz, ..PitchSettings::default() };
            let refused = PitchTracker::new(&FeatureSettings::default(), &pitch);
            assert!(matches!(refused, Err(AudioError::Settings { .. })), "{fmin_hz} {fmax_hz}");
        }
    }
}
