//! Text to token ids and back, for one language.

use std::sync::Arc;

use crate::error::{Outside, TextError};
use crate::language::{Language, Units};
use crate::normalize::{Harakat, normalize};
use crate::phonemes::{Phoneme, speak};
use crate::symbols::{SymbolTable, WORD_BOUNDARY};

/// How a front end reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// What a symbol stands for.
    pub units: Units,
    /// What becomes of Persian vowel marks.
    pub harakat: Harakat,
    /// Whether a blank stands before, between and after the tokens, which helps monotonic alignment. Decoding removes it.
    pub blanks: bool,
}

/// The tokens of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids of the front end's table, blanks included if asked for.
    pub ids: Vec<u32>,
    /// Words that no dictionary has: their phonemes are a guess.
    pub guessed: Vec<String>,
}

/// Turns the texts of one language into token ids and back. Cheap to clone; the table is shared.
///
/// Holding one means that its table has the kind of symbols it makes.
#[derive(Clone, Debug)]
pub struct FrontEnd {
    language: Language,
    options: TextOptions,
    table: Arc<SymbolTable>,
}

impl FrontEnd {
    /// The front end of a language that has a fixed table: English and Persian.
    ///
    /// Fails when the language needs a table made from a corpus ([`FrontEnd::for_corpus`]) or has no phonemes.
    pub fn new(tag: &str, options: TextOptions) -> Result<FrontEnd, TextError> {
        let language = checked(tag, options.units)?;
        match SymbolTable::fixed(language, options.units) {
            Some(table) => Ok(FrontEnd { language, options, table: Arc::new(table) }),
            None => Err(TextError::NeedsCorpus { tag: tag.to_owned() }),
        }
    }

    /// The front end of any language, for the texts given: the fixed table where there is one, else one of the characters
    /// that occur. Time is linear in the texts.
    pub fn for_corpus<'a>(
        tag: &str,
        options: TextOptions,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<FrontEnd, TextError> {
        let language = checked(tag, options.units)?;
        let table = SymbolTable::fixed(language, options.units).unwrap_or_else(|| {
            let normalised: Vec<String> =
                texts.into_iter().map(|text| normalize(text, language, options.harakat)).collect();
            SymbolTable::from_texts(normalised.iter().map(String::as_str))
        });
        Ok(FrontEnd { language, options, table: Arc::new(table) })
    }

    /// The front end with a table from elsewhere: a saved run, or one shared by several languages.
    ///
    /// Fails when the table has the other kind of symbols, or the language has no phonemes.
    pub fn with_table(tag: &str, options: TextOptions, table: Arc<SymbolTable>) -> Result<FrontEnd, TextError> {
        let language = checked(tag, options.units)?;
        table.expect_units(options.units)?;
        Ok(FrontEnd { language, options, table })
    }

    /// Its language.
    pub fn language(&self) -> Language {
        self.language
    }

    /// How it reads and writes.
    pub fn options(&self) -> TextOptions {
        self.options
    }

    /// Its symbols, to be saved with the run.
    pub fn table(&self) -> &Arc<SymbolTable> {
        &self.table
    }

    /// The text as it is spoken: what [`FrontEnd::encode`] works from, and what decoding characters gives back.
    pub fn normalize(&self, text: &str) -> String {
        normalize(text, self.language, self.options.harakat)
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
        let normalised = self.normalize(text);
        let mut outside = Vec::new();
        if self.options.blanks {
            tokens.ids.push(SymbolTable::BLANK);
        }
        match self.options.units {
            Units::Characters => {
                for (position, character) in normalised.chars().enumerate() {
                    self.push_character(character, position, &mut tokens.ids, &mut outside);
                }
            }
            Units::Phonemes => {
                let spoken = speak(&normalised);
                for phoneme in spoken.phonemes {
                    match phoneme {
                        Phoneme::Mark(mark, at) => self.push_character(mark, at, &mut tokens.ids, &mut outside),
                        // A table of phonemes that came from elsewhere may lack a phone; nobody reads it as silence.
                        Phoneme::Phone(phone) => match self.table.id(phone.name()) {
                            Some(id) => self.push(id, &mut tokens.ids),
                            None => return Err(self.lacks(phone.name(), tokens)),
                        },
                    }
                }
                tokens.guessed = spoken.guessed;
            }
        }
        let error = if !outside.is_empty() {
            TextError::Outside { outside }
        } else if normalised.is_empty() {
            TextError::Empty
        } else {
            return Ok(());
        };
        *tokens = Tokens::default();
        Err(error)
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
        Ok(match self.options.units {
            Units::Characters => symbols.concat(),
            Units::Phonemes => {
                let shown = symbols.into_iter().map(|symbol| if symbol == WORD_BOUNDARY { "|" } else { symbol });
                shown.collect::<Vec<_>>().join(" ")
            }
        })
    }

    fn push_character(&self, character: char, position: usize, ids: &mut Vec<u32>, outside: &mut Vec<Outside>) {
        match self.table.character_id(character) {
            Some(id) => self.push(id, ids),
            None => outside.push(Outside { position, character }),
        }
    }

    fn push(&self, id: u32, ids: &mut Vec<u32>) {
        ids.push(id);
        if self.options.blanks {
            ids.push(SymbolTable::BLANK);
        }
    }

    fn lacks(&self, phone: &str, tokens: &mut Tokens) -> TextError {
        *tokens = Tokens::default();
        TextError::LacksPhone { phone: phone.to_owned() }
    }
}

/// The language of `tag`, if it can be written in `units`.
fn checked(tag: &str, units: Units) -> Result<Language, TextError> {
    let language = Language::from_tag(tag);
    if units == Units::Phonemes && language != Language::English {
        return Err(TextError::NoPhonemes { tag: tag.to_owned() });
    }
    Ok(language)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHONEMES: TextOptions = TextOptions { units: Units::Phonemes, harakat: Harakat::Drop, blanks: false };

    fn check(tag: &str, options: TextOptions, text: &str, expected: &str) {
        let front_end = FrontEnd::for_corpus(tag, options, [text]).unwrap();
        for blanks in [false, true] {
            let front_end =
                FrontEnd::with_table(tag, TextOptions { blanks, ..options }, front_end.table().clone()).unwrap();
            let tokens = front_end.encode(text).unwrap();
            assert_eq!(front_end.decode_text(&tokens.ids).unwrap(), expected, "{tag} {text}");
            let plain = front_end.decode(&tokens.ids).unwrap().len();
            assert_eq!(tokens.ids.len(), if blanks { 2 * plain + 1 } else { plain });
        }
    }

    #[test]
    fn text_goes_there_and_back() {
        check("en", TextOptions::default(), "Dr. Who owes $5!", "doctor who owes five dollars!");
        check("en-us", PHONEMES, "Hello, world.", "HH AH0 L OW1 , | W ER1 L D .");
        check("fa-IR", TextOptions::default(), "سال ۱۴۰۳", "سال هزار و چهارصد و سه");
        check("ja", TextOptions::default(), "日本\n語", "日本 語");
    }

    #[test]
    fn blanks_stand_around_every_token() {
        let front_end = FrontEnd::new("en", TextOptions { blanks: true, ..TextOptions::default() }).unwrap();
        let ids = front_end.encode("ab").unwrap().ids;
        let table = front_end.table();
        assert_eq!(ids, [1, table.id("a").unwrap(), 1, table.id("b").unwrap(), 1]);
    }

    #[test]
    fn characters_outside_the_table_are_all_named() {
        for options in [TextOptions::default(), PHONEMES] {
            let front_end = FrontEnd::new("en", options).unwrap();
            let mut tokens = Tokens { ids: vec![7], guessed: vec![] };
            let Err(TextError::Outside { outside }) = front_end.encode_into("It is 5 中 and 😀.", &mut tokens)
            else {
                panic!("not refused")
            };
            let expected = [(11, '中'), (17, '😀')].map(|(position, character)| Outside { position, character });
            assert_eq!(outside, expected);
            assert_eq!(tokens, Tokens::default());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(FrontEnd::new("fa", PHONEMES), Err(TextError::NoPhonemes { .. })));
        assert!(matches!(FrontEnd::new("de", TextOptions::default()), Err(TextError::NeedsCorpus { .. })));
        let front_end = FrontEnd::new("en", TextOptions::default()).unwrap();
        assert!(matches!(front_end.encode(" \n\u{200E}"), Err(TextError::Empty)));
        let table = front_end.table().clone();
        assert!(matches!(FrontEnd::with_table("en", PHONEMES, table), Err(TextError::WrongUnits { .. })));
        let lacking = r#"{"version":1,"units":"phonemes","symbols":["<pad>","<blank>"," ","K"]}"#;
        let lacking = Arc::new(SymbolTable::from_json(lacking).unwrap());
        let front_end = FrontEnd::with_table("en", PHONEMES, lacking).unwrap();
        assert!(matches!(front_end.encode("cat"), Err(TextError::LacksPhone { .. })));
    }

    #[test]
    fn guessed_words_come_with_the_tokens() {
        let front_end = FrontEnd::new("en", PHONEMES).unwrap();
        assert_eq!(front_end.encode("the vlick").unwrap().guessed, ["vlick"]);
    }
}
