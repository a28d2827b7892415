//! When each phone is said, how high and how strongly: a score for the synthesiser.
//!
//! Stressed vowels are longer and higher, the last syllable before a pause is longer still, the voice sinks over the
//! sentence and falls at its end, or rises when it asks.

use super::dice::Dice;
use super::grammar::DemoSentence;
use super::phones::{DemoPhone, Manner, SILENCE, phone};
use super::voice::DemoVoice;
use super::{PhoneSpan, RATE_HZ};

/// Samples of a control frame: everything lasts a whole number of them. 2.9 ms.
pub(super) const FRAME_SAMPLES: u32 = 64;

/// A phone with its place in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) phone: &'static DemoPhone,
    pub(super) stress: u8,
    pub(super) num_frames: usize,
}

/// All phones of an utterance, and its pitch.
#[derive(Clone, Debug)]
pub(super) struct Score {
    pub(super) notes: Vec<Note>,
    /// Per control frame.
    pub(super) pitch_hz: Vec<f64>,
}

impl Score {
    /// What is said when.
    pub(super) fn spans(&self) -> Vec<PhoneSpan> {
        let span = |note: &Note| PhoneSpan {
            phone: note.phone.name,
            stress: note.stress,
            num_samples: note.num_frames as u32 * FRAME_SAMPLES,
        };
        self.notes.iter().map(span).collect()
    }
}

/// How `voice` says `sentence`.
pub(super) fn score(sentence: &DemoSentence, voice: &DemoVoice, dice: &mut Dice) -> Score {
    let mut notes = vec![note(SILENCE, 0, 1.0, dice)];
    for (i, word) in sentence.words.iter().enumerate() {
        let last = i + 1 == sentence.words.len();
        let before_pause = last || sentence.commas.contains(&i);
        push_word(&mut notes, word.phones, before_pause, voice, dice);
        if before_pause && !last {
            notes.push(note(SILENCE, 0, 0.6 / voice.speed, dice));
        }
    }
    notes.push(note(SILENCE, 0, 1.0, dice));
    let pitch_hz = pitch(&notes, sentence.question, voice, dice);
    Score { notes, pitch_hz }
}

fn push_word(notes: &mut Vec<Note>, phones: &'static str, before_pause: bool, voice: &DemoVoice, dice: &mut Dice) {
    let symbols: Vec<&str> = phones.split(' ').collect();
    let last_vowel = symbols.iter().rposition(|symbol| symbol.ends_with(['0', '1']));
    for (i, symbol) in symbols.iter().enumerate() {
        let stress = u8::from(symbol.ends_with('1'));
        let Some(phone) = phone(symbol.trim_end_matches(['0', '1'])) else { continue };
        let stretch = match phone.manner {
            Manner::Vowel if stress == 0 => 0.75,
            Manner::Vowel => 1.1,
            _ => 1.0,
        };
        let at_end = if before_pause && Some(i) >= last_vowel { 1.4 } else { 1.0 };
        notes.push(note(phone, stress, stretch * at_end / voice.speed, dice));
    }
}

/// `phone`, its own duration times `stretch`, give or take a little.
fn note(phone: &'static DemoPhone, stress: u8, stretch: f64, dice: &mut Dice) -> Note {
    let frames_per_ms = f64::from(RATE_HZ) / 1000.0 / f64::from(FRAME_SAMPLES);
    let num_frames = phone.duration_ms * stretch * (1.0 + 0.08 * dice.around_zero()) * frames_per_ms;
    Note { phone, stress, num_frames: (num_frames.round() as usize).max(8) }
}

/// Pitch per frame: a line that sinks, hills on stressed vowels, and an end that tells statements from questions.
fn pitch(notes: &[Note], question: bool, voice: &DemoVoice, dice: &mut Dice) -> Vec<f64> {
    let num_frames: usize = notes.iter().map(|note| note.num_frames).sum();
    let mood = 0.04 * dice.around_zero();
    let mut shape = vec![0.0; num_frames];
    for (frame, value) in shape.iter_mut().enumerate() {
        let done = frame as f64 / num_frames as f64;
        let end = ((done - 0.75) / 0.25).max(0.0);
        *value = mood + 0.10 - 0.20 * done + if question { 0.45 * end * end } else { -0.12 * end };
    }
    let mut start = 0;
    for note in notes {
        if note.stress == 1 {
            let height = 0.14 + 0.05 * dice.around_zero();
            add_hill(&mut shape, start + note.num_frames / 2, note.num_frames * 2, height);
        }
        start += note.num_frames;
    }
    shape.iter().map(|value| voice.pitch_hz * (1.0 + voice.pitch_range * value)).collect()
}

/// Adds a hill of `height` around `middle`, down to nothing `reach` frames away.
fn add_hill(shape: &mut [f64], middle: usize, reach: usize, height: f64) {
    let from = middle.saturating_sub(reach);
    for (frame, value) in shape.iter_mut().enumerate().take(middle + reach).skip(from) {
        let away = frame.abs_diff(middle) as f64 / reach as f64;
        let side = 1.0 - away * away;
        *value += height * side * side;
    }
}
