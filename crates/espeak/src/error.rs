//! What can go wrong with a library that belongs to the system. A variant is a different thing to do next.

use std::path::PathBuf;

/// How to install the library and its data.
const INSTALL: &str = "install it (Debian, Ubuntu: sudo apt install libespeak-ng1 espeak-ng-data)";
/// What works without it.
const INSTEAD: &str = "or use --lexicon FILE or --phonemizer characters";

/// There are no phonemes from espeak-ng.
#[derive(Debug, thiserror::Error)]
pub enum EspeakError {
    /// It is not installed: install it.
    #[error("the espeak-ng library was not found: {INSTALL}, {INSTEAD}; looked for {}", searched.join(", "))]
    NotFound {
        /// Everything that was looked for, in order.
        searched: Vec<String>,
    },

    /// A file is there, but the system's loader refuses it: repair or remove it.
    #[error("the espeak-ng library cannot be opened ({why}): {INSTALL} again, {INSTEAD}; found {}", path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        why: String,
    },

    /// The file is another library, or much too old.
    #[error("the espeak-ng library lacks the function {symbol}: {INSTALL} again, {INSTEAD}; found {}", path.display())]
    MissingSymbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },

    /// The library works, but its data is not there: install the data.
    #[error(
        "espeak-ng {version} cannot read its data: {INSTALL}, or set ESPEAK_DATA_PATH to the folder that has \
         espeak-ng-data, {INSTEAD}; looked in {}",
        folder.display()
    )]
    NoData {
        /// The version of the library.
        version: String,
        /// The folder it read from.
        folder: PathBuf,
    },

    /// No voice speaks the language: choose another, or a lexicon.
    #[error(
        "espeak-ng {version} has no voice for language {tag:?}: `espeak-ng --voices` lists its {voices} voices; use \
         another language tag, {INSTEAD}"
    )]
    NoVoice {
        /// The tag, as it was given.
        tag: String,
        /// The version of the library.
        version: String,
        /// How many voices it has.
        voices: usize,
    },

    /// A voice is listed, but its files cannot be read: install the data again.
    #[error("espeak-ng {version} cannot load its voice {voice:?} (error {code}): {INSTALL} again, {INSTEAD}")]
    BadVoice {
        /// Its file, below the data folder.
        voice: String,
        /// The version of the library.
        version: String,
        /// The code it returned.
        code: i32,
    },

    /// The text has characters that the language is not written in: remove them.
    #[error(
        "espeak-ng does not read {} in language {tag:?}: remove them from the text, {INSTEAD}",
        characters.iter().map(|c| format!("{c:?} (U+{:04X})", u32::from(*c))).collect::<Vec<_>>().join(", ")
    )]
    Unreadable {
        /// The tag, as it was given.
        tag: String,
        /// The characters, each once.
        characters: Vec<char>,
    },

    /// The library returned something that cannot be phonemes.
    #[error("espeak-ng {version} returned no phonemes for {clause:?}: {why}")]
    Failed {
        /// The text.
        clause: String,
        /// The version of the library.
        version: String,
        /// What it returned.
        why: &'static str,
    },
}
