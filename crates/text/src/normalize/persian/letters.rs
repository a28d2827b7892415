//! One code point for each Persian letter and mark, whatever keyboard it was typed on.

use unicode_normalization::UnicodeNormalization;

use crate::normalize::Harakat;
use crate::normalize::unicode::ZWNJ;

/// Letters of Arabic and of other keyboards, and the Persian ones they stand for.
const LETTERS: &[(char, &str)] = &[
    ('ي', "ی"),
    ('ى', "ی"),
    ('ې', "ی"),
    ('ے', "ی"),
    ('ك', "ک"),
    ('ڪ', "ک"),
    ('ة', "ه"),
    ('ۃ', "ه"),
    ('ە', "ه"),
    ('ہ', "ه"),
    ('ھ', "ه"),
    ('ٱ', "ا"),
    ('إ', "ا"),
    ('\u{0676}', "ؤ"),
];

/// Marks, as Persian writes them.
const MARKS: &[(char, &str)] = &[
    (',', "،"),
    ('٬', "،"),
    (';', "؛"),
    ('?', "؟"),
    ('“', "«"),
    ('„', "«"),
    ('”', "»"),
    ('‹', "«"),
    ('›', "»"),
    ('۔', "."),
    ('‐', "-"),
    ('‑', "-"),
    ('−', "-"),
    ('–', "—"),
    ('‒', "—"),
    ('―', "—"),
    ('[', "("),
    (']', ")"),
    ('{', "("),
    ('}', ")"),
    ('&', " و "),
    ('+', " به\u{200C}علاوه "),
    ('=', " مساوی "),
    ('٪', " درصد "),
    ('%', " درصد "),
    ('$', " دلار "),
    ('€', " یورو "),
    ('£', " پوند "),
    ('¥', " ین "),
    ('°', " درجه "),
];

const TATWEEL: char = '\u{0640}';
const HAMZA_ABOVE: char = '\u{0654}';

/// Letters unified, tatweel out, presentation forms resolved, digits as 0 to 9, vowel marks by `harakat`.
pub(crate) fn unify(text: &str, harakat: Harakat) -> Vec<char> {
    let mut out: Vec<char> = Vec::with_capacity(text.len());
    for c in text.chars() {
        if is_presentation_form(c) {
            std::iter::once(c).nfkc().for_each(|part| push(part, harakat, &mut out));
        } else {
            push(c, harakat, &mut out);
        }
    }
    // Letters that have changed may compose with the marks behind them.
    out.into_iter().nfc().collect()
}

fn push(c: char, harakat: Harakat, out: &mut Vec<char>) {
    // A vowel mark behind a digit, a space or a tatweel has no letter to stand on.
    let is_loose = || !out.last().is_some_and(|before| before.is_alphabetic() || *before == ZWNJ);
    if c == TATWEEL || (is_harakat(c) && (harakat == Harakat::Drop || is_loose())) {
        return;
    }
    if let Some(carrier) = with_hamza(c, out) {
        *carrier.0 = carrier.1;
    } else if let Some(digit) = digit(c) {
        out.push(digit);
    } else {
        match LETTERS.iter().find(|(from, _)| *from == c) {
            Some((_, to)) => out.extend(to.chars()),
            None => out.push(c),
        }
    }
}

/// The letter that a hamza above (`c`) stands on, and the letter they make. Vowel marks may stand between them: canonical order
/// puts them first.
fn with_hamza(c: char, out: &mut [char]) -> Option<(&mut char, char)> {
    let carrier = out.iter_mut().rev().find(|before| !is_harakat(**before)).filter(|_| c == HAMZA_ABOVE)?;
    let composed = match *carrier {
        'ه' => 'ۀ',
        'ی' => 'ئ',
        _ => return None,
    };
    Some((carrier, composed))
}

/// The words and marks for signs that no number has taken, in `out`. A straight quote opens and closes in turn.
pub(crate) fn mark(c: char, quoted: &mut bool, out: &mut String) {
    if c == '"' {
        *quoted = !*quoted;
        out.push(if *quoted { '«' } else { '»' });
        return;
    }
    match MARKS.iter().find(|(from, _)| *from == c) {
        Some((_, to)) => out.push_str(to),
        None => out.push(c),
    }
}

/// 0 to 9 for the digits of Persian (۰) and Arabic (٠) writing and for those already so.
fn digit(c: char) -> Option<char> {
    let value = match c {
        '0'..='9' => return Some(c),
        '۰'..='۹' => c as u32 - '۰' as u32,
        '٠'..='٩' => c as u32 - '٠' as u32,
        _ => return None,
    };
    char::from_digit(value, 10)
}

/// Short vowels, their doubled forms, gemination and its absence, and the small alef.
pub(crate) fn is_harakat(c: char) -> bool {
    matches!(c, '\u{064B}'..='\u{0652}' | '\u{0670}')
}

/// Letters in the form they take at one place of a word, and ligatures.
fn is_presentation_form(c: char) -> bool {
    matches!(c, '\u{FB50}'..='\u{FDFF}' | '\u{FE70}'..='\u{FEFC}')
}
