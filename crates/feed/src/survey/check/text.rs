//! Checks the text of a row: counts its symbols, finds unknown characters.

use tandem_corpus::ProblemKind;
use tandem_text::{FrontEnd, Harakat, Language, Phonemizer, TextError, TextOptions, Tokens, normalize};

/// Counts symbols (characters, which every language has) with the front end of each row's language.
pub(super) struct SymbolCounts {
    default: Language,
    english: Option<FrontEnd>,
    persian: Option<FrontEnd>,
    tokens: Tokens,
}

/// A bad text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadText {
    /// Its length in symbols; none if it is empty.
    pub(super) tokens: Option<u32>,
    pub(super) kind: ProblemKind,
    pub(super) detail: String,
}

impl SymbolCounts {
    /// `lang` is the language of rows that name none; none is English.
    pub(super) fn new(lang: Option<&str>) -> SymbolCounts {
        let front_end = |tag: &str| FrontEnd::new(tag, Phonemizer::Characters, TextOptions::default()).ok();
        SymbolCounts {
            default: lang.map_or(Language::English, Language::from_tag),
            english: front_end("en"),
            persian: front_end("fa"),
            tokens: Tokens::default(),
        }
    }

    /// Symbols of `text`: at least one.
    pub(super) fn count(&mut self, text: &str, lang: Option<&str>) -> Result<u32, BadText> {
        let language = lang.map_or(self.default, Language::from_tag);
        let front_end = match language {
            Language::English => self.english.as_ref(),
            Language::Persian => self.persian.as_ref(),
            Language::Other => None,
        };
        let outcome = match front_end {
            Some(front_end) => front_end.encode_into(text, &mut self.tokens).map(|()| self.tokens.ids.len()),
            // Its table has every character of the corpus.
            None => match num_characters(text, language) {
                0 => Err(TextError::Empty),
                count => Ok(count),
            },
        };
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        outcome.map(number).map_err(|error| {
            let outside = matches!(error, TextError::Outside { .. });
            BadText {
                tokens: outside.then(|| number(num_characters(text, language))),
                kind: if outside { ProblemKind::UnknownSymbol } else { ProblemKind::EmptyText },
                detail: error.to_string(),
            }
        })
    }
}

fn num_characters(text: &str, language: Language) -> usize {
    normalize(text, language, Harakat::default()).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_counted_by_the_front_end_of_its_language() {
        let check = |default: Option<&str>, lang: Option<&str>, text: &str, expected: Result<u32, ProblemKind>| {
            let found = SymbolCounts::new(default).count(text, lang).map_err(|bad| bad.kind);
            assert_eq!(found, expected, "{default:?} {lang:?} {text}");
        };
        check(None, None, "Hello!", Ok(6));
        check(None, Some("en-GB"), "4", Ok(4));
        check(None, None, "سلام", Err(ProblemKind::UnknownSymbol));
        check(None, Some("fa"), "سلام", Ok(4));
        check(Some("fa"), None, "سلام", Ok(4));
        check(Some("fa"), Some("en"), "Hello!", Ok(6));
        check(None, Some("de"), "Grüße: 4", Ok(8));
        check(None, Some("ja"), "日本", Ok(2));
        for lang in ["en", "fa", "de"] {
            check(None, Some(lang), " \u{200E}\u{FEFF} ", Err(ProblemKind::EmptyText));
        }
    }

    #[test]
    fn an_unknown_symbol_is_named_and_counted() {
        let bad = SymbolCounts::new(None).count("a 中", None).unwrap_err();
        assert_eq!(bad.tokens, Some(3));
        assert!(bad.detail.contains("'中' (U+4E2D)"), "{}", bad.detail);
    }
}
