//! Speech options, and the durations of symbols.

use std::ops::RangeInclusive;

use crate::error::SynthError;
use crate::split::Break;

/// The longest duration of a symbol at rate 1, in frames: two seconds.
const LONGEST_TOKEN: f64 = 172.0;
/// The longest chunk, in frames: a minute and a half. Only an untrained model gets there.
pub(crate) const LONGEST_CHUNK: usize = 8192;

/// How a text is spoken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechOptions {
    /// The speaking rate: 2 takes half the time. See [`SpeechOptions::RATES`].
    pub rate: f64,
    /// The seed of all random numbers: the same seed gives the same waveform.
    pub seed: u64,
}

impl Default for SpeechOptions {
    fn default() -> SpeechOptions {
        SpeechOptions { rate: 1.0, seed: 1234 }
    }
}

impl SpeechOptions {
    /// The allowed speaking rates.
    pub const RATES: RangeInclusive<f64> = 0.25..=4.0;

    /// Fails with [`SynthError::Rate`].
    pub(crate) fn check(&self) -> Result<(), SynthError> {
        if SpeechOptions::RATES.contains(&self.rate) { Ok(()) } else { Err(SynthError::Rate { found: self.rate }) }
    }

    /// Seconds of silence after a chunk.
    pub(crate) fn pause_s(&self, ends_with: Break) -> f64 {
        let at_rate_1 = match ends_with {
            Break::Paragraph => 0.5,
            Break::Sentence => 0.25,
            Break::Clause => 0.12,
            Break::Word | Break::Letter => 0.0,
        };
        at_rate_1 / self.rate
    }

    /// Frames of each symbol, from the predicted ln(1 + frames) and the correction factor `scale`. Each symbol has at least
    /// one frame. Rounding errors carry over to the next symbol, so that the sum is right.
    ///
    /// Fails with [`SynthError::NotFinite`].
    pub(crate) fn durations(&self, log_durations: &[f32], scale: f64) -> Result<Vec<i32>, SynthError> {
        if log_durations.iter().any(|x| x.is_nan()) {
            return Err(SynthError::NotFinite { what: "durations" });
        }
        let frames = |log: &f32| (f64::from(*log).exp() - 1.0).clamp(1.0, LONGEST_TOKEN) * scale / self.rate;
        let mut exact: Vec<f64> = log_durations.iter().map(frames).collect();
        let total: f64 = exact.iter().sum();
        let room = (LONGEST_CHUNK - log_durations.len().min(LONGEST_CHUNK / 2)) as f64;
        if total > room {
            exact.iter_mut().for_each(|frames| *frames *= room / total);
        }
        let (mut end, mut assigned) = (0.0, 0);
        let rounded = exact.iter().map(|frames| {
            end += frames;
            let frames = (end.round() as i64 - assigned).max(1);
            assigned += frames;
            frames as i32
        });
        Ok(rounded.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(frames: &[f64]) -> Vec<f32> {
        frames.iter().map(|frames| (1.0 + frames).ln() as f32).collect()
    }

    #[test]
    fn durations_round_to_the_right_sum() {
        let check = |frames: &[f64], rate: f64, expected: &[i32]| {
            let options = SpeechOptions { rate, ..SpeechOptions::default() };
            assert_eq!(options.durations(&log(frames), 1.0).unwrap(), expected, "{frames:?} at {rate}");
        };
        check(&[3.0, 5.0, 7.0], 1.0, &[3, 5, 7]);
        check(&[3.0, 5.0, 7.0], 0.5, &[6, 10, 14]);
        check(&[3.0, 3.0, 3.0, 3.0], 2.0, &[2, 1, 2, 1]);
        check(&[2.4, 2.4, 2.4, 2.4, 2.4], 1.0, &[2, 3, 2, 3, 2]);
        check(&[0.0, 0.2, 9.0], 1.0, &[1, 1, 9]);
        check(&[0.0, 0.2, 9.0], 0.25, &[4, 4, 36]);
        check(&[1.0, 1.0, 4.0], 4.0, &[1, 1, 1]);
        check(&[], 1.0, &[]);
    }

    #[test]
    fn durations_are_corrected_by_the_scale() {
        let stretched = |scale, rate| {
            SpeechOptions { rate, ..SpeechOptions::default() }.durations(&log(&[3.0, 5.0, 7.0]), scale).unwrap()
        };
        assert_eq!(stretched(2.0, 1.0), [6, 10, 14]);
        assert_eq!(stretched(2.0, 2.0), [3, 5, 7]);
    }

    #[test]
    fn an_untrained_model_is_limited() {
        let options = SpeechOptions { rate: 0.25, ..SpeechOptions::default() };
        let endless = options.durations(&[f32::INFINITY; 384], 1.0).unwrap();
        let total: i32 = endless.iter().sum();
        assert!(total as usize <= LONGEST_CHUNK && endless.iter().all(|frames| *frames > 1), "{total}");
        assert_eq!(options.durations(&[f32::NEG_INFINITY; 3], 1.0).unwrap(), [4; 3]);
        assert!(matches!(options.durations(&[0.0, f32::NAN], 1.0), Err(SynthError::NotFinite { .. })));
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        for rate in [0.25, 1.0, 4.0] {
            SpeechOptions { rate, ..SpeechOptions::default() }.check().unwrap();
        }
        for rate in [0.0, -1.0, 0.2, 5.0, f64::NAN, f64::INFINITY] {
            let error = SpeechOptions { rate, ..SpeechOptions::default() }.check().unwrap_err().to_string();
            assert!(error.starts_with("expected a speaking rate of 0.25 to 4, found"), "{error}");
        }
    }
}
