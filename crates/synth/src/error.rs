//! What can go wrong between a text and its waveform. A variant is a different thing to do next.

use std::io;
use std::path::{Path, PathBuf};

use tandem_checkpoint::CheckpointError;
use tandem_device::bytes::show;

/// Speech could not be synthesised.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// A file of the checkpoint: take another checkpoint, or copy the whole folder.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),

    /// The checkpoint is intact, but does not hold a speech model: give another checkpoint.
    #[error("{reason}: {}", path.display())]
    NotAModel {
        /// What was expected and what was found.
        reason: String,
        /// The checkpoint.
        path: PathBuf,
    },

    /// The text is empty.
    #[error("the text is empty")]
    EmptyText,

    /// The model knows no symbol of the text: it was trained on another script.
    #[error("the text has no symbol that this model knows: found {found}; it was trained on {known}")]
    NoKnownSymbol {
        /// Some characters of the text.
        found: String,
        /// Some symbols of the model.
        known: String,
    },

    /// The model was not trained on that language: choose one that it knows.
    #[error("the model does not know language {asked:?}; it was trained on {}", known.join(", "))]
    NoSuchLanguage {
        /// The requested language.
        asked: String,
        /// The languages of the model.
        known: Vec<String>,
    },

    /// The language needs phonemes of espeak-ng, and it cannot be used.
    #[error(transparent)]
    Espeak(#[from] tandem_espeak::EspeakError),

    /// The reference recording is too short.
    #[error("a voice needs {needed_s:.1} s of speech, better 5 s: found {found_s:.2} s")]
    ReferenceTooShort {
        /// Its length.
        found_s: f64,
        /// The shortest length.
        needed_s: f64,
    },

    /// The reference recording has too little speech.
    #[error(
        "the recording is silent: of {length_s:.2} s, {loud_s:.2} s are above {floor_db:.0} dB of full scale, \
         {needed_s:.1} s are needed"
    )]
    ReferenceSilent {
        /// Its length.
        length_s: f64,
        /// How much of it is louder than the floor.
        loud_s: f64,
        /// The floor.
        floor_db: f64,
        /// How much is needed.
        needed_s: f64,
    },

    /// The checkpoint has no voice of that speaker: choose one that it has, or give a recording.
    #[error("the checkpoint has no voice of {asked:?}; {}", known_voices(known))]
    NoSuchVoice {
        /// The requested speaker.
        asked: String,
        /// The speakers of the checkpoint.
        known: Vec<String>,
    },

    /// The speaking rate is out of range.
    #[error(
        "expected a speaking rate of {} to {}, found {found}",
        crate::SpeechOptions::RATES.start(),
        crate::SpeechOptions::RATES.end()
    )]
    Rate {
        /// The requested rate.
        found: f64,
    },

    /// The device has too little free memory: use another one.
    #[error(
        "the model and its longest chunk need {}, but only {} are free on {place}",
        show(*needed_bytes),
        show(*free_bytes)
    )]
    NoRoom {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
        /// The device.
        place: String,
    },

    /// The model diverged: use an earlier checkpoint.
    #[error("non-finite {what}: the model diverged; use an earlier checkpoint")]
    NotFinite {
        /// What is not finite.
        what: &'static str,
    },

    /// A recording cannot be used, or the vocoder failed.
    #[error(transparent)]
    Audio(#[from] tandem_audio::AudioError),

    /// The symbols of the model are invalid.
    #[error(transparent)]
    Text(#[from] tandem_text::TextError),

    /// The caller stopped it. Nothing went wrong.
    #[error("stopped before the end")]
    Stopped,

    /// From the engine.
    #[error(transparent)]
    Engine(tandem_engine::EngineError),

    /// From the device.
    #[error(transparent)]
    Device(#[from] tandem_device::DeviceError),

    /// The caller's output failed.
    #[error("the speech could not be written: {0}")]
    Output(io::Error),
}

impl From<tandem_engine::EngineError> for SynthError {
    fn from(error: tandem_engine::EngineError) -> SynthError {
        match error {
            tandem_engine::EngineError::Stopped => SynthError::Stopped,
            other => SynthError::Engine(other),
        }
    }
}

/// Speakers that a message lists.
const LISTED: usize = 8;

fn known_voices(known: &[String]) -> String {
    if known.is_empty() {
        return "it has no named voices: give a recording with --reference".to_owned();
    }
    let mut text = format!("it has {}", known.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", "));
    if known.len() > LISTED {
        text += &format!(" and {} more", known.len() - LISTED);
    }
    text
}

impl SynthError {
    pub(crate) fn not_a_model(path: &Path, reason: impl Into<String>) -> SynthError {
        SynthError::NotAModel { reason: reason.into(), path: path.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_voices_are_listed() {
        let check = |count: usize, end: &str| {
            let known = (0..count).map(|n| format!("p{n}")).collect();
            let message = SynthError::NoSuchVoice { asked: "x".into(), known }.to_string();
            assert!(message.ends_with(end), "{message}");
        };
        check(0, "give a recording with --reference");
        check(2, "\"x\"; it has p0, p1");
        check(10, "p7 and 2 more");
    }
}
