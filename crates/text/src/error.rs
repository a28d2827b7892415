//! What can go wrong between a text and its token ids. A variant is a different thing to do next.

use std::fmt;

/// A text could not be turned into tokens, or tokens not back, or a symbol table is not one.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The dictionary was asked for a language that it does not have.
    #[error(
        "the dictionary is English, the language is {tag:?}: use --phonemizer espeak, --phonemizer characters or a --lexicon"
    )]
    NoPhonemes {
        /// The language tag that was given.
        tag: String,
    },

    /// The language has no fixed symbol table: make one from the corpus.
    #[error("language {tag:?} has no fixed symbols: make its table from the corpus")]
    NeedsCorpus {
        /// The language tag that was given.
        tag: String,
    },

    /// The text has characters that the symbol table lacks: correct the text, or train with another table.
    #[error("{} outside the symbol table: {}", count(outside.len()), list(outside))]
    Outside {
        /// All of them, in order.
        outside: Vec<Outside>,
    },

    /// The symbol table has no such phoneme: it was made for something else.
    #[error("the symbol table lacks the phoneme {phone}")]
    LacksPhone {
        /// Its name.
        phone: String,
    },

    /// The program's own tokenizer refused the text.
    #[error("the tokenizer failed: {message}")]
    Custom {
        /// What it said.
        message: String,
    },

    /// Nothing is left of the text once it is normalised.
    #[error("the text is empty: nothing in it can be said")]
    Empty,

    /// A token id is not in the table: these tokens were made with another one.
    #[error("token {id} at position {position} is outside the symbol table of {len}")]
    NoSuchToken {
        /// The id.
        id: u32,
        /// Its place among the ids.
        position: usize,
        /// How many symbols there are.
        len: usize,
    },

    /// A symbol is in the table twice, so that ids would not be one to one.
    #[error("symbol {symbol:?} is in the table twice, as {first} and {second}")]
    Duplicate {
        /// The symbol.
        symbol: String,
        /// Where it is first.
        first: usize,
        /// Where it is again.
        second: usize,
    },

    /// The table has no padding symbol at its beginning.
    #[error("the symbol table does not start with {expected:?} (found {found:?})")]
    MissingPad {
        /// What it should start with.
        expected: &'static str,
        /// What it starts with, if anything.
        found: Option<String>,
    },

    /// The table has no blank after its padding symbol.
    #[error("the second symbol of the table is not {expected:?} (found {found:?})")]
    MissingBlank {
        /// What it should be.
        expected: &'static str,
        /// What it is, if there is one.
        found: Option<String>,
    },

    /// A symbol is neither a character nor the name of a phoneme.
    #[error("symbol {symbol:?} at {position} is neither a character nor the name of a phoneme")]
    WrongSymbol {
        /// The symbol.
        symbol: String,
        /// Its place.
        position: usize,
    },

    /// The program that makes the phonemes failed.
    #[error("no phonemes for a text of language {tag:?}: {reason}")]
    NotPhonemized {
        /// The language tag.
        tag: String,
        /// Why, and what to do.
        reason: String,
    },
}

/// A character that the symbol table lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Its place in the *normalised* text, in characters.
    pub position: usize,
    /// The character. Its code point is `character as u32`.
    pub character: char,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (U+{:04X}) at {}", self.character, u32::from(self.character), self.position)
    }
}

/// More than this many are counted, not listed.
const LISTED: usize = 8;

fn count(len: usize) -> String {
    if len == 1 { "a character is".into() } else { format!("{len} characters are") }
}

fn list(outside: &[Outside]) -> String {
    let mut text = outside.iter().take(LISTED).map(Outside::to_string).collect::<Vec<_>>().join(", ");
    if let Some(more) = outside.len().checked_sub(LISTED).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_characters() {
        let one = Outside { position: 4, character: '中' };
        let error = TextError::Outside { outside: vec![one] };
        assert_eq!(error.to_string(), "a character is outside the symbol table: '中' (U+4E2D) at 4");
        let many = TextError::Outside { outside: vec![one; 10] }.to_string();
        assert!(many.starts_with("10 characters are outside") && many.ends_with(" and 2 more"), "{many}");
    }
}
