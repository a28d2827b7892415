//! Text to token ids and back, for one language.

use std::fmt;
use std::sync::Arc;

use crate::error::{Outside, TextError};
use crate::language::{Language, Phonemizer};
use crate::lexicon::Lexicon;
use crate::normalize::unicode::ZWNJ;
use crate::normalize::{Harakat, is_harakat, normalize};
use crate::phonemes::{Phoneme, speak};
use crate::symbols::{SymbolTable, WORD_BOUNDARY, is_mark};

/// How the front ends of a model read and write, in every language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// What becomes of Persian vowel marks where characters are symbols. A lexicon and another program always see them: they
    /// tell the vowels, and the ezafe.
    pub harakat: Harakat,
    /// Whether a blank stands before, between and after the tokens, which helps monotonic alignment. Decoding removes it.
    pub blanks: bool,
}

/// A program outside this crate that knows how texts sound.
pub trait PhonemeSource: Send + Sync + fmt::Debug {
    /// The phonemes of a stretch of normalised text without pauses: characters of the International Phonetic Alphabet, with
    /// spaces between words.
    fn phonemes(&self, clause: &str) -> Result<String, TextError>;
}

/// What turns words into symbols: a [`Phonemizer`] that is ready to work.
#[derive(Clone, Debug)]
pub enum Pronouncer {
    /// Symbols are characters.
    Characters,
    /// The built-in English dictionary.
    Dictionary,
    /// Another program.
    Source(Arc<dyn PhonemeSource>),
}

/// The tokens of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids of the front end's table, blanks included if asked for.
    pub ids: Vec<u32>,
    /// Words that no dictionary and no lexicon has: their phonemes are a guess, or their letters.
    pub guessed: Vec<String>,
}

/// Turns the texts of one language into token ids and back. Cheap to clone; the table is shared.
#[derive(Clone, Debug)]
pub struct FrontEnd {
    language: Language,
    pronouncer: Pronouncer,
    /// Asked first.
    lexicon: Option<Arc<Lexicon>>,
    options: TextOptions,
    table: Arc<SymbolTable>,
}

impl FrontEnd {
    /// The front end of a language that has a fixed table and needs nothing from outside: English and Persian.
    ///
    /// Fails when the language needs a table made from a corpus, or has no phonemes here.
    pub fn new(tag: &str, phonemizer: Phonemizer, options: TextOptions) -> Result<FrontEnd, TextError> {
        let pronouncer = match phonemizer {
            Phonemizer::Characters => Pronouncer::Characters,
            Phonemizer::Dictionary => Pronouncer::Dictionary,
            Phonemizer::Espeak => return Err(TextError::NoPhonemes { tag: tag.to_owned() }),
        };
        match SymbolTable::fixed(Language::from_tag(tag), phonemizer) {
            Some(table) => FrontEnd::with_table(tag, pronouncer, None, options, Arc::new(table)),
            None if phonemizer == Phonemizer::Dictionary => Err(TextError::NoPhonemes { tag: tag.to_owned() }),
            None => Err(TextError::NeedsCorpus { tag: tag.to_owned() }),
        }
    }

    /// The front end with a table from elsewhere: a saved run, or one shared by several languages. The lexicon, if there is
    /// one, is asked before the pronouncer.
    ///
    /// Fails when the dictionary is asked for another language than English.
    pub fn with_table(
        tag: &str,
        pronouncer: Pronouncer,
        lexicon: Option<Arc<Lexicon>>,
        options: TextOptions,
        table: Arc<SymbolTable>,
    ) -> Result<FrontEnd, TextError> {
        let language = Language::from_tag(tag);
        if matches!(pronouncer, Pronouncer::Dictionary) && language != Language::English {
            return Err(TextError::NoPhonemes { tag: tag.to_owned() });
        }
        Ok(FrontEnd { language, pronouncer, lexicon, options, table })
    }

    /// Its symbols, to be saved with the run.
    pub fn table(&self) -> &Arc<SymbolTable> {
        &self.table
    }

    /// The text as it is spoken: what [`FrontEnd::encode`] works from, and what decoding characters gives back.
    pub fn normalize(&self, text: &str) -> String {
        let knows_marks = self.lexicon.is_some() || matches!(self.pronouncer, Pronouncer::Source(_));
        normalize(text, self.language, if knows_marks { Harakat::Keep } else { self.options.harakat })
    }

    /// The tokens of `text`.
    ///
    /// Fails when nothing is left to say, or when the text has characters outside the table: all of them are named.
    pub fn encode(&self, text: &str) -> Result<Tokens, TextError> {
        let mut tokens = Tokens::default();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// [`FrontEnd::encode`] into tokens that are used again. After a failure they are empty.
    pub fn encode_into(&self, text: &str, tokens: &mut Tokens) -> Result<(), TextError> {
        tokens.ids.clear();
        tokens.guessed.clear();
        let outcome = self.write(&self.normalize(text), tokens);
        if outcome.is_err() {
            *tokens = Tokens::default();
        }
        outcome
    }

    /// The symbols of `ids`, padding and blanks left out.
    ///
    /// Fails at the first id that is not in the table.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<&str>, TextError> {
        self.table.decode(ids)
    }

    /// `ids` as text to read. Characters give the normalised text back; phonemes stand apart, with `|` between words.
    ///
    /// Fails at the first id that is not in the table.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String, TextError> {
        let symbols = self.decode(ids)?;
        if matches!(self.pronouncer, Pronouncer::Characters) && self.lexicon.is_none() {
            return Ok(symbols.concat());
        }
        let shown = symbols.into_iter().map(|symbol| if symbol == WORD_BOUNDARY { "|" } else { symbol });
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    fn write(&self, normalised: &str, tokens: &mut Tokens) -> Result<(), TextError> {
        if normalised.is_empty() {
            return Err(TextError::Empty);
        }
        let mut writer = Writer { front_end: self, tokens, outside: Vec::new() };
        if self.options.blanks {
            writer.tokens.ids.push(SymbolTable::BLANK);
        }
        match &self.lexicon {
            Some(lexicon) => writer.with_lexicon(normalised, lexicon)?,
            None => writer.stretch(Stretch { text: normalised, position: 0 })?,
        }
        let Writer { outside, .. } = writer;
        if outside.is_empty() { Ok(()) } else { Err(TextError::Outside { outside }) }
    }
}

/// A part of a normalised text, and the number of characters before it.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Stretch<'a> {
    fn split_at(self, bytes: usize) -> (Stretch<'a>, Stretch<'a>) {
        let (before, after) = self.text.split_at(bytes);
        let position = self.position + before.chars().count();
        (Stretch { text: before, ..self }, Stretch { text: after, position })
    }
}

/// The words of a normalised text, and where each begins, in bytes.
fn words(normalised: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_inside = |c: char| c.is_alphabetic() || matches!(c, '\'' | '-' | ZWNJ);
    let runs = normalised.split(move |c| !is_inside(c)).filter(|run| !run.is_empty());
    runs.filter_map(|run| {
        let word = run.trim_matches(['\'', '-', ZWNJ]);
        // Both are parts of the same text.
        let at = word.as_ptr() as usize - normalised.as_ptr() as usize;
        (!word.is_empty()).then_some((at, word))
    })
}

/// Writes the tokens of one text.
struct Writer<'a> {
    front_end: &'a FrontEnd,
    tokens: &'a mut Tokens,
    outside: Vec<Outside>,
}

impl Writer<'_> {
    /// Words of the lexicon as it says, everything between them as the pronouncer does.
    fn with_lexicon(&mut self, normalised: &str, lexicon: &Lexicon) -> Result<(), TextError> {
        let mut rest = Stretch { text: normalised, position: 0 };
        for (at, word) in words(normalised) {
            match lexicon.get(word) {
                Some(phonemes) => {
                    let (before, from_word) = rest.split_at(at - (normalised.len() - rest.text.len()));
                    self.stretch(before)?;
                    phonemes.iter().try_for_each(|phoneme| self.phoneme(phoneme))?;
                    (_, rest) = from_word.split_at(word.len());
                }
                None if matches!(self.front_end.pronouncer, Pronouncer::Characters) => {
                    self.tokens.guessed.push(word.to_owned());
                }
                None => {}
            }
        }
        self.stretch(rest)
    }

    /// A stretch of text without words of the lexicon.
    fn stretch(&mut self, Stretch { text, position }: Stretch<'_>) -> Result<(), TextError> {
        match &self.front_end.pronouncer {
            Pronouncer::Characters => {
                let is_dropped = |c: char| self.front_end.options.harakat == Harakat::Drop && is_harakat(c);
                for (index, character) in text.chars().enumerate().filter(|(_, c)| !is_dropped(*c)) {
                    self.character(character, position + index);
                }
            }
            Pronouncer::Dictionary => {
                let spoken = speak(text);
                for phoneme in spoken.phonemes {
                    match phoneme {
                        Phoneme::Mark(mark, at) => self.character(mark, position + at),
                        Phoneme::Phone(phone) => self.phoneme(phone.name())?,
                    }
                }
                self.tokens.guessed.extend(spoken.guessed);
            }
            Pronouncer::Source(source) => self.clauses(Stretch { text, position }, source.as_ref())?,
        }
        Ok(())
    }

    /// Pauses as they stand, and what another program says of everything between them.
    fn clauses(
        &mut self,
        Stretch { text, position }: Stretch<'_>,
        source: &dyn PhonemeSource,
    ) -> Result<(), TextError> {
        let mut at = position;
        for clause in text.split_inclusive(is_mark) {
            let mark = clause.chars().next_back().filter(|c| is_mark(*c));
            let words = mark.map_or(clause, |mark| &clause[..clause.len() - mark.len_utf8()]);
            if !words.trim().is_empty() {
                let spoken = source.phonemes(words)?;
                // A space before or after the clause separates it from a pause or from a word of the lexicon.
                if words.starts_with(' ') {
                    self.character(' ', at);
                }
                spoken.trim().chars().for_each(|symbol| self.character(symbol, at));
                if words.ends_with(' ') {
                    self.character(' ', at);
                }
            } else if !words.is_empty() {
                self.character(' ', at);
            }
            at += clause.chars().count();
            if let Some(mark) = mark {
                self.character(mark, at - 1);
            }
        }
        Ok(())
    }

    fn character(&mut self, character: char, position: usize) {
        match self.front_end.table.character_id(character) {
            Some(id) => self.push(id),
            None => self.outside.push(Outside { position, character }),
        }
    }

    /// A table that came from elsewhere may lack a phoneme; nobody reads it as silence.
    fn phoneme(&mut self, name: &str) -> Result<(), TextError> {
        match self.front_end.table.id(name) {
            Some(id) => {
                self.push(id);
                Ok(())
            }
            None => Err(TextError::LacksPhone { phone: name.to_owned() }),
        }
    }

    fn push(&mut self, id: u32) {
        self.tokens.ids.push(id);
        if self.front_end.options.blanks {
            self.tokens.ids.push(SymbolTable::BLANK);
        }
    }
}

#[cfg(test)]
mod tests;
