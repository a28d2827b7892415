//! Features of one recording on the CPU, exactly as the pipeline makes them.
//!
//! Audio at any sample rate becomes log-mel, energy and pitch with the same number of frames. Every device follows the same
//! steps: decode and downmix, round to int16; resample, round to int16; features. Recordings above 48 kHz are resampled by the
//! decode thread, others on the data device. Both resample directly to the features' rate, so the result is the same.

use std::io::{Read, Seek};

use tandem_audio::{
    AudioError, Clip, FeatureSettings, LogMel, MelFrames, PitchSettings, PitchTracker, Resampler, decode,
};

/// The features of one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// Log-mel frames.
    pub mel: MelFrames,
    /// The energy of every frame.
    pub energy: Vec<f32>,
    /// The pitch of every frame in Hz, 0 for unvoiced frames; empty unless asked for.
    pub pitch: Vec<f32>,
}

/// Makes features on the CPU. Has filters, FFT plans and scratch memory: create one per thread, and reuse it.
pub struct Featurizer {
    settings: FeatureSettings,
    resampler: Resampler,
    log_mel: LogMel,
    pitch: PitchTracker,
    decoded: Clip,
    resampled: Clip,
}

impl Featurizer {
    /// Creates filters and FFT plans. Fails with [`AudioError::Settings`].
    pub fn new(settings: &FeatureSettings) -> Result<Featurizer, AudioError> {
        Ok(Featurizer {
            resampler: Resampler::new(settings.rate_hz),
            log_mel: LogMel::new(settings)?,
            pitch: PitchTracker::new(settings, &PitchSettings::default())?,
            settings: settings.clone(),
            decoded: Clip::default(),
            resampled: Clip::default(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &FeatureSettings {
        &self.settings
    }

    /// Writes log-mel and energy of `clip` to `out`, and the pitch if `with_pitch`.
    ///
    /// Fails with [`AudioError::RatePair`] and [`AudioError::TooShort`].
    pub fn clip_into(&mut self, clip: &Clip, with_pitch: bool, out: &mut Features) -> Result<(), AudioError> {
        out.pitch.clear();
        self.resampler.clip_into(clip, &mut self.resampled)?;
        self.log_mel.mel_energy_into(&self.resampled, &mut out.mel, &mut out.energy)?;
        if with_pitch { self.pitch.pitch_into(&self.resampled, &mut out.pitch) } else { Ok(()) }
    }

    /// The same for the bytes of a file. Also fails like [`decode`].
    pub fn file_into<S: Read + Seek + Send + Sync>(
        &mut self,
        file: S,
        with_pitch: bool,
        out: &mut Features,
    ) -> Result<(), AudioError> {
        let mut decoded = std::mem::take(&mut self.decoded);
        let outcome = decode(file, &mut decoded).and_then(|()| self.clip_into(&decoded, with_pitch, out));
        self.decoded = decoded;
        outcome
    }
}

/// Frames that [`Featurizer`] makes from `num_samples` at `rate_hz`.
pub(crate) fn num_frames(num_samples: usize, rate_hz: u32, settings: &FeatureSettings) -> usize {
    settings.num_frames(num_resampled(num_samples, rate_hz, settings))
}

/// Samples of `num_samples` at `rate_hz` after resampling to the features' rate.
pub(crate) fn num_resampled(num_samples: usize, rate_hz: u32, settings: &FeatureSettings) -> usize {
    let scaled = num_samples as u128 * u128::from(settings.rate_hz);
    scaled.div_ceil(u128::from(rate_hz.max(1))) as usize
}

/// The most samples whose frames fit in `frames`.
pub(crate) fn most_samples(frames: usize, settings: &FeatureSettings) -> usize {
    let most = (frames + 1) * settings.hop_samples - 1;
    // Centred frames are one more than whole hops.
    if settings.num_frames(most) > frames { most - settings.hop_samples } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use tandem_audio::wav;

    /// A second and a bit of a buzz at `pitch_hz`.
    fn buzz(rate_hz: u32, pitch_hz: f64) -> Clip {
        let value = |i: u32| {
            (1..6)
                .map(|k| (f64::from(i * k) * pitch_hz * std::f64::consts::TAU / f64::from(rate_hz)).sin())
                .sum::<f64>()
        };
        Clip { samples: (0..rate_hz * 5 / 4 + 77).map(|i| (value(i) * 4000.0) as i16).collect(), rate_hz }
    }

    #[test]
    fn the_predicted_number_of_frames_is_right_at_every_rate() {
        let mut featurizer = Featurizer::new(&FeatureSettings::default()).unwrap();
        let mut out = Features::default();
        for rate_hz in [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000] {
            let clip = buzz(rate_hz, 150.0);
            featurizer.clip_into(&clip, true, &mut out).unwrap();
            let expected = num_frames(clip.samples.len(), rate_hz, featurizer.settings());
            assert_eq!([out.mel.num_frames(), out.energy.len(), out.pitch.len()], [expected; 3], "{rate_hz}");
            let middle = out.pitch[expected / 2];
            assert!((middle - 150.0).abs() < 1.0, "{middle} at {rate_hz}");
        }
    }

    #[test]
    fn a_file_gives_the_features_of_its_clip() {
        let mut featurizer = Featurizer::new(&FeatureSettings::default()).unwrap();
        let clip = buzz(44_100, 200.0);
        let mut file = Vec::new();
        wav::write(&clip, &mut file).unwrap();
        let (mut from_file, mut from_clip) = (Features::default(), Features::default());
        featurizer.file_into(Cursor::new(&file), true, &mut from_file).unwrap();
        featurizer.clip_into(&clip, true, &mut from_clip).unwrap();
        assert_eq!(from_file, from_clip);

        // Step by step: resampling with rounding, then the frames.
        let (mut resampled, mut mel) = (Clip::default(), MelFrames::default());
        Resampler::new(22_050).clip_into(&clip, &mut resampled).unwrap();
        LogMel::new(featurizer.settings()).unwrap().mel_into(&resampled, &mut mel).unwrap();
        assert_eq!(from_file.mel, mel);

        featurizer.file_into(Cursor::new(&file), false, &mut from_file).unwrap();
        assert!(from_file.pitch.is_empty());
    }

    #[test]
    fn audio_that_is_too_short_and_files_without_audio_are_errors() {
        let mut featurizer = Featurizer::new(&FeatureSettings::default()).unwrap();
        let mut out = Features::default();
        let short = Clip { samples: vec![0; 300], rate_hz: 22_050 };
        assert!(matches!(featurizer.clip_into(&short, false, &mut out), Err(AudioError::TooShort { .. })));
        assert!(matches!(featurizer.file_into(Cursor::new("x"), false, &mut out), Err(AudioError::NotAudio)));
    }
}
