//! Phonemes of any language, from the system's espeak-ng library.
//!
//! Nothing of espeak-ng is part of this program: the library and its data are the system's, found at run time. On a
//! machine without them [`Espeak::load`] fails with the package to install.
//!
//! One of three crates with `unsafe` in it; the others are `device` and `python`.
//!
//! ```no_run
//! use tandem_espeak::{Espeak, EspeakError};
//!
//! let espeak = Espeak::load()?;
//! assert_eq!(espeak.phonemes("de-AT", "Guten Morgen")?, "ɡˈuːtən mˈɔɾɡən");
//! # Ok::<(), EspeakError>(())
//! ```
#![expect(unsafe_code, reason = "a C library is called here")]

mod error;

// Where the library is, and its functions.
mod library;

// From a language tag to a voice.
mod voices;

// What the library may see of a text.
mod readable;

// From a clause to phonemes.
mod espeak;
mod voice;

pub use error::EspeakError;
pub use espeak::Espeak;
pub use voice::EspeakVoice;
