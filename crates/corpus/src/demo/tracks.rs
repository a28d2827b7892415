//! What the synthesiser's controls are set to, frame by frame: phones become targets, and targets become movements.

use super::phones::{DemoPhone, Formants, Manner, NEUTRAL};
use super::prosody::{Note, Score};
use super::voice::DemoVoice;

/// The controls at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controls {
    pub(super) formants_hz: Formants,
    /// Loudness of the voice, of breath through the mouth, and of noise made in it.
    pub(super) voice: f64,
    pub(super) breath: f64,
    pub(super) noise: f64,
    pub(super) noise_hz: f64,
    pub(super) noise_width_hz: f64,
    /// How far the nose is open, and what the mouth takes out then.
    pub(super) nasal: f64,
    pub(super) nasal_zero_hz: f64,
    pub(super) pitch_hz: f64,
}

/// Controls for every frame of an utterance.
#[derive(Clone, Debug)]
pub(super) struct ControlTracks {
    pub(super) frames: Vec<Controls>,
}

/// Formants take this many frames to either side to move (23 ms), loudness this many (6 ms): tongues are slow, lips
/// and breath are not.
const FORMANT_REACH: usize = 8;
const LEVEL_REACH: usize = 2;

impl ControlTracks {
    /// The movements of `voice` saying `score`.
    pub(super) fn new(score: &Score, voice: &DemoVoice) -> ControlTracks {
        let mut frames: Vec<Controls> = Vec::with_capacity(score.pitch_hz.len());
        for (i, note) in score.notes.iter().enumerate() {
            let (before, after) = (i.checked_sub(1).map(|i| &score.notes[i]), score.notes.get(i + 1));
            push_note(&mut frames, note, before, after);
        }
        for i in 0..3 {
            // Twice, for a movement without corners.
            smooth(&mut frames, FORMANT_REACH, |frame| &mut frame.formants_hz[i]);
            smooth(&mut frames, FORMANT_REACH, |frame| &mut frame.formants_hz[i]);
        }
        smooth(&mut frames, FORMANT_REACH, |frame| &mut frame.nasal);
        smooth(&mut frames, LEVEL_REACH, |frame| &mut frame.voice);
        smooth(&mut frames, LEVEL_REACH, |frame| &mut frame.breath);
        smooth(&mut frames, LEVEL_REACH / 2, |frame| &mut frame.noise);
        for (frame, pitch_hz) in frames.iter_mut().zip(&score.pitch_hz) {
            frame.pitch_hz = *pitch_hz;
            for ((hz, neutral_hz), scale) in frame.formants_hz.iter_mut().zip(NEUTRAL).zip(voice.formant_scales) {
                // So written that a clarity of 1 changes no bit.
                let clear_hz = neutral_hz * (1.0 - voice.clarity) + *hz * voice.clarity;
                *hz = clear_hz * voice.tract_scale * scale;
            }
            frame.nasal = voice.nasality + (1.0 - voice.nasality) * frame.nasal;
            frame.noise *= voice.hiss_level;
            frame.noise_hz = (frame.noise_hz * voice.tract_scale).min(9500.0);
            frame.nasal_zero_hz *= voice.tract_scale;
        }
        ControlTracks { frames }
    }
}

/// Adds the targets of a note, in pieces where it has some.
fn push_note(frames: &mut Vec<Controls>, note: &Note, before: Option<&Note>, after: Option<&Note>) {
    let phone = note.phone;
    let (start, end) = match phone.manner {
        // The mouth is where the next phone wants it; during silence it moves there.
        Manner::Breath => (next_formants(after), next_formants(after)),
        Manner::Silence => (before.map_or(NEUTRAL, |note| note.phone.end), next_formants(after)),
        Manner::Vowel if note.stress == 0 => (reduced(phone.start), reduced(phone.end)),
        _ => (phone.start, phone.end),
    };
    let total = note.num_frames;
    for frame in 0..total {
        let done = (frame as f64 + 0.5) / total as f64;
        let mut controls = at_rest(phone);
        for i in 0..3 {
            controls.formants_hz[i] = start[i] + (end[i] - start[i]) * done;
        }
        let before_vowel = after.is_some_and(|after| matches!(after.phone.manner, Manner::Vowel | Manner::Glide));
        set_levels(&mut controls, phone, frame, total, before_vowel);
        frames.push(controls);
    }
}

/// How loud everything is in a frame of a phone.
fn set_levels(controls: &mut Controls, phone: &DemoPhone, frame: usize, total: usize, before_vowel: bool) {
    let voice = if phone.voiced { 1.0 } else { 0.0 };
    match phone.manner {
        Manner::Vowel => controls.voice = 1.0,
        Manner::Glide => controls.voice = 0.75,
        Manner::Nasal => {
            controls.voice = 0.6;
            controls.nasal = 1.0;
        }
        Manner::Fricative => {
            controls.voice = 0.45 * voice;
            controls.noise = phone.noise_level;
        }
        Manner::Breath => controls.breath = 0.5,
        Manner::Silence => {}
        Manner::Stop => {
            let breath_frames = if phone.voiced || !before_vowel { 2 } else { 12 };
            let opened = total.saturating_sub(4 + breath_frames);
            if frame < opened {
                // Voice goes on behind closed lips for a while.
                controls.voice = 0.18 * voice;
            } else if frame < opened + 4 {
                controls.noise = phone.noise_level;
            } else {
                controls.breath = 0.3;
                controls.voice = 0.5 * voice;
            }
        }
        Manner::Affricate => {
            if frame < total * 2 / 5 {
                controls.voice = 0.18 * voice;
            } else {
                controls.noise = phone.noise_level;
                controls.voice = 0.35 * voice;
            }
        }
    }
}

fn at_rest(phone: &DemoPhone) -> Controls {
    Controls {
        formants_hz: phone.start,
        voice: 0.0,
        breath: 0.0,
        noise: 0.0,
        noise_hz: phone.noise_hz,
        noise_width_hz: phone.noise_width_hz,
        nasal: 0.0,
        nasal_zero_hz: if phone.nasal_zero_hz > 0.0 { phone.nasal_zero_hz } else { 1000.0 },
        pitch_hz: 0.0,
    }
}

fn next_formants(after: Option<&Note>) -> Formants {
    after.map_or(NEUTRAL, |note| note.phone.start)
}

/// Vowels without stress are said with less of the way to them.
fn reduced(formants: Formants) -> Formants {
    let mut reduced = formants;
    for i in 0..3 {
        reduced[i] = 0.8 * formants[i] + 0.2 * NEUTRAL[i];
    }
    reduced
}

/// Replaces every value by the mean of those up to `reach` frames away.
fn smooth(frames: &mut [Controls], reach: usize, mut value: impl FnMut(&mut Controls) -> &mut f64) {
    let old: Vec<f64> = frames.iter_mut().map(|frame| *value(frame)).collect();
    for (i, frame) in frames.iter_mut().enumerate() {
        let around = &old[i.saturating_sub(reach)..(i + reach + 1).min(old.len())];
        *value(frame) = around.iter().sum::<f64>() / around.len() as f64;
    }
}
