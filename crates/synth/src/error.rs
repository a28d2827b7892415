//! What can go wrong between a text and its sound. A variant is a different thing to do next.

use std::io;
use std::path::{Path, PathBuf};

use tandem_device::bytes::show;

/// Speech could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The folder holds no model that can be run: give another checkpoint.
    #[error("{reason}: {}", path.display())]
    NotAModel {
        /// What was expected and what was found.
        reason: String,
        /// The file.
        path: PathBuf,
    },

    /// `model.json` and the weights are not of one model: take a checkpoint as it was written.
    #[error("the weights are not those of the model that model.json describes: {problem}: {}", path.display())]
    WrongTensors {
        /// The first difference, and how many there are.
        problem: String,
        /// The file of the weights.
        path: PathBuf,
    },

    /// A file cannot be read.
    #[error("could not read ({source}): {}", path.display())]
    Unreadable {
        /// What the system said.
        source: io::Error,
        /// The file.
        path: PathBuf,
    },

    /// There is nothing to say.
    #[error("the text is empty: there is nothing to say")]
    EmptyText,

    /// Nothing of the text can be said by this model: it was trained on another script.
    #[error("the text has no symbol that this model knows: found {found}; it was trained on {known}")]
    NoKnownSymbol {
        /// A few characters of the text.
        found: String,
        /// A few of the model's.
        known: String,
    },

    /// There is no voice in so short a recording.
    #[error("a voice needs {needed_s:.1} s of speech, and better 5: found {found_s:.2} s")]
    ReferenceTooShort {
        /// How long it is.
        found_s: f64,
        /// What is needed.
        needed_s: f64,
    },

    /// Nobody speaks in the recording.
    #[error(
        "the recording is silent: of {length_s:.2} s, {loud_s:.2} s are above {floor_db:.0} dB of full scale, \
         {needed_s:.1} s are needed"
    )]
    ReferenceSilent {
        /// How long it is.
        length_s: f64,
        /// How much of it can be heard.
        loud_s: f64,
        /// Above what.
        floor_db: f64,
        /// What is needed.
        needed_s: f64,
    },

    /// The checkpoint does not know that speaker: give one that it knows, or a recording.
    #[error("the checkpoint keeps no voice of {asked:?}: {}", known_voices(known))]
    NoSuchVoice {
        /// Who was asked for.
        asked: String,
        /// Who is known.
        known: Vec<String>,
    },

    /// Nobody speaks that slowly or fast.
    #[error("the speaking rate is {} to {}, found {found}", crate::SpeechOptions::RATES.start(), crate::SpeechOptions::RATES.end())]
    Rate {
        /// What was asked for.
        found: f64,
    },

    /// The device has too little memory free: take another one.
    #[error("the model and its longest piece need {}, and {} are free on {place}", show(*needed_bytes), show(*free_bytes))]
    NoRoom {
        /// What is needed.
        needed_bytes: u64,
        /// What there is.
        free_bytes: u64,
        /// Where.
        place: String,
    },

    /// The model computes no numbers: it was trained to nothing. Take an earlier checkpoint.
    #[error("the model's {what} are no numbers: take an earlier checkpoint")]
    NotFinite {
        /// Which.
        what: &'static str,
    },

    /// A recording cannot be used, or sound not made.
    #[error(transparent)]
    Audio(#[from] tandem_audio::AudioError),

    /// The symbols of the model are none.
    #[error(transparent)]
    Text(#[from] tandem_text::TextError),

    /// Whoever asked for it gave up on it. Nothing went wrong.
    #[error("stopped before it was done")]
    Stopped,

    /// The engine said no.
    #[error(transparent)]
    Engine(tandem_engine::EngineError),

    /// The device said no.
    #[error(transparent)]
    Device(#[from] tandem_device::DeviceError),

    /// Whoever takes the sound did not.
    #[error("the speech could not be written: {0}")]
    NotTaken(io::Error),
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
        return "it keeps none by name; give a recording with --reference".to_owned();
    }
    let mut text = format!("it keeps {}", known.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", "));
    if known.len() > LISTED {
        text += &format!(" and {} more", known.len() - LISTED);
    }
    text
}

impl SynthError {
    pub(crate) fn not_a_model(path: &Path, reason: impl Into<String>) -> SynthError {
        SynthError::NotAModel { reason: reason.into(), path: path.to_owned() }
    }

    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> SynthError {
        move |source| SynthError::Unreadable { source, path: path.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_voices_are_listed_to_a_point() {
        let check = |count: usize, end: &str| {
            let known = (0..count).map(|n| format!("p{n}")).collect();
            let told = SynthError::NoSuchVoice { asked: "x".into(), known }.to_string();
            assert!(told.ends_with(end), "{told}");
        };
        check(0, "give a recording with --reference");
        check(2, "it keeps p0, p1");
        check(10, "p7 and 2 more");
    }
}
