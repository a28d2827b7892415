//! Raw text to normalised text, symbols and token ids, and back.
//!
//! A [`FrontEnd`] reads one language: English (phonemes or characters), Persian (characters), or any other script as the
//! characters it is written in; a [`Lexicon`] or a [`PhonemeSource`] gives any language phonemes. Its [`SymbolTable`] is
//! saved with the run, so that token ids keep their meaning. Characters outside the table are reported, never dropped.
//!
//! ```
//! use tandem_text::{FrontEnd, Phonemizer, TextError, TextOptions};
//!
//! let spoken = FrontEnd::new("en-us", Phonemizer::Dictionary, TextOptions::default())?;
//! let tokens = spoken.encode("Hello, world.")?;
//! assert_eq!(spoken.decode_text(&tokens.ids)?, "HH AH0 L OW1 , | W ER1 L D .");
//!
//! let written = FrontEnd::new("en", Phonemizer::Characters, TextOptions::default())?;
//! let tokens = written.encode("Dr. Who owes $5!")?;
//! assert_eq!(written.decode_text(&tokens.ids)?, "doctor who owes five dollars!");
//! let refused = written.encode("Prices in ₿").unwrap_err();
//! assert_eq!(refused.to_string(), "a character is outside the symbol table: '₿' (U+20BF) at 10");
//! # Ok::<(), TextError>(())
//! ```

// Which rules a text goes through.
mod script;
mod language;
mod detect;

// Raw text to normalised text.
pub mod normalize;

// Normalised text to sounds, where there is a dictionary.
pub mod phonemes;
mod lexicon;

// Characters or sounds to ids, and back.
mod symbols;
mod front_end;

// Names that people type.
mod nearest;

mod error;

pub use detect::{Detected, detect};
pub use error::{Outside, TextError};
pub use front_end::{FrontEnd, PhonemeSource, Pronouncer, TextOptions, Tokens};
pub use language::{Language, LanguageRules, Phonemizer, normalized_tag, primary_subtag};
pub use lexicon::{BadLine, Lexicon, LexiconError, LineFault};
pub use nearest::nearest;
pub use normalize::{Harakat, normalize};
pub use script::{Script, dominant_script};
pub use symbols::{BLANK_SYMBOL, PAD_SYMBOL, SymbolTable, WORD_BOUNDARY};
