//! The voice of the speech: a reference spectrogram of a few seconds that conditions the model.

use tandem_audio::{Clip, FeatureSettings, LogMel, MelFrames, Resampler};
use tandem_model::{REFERENCE_FRAMES, reference_of};

use crate::error::SynthError;

/// The least speech in a reference recording.
const LEAST_S: f64 = 0.5;
/// Quieter windows count as silence, in dB of full scale: whispering into a bad microphone is louder.
const FLOOR_DB: f64 = -50.0;
/// The length of a window whose loudness is measured.
const WINDOW_S: f64 = 0.02;

/// A voice, ready for the model: a spectrogram of [`REFERENCE_FRAMES`] frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
    /// Where it is from.
    pub source: VoiceSource,
    pub(crate) frames: Vec<f32>,
}

/// Where a voice is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VoiceSource {
    /// A recording.
    Recording,
    /// A speaker of the checkpoint; the name is empty if the corpus names no speakers.
    Speaker(String),
    /// The mean spectrogram of the corpus, for a checkpoint without voices.
    Mean,
}

impl Voice {
    /// The voice of a recording with any sample rate: its loudest 4.6 s, or all of it repeated.
    ///
    /// Fails with [`SynthError::ReferenceTooShort`] and [`SynthError::ReferenceSilent`].
    pub(crate) fn of_recording(recording: &Clip, features: &FeatureSettings) -> Result<Voice, SynthError> {
        let mel = spectrogram_of(&without_silence(recording)?, features)?;
        Ok(Voice { source: VoiceSource::Recording, frames: reference_of(&mel.values, features.n_mels) })
    }

    /// The voice with the mean of each band in every frame.
    pub(crate) fn of_means(band_means: &[f32]) -> Voice {
        let frames = band_means.iter().cycle().take(band_means.len() * REFERENCE_FRAMES as usize).copied().collect();
        Voice { source: VoiceSource::Mean, frames }
    }
}

/// The log-mel spectrogram of a recording with any sample rate.
pub(crate) fn spectrogram_of(recording: &Clip, features: &FeatureSettings) -> Result<MelFrames, SynthError> {
    let mut clip = Clip::default();
    Resampler::new(features.rate_hz).clip_into(recording, &mut clip)?;
    let mut mel = MelFrames::default();
    LogMel::new(features)?.mel_into(&clip, &mut mel)?;
    Ok(mel)
}

/// The recording without silence at its start and end.
fn without_silence(recording: &Clip) -> Result<Clip, SynthError> {
    let (length_s, needed_s, floor_db) = (recording.seconds(), LEAST_S, FLOOR_DB);
    if length_s < needed_s {
        return Err(SynthError::ReferenceTooShort { found_s: length_s, needed_s });
    }
    let window = ((f64::from(recording.rate_hz) * WINDOW_S) as usize).max(1);
    let floor = 10.0_f64.powf(floor_db / 20.0) * 32_768.0;
    let is_loud = |samples: &[i16]| {
        let squares: f64 = samples.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        (squares / samples.len() as f64).sqrt() > floor
    };
    let loud: Vec<bool> = recording.samples.chunks(window).map(is_loud).collect();
    let loud_s = loud.iter().filter(|loud| **loud).count() as f64 * window as f64 / f64::from(recording.rate_hz);
    let ends = (loud.iter().position(|loud| *loud), loud.iter().rposition(|loud| *loud));
    match ends {
        (Some(first), Some(last)) if loud_s >= needed_s => {
            let end = ((last + 1) * window).min(recording.samples.len());
            Ok(Clip { samples: recording.samples[first * window..end].to_vec(), rate_hz: recording.rate_hz })
        }
        _ => Err(SynthError::ReferenceSilent { length_s, loud_s, floor_db, needed_s }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Silence, a tone, silence.
    fn tone(before_s: f64, seconds: f64, after_s: f64, height: f64) -> Clip {
        let rate_hz = 16_000;
        let count = |seconds: f64| (seconds * f64::from(rate_hz)).round() as usize;
        let mut samples = vec![0; count(before_s)];
        samples.extend((0..count(seconds)).map(|i| (height * (i as f64 * 0.1).sin()) as i16));
        samples.extend(vec![0; count(after_s)]);
        Clip { samples, rate_hz }
    }

    #[test]
    fn silence_at_the_ends_is_cut_off() {
        let trimmed = without_silence(&tone(1.0, 2.0, 3.0, 9000.0)).unwrap();
        assert!((trimmed.seconds() - 2.0).abs() < 0.05, "{}", trimmed.seconds());
    }

    #[test]
    fn a_recording_without_speech_is_refused() {
        let check = |clip: Clip, part: &str| {
            let error = Voice::of_recording(&clip, &FeatureSettings::default()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(Clip::default(), "found 0.00 s");
        check(tone(0.0, 0.01, 0.0, 9000.0), "found 0.01 s");
        check(tone(0.0, 0.49, 0.0, 9000.0), "found 0.49 s");
        check(tone(2.0, 0.0, 0.0, 0.0), "the recording is silent: of 2.00 s, 0.00 s are above -50 dB");
        check(tone(1.0, 0.3, 1.0, 9000.0), "0.30 s are above");
        check(tone(0.0, 5.0, 0.0, 50.0), "is silent");
    }

    #[test]
    fn a_short_recording_is_repeated() {
        let settings = FeatureSettings::default();
        for seconds in [0.6, 3.0, 20.0] {
            let voice = Voice::of_recording(&tone(0.0, seconds, 0.0, 9000.0), &settings).unwrap();
            assert_eq!(voice.frames.len(), 400 * 80);
            // The tone is in every frame: there is no silence between the repetitions.
            let loudest = |frame: &[f32]| frame.iter().copied().fold(f32::MIN, f32::max);
            assert!(voice.frames.chunks_exact(80).all(|frame| loudest(frame) > 0.0), "{seconds}");
        }
        assert_eq!(Voice::of_means(&[1.0, 2.0]).frames[796..], [1.0, 2.0, 1.0, 2.0]);
    }
}
