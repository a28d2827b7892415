//! Sound to log-mel frames and back by Griffin-Lim: how far from where it started.

use std::io::Cursor;

use crate::common::{clip, voice_folder};
use tandem_audio::{
    Clip, FeatureSettings, GriffinLim, LogMel, MelFrames, PitchSettings, PitchTracker, Resampler, decode,
};

/// What the module promises of recordings.
const RECORDING_BOUND: f64 = 0.3;

/// Log-spectral distance: root mean square over the bands of a frame, mean over the frames, natural logarithm.
fn distance(before: &MelFrames, after: &MelFrames) -> f64 {
    assert_eq!(before.num_frames(), after.num_frames());
    let of_frame = |t: usize| {
        let squares: f32 = before.frame(t).iter().zip(after.frame(t)).map(|(a, b)| (a - b).powi(2)).sum();
        f64::from(squares / before.n_mels as f32).sqrt()
    };
    (0..before.num_frames()).map(of_frame).sum::<f64>() / before.num_frames() as f64
}

fn round_trip(original: &Clip) -> f64 {
    let settings = FeatureSettings::default();
    let mut log_mel = LogMel::new(&settings).unwrap();
    let (mut before, mut after, mut copy) = (MelFrames::default(), MelFrames::default(), Clip::default());
    log_mel.mel_into(original, &mut before).unwrap();
    GriffinLim::new(&settings).unwrap().clip_into(&before, 1234, &mut copy).unwrap();
    assert_eq!(copy.samples.len(), before.num_frames() * settings.hop_samples);
    log_mel.mel_into(&copy, &mut after).unwrap();
    distance(&before, &after)
}

#[test]
fn a_voice_of_sorts_comes_back() {
    let distance = round_trip(&clip("speech"));
    assert!(distance < 0.4, "{distance}");
}

#[test]
fn noise_instead_of_the_copy_would_be_noticed() {
    let settings = FeatureSettings::default();
    let mut log_mel = LogMel::new(&settings).unwrap();
    let (mut before, mut after) = (MelFrames::default(), MelFrames::default());
    let voice = clip("speech");
    log_mel.mel_into(&voice, &mut before).unwrap();
    let noise = (0..voice.samples.len() as u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 20) as i16) - 2048);
    log_mel.mel_into(&Clip { samples: noise.collect(), rate_hz: 22_050 }, &mut after).unwrap();
    assert!(distance(&before, &after) > 2.0);
}

#[test]
fn a_recorded_voice_comes_back() {
    let Some(folder) = voice_folder() else { return };
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let (mut file_clip, mut clip) = (Clip::default(), Clip::default());
    let mut resampler = Resampler::new(22_050);
    let mut tracker = PitchTracker::new(&FeatureSettings::default(), &PitchSettings::default()).unwrap();
    let mut pitch = Vec::new();
    for path in paths.iter().step_by(paths.len() / 3) {
        decode(Cursor::new(std::fs::read(path).unwrap()), &mut file_clip).unwrap();
        resampler.clip_into(&file_clip, &mut clip).unwrap();
        let distance = round_trip(&clip);
        assert!(distance < RECORDING_BOUND, "{}: {distance}", path.display());
        // A woman reading: a good part of it sung, at a woman's pitch.
        tracker.pitch_into(&clip, &mut pitch).unwrap();
        let mut voiced: Vec<f32> = pitch.iter().copied().filter(|&hz| hz > 0.0).collect();
        voiced.sort_by(f32::total_cmp);
        let share = voiced.len() as f64 / pitch.len() as f64;
        let median = voiced[voiced.len() / 2];
        assert!((0.3..0.9).contains(&share) && (140.0..280.0).contains(&median), "{share} at {median} Hz");
    }
}
