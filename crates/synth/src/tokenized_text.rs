//! A text as the model reads it: chunks of tokens, each about as long as one breath.
//!
//! Texts go through the front end that training used, with the symbols of the model. Characters that the model does not
//! know are skipped and reported.

use std::collections::BTreeSet;

use tandem_text::{FrontEnd, TextError, Tokens};

use crate::error::SynthError;
use crate::speech_model::SpeechModel;
use crate::split::{Break, paragraphs, split};

/// Tokens of a chunk, unless every training text was shorter: 12 s of speech, about one breath.
const CHUNK_TOKENS: usize = 192;
/// How often unknown characters are removed from a text. Once is enough, unless normalising the rest again creates new
/// ones.
const ATTEMPTS: usize = 4;
/// Characters that a message shows.
const SHOWN: usize = 12;

/// A tokenized text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedText {
    pub(crate) chunks: Vec<TokenChunk>,
    /// The id of the language it is read in.
    pub(crate) language: u32,
    /// The tag of that language.
    pub lang: String,
    /// Characters that were skipped because the model does not know them, each once.
    pub unknown_chars: Vec<char>,
    /// Words that are not in the dictionary: their pronunciation is a guess.
    pub guessed: Vec<String>,
}

/// A chunk that is synthesised at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenChunk {
    pub(crate) tokens: Vec<i32>,
    pub(crate) ends_with: Break,
}

impl TokenizedText {
    /// Tokenizes a text in the language `lang`; without one, it follows from the script of the text. Time is linear in it.
    ///
    /// Fails with [`SynthError::EmptyText`], with [`SynthError::NoSuchLanguage`] and, if the model knows no character of
    /// it, with [`SynthError::NoKnownSymbol`].
    pub(crate) fn new(text: &str, lang: Option<&str>, model: &SpeechModel) -> Result<TokenizedText, SynthError> {
        if text.trim().is_empty() {
            return Err(SynthError::EmptyText);
        }
        let language = model.language_of(text, lang)?;
        let front_end = model.front_end(language)?;
        let mut chunker = Chunker { front_end, unknown_chars: BTreeSet::new(), guessed: BTreeSet::new() };
        let blanks = if model.text.blanks { 2 } else { 1 };
        let max_tokens = (CHUNK_TOKENS * blanks).min(model.longest_tokens.unwrap_or(usize::MAX)).max(1);
        let chunks = chunker.chunks(text, max_tokens)?;
        let Chunker { unknown_chars, guessed, .. } = chunker;
        if chunks.is_empty() {
            return Err(unknown(text, model));
        }
        Ok(TokenizedText {
            chunks,
            language: language as u32,
            lang: model.languages[language].tag.clone(),
            unknown_chars: unknown_chars.into_iter().collect(),
            guessed: guessed.into_iter().collect(),
        })
    }

    /// The number of chunks.
    pub fn num_chunks(&self) -> usize {
        self.chunks.len()
    }
}

struct Chunker {
    front_end: FrontEnd,
    unknown_chars: BTreeSet<char>,
    guessed: BTreeSet<String>,
}

impl Chunker {
    fn chunks(&mut self, text: &str, max_tokens: usize) -> Result<Vec<TokenChunk>, SynthError> {
        // A short text is encoded exactly as in training.
        if text.chars().count() <= max_tokens
            && let Some(tokens) = self.encode(text)?.filter(|tokens| tokens.len() <= max_tokens)
        {
            return Ok(vec![TokenChunk { tokens, ends_with: Break::Paragraph }]);
        }
        // Normalised first: afterwards a full stop always ends a sentence, never an abbreviation.
        let mut chunks = Vec::new();
        for paragraph in paragraphs(text) {
            let normalised = self.front_end.normalize(paragraph);
            let count = |part: &str| self.front_end.encode(part).map_or(part.chars().count(), |t| t.ids.len());
            for chunk in split(&normalised, max_tokens, &count) {
                if let Some(tokens) = self.encode(&chunk.text)? {
                    chunks.push(TokenChunk { tokens, ends_with: chunk.ends_with });
                }
            }
        }
        Ok(chunks)
    }

    /// The tokens of `text` without unknown characters; `None` if nothing is left.
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
                    let normalised = self.front_end.normalize(&text);
                    text = normalised.chars().filter(|c| !unknown.contains(c)).collect();
                    self.unknown_chars.extend(unknown);
                }
                Err(other) => return Err(other.into()),
            }
        }
        Ok(None)
    }
}

fn unknown(text: &str, model: &SpeechModel) -> SynthError {
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
    use tandem_text::Phonemizer;

    use super::*;
    use crate::speech_model::tests::{contract, with_text};

    fn tokenize(text: &str) -> Result<TokenizedText, SynthError> {
        TokenizedText::new(text, None, &SpeechModel::new(&contract()).unwrap())
    }

    /// The ids of an English text of characters.
    fn ids(text: &str) -> Vec<i32> {
        let front_end = FrontEnd::new("en", Phonemizer::Characters, Default::default()).unwrap();
        front_end.encode(text).unwrap().ids.into_iter().map(|id| id as i32).collect()
    }

    #[test]
    fn a_short_text_is_encoded_as_in_training() {
        let tokenized = tokenize("Dr. Who owes $5. Really!").unwrap();
        assert_eq!((tokenized.num_chunks(), &tokenized.unknown_chars), (1, &vec![]));
        assert_eq!(tokenized.chunks[0].tokens, ids("doctor who owes five dollars. really!"));
    }

    #[test]
    fn unknown_characters_are_skipped_and_reported() {
        let tokenized = tokenize("It is 中 5 o'clock 😀, 中.").unwrap();
        assert_eq!(tokenized.unknown_chars, ['中', '😀']);
        assert_eq!(tokenized.chunks[0].tokens, ids("it is five o'clock , ."));
        let long = tokenize(&"A 中 b. ".repeat(100)).unwrap();
        assert_eq!(long.unknown_chars, ['中']);
        assert!(long.num_chunks() > 1);
    }

    #[test]
    fn a_text_without_known_symbols_is_refused() {
        for text in ["", " \n\t ", "\u{FEFF}  "] {
            let error = tokenize(text).unwrap_err();
            let refused = matches!(error, SynthError::EmptyText | SynthError::NoKnownSymbol { .. });
            assert!(refused, "{text:?}: {error}");
        }
        let error = tokenize("中文 中文").unwrap_err().to_string();
        assert!(error.contains("found \"中\" \"文\"; it was trained on \"a\" \"b\""), "{error}");
        let error = tokenize(&"中文。".repeat(1000)).unwrap_err();
        assert!(matches!(error, SynthError::NoKnownSymbol { .. }), "{error}");
    }

    #[test]
    fn long_texts_are_split_at_sentences() {
        let sentence = "Mr. Smith paid $3.50 for it, and that was that. ";
        let tokenized = tokenize(&sentence.repeat(100_000 / sentence.len() + 1)).unwrap();
        let chunks = &tokenized.chunks;
        assert!(chunks.iter().all(|chunk| chunk.tokens.len() <= CHUNK_TOKENS));
        assert!(chunks.iter().all(|chunk| chunk.ends_with <= Break::Sentence), "abbreviations end no sentence");
        let model = SpeechModel::new(&with_text(|text| text.longest_tokens = Some(40))).unwrap();
        let shorter = TokenizedText::new(sentence, None, &model).unwrap();
        let ends: Vec<Break> = shorter.chunks.iter().map(|chunk| chunk.ends_with).collect();
        assert!(shorter.chunks.iter().all(|chunk| chunk.tokens.len() <= 40));
        assert_eq!(ends.last(), Some(&Break::Paragraph));
    }
}
