//! How something is said, and how long each of its symbols lasts.

use std::ops::RangeInclusive;

use crate::error::SynthError;
use crate::split::Break;

/// A symbol lasts so long at most, in frames at rate 1: two seconds.
const LONGEST_TOKEN: f64 = 172.0;
/// A piece lasts so long at most, in frames: a minute and a half. Only a model that learnt nothing gets there.
pub(crate) const LONGEST_PIECE: usize = 8192;

/// How something is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechOptions {
    /// How fast: 2 takes half the time. See [`SpeechOptions::RATES`].
    pub rate: f64,
    /// Where all randomness starts: the same seed, the same sound.
    pub seed: u64,
}

impl Default for SpeechOptions {
    fn default() -> SpeechOptions {
        SpeechOptions { rate: 1.0, seed: 1234 }
    }
}

impl SpeechOptions {
    /// Rates at which speech is still speech.
    pub const RATES: RangeInclusive<f64> = 0.25..=4.0;

    /// Fails with [`SynthError::Rate`].
    pub(crate) fn check(&self) -> Result<(), SynthError> {
        if SpeechOptions::RATES.contains(&self.rate) { Ok(()) } else { Err(SynthError::Rate { found: self.rate }) }
    }

    /// Seconds of silence behind a piece.
    pub(crate) fn pause_s(&self, ends_with: Break) -> f64 {
        let unhurried = match ends_with {
            Break::Paragraph => 0.5,
            Break::Sentence => 0.25,
            Break::Clause => 0.12,
            Break::Word | Break::Letter => 0.0,
        };
        unhurried / self.rate
    }

    /// Frames of each symbol, from what the model guesses: ln(1 + frames). Guesses are too short or too long by `scale` on the
    /// whole, as the model was found to be. Each has one at least; what rounding takes from
    /// one the next is given, so that the whole is as long as it should be.
    ///
    /// Fails with [`SynthError::NotFinite`].
    pub(crate) fn durations(&self, log_durations: &[f32], scale: f64) -> Result<Vec<i32>, SynthError> {
        if log_durations.iter().any(|x| x.is_nan()) {
            return Err(SynthError::NotFinite { what: "durations" });
        }
        let natural = |log: &f32| (f64::from(*log).exp() - 1.0).clamp(1.0, LONGEST_TOKEN) * scale / self.rate;
        let mut exact: Vec<f64> = log_durations.iter().map(natural).collect();
        let whole: f64 = exact.iter().sum();
        let room = (LONGEST_PIECE - log_durations.len().min(LONGEST_PIECE / 2)) as f64;
        if whole > room {
            exact.iter_mut().for_each(|frames| *frames *= room / whole);
        }
        let (mut until, mut given) = (0.0, 0);
        let rounded = exact.iter().map(|frames| {
            until += frames;
            let frames = (until.round() as i64 - given).max(1);
            given += frames;
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
    fn the_whole_is_as_long_as_it_should_be() {
        let check = |frames: &[f64], rate: f64, expected: &[i32]| {
            let manner = SpeechOptions { rate, ..SpeechOptions::default() };
            assert_eq!(manner.durations(&log(frames), 1.0).unwrap(), expected, "{frames:?} at {rate}");
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
    fn what_is_guessed_too_short_is_stretched() {
        let stretched = |scale, rate| {
            SpeechOptions { rate, ..SpeechOptions::default() }.durations(&log(&[3.0, 5.0, 7.0]), scale).unwrap()
        };
        assert_eq!(stretched(2.0, 1.0), [6, 10, 14]);
        assert_eq!(stretched(2.0, 2.0), [3, 5, 7]);
    }

    #[test]
    fn a_model_that_learnt_nothing_does_no_harm() {
        let manner = SpeechOptions { rate: 0.25, ..SpeechOptions::default() };
        let endless = manner.durations(&[f32::INFINITY; 384], 1.0).unwrap();
        let whole: i32 = endless.iter().sum();
        assert!(whole as usize <= LONGEST_PIECE && endless.iter().all(|frames| *frames > 1), "{whole}");
        assert_eq!(manner.durations(&[f32::NEG_INFINITY; 3], 1.0).unwrap(), [4; 3]);
        assert!(matches!(manner.durations(&[0.0, f32::NAN], 1.0), Err(SynthError::NotFinite { .. })));
    }

    #[test]
    fn rates_that_are_no_speech_are_refused() {
        for rate in [0.25, 1.0, 4.0] {
            SpeechOptions { rate, ..SpeechOptions::default() }.check().unwrap();
        }
        for rate in [0.0, -1.0, 0.2, 5.0, f64::NAN, f64::INFINITY] {
            let error = SpeechOptions { rate, ..SpeechOptions::default() }.check().unwrap_err().to_string();
            assert!(error.starts_with("the speaking rate is 0.25 to 4, found"), "{error}");
        }
    }
}
