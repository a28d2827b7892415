//! Speech made here, so that the main job runs on a machine that has no recordings: sentences from a small grammar,
//! spoken by a formant synthesiser in several voices.
//!
//! It is no pleasure to listen to, and it has what a model can learn: every phone has its own spectrum, every voice its
//! own pitch, throat and mouth, stress and sentence ends move pitch and length, and the transcript says what is said.
//!
//! Everything is a function of (seed, index), and only additions, multiplications, divisions and square roots of
//! doubles are used, which every machine rounds alike: the samples are the same bit for bit everywhere.
//!
//! ```
//! let utterance = tandem_corpus::demo::utterance(1234, 0, 6);
//! let num_samples: u32 = utterance.phones.iter().map(|phone| phone.num_samples).sum();
//! assert_eq!(utterance.samples.len(), num_samples as usize);
//! ```

// What is said.
mod dice;
mod words;
mod grammar;

// How it is said.
mod phones;
mod somebody;
mod voice;
mod prosody;

// What that sounds like.
mod tracks;
mod math;
mod synth;

mod write;

pub use voice::{DemoVoice, VOICES};
pub use write::{WrittenDemo, write};

/// The sample rate of everything made here.
pub const RATE_HZ: u32 = 22_050;

/// Something said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoUtterance {
    /// The voice and the number, as in `ada_00012`; the pattern `{speaker}_*` finds the voice.
    pub id: String,
    /// What is said, with capitals and punctuation.
    pub text: String,
    /// The name of the voice.
    pub speaker: String,
    /// The sound: one channel at [`RATE_HZ`].
    pub samples: Vec<i16>,
    /// What is said when, without gaps, to the last sample.
    pub phones: Vec<PhoneSpan>,
}

/// A phone and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhoneSpan {
    /// Its name, as English dictionaries write it (`AE`, `T`); `SIL` at the ends and at commas.
    pub phone: &'static str,
    /// The stress of a vowel: 1, or 0 for none. Always 0 for other phones.
    pub stress: u8,
    /// How long it lasts.
    pub num_samples: u32,
}

/// Utterance `index` of the corpus that `seed` names. There is one for every index.
///
/// `voices` of them take turns ([`DemoVoice::number`]). Cost: a few milliseconds, and the samples.
pub fn utterance(seed: u64, index: u64, voices: usize) -> DemoUtterance {
    let voice = &DemoVoice::number(seed, (index % voices.max(1) as u64) as usize);
    let mut dice = dice::Dice::new(&[seed, index]);
    let sentence = grammar::sentence(&mut dice);
    let score = prosody::score(&sentence, voice, &mut dice);
    let samples = synth::synthesize(&tracks::ControlTracks::new(&score, voice), voice, &mut dice);
    DemoUtterance {
        id: format!("{}_{index:05}", voice.name),
        text: sentence.text(),
        speaker: voice.name.to_string(),
        phones: score.spans(),
        samples,
    }
}

#[cfg(test)]
mod tests;
