//! What of a text the library may see.
//!
//! The library has buffers of fixed sizes, and the texts of a corpus can be anything. Words of 160 bytes, long rows of
//! dotted letters, runs of signs, and letters of a third script end the process with version 1.51. None of them is speech
//! that a voice could learn from. Long words are cut, marks that are not spoken are spaces, and characters that the
//! language is not written in are refused by name: the library would spell them out ("Greek alpha").

use unicode_script::{Script, UnicodeScript};

/// Scripts other than Latin, and the languages that the library reads in them. Latin is read in every language.
const SCRIPTS: &[(Script, &[&str])] = &[
    (Script::Arabic, &["ar", "fa", "ps", "sd", "ug", "ur"]),
    (Script::Armenian, &["hy", "hyw"]),
    (Script::Bengali, &["as", "bn", "bpy"]),
    (Script::Cherokee, &["chr"]),
    (
        Script::Cyrillic,
        &["ab", "ba", "be", "bg", "bs", "cv", "hr", "kk", "ky", "mk", "mn", "nog", "ru", "sr", "tt", "uk"],
    ),
    (Script::Devanagari, &["hi", "kok", "mr", "ne"]),
    (Script::Ethiopic, &["am", "ti"]),
    (Script::Georgian, &["ka"]),
    (Script::Greek, &["el", "grc"]),
    (Script::Gujarati, &["gu"]),
    (Script::Gurmukhi, &["pa"]),
    (Script::Han, &["cmn", "yue", "zh"]),
    (Script::Hangul, &["ko"]),
    (Script::Hebrew, &["he"]),
    (Script::Hiragana, &["ja"]),
    (Script::Katakana, &["ja"]),
    (Script::Kannada, &["kn"]),
    (Script::Malayalam, &["ml"]),
    (Script::Myanmar, &["my", "shn"]),
    (Script::Oriya, &["or"]),
    (Script::Shavian, &["en"]),
    (Script::Sinhala, &["si"]),
    (Script::Tamil, &["ta"]),
    (Script::Telugu, &["te"]),
    (Script::Thai, &["th"]),
];

/// Characters of a word, and of a number with its points: longer ones are cut.
const MAX_WORD_CHARS: usize = 40;
const MAX_NUMBER_CHARS: usize = 16;
/// Stops with one or two letters between them, as in "U.S.A.": later ones are left out.
const MAX_STOPS: usize = 6;

/// What a character is to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CharKind {
    /// A letter or a mark above one.
    Letter,
    Digit,
    /// An apostrophe, hyphen or joiner: part of the word beside it.
    Inside,
    /// Ends a clause, or is part of a number.
    Stop,
    /// Has a name that is spoken.
    Sign,
    /// A space, or a mark that is not spoken.
    Silent,
    /// Cannot be read in this language.
    Unreadable,
}

/// `text` as the library may see it, or the characters that cannot be read in the language of `tag`, each once.
pub(crate) fn readable(text: &str, tag: &str) -> Result<String, Vec<char>> {
    let primary = tag.trim().split(['-', '_']).next().unwrap_or("").to_lowercase();
    let mut unreadable: Vec<char> = text.chars().filter(|c| kind_of(*c, &primary) == CharKind::Unreadable).collect();
    if !unreadable.is_empty() {
        unreadable.sort_unstable();
        unreadable.dedup();
        return Err(unreadable);
    }
    let mut clean = Cleaner::default();
    let kinds = text.chars().map(|c| (c, kind_of(c, &primary)));
    let nexts = kinds.clone().skip(1).map(|(_, kind)| kind).chain([CharKind::Silent]);
    kinds.zip(nexts).for_each(|((c, kind), next)| clean.push(c, kind, next));
    Ok(clean.out)
}

/// The text so far, and what its last characters are.
#[derive(Debug, Default)]
struct Cleaner {
    out: String,
    before: Option<CharKind>,
    /// Characters since the last space.
    word_chars: usize,
    /// Something is spoken since the last stop.
    is_spoken: bool,
    /// Letters since the last stop, and stops since the last word of three letters.
    letters: usize,
    stops: usize,
}

impl Cleaner {
    fn push(&mut self, c: char, kind: CharKind, next: CharKind) {
        let is_word = |kind| matches!(kind, CharKind::Letter | CharKind::Digit);
        let stays = match kind {
            CharKind::Letter | CharKind::Digit | CharKind::Sign => true,
            CharKind::Inside => self.before.map_or(is_word(next), is_word),
            CharKind::Stop => self.is_spoken && self.stops < MAX_STOPS,
            CharKind::Silent | CharKind::Unreadable => false,
        };
        match kind {
            CharKind::Letter => self.letters += 1,
            // It belongs to the word before it, also behind a quote that became a space.
            CharKind::Stop => {
                // A dash stands alone.
                let end = if matches!(c, '–' | '—') { self.out.len() } else { self.out.trim_end().len() };
                self.out.truncate(end);
                (self.stops, self.letters) = (self.stops + 1, 0);
            }
            _ => {}
        }
        if self.letters >= 3 {
            self.stops = 0;
        }
        let is_number = kind == CharKind::Digit || self.before == Some(CharKind::Digit);
        let limit = if is_number { MAX_NUMBER_CHARS } else { MAX_WORD_CHARS };
        let is_cut = self.word_chars >= limit || (kind == CharKind::Sign && self.before == Some(CharKind::Sign));
        if is_cut || !stays {
            self.out.push(' ');
            self.word_chars = 0;
        }
        if stays {
            self.out.push(c);
            self.word_chars += 1;
            self.is_spoken = kind != CharKind::Stop;
        }
        self.before = stays.then_some(kind);
    }
}

fn kind_of(c: char, language: &str) -> CharKind {
    match c {
        '0'..='9' | '\u{0660}'..='\u{0669}' | '\u{06F0}'..='\u{06F9}' => CharKind::Digit,
        '\'' | '’' | 'ʼ' | 'ʻ' | '-' | '‐' | '‑' | '\u{200C}' | '\u{200D}' => CharKind::Inside,
        '.' | ',' | ';' | ':' | '!' | '?' | '…' | '–' | '—' => CharKind::Stop,
        '،' | '؛' | '؟' | '۔' | '।' | '॥' | '。' | '、' | '！' | '？' | '，' | '：' | '；' => {
            CharKind::Stop
        }
        '%' | '$' | '€' | '£' | '¥' | '&' | '+' | '=' | '@' | '#' | '/' | '°' | '§' | '±' | '×' | '÷' | '½' | '¼'
        | '¾' | '²' | '³' | '‰' | '٪' => CharKind::Sign,
        // The long vowels of Katakana, and the stroke that lengthens Arabic letters.
        'ー' | '\u{0640}' => CharKind::Letter,
        c if c.is_whitespace() || c.is_control() => CharKind::Silent,
        c => match c.script() {
            Script::Common if is_mark(c) => CharKind::Silent,
            // A soft hyphen, a variation selector.
            Script::Inherited if is_mark(c) => CharKind::Silent,
            Script::Latin | Script::Inherited => CharKind::Letter,
            script if is_read(script, language) && c.is_numeric() => CharKind::Digit,
            script if is_read(script, language) => CharKind::Letter,
            _ => CharKind::Unreadable,
        },
    }
}

/// Quotes, brackets, bullets, directions and the like, of ASCII, Latin, general and CJK punctuation.
fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(c, '\u{00A1}'..='\u{00BF}' | '\u{200B}'..='\u{206F}' | '\u{2122}' | '\u{3001}'..='\u{303F}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}')
}

/// Whether the library reads `script` in `language`.
fn is_read(script: Script, language: &str) -> bool {
    SCRIPTS.iter().any(|(known, languages)| *known == script && languages.contains(&language))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tag: &str, text: &str, expected: &str) {
        let clean = readable(text, tag).unwrap();
        assert_eq!(clean.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text:?}");
    }

    #[test]
    fn sentences_stay_as_they_are() {
        for (tag, text) in [
            ("de", "Das kostet 3,50 €, also 20 % mehr als am 12.05.2024!"),
            ("de_AT", "z.B. um 17:30 Uhr in der Paulskirche, bei -5 °C?"),
            ("fr", "L’école d'à côté est fermée…"),
            ("fa", "من کتاب\u{200C}های او را، در سال ۱۳۹۸ خواندم؛ سَلام؟"),
            ("hi", "नमस्ते दुनिया।"),
            ("zh", "你好，世界。"),
            ("ja", "スーパーは どこ？"),
            ("uk", "п'ять об’єктів"),
        ] {
            check(tag, text, text);
        }
    }

    #[test]
    fn marks_that_are_not_spoken_are_spaces() {
        check("de", "„Hallo“ – (sagte) *er*: »ja!?«", "Hallo – sagte er: ja!");
        check("de", "„Ja“, sagte er.", "Ja, sagte er.");
        check("de", "a\0b\u{1}50s\u{FEFF}\u{AD}c -- d' --e' '", "a b 50s c d' -e'");
        check("en", "5%%%% && ++ a....b", "5% % % % & & + + a. b");
    }

    #[test]
    fn words_numbers_and_rows_of_dotted_letters_have_an_end() {
        check("de", &"a".repeat(100), &["a".repeat(40), "a".repeat(40), "a".repeat(20)].join(" "));
        check("de", &"1".repeat(20), "1111111111111111 1111");
        check("en", "a.b.c.d.e.f.g.h.i. U.S.A.", "a.b.c.d.e.f.g h i U S A");
        check("en", "the U.S.A. and the U.S.S.R.", "the U.S.A. and the U.S.S.R.");
    }

    #[test]
    fn characters_of_other_scripts_are_named() {
        assert_eq!(readable("αβ und 中α 😀", "de"), Err(vec!['α', 'β', '中', '😀']));
        assert_eq!(readable("Привет 𝐀", "fa-IR"), Err("ПвеиртÀ𝐀".chars().filter(|c| *c != 'À').collect()));
        check("el", "α", "α");
        check("SR_rs", "здраво svete", "здраво svete");
    }
}
