//! The symbol table: which token id stands for which symbol. Saved with the run, so that ids never change meaning.

use std::collections::{BTreeSet, HashMap};

use crate::error::TextError;
use crate::language::{Language, Phonemizer};
use crate::phonemes::Phone;

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
/// Pauses and marks that stay when another program makes the phonemes. It never sees them.
const MARKS: &str = " .,;:?!—…\"()،؛؟«»";
/// The rest of the International Phonetic Alphabet: letters outside its block, stress, length, tones and diacritics.
const IPA: &str = "abcdefghijklmnopqrstuvwxyzæçðøħŋœβθχᵻᵊǀǁǂǃⱱˈˌːˑˠˤʰʲʷʼ˞\u{0303}\u{0308}\u{030A}\u{031A}\u{031D}\u{031E}\u{031F}\u{0320}\u{0324}\u{0325}\u{0329}\u{032A}\u{032C}\u{032F}\u{0330}\u{0334}\u{0339}\u{033A}\u{033B}\u{033C}\u{0361}˥˦˧˨˩0123456789↑↓-";
/// Pauses and marks of Persian, the zero-width non-joiner last.
const PERSIAN_MARKS: &str = " .،؛:؟!—…«»()-\u{200C}";
const PERSIAN_LETTERS: &str = "آابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهیءأؤئۀ";
/// Short vowels and their kin, from U+064B to U+0652, and the small alef.
const HARAKAT: &str = "\u{064B}\u{064C}\u{064D}\u{064E}\u{064F}\u{0650}\u{0651}\u{0652}\u{0670}";

/// Symbols and their ids, one to one. Id 0 pads, id 1 is the blank; there is no symbol for "unknown".
///
/// A symbol is a character or the name of a phoneme. Languages of one model share the table: what a symbol sounds like is
/// up to the language of the text.
///
/// Holding one means: no symbol is there twice, and a symbol of several characters has no white space among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    symbols: Vec<String>,
    ids: HashMap<String, u32>,
    /// The same for single characters, which are most of what is asked for.
    characters: HashMap<char, u32>,
}

impl SymbolTable {
    /// The id of the padding symbol, in every table.
    pub const PAD: u32 = 0;
    /// The id of the blank, in every table.
    pub const BLANK: u32 = 1;

    /// The fixed table of a language; nothing if it needs a corpus, or has no such phonemes.
    pub fn fixed(language: Language, phonemizer: Phonemizer) -> Option<SymbolTable> {
        let characters = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let symbols = match (language, phonemizer) {
            (_, Phonemizer::Espeak) => characters(&[MARKS, IPA].concat()).into_iter().chain(ipa_block()).collect(),
            (Language::English, Phonemizer::Characters) => characters(&[ENGLISH_MARKS, ENGLISH_LETTERS].concat()),
            (Language::English, Phonemizer::Dictionary) => {
                let phones = Phone::all().map(|phone| phone.name().to_owned());
                characters(ENGLISH_MARKS).into_iter().chain(phones).collect()
            }
            (Language::Persian, Phonemizer::Characters) => {
                characters(&[PERSIAN_MARKS, PERSIAN_LETTERS, HARAKAT].concat())
            }
            _ => return None,
        };
        Some(SymbolTable::numbered(with_special(symbols)))
    }

    /// The table with these symbols, as a run saved them: padding and blank first.
    ///
    /// Fails, with what is wrong, on a list that no table has.
    pub fn from_symbols(symbols: Vec<String>) -> Result<SymbolTable, TextError> {
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
            if !is_symbol(symbol) {
                return Err(TextError::WrongSymbol { symbol: symbol.clone(), position });
            }
        }
        Ok(SymbolTable::numbered(symbols))
    }

    /// The table of characters that occur in texts which are already normalised: sorted by code point, so the order of
    /// the texts does not matter. Time and memory are linear in the texts.
    pub fn from_texts<'a>(normalised: impl IntoIterator<Item = &'a str>) -> SymbolTable {
        let mut found: BTreeSet<char> = normalised.into_iter().flat_map(str::chars).collect();
        // Spoken input can contain a space even if the corpus does not.
        found.insert(' ');
        SymbolTable::numbered(with_special(found.into_iter().map(String::from)))
    }

    /// A table for several languages in one model: the symbols of `self`, whose ids stay, then the new ones of `other`.
    pub fn merged(&self, other: &SymbolTable) -> SymbolTable {
        self.with_symbols(other.symbols.iter().cloned())
    }

    /// The same with these symbols at the end, if they are new.
    pub fn with_symbols(&self, others: impl IntoIterator<Item = String>) -> SymbolTable {
        let mut symbols = self.symbols.clone();
        symbols.extend(others.into_iter().filter(|symbol| !self.ids.contains_key(symbol)));
        SymbolTable::numbered(symbols)
    }

    /// The table of symbols that are known to be good: an id is a place.
    fn numbered(symbols: Vec<String>) -> SymbolTable {
        let ids: HashMap<String, u32> = symbols.iter().cloned().zip(0..).collect();
        let characters = ids.iter().filter_map(|(symbol, id)| Some((single(symbol)?, *id))).collect();
        SymbolTable { symbols, ids, characters }
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
}

/// Whether a character is a pause or another mark that other programs do not turn into phonemes. Spaces are not.
pub(crate) fn is_mark(c: char) -> bool {
    c != ' ' && MARKS.contains(c)
}

/// Whether a table may have this symbol: a character, or the name of a phoneme.
fn is_symbol(symbol: &str) -> bool {
    let is_separator = |c: char| c.is_whitespace() || c.is_control();
    single(symbol).is_some() || !(symbol.is_empty() || symbol.contains(is_separator))
}

/// The letters of the International Phonetic Alphabet that have a Unicode block of their own.
fn ipa_block() -> impl Iterator<Item = String> {
    ('\u{0250}'..='\u{02AF}').map(String::from)
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
        for (language, phonemizer, len, symbol, id) in [
            (Language::English, Phonemizer::Characters, 42, "a", 16),
            (Language::English, Phonemizer::Dictionary, 83, "AA0", 14),
            (Language::English, Phonemizer::Dictionary, 83, "ZH", 82),
            (Language::Persian, Phonemizer::Characters, 64, "آ", 17),
            (Language::Persian, Phonemizer::Characters, 64, "\u{200C}", 16),
            (Language::Other, Phonemizer::Espeak, 208, "a", 19),
            (Language::Persian, Phonemizer::Espeak, 208, "\u{02AF}", 207),
        ] {
            let table = SymbolTable::fixed(language, phonemizer).unwrap();
            assert_eq!((table.len(), table.id(symbol)), (len, Some(id)), "{language:?} {phonemizer} {symbol}");
            assert_eq!(table.id(PAD_SYMBOL), Some(SymbolTable::PAD));
            assert_eq!(table.id(BLANK_SYMBOL), Some(SymbolTable::BLANK));
            assert_eq!(SymbolTable::from_symbols(table.symbols().to_vec()).unwrap(), table);
        }
        assert!(SymbolTable::fixed(Language::Persian, Phonemizer::Dictionary).is_none());
        assert!(SymbolTable::fixed(Language::Other, Phonemizer::Characters).is_none());
    }

    #[test]
    fn a_corpus_gives_sorted_distinct_characters_in_any_order_of_texts() {
        let table = SymbolTable::from_texts(["日本", "ab"]);
        assert_eq!(table.symbols(), ["<pad>", "<blank>", " ", "a", "b", "日", "本"]);
        assert_eq!(SymbolTable::from_texts(["ab", "日本", "ba"]), table);
    }

    #[test]
    fn merging_keeps_the_first_tables_ids() {
        let english = SymbolTable::fixed(Language::English, Phonemizer::Dictionary).unwrap();
        let persian = SymbolTable::fixed(Language::Persian, Phonemizer::Characters).unwrap();
        let both = english.merged(&persian);
        for symbol in english.symbols() {
            assert_eq!(both.id(symbol), english.id(symbol));
        }
        assert!(persian.symbols().iter().all(|symbol| both.id(symbol).is_some()));
        assert_eq!(SymbolTable::from_symbols(both.symbols().to_vec()).unwrap(), both);
    }

    #[test]
    fn broken_tables_are_refused_by_what_is_wrong() {
        let check = |symbols: &[&str], expected: fn(&TextError) -> bool| {
            let error = SymbolTable::from_symbols(symbols.iter().map(|&symbol| symbol.to_owned()).collect());
            let error = error.expect_err("refused");
            assert!(expected(&error), "{symbols:?}: {error}");
        };
        check(&[], |e| matches!(e, TextError::MissingPad { found: None, .. }));
        check(&["a"], |e| matches!(e, TextError::MissingPad { found: Some(_), .. }));
        check(&["<pad>", "a"], |e| matches!(e, TextError::MissingBlank { .. }));
        check(&["<pad>", "<blank>", "a", "b", "a"], |e| matches!(e, TextError::Duplicate { first: 2, second: 4, .. }));
        for odd in ["", "a b", "a\u{7}"] {
            check(&["<pad>", "<blank>", odd], |e| matches!(e, TextError::WrongSymbol { position: 2, .. }));
        }
    }

    #[test]
    fn decoding_leaves_padding_and_blanks_out() {
        let table = SymbolTable::from_texts(["ab"]);
        assert_eq!(table.decode(&[1, 3, 1, 4, 1, 0, 0]).unwrap(), ["a", "b"]);
        assert!(matches!(table.decode(&[3, 5]), Err(TextError::NoSuchToken { id: 5, position: 1, len: 5 })));
    }
}
