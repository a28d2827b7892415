//! A text as the model reads it: pieces of tokens, each short enough to be said at one breath.
//!
//! Texts go through the front end that training used, with the symbols of the model. Characters that it never saw cannot
//! be said: they are left out and told.

use std::collections::BTreeSet;

use tandem_text::{FrontEnd, TextError, Tokens};

use crate::error::SynthError;
use crate::model_file::ModelFile;
use crate::split::{Break, paragraphs, split};

/// Tokens of a piece, unless training saw no text as long: 12 s of speech, about what people say at one breath.
const PIECE_TOKENS: usize = 192;
/// How often what cannot be said is taken out of a text. What is left is known after the first time, unless normalising it
/// again makes something new of it.
const ATTEMPTS: usize = 4;
/// Characters that a message shows.
const SHOWN: usize = 12;

/// A text that is ready to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub(crate) pieces: Vec<ScriptPiece>,
    /// Characters that were left out because the model does not know them, each once.
    pub left_out: Vec<char>,
    /// Words that no dictionary has: how they are said is a guess.
    pub guessed: Vec<String>,
}

/// What is said at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptPiece {
    pub(crate) tokens: Vec<i32>,
    pub(crate) ends_with: Break,
}

impl Script {
    /// Reads a text. Time is linear in it.
    ///
    /// Fails with [`SynthError::EmptyText`] and, when nothing is left of the text, with [`SynthError::NoKnownSymbol`].
    pub(crate) fn read(text: &str, model: &ModelFile) -> Result<Script, SynthError> {
        if text.trim().is_empty() {
            return Err(SynthError::EmptyText);
        }
        let front_end = FrontEnd::with_table(model.language_of(text), model.text, model.symbols.clone())?;
        let mut reader = Reader { front_end, left_out: BTreeSet::new(), guessed: BTreeSet::new() };
        let blanks = if model.text.blanks { 2 } else { 1 };
        let most = (PIECE_TOKENS * blanks).min(model.longest_tokens.unwrap_or(usize::MAX)).max(1);
        let pieces = reader.pieces(text, most)?;
        let Reader { left_out, guessed, .. } = reader;
        if pieces.is_empty() {
            return Err(unknown(text, model));
        }
        Ok(Script { pieces, left_out: left_out.into_iter().collect(), guessed: guessed.into_iter().collect() })
    }

    /// Pieces that are said one by one.
    pub fn num_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Symbols of all of them.
    pub fn num_tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.tokens.len()).sum()
    }
}

struct Reader {
    front_end: FrontEnd,
    left_out: BTreeSet<char>,
    guessed: BTreeSet<String>,
}

impl Reader {
    fn pieces(&mut self, text: &str, most: usize) -> Result<Vec<ScriptPiece>, SynthError> {
        // As training would have read it, as long as it is short.
        if text.chars().count() <= most
            && let Some(tokens) = self.encode(text)?.filter(|tokens| tokens.len() <= most)
        {
            return Ok(vec![ScriptPiece { tokens, ends_with: Break::Paragraph }]);
        }
        // Normalised first: afterwards a full stop ends a sentence, and no abbreviation.
        let mut pieces = Vec::new();
        for paragraph in paragraphs(text) {
            let spoken = self.front_end.normalize(paragraph);
            let count = |part: &str| self.front_end.encode(part).map_or(part.chars().count(), |t| t.ids.len());
            for part in split(&spoken, most, &count) {
                if let Some(tokens) = self.encode(&part.text)? {
                    pieces.push(ScriptPiece { tokens, ends_with: part.ends_with });
                }
            }
        }
        Ok(pieces)
    }

    /// The tokens of what can be said of `text`; none when nothing can.
    fn encode(&mut self, text: &str) -> Result<Option<Vec<i32>>, SynthError> {
        let mut tokens = Tokens::default();
        let mut text = text.to_owned();
        for _ in 0..ATTEMPTS {
            match self.front_end.encode_into(&text, &mut tokens) {
                Ok(()) => {
                    self.guessed.extend(tokens.guessed);
                    return Ok(Some(tokens.ids.iter().map(|&id| id as i32).collect()));
                }
                Err(TextError::Empty) => return Ok(None),
                Err(TextError::Outside { outside }) => {
                    let unknown: BTreeSet<char> = outside.iter().map(|outside| outside.character).collect();
                    let spoken = self.front_end.normalize(&text);
                    text = spoken.chars().filter(|c| !unknown.contains(c)).collect();
                    self.left_out.extend(unknown);
                }
                Err(other) => return Err(other.into()),
            }
        }
        Ok(None)
    }
}

fn unknown(text: &str, model: &ModelFile) -> SynthError {
    let shown = |characters: &mut dyn Iterator<Item = &str>| {
        let listed: Vec<String> = characters.take(SHOWN).map(|symbol| format!("{symbol:?}")).collect();
        listed.join(" ")
    };
    let distinct: BTreeSet<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let found: Vec<String> = distinct.into_iter().map(String::from).collect();
    let letter = |symbol: &&String| symbol.chars().next().is_some_and(char::is_alphabetic);
    let known = shown(&mut model.symbols.symbols().iter().filter(letter).map(String::as_str));
    SynthError::NoKnownSymbol { found: shown(&mut found.iter().map(String::as_str)), known: format!("{known} …") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_file::tests::model;

    fn read_with(change: fn(&mut serde_json::Value), text: &str) -> Result<Script, SynthError> {
        let folder = tempfile::tempdir().unwrap();
        let mut model = model();
        change(&mut model);
        std::fs::write(folder.path().join(crate::MODEL_FILE), model.to_string()).unwrap();
        let model = ModelFile::read(folder.path()).unwrap();
        Script::read(text, &model)
    }

    fn read(text: &str) -> Result<Script, SynthError> {
        read_with(|_| {}, text)
    }

    /// The ids of an English text of characters.
    fn ids(text: &str) -> Vec<i32> {
        let front_end = FrontEnd::new("en", Default::default()).unwrap();
        front_end.encode(text).unwrap().ids.into_iter().map(|id| id as i32).collect()
    }

    #[test]
    fn a_short_text_is_read_as_training_would() {
        let script = read("Dr. Who owes $5. Really!").unwrap();
        assert_eq!((script.num_pieces(), &script.left_out), (1, &vec![]));
        assert_eq!(script.pieces[0].tokens, ids("doctor who owes five dollars. really!"));
    }

    #[test]
    fn unknown_characters_are_left_out_and_told() {
        let script = read("It is 中 5 o'clock 😀, 中.").unwrap();
        assert_eq!(script.left_out, ['中', '😀']);
        assert_eq!(script.pieces[0].tokens, ids("it is five o'clock , ."));
        let long = read(&"A 中 b. ".repeat(100)).unwrap();
        assert_eq!(long.left_out, ['中']);
        assert!(long.num_pieces() > 1);
    }

    #[test]
    fn nothing_to_say_is_refused() {
        for text in ["", " \n\t ", "\u{FEFF}  "] {
            let error = read(text).unwrap_err();
            let nothing = matches!(error, SynthError::EmptyText | SynthError::NoKnownSymbol { .. });
            assert!(nothing, "{text:?}: {error}");
        }
        let error = read("中文 中文").unwrap_err().to_string();
        assert!(error.contains("found \"中\" \"文\"; it was trained on \"a\" \"b\""), "{error}");
        let error = read(&"中文。".repeat(1000)).unwrap_err();
        assert!(matches!(error, SynthError::NoKnownSymbol { .. }), "{error}");
    }

    #[test]
    fn long_texts_are_cut_where_one_breathes() {
        let sentence = "Mr. Smith paid $3.50 for it, and that was that. ";
        let script = read(&sentence.repeat(100_000 / sentence.len() + 1)).unwrap();
        assert!(script.pieces.iter().all(|piece| piece.tokens.len() <= PIECE_TOKENS));
        assert!(script.pieces.iter().all(|piece| piece.ends_with <= Break::Sentence), "abbreviations end no sentence");
        let shorter = read_with(|model| model["text"] = serde_json::json!({ "longest_tokens": 40 }), sentence).unwrap();
        let ends: Vec<Break> = shorter.pieces.iter().map(|piece| piece.ends_with).collect();
        assert!(shorter.pieces.iter().all(|piece| piece.tokens.len() <= 40));
        assert_eq!(ends.last(), Some(&Break::Paragraph));
    }
}
