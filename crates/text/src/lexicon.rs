//! Pronunciations from a file of the user's, for any language.
//!
//! A line is `word TAB phonemes`, the phonemes separated by spaces, such as `guten`, a tab, `g u: t @ n`. Lines that begin
//! with `#`, empty lines, a byte order mark and Windows line ends are fine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::language::Language;
use crate::normalize::{Harakat, normalize, without_harakat};
use crate::script::Script;

/// Characters of a phoneme. A longer one is a word whose phonemes are not separated.
const MAX_PHONEME_CHARS: usize = 12;
/// Bad lines that a message lists.
const MAX_LISTED: usize = 8;

/// Words and their phonemes.
///
/// A word is found in any case and in any of its Unicode spellings, and in Arabic script with the letters of Persian or
/// Arabic keyboards. A word without vowel marks also finds an entry with them: the first that is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lexicon {
    pronunciations: Vec<Box<[String]>>,
    words: HashMap<String, usize>,
    /// The same without vowel marks, for those that have some.
    unvocalised: HashMap<String, usize>,
    conflicts: usize,
}

/// A text is not a lexicon.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LexiconError {
    /// Some lines are not entries: correct them.
    #[error("{}", list(lines))]
    BadLines {
        /// All of them, in order.
        lines: Vec<BadLine>,
    },

    /// There is no entry at all: it is another file.
    #[error("the lexicon is empty: expected lines of a word, a tab and phonemes separated by spaces")]
    Empty,
}

/// A line that is not an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub number: usize,
    /// What is wrong with it.
    pub fault: LineFault,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// It has no tab, or more than one.
    #[error("expected a word, one tab and phonemes, found {tabs} tabs")]
    Tabs {
        /// How many.
        tabs: usize,
    },
    /// Nothing stands before the tab.
    #[error("no word before the tab")]
    NoWord,
    /// More than a word stands before the tab, which no word of a text would ever match.
    #[error("expected one word before the tab, found {found:?}")]
    ManyWords {
        /// What stands there.
        found: String,
    },
    /// Nothing stands behind the tab.
    #[error("no phonemes behind the tab")]
    NoPhonemes,
    /// Phonemes are not separated.
    #[error("{found:?} is too long for a phoneme: separate phonemes by spaces")]
    LongPhoneme {
        /// What stands there.
        found: String,
    },
}

impl Lexicon {
    /// Reads a lexicon. A word that is listed again keeps its first pronunciation. Time is linear in the text.
    ///
    /// Fails with every line that is not an entry.
    pub fn parse(text: &str) -> Result<Lexicon, LexiconError> {
        let mut lexicon = Lexicon::default();
        let mut lines = Vec::new();
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match entry(line) {
                Ok((word, phonemes)) => lexicon.add(word, phonemes),
                Err(fault) => lines.push(BadLine { number: index + 1, fault }),
            }
        }
        if !lines.is_empty() {
            return Err(LexiconError::BadLines { lines });
        }
        if lexicon.is_empty() {
            return Err(LexiconError::Empty);
        }
        Ok(lexicon)
    }

    /// The phonemes of a word; `None` if it is not listed.
    pub fn get(&self, word: &str) -> Option<&[String]> {
        let key = key(word);
        let bare = || without_harakat(&key);
        let found = self.words.get(&key).or_else(|| self.words.get(&bare())).or_else(|| self.unvocalised.get(&bare()));
        found.map(|index| &*self.pronunciations[*index])
    }

    /// How many words it has.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Lines that give a word another pronunciation than a line before them. They have no effect.
    pub fn num_conflicts(&self) -> usize {
        self.conflicts
    }

    /// All phonemes, sorted.
    pub fn symbols(&self) -> Vec<&str> {
        let distinct: BTreeSet<&str> = self.pronunciations.iter().flatten().map(String::as_str).collect();
        distinct.into_iter().collect()
    }

    /// The lexicon as [`Lexicon::parse`] reads it: a line for each word, sorted.
    pub fn to_text(&self) -> String {
        let words: BTreeMap<&str, usize> = self.words.iter().map(|(word, index)| (word.as_str(), *index)).collect();
        let line = |(word, index): (&str, usize)| format!("{word}\t{}\n", self.pronunciations[index].join(" "));
        words.into_iter().map(line).collect()
    }

    fn add(&mut self, word: String, phonemes: Box<[String]>) {
        if let Some(first) = self.words.get(&word) {
            self.conflicts += usize::from(self.pronunciations[*first] != phonemes);
            return;
        }
        let index = self.pronunciations.len();
        let bare = without_harakat(&word);
        if bare != word {
            self.unvocalised.entry(bare).or_insert(index);
        }
        self.words.insert(word, index);
        self.pronunciations.push(phonemes);
    }
}

/// The key of the word on a line, and its phonemes.
fn entry(line: &str) -> Result<(String, Box<[String]>), LineFault> {
    let tabs = line.matches('\t').count();
    let (word, phonemes) = line.split_once('\t').filter(|_| tabs == 1).ok_or(LineFault::Tabs { tabs })?;
    let word = key(word);
    if word.is_empty() {
        return Err(LineFault::NoWord);
    }
    if word.contains(' ') {
        return Err(LineFault::ManyWords { found: word });
    }
    let phonemes: Box<[String]> = phonemes.split_whitespace().map(str::to_owned).collect();
    if phonemes.is_empty() {
        return Err(LineFault::NoPhonemes);
    }
    match phonemes.iter().find(|phoneme| phoneme.chars().count() > MAX_PHONEME_CHARS) {
        Some(long) => Err(LineFault::LongPhoneme { found: long.clone() }),
        None => Ok((word, phonemes)),
    }
}

/// The word in one spelling: lower case, composed, and in Arabic script with the letters of Persian.
fn key(word: &str) -> String {
    let is_arabic = word.chars().any(|c| Script::of(c) == Some(Script::ARABIC));
    let language = if is_arabic { Language::Persian } else { Language::Other };
    normalize(&word.to_lowercase(), language, Harakat::Keep)
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.number, self.fault)
    }
}

fn list(lines: &[BadLine]) -> String {
    let mut text = lines.iter().take(MAX_LISTED).map(BadLine::to_string).collect::<Vec<_>>().join("; ");
    if let Some(more) = lines.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phonemes(lexicon: &Lexicon, word: &str) -> String {
        lexicon.get(word).map_or_else(|| "none".to_owned(), |phonemes| phonemes.join(" "))
    }

    #[test]
    fn a_lexicon_is_read_back_from_its_text() {
        let lexicon = Lexicon::parse("# words\nB\tb\nكتابِ\tk e t ɑ b e\na\tx  y\na\tz\n").unwrap();
        let text = lexicon.to_text();
        assert_eq!(text, "a\tx y\nb\tb\nکتابِ\tk e t ɑ b e\n");
        assert_eq!(Lexicon::parse(&text).unwrap().to_text(), text);
    }

    #[test]
    fn words_are_found_in_any_spelling() {
        let text =
            "\u{FEFF}# German and Persian\r\nGrüße\tg r y: s @\r\n\r\nعلي\t? a l i\nکتاب\u{200C}ها\tk e t A b h A\n";
        let lexicon = Lexicon::parse(text).unwrap();
        assert_eq!(lexicon.len(), 3);
        for (word, expected) in [
            ("grüße", "g r y: s @"),
            ("GRÜSSE", "none"),
            ("Gru\u{308}ße", "g r y: s @"),
            ("GRÜßE", "g r y: s @"),
            ("علی", "? a l i"),
            ("علي", "? a l i"),
            ("كتاب\u{200C}ها", "k e t A b h A"),
            ("کتابها", "none"),
            ("گل", "none"),
            ("", "none"),
        ] {
            assert_eq!(phonemes(&lexicon, word), expected, "{word}");
        }
        assert_eq!(lexicon.symbols(), ["?", "@", "A", "a", "b", "e", "g", "h", "i", "k", "l", "r", "s", "t", "y:"]);
    }

    #[test]
    fn vowel_marks_choose_between_words_that_look_alike() {
        let lexicon = Lexicon::parse("مَلِک\tm a l e k\nمُلک\tm o l k\nسلام\ts a l A m\n").unwrap();
        assert_eq!(lexicon.len(), 3);
        for (word, expected) in [
            ("مُلک", "m o l k"),
            ("مَلِک", "m a l e k"),
            ("ملک", "m a l e k"),
            // Another one with marks that is not listed: as without them.
            ("مِلک", "m a l e k"),
            ("سَلام", "s a l A m"),
        ] {
            assert_eq!(phonemes(&lexicon, word), expected, "{word}");
        }
        assert_eq!(lexicon.num_conflicts(), 0);
    }

    #[test]
    fn the_first_pronunciation_wins_and_the_others_are_counted() {
        let lexicon = Lexicon::parse("a\tx\nA\tx\na\ty\nb\tz\na\tz").unwrap();
        assert_eq!((lexicon.len(), lexicon.num_conflicts()), (2, 2));
        assert_eq!(phonemes(&lexicon, "a"), "x");
    }

    #[test]
    fn every_bad_line_is_named() {
        let text =
            "good\tg U d\nno tab\n\tx\n \tx\nword\t \na\tb\tc\ntwo words\tx\nhello\thəloʊ-and-everything\n#\tfine\n";
        let Err(LexiconError::BadLines { lines }) = Lexicon::parse(text) else { panic!("not refused") };
        let expected = [
            (2, LineFault::Tabs { tabs: 0 }),
            (3, LineFault::NoWord),
            (4, LineFault::NoWord),
            (5, LineFault::NoPhonemes),
            (6, LineFault::Tabs { tabs: 2 }),
            (7, LineFault::ManyWords { found: "two words".into() }),
            (8, LineFault::LongPhoneme { found: "həloʊ-and-everything".into() }),
        ];
        assert_eq!(lines, expected.map(|(number, fault)| BadLine { number, fault }));
        let message = Lexicon::parse(text).unwrap_err().to_string();
        assert!(
            message.starts_with("line 2: expected a word, one tab and phonemes, found 0 tabs; line 3: "),
            "{message}"
        );
        let many = Lexicon::parse(&"x\n".repeat(20)).unwrap_err().to_string();
        assert!(many.ends_with("; and 12 more"), "{many}");
        for empty in ["", "# nothing\n", "\u{FEFF}\r\n"] {
            assert_eq!(Lexicon::parse(empty), Err(LexiconError::Empty), "{empty:?}");
        }
    }
}
