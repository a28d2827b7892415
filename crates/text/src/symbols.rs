//! The symbol table: which token id stands for which symbol. Saved with the run, so that ids never change meaning.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::error::TextError;
use crate::language::{Language, Units};
use crate::phonemes::Phone;

/// The version this program writes and reads.
pub const VERSION: u32 = 1;
/// Fills a batch behind the end of a text. Its id is [`SymbolTable::PAD`].
pub const PAD_SYMBOL: &str = "<pad>";
/// Stands between tokens when that is asked for. Its id is [`SymbolTable::BLANK`].
pub const BLANK_SYMBOL: &str = "<blank>";
/// Between two words, in characters and in phonemes alike.
pub const WORD_BOUNDARY: &str = " ";

/// Pauses and marks of English.
const ENGLISH_MARKS: &str = " .,;:?!—…\"()";
/// What else normalised English consists of.
const ENGLISH_LETTERS: &str = "'-abcdefghijklmnopqrstuvwxyz";
/// Pauses and marks of Persian, the zero-width non-joiner last.
const PERSIAN_MARKS: &str = " .،؛:؟!—…«»()-\u{200C}";
const PERSIAN_LETTERS: &str = "آابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهیءأؤئۀ";
/// Short vowels and their kin, from U+064B to U+0652, and the small alef.
const HARAKAT: &str = "\u{064B}\u{064C}\u{064D}\u{064E}\u{064F}\u{0650}\u{0651}\u{0652}\u{0670}";

/// Symbols and their ids, one to one. Id 0 pads, id 1 is the blank; there is no symbol for "unknown".
///
/// Holding one means: no symbol is there twice, each belongs to the table's units, and saving and loading it gives the
/// same ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    units: Units,
    symbols: Vec<String>,
    ids: HashMap<String, u32>,
    /// The same for single characters, which are most of what is asked for.
    characters: HashMap<char, u32>,
}

/// What is written to disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    units: SavedUnits,
    symbols: Vec<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SavedUnits {
    Characters,
    Phonemes,
}

/// Only the version: a file of another one may differ in everything else.
#[derive(Deserialize)]
struct SavedVersion {
    version: u32,
}

impl SymbolTable {
    /// The id of the padding symbol, in every table.
    pub const PAD: u32 = 0;
    /// The id of the blank, in every table.
    pub const BLANK: u32 = 1;

    /// The fixed table of a language; nothing when it has none and needs a corpus, or has no phonemes.
    pub fn fixed(language: Language, units: Units) -> Option<SymbolTable> {
        let characters = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let symbols = match (language, units) {
            (Language::English, Units::Characters) => characters(&[ENGLISH_MARKS, ENGLISH_LETTERS].concat()),
            (Language::English, Units::Phonemes) => {
                let phones = Phone::all().map(|phone| phone.name().to_owned());
                characters(ENGLISH_MARKS).into_iter().chain(phones).collect()
            }
            (Language::Persian, Units::Characters) => characters(&[PERSIAN_MARKS, PERSIAN_LETTERS, HARAKAT].concat()),
            _ => return None,
        };
        SymbolTable::from_symbols(units, symbols).ok()
    }

    /// The table of characters that occur in texts which are already normalised: sorted by code point, so the order of
    /// the texts does not matter. Time and memory are linear in the texts.
    pub fn from_texts<'a>(normalised: impl IntoIterator<Item = &'a str>) -> SymbolTable {
        let mut found: BTreeSet<char> = normalised.into_iter().flat_map(str::chars).collect();
        // Spoken input can contain a space even if the corpus does not.
        found.insert(' ');
        SymbolTable::numbered(Units::Characters, with_special(found.into_iter().map(String::from)))
    }

    /// A table for several languages in one model: the symbols of `self`, whose ids stay, then the new ones of `other`.
    ///
    /// Fails when one has characters and the other phonemes.
    pub fn merged(&self, other: &SymbolTable) -> Result<SymbolTable, TextError> {
        other.expect_units(self.units)?;
        let mut symbols = self.symbols.clone();
        symbols.extend(other.symbols.iter().filter(|symbol| !self.ids.contains_key(*symbol)).cloned());
        Ok(SymbolTable::numbered(self.units, symbols))
    }

    /// The table with these symbols, to which padding and blank are added.
    fn from_symbols(units: Units, symbols: Vec<String>) -> Result<SymbolTable, TextError> {
        SymbolTable::checked(units, with_special(symbols))
    }

    fn checked(units: Units, symbols: Vec<String>) -> Result<SymbolTable, TextError> {
        let found = |at: usize| symbols.get(at).cloned();
        if symbols.first().is_none_or(|first| first != PAD_SYMBOL) {
            return Err(TextError::MissingPad { expected: PAD_SYMBOL, found: found(0) });
        }
        if symbols.get(1).is_none_or(|second| second != BLANK_SYMBOL) {
            return Err(TextError::MissingBlank { expected: BLANK_SYMBOL, found: found(1) });
        }
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(symbols.len());
        for (position, symbol) in symbols.iter().enumerate() {
            if let Some(first) = seen.insert(symbol, position) {
                return Err(TextError::Duplicate { symbol: symbol.clone(), first, second: position });
            }
            if position > 1 && !belongs(units, symbol) {
                return Err(TextError::WrongSymbol { symbol: symbol.clone(), position, units: units.name() });
            }
        }
        Ok(SymbolTable::numbered(units, symbols))
    }

    /// The table of symbols that are known to be good: an id is a place.
    fn numbered(units: Units, symbols: Vec<String>) -> SymbolTable {
        let ids: HashMap<String, u32> = symbols.iter().cloned().zip(0..).collect();
        let characters = ids.iter().filter_map(|(symbol, id)| Some((single(symbol)?, *id))).collect();
        SymbolTable { units, symbols, ids, characters }
    }

    /// What its symbols stand for.
    pub fn units(&self) -> Units {
        self.units
    }

    /// How many ids there are, padding and blank included: the size of an embedding.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Never: padding and blank are always there.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// All symbols; the place of each is its id.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// The id of a symbol, if it is in the table.
    pub fn id(&self, symbol: &str) -> Option<u32> {
        self.ids.get(symbol).copied()
    }

    /// The id of a character, if it is in the table.
    pub fn character_id(&self, character: char) -> Option<u32> {
        self.characters.get(&character).copied()
    }

    /// The symbols of `ids`, padding and blanks left out. Fails at the first id that is not in the table.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<&str>, TextError> {
        let mut symbols = Vec::with_capacity(ids.len());
        for (position, &id) in ids.iter().enumerate() {
            let Some(symbol) = self.symbols.get(id as usize) else {
                return Err(TextError::NoSuchToken { id, position, len: self.len() });
            };
            if id != SymbolTable::PAD && id != SymbolTable::BLANK {
                symbols.push(symbol.as_str());
            }
        }
        Ok(symbols)
    }

    /// As a JSON document, to be saved with the run.
    pub fn to_json(&self) -> String {
        let units = match self.units {
            Units::Characters => SavedUnits::Characters,
            Units::Phonemes => SavedUnits::Phonemes,
        };
        let symbols = self.symbols.clone();
        serde_json::json!(Saved { version: VERSION, units, symbols }).to_string()
    }

    /// From what [`SymbolTable::to_json`] made. Fails, with what is wrong, on anything that would not give the same ids.
    pub fn from_json(json: &str) -> Result<SymbolTable, TextError> {
        let SavedVersion { version } = serde_json::from_str(json)?;
        if version != VERSION {
            return Err(TextError::Version { found: version, expected: VERSION });
        }
        let saved: Saved = serde_json::from_str(json)?;
        let units = match saved.units {
            SavedUnits::Characters => Units::Characters,
            SavedUnits::Phonemes => Units::Phonemes,
        };
        SymbolTable::checked(units, saved.symbols)
    }

    /// Fails when the table has the other kind of symbols.
    pub(crate) fn expect_units(&self, expected: Units) -> Result<(), TextError> {
        if self.units == expected {
            return Ok(());
        }
        Err(TextError::WrongUnits { expected: expected.name(), found: self.units.name() })
    }
}

/// A table of characters has single characters; one of phonemes has phones as well.
fn belongs(units: Units, symbol: &str) -> bool {
    single(symbol).is_some() || (units == Units::Phonemes && Phone::from_name(symbol).is_some())
}

fn with_special(symbols: impl IntoIterator<Item = String>) -> Vec<String> {
    [PAD_SYMBOL, BLANK_SYMBOL].map(String::from).into_iter().chain(symbols).collect()
}

/// The one character a symbol consists of.
fn single(symbol: &str) -> Option<char> {
    let mut characters = symbol.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_tables_keep_their_ids() {
        for (language, units, len, symbol, id) in [
            (Language::English, Units::Characters, 42, "a", 16),
            (Language::English, Units::Phonemes, 83, "AA0", 14),
            (Language::English, Units::Phonemes, 83, "ZH", 82),
            (Language::Persian, Units::Characters, 64, "آ", 17),
            (Language::Persian, Units::Characters, 64, "\u{200C}", 16),
        ] {
            let table = SymbolTable::fixed(language, units).unwrap();
            assert_eq!((table.len(), table.id(symbol)), (len, Some(id)), "{language:?} {units} {symbol}");
            assert_eq!(table.id(PAD_SYMBOL), Some(SymbolTable::PAD));
            assert_eq!(table.id(BLANK_SYMBOL), Some(SymbolTable::BLANK));
            assert_eq!(SymbolTable::from_json(&table.to_json()).unwrap(), table);
        }
        assert!(SymbolTable::fixed(Language::Persian, Units::Phonemes).is_none());
        assert!(SymbolTable::fixed(Language::Other, Units::Characters).is_none());
    }

    #[test]
    fn a_corpus_gives_sorted_distinct_characters_in_any_order_of_texts() {
        let table = SymbolTable::from_texts(["日本", "ab"]);
        assert_eq!(table.symbols(), ["<pad>", "<blank>", " ", "a", "b", "日", "本"]);
        assert_eq!(SymbolTable::from_texts(["ab", "日本", "ba"]), table);
    }

    #[test]
    fn merging_keeps_the_first_tables_ids() {
        let english = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        let persian = SymbolTable::fixed(Language::Persian, Units::Characters).unwrap();
        let both = english.merged(&persian).unwrap();
        for symbol in english.symbols() {
            assert_eq!(both.id(symbol), english.id(symbol));
        }
        assert!(persian.symbols().iter().all(|symbol| both.id(symbol).is_some()));
        assert_eq!(SymbolTable::from_json(&both.to_json()).unwrap(), both);
        let phonemes = SymbolTable::fixed(Language::English, Units::Phonemes).unwrap();
        assert!(matches!(english.merged(&phonemes), Err(TextError::WrongUnits { .. })));
    }

    fn check_refused(json: &str, expected: impl Fn(&TextError) -> bool) {
        let error = SymbolTable::from_json(json).expect_err(json);
        assert!(expected(&error), "{json}: {error}");
    }

    #[test]
    fn broken_tables_are_refused_by_what_is_wrong() {
        let table = |symbols: &str| format!(r#"{{"version":1,"units":"characters","symbols":[{symbols}]}}"#);
        check_refused("", |e| matches!(e, TextError::Json(_)));
        check_refused("{}", |e| matches!(e, TextError::Json(_)));
        check_refused(r#"{"version":1,"units":"words","symbols":[]}"#, |e| matches!(e, TextError::Json(_)));
        check_refused(r#"{"version":2,"anything":0}"#, |e| matches!(e, TextError::Version { found: 2, .. }));
        check_refused(&table(""), |e| matches!(e, TextError::MissingPad { found: None, .. }));
        check_refused(&table(r#""a""#), |e| matches!(e, TextError::MissingPad { found: Some(_), .. }));
        check_refused(&table(r#""<pad>","a""#), |e| matches!(e, TextError::MissingBlank { .. }));
        check_refused(&table(r#""<pad>","<blank>","a","b","a""#), |e| {
            matches!(e, TextError::Duplicate { first: 2, second: 4, .. })
        });
        for odd in ["", "ab", "AH0"] {
            check_refused(&table(&format!(r#""<pad>","<blank>","{odd}""#)), |e| {
                matches!(e, TextError::WrongSymbol { position: 2, .. })
            });
        }
    }

    #[test]
    fn decoding_leaves_padding_and_blanks_out() {
        let table = SymbolTable::from_texts(["ab"]);
        assert_eq!(table.decode(&[1, 3, 1, 4, 1, 0, 0]).unwrap(), ["a", "b"]);
        assert!(matches!(table.decode(&[3, 5]), Err(TextError::NoSuchToken { id: 5, position: 1, len: 5 })));
    }
}
