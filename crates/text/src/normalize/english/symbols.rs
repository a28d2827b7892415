//! Signs: one form for each quote and dash, plain letters for accented ones, words for symbols.

use unicode_normalization::UnicodeNormalization;

use crate::normalize::unicode::fraction;

/// One character for several that mean the same, or several for one. Read after composition.
const UNIFIED: &[(&str, &str)] = &[
    ("‘’‚‛′ʼ`´", "'"),
    ("“”„‟″«»‹›", "\""),
    ("‐‑−﹣－", "-"),
    ("‒–—―⸺", "—"),
    ("[{", "("),
    ("]}", ")"),
    ("⁄∕", "/"),
    ("№", "number "),
    ("æ", "ae"),
    ("Æ", "AE"),
    ("œ", "oe"),
    ("Œ", "OE"),
    ("ø", "o"),
    ("Ø", "O"),
    ("ß", "ss"),
    ("ł", "l"),
    ("Ł", "L"),
    ("đð", "d"),
    ("þ", "th"),
    ("ı", "i"),
];

/// Cleaned text with unified signs and unaccented letters, as characters. Runs of hyphens become a dash, runs of stops an
/// ellipsis, hyphens at the edge of a word a dash.
pub(crate) fn unify(text: &str) -> Vec<char> {
    let mut out: Vec<char> = Vec::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || c == ' ' {
            out.push(c);
            continue;
        }
        if let Some((top, bottom)) = fraction(c) {
            out.extend(format!(" {top}/{bottom}").chars());
            continue;
        }
        match UNIFIED.iter().find(|(from, _)| from.contains(c)) {
            Some((_, to)) => out.extend(to.chars()),
            None => unaccent(c, &mut out),
        }
    }
    join_runs(&out)
}

/// Writes `c`, as its letter alone if it is an ASCII letter with accents; accents that follow one are left out.
fn unaccent(c: char, out: &mut Vec<char>) {
    let is_accent = |c: char| matches!(c, '\u{0300}'..='\u{036F}');
    if c.is_ascii() {
        out.push(c);
    } else if is_accent(c) {
        if !out.last().is_some_and(char::is_ascii_alphabetic) {
            out.push(c);
        }
    } else {
        let mut parts = std::iter::once(c).nfd();
        match parts.next() {
            Some(base) if base.is_ascii_alphabetic() && parts.all(is_accent) => out.push(base),
            _ => out.push(c),
        }
    }
}

fn join_runs(chars: &[char]) -> Vec<char> {
    let mut out = Vec::with_capacity(chars.len());
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        let run = chars[at..].iter().take_while(|other| **other == c).count();
        let wordlike = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric());
        match (c, run) {
            ('-', 1) => {
                let before = wordlike(out.last()) || out.last() == Some(&'.');
                let after = chars.get(at + 1);
                let inside = before && wordlike(after);
                // "-5", "-$5" and "-.5" are for the number rules; "goin'-on" and the like keep theirs.
                let sign = !before && after.is_some_and(|c| c.is_ascii_digit() || "$£€¥.".contains(*c));
                let apostrophe = out.last() == Some(&'\'') || after == Some(&'\'');
                out.push(if inside || sign || (apostrophe && (before || wordlike(after))) { '-' } else { '—' });
            }
            ('-' | '—', _) => out.push('—'),
            ('.', 2..) => out.push('…'),
            _ => out.extend(std::iter::repeat_n(c, run)),
        }
        at += run;
    }
    out
}

/// The word for a symbol, which may depend on its neighbours; nothing for characters that stay.
pub(crate) fn said(c: char, before: Option<char>, after: Option<char>) -> Option<&'static str> {
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    match c {
        '&' => Some("and"),
        '@' => Some("at"),
        '+' => Some("plus"),
        '=' => Some("equals"),
        '%' => Some("percent"),
        '#' if letter(after) => Some("hashtag"),
        '#' => Some("number"),
        '×' => Some("times"),
        '÷' => Some("divided by"),
        '±' => Some("plus or minus"),
        '°' => Some("degrees"),
        '§' => Some("section"),
        '$' => Some("dollar"),
        '£' => Some("pound"),
        '€' => Some("euro"),
        '¥' => Some("yen"),
        '/' if digit(before) && digit(after) => Some("slash"),
        // "and/or": nobody says the stroke between words.
        '/' if letter(before) && letter(after) => Some(" "),
        '/' => Some("slash"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: &str) {
        assert_eq!(unify(input).into_iter().collect::<String>(), expected, "{input:?}");
    }

    #[test]
    fn quotes_dashes_and_stops() {
        check("“It’s,” he said – ‘now’", "\"It's,\" he said — 'now'");
        check("well--no --- yes", "well—no — yes");
        check("wait... what.. no.", "wait… what… no.");
        check("rifle-shot - a- -b", "rifle-shot — a— —b");
        check("-5 -$5 10-20 x-", "-5 -$5 10-20 x—");
    }

    #[test]
    fn accents() {
        check("café Ångström naïve Œuvre straße", "cafe Angstrom naive OEuvre strasse");
        check("q\u{0303}", "q");
        check("\u{0303}", "\u{0303}");
        check("мир 中", "мир 中");
    }
}
