//! Cleaning that every script gets: canonical composition, one kind of space, nothing invisible.

use unicode_normalization::UnicodeNormalization;

/// Joins what would otherwise be apart, or the reverse. Both carry meaning inside a word and none at its edge.
pub const ZWNJ: char = '\u{200C}';
const ZWJ: char = '\u{200D}';

/// `text` in canonical composition (NFC), with control and direction characters taken out, every run of white space as
/// one space and none at the ends. Cleaning twice changes nothing.
pub fn clean(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_invisible(*c)).map(|c| if c.is_whitespace() { ' ' } else { c });
    if text.is_ascii() {
        return squeeze(visible);
    }
    // Composed before the spaces are squeezed: composition replaces some rare spaces by others.
    squeeze(visible.nfc())
}

/// One space for each run of them, none at the ends, and joiners only between two characters that are not spaces.
pub(crate) fn squeeze(chars: impl Iterator<Item = char>) -> String {
    let mut out = String::new();
    // What stands between the last character written and the next: a space wins over a joiner.
    let mut between: Option<char> = None;
    for c in chars {
        if c.is_whitespace() {
            between = Some(' ');
        } else if is_joiner(c) {
            between = between.or(Some(c));
        } else {
            if let Some(gap) = between.take().filter(|_| !out.is_empty()) {
                out.push(gap);
            }
            out.push(c);
        }
    }
    out
}

pub(crate) fn is_joiner(c: char) -> bool {
    matches!(c, ZWNJ | ZWJ)
}

/// Top and bottom of a fraction that is one character.
pub(crate) fn fraction(c: char) -> Option<(u64, u64)> {
    const FRACTIONS: [(char, u64, u64); 18] = [
        ('¼', 1, 4),
        ('½', 1, 2),
        ('¾', 3, 4),
        ('⅐', 1, 7),
        ('⅑', 1, 9),
        ('⅒', 1, 10),
        ('⅓', 1, 3),
        ('⅔', 2, 3),
        ('⅕', 1, 5),
        ('⅖', 2, 5),
        ('⅗', 3, 5),
        ('⅘', 4, 5),
        ('⅙', 1, 6),
        ('⅚', 5, 6),
        ('⅛', 1, 8),
        ('⅜', 3, 8),
        ('⅝', 5, 8),
        ('⅞', 7, 8),
    ];
    FRACTIONS.iter().find(|(written, ..)| *written == c).map(|(_, top, bottom)| (*top, *bottom))
}

/// Characters that are neither visible nor spoken: controls, marks of direction, soft hyphens, zero-width spaces, byte order
/// marks. White space among the controls is a space, not one of these.
fn is_invisible(c: char) -> bool {
    (c.is_control() && !c.is_whitespace())
        || matches!(c,
            '\u{00AD}' | '\u{061C}' | '\u{180E}' | '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}'
            | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: &str) {
        assert_eq!(clean(input), expected, "{input:?}");
        assert_eq!(clean(expected), expected, "again: {expected:?}");
    }

    #[test]
    fn spaces_are_squeezed() {
        check("", "");
        check(" \t\r\n ", "");
        check("  a\u{00A0}\u{2003}b\n", "a b");
        check("a\u{0085}b\u{2028}c", "a b c");
    }

    #[test]
    fn invisible_characters_go() {
        check("\u{FEFF}a\u{200E}b\u{0000}c\u{00AD}d\u{202B}\u{2069}", "abcd");
        check("a\u{007F}\u{001B}b", "ab");
        // A composition that the invisible one had kept apart.
        check("e\u{200B}\u{0301}", "é");
    }

    #[test]
    fn canonical_composition() {
        check("e\u{0301}", "é");
        check("\u{212B}", "Å");
        check("\u{1100}\u{1161}", "가");
        check("\u{0301}", "\u{0301}");
    }

    #[test]
    fn joiners_stay_inside_words_only() {
        check("می\u{200C}خواهم", "می\u{200C}خواهم");
        check("\u{200C}a\u{200C}\u{200C}b\u{200C} \u{200C}c\u{200C}", "a\u{200C}b c");
        check("क\u{200D}ष", "क\u{200D}ष");
        check("\u{200D}\u{200C}", "");
    }

    #[test]
    fn other_scripts_pass() {
        for text in ["Grüße, „Welt“!", "日本語。", "Привет — мир", "สวัสดี", "שלום", "😀"]
        {
            check(text, text);
        }
    }
}
