//! Persian: letters and marks in one spelling, numbers written out, the zero-width non-joiner where it belongs.
//!
//! What comes out consists of the Persian alphabet, spaces, non-joiners inside words and the marks
//! `. ، ؛ : ؟ ! — … « » ( ) -`, plus whatever no rule knows.

mod letters;
mod numbers;

use super::unicode::{ZWNJ, clean, squeeze};
pub(crate) use letters::is_harakat;

/// What becomes of the marks for short vowels, which most texts do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Harakat {
    /// They are symbols like any other. One that stands on no letter is left out.
    Keep,
    /// They are left out, so that texts with and without them look alike.
    #[default]
    Drop,
}

/// `text` without marks for short vowels.
pub fn without_harakat(text: &str) -> String {
    text.chars().filter(|c| !is_harakat(*c)).collect()
}

/// `text` as it is spoken.
pub fn normalize(text: &str, harakat: Harakat) -> String {
    let chars = letters::unify(&clean(text), harakat);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let mut quoted = false;
    while at < chars.len() {
        let before = at.checked_sub(1).map(|before| chars[before]);
        let free = !before.is_some_and(|c| c.is_alphanumeric() || c == '-' || numbers::ends_amount(c));
        if let Some((len, said)) = numbers::read(&chars[at..], free) {
            spaced(&mut out, &said, chars.get(at + len));
            at += len;
        } else {
            letters::mark(chars[at], &mut quoted, &mut out);
            at += 1;
        }
    }
    tidy(&join_runs(&out))
}

/// Writes the words of a number, apart from the words on either side. A non-joiner between them separates already.
fn spaced(out: &mut String, said: &str, next: Option<&char>) {
    if out.ends_with(|c: char| c.is_alphanumeric() || c == ZWNJ) {
        out.push(' ');
    }
    out.push_str(said);
    if next.is_some_and(|c| c.is_alphanumeric()) {
        out.push(' ');
    }
}

/// Runs of stops are an ellipsis, runs of hyphens a dash.
fn join_runs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let mut run = 1;
        while matches!(c, '.' | '-') && chars.next_if_eq(&c).is_some() {
            run += 1;
        }
        out.push(match (c, run) {
            ('.', 2..) => '…',
            ('-', 2..) => '—',
            _ => c,
        });
    }
    out
}

/// Spaces squeezed, none before a mark that closes or after one that opens, and non-joiners between letters only.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in squeeze(text.chars()).chars() {
        let closes = matches!(c, '.' | '،' | '؛' | ':' | '؟' | '!' | '…' | '»' | ')');
        if (closes && out.ends_with([' ', ZWNJ])) || (!c.is_alphanumeric() && out.ends_with(ZWNJ)) {
            out.pop();
        }
        let useless = matches!(c, ' ' | ZWNJ) && out.ends_with(['«', '(']);
        let loose = c == ZWNJ && !out.ends_with(|c: char| c.is_alphanumeric() || is_mark_above(c));
        if !useless && !loose {
            out.push(c);
        }
    }
    out.truncate(out.trim_end_matches([' ', ZWNJ]).len());
    out
}

/// A vowel mark belongs to the letter it stands on.
fn is_mark_above(c: char) -> bool {
    matches!(c, '\u{064B}'..='\u{0655}' | '\u{0670}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cases: &[(&str, &str)]) {
        for (input, expected) in cases {
            let found = normalize(input, Harakat::Drop);
            assert_eq!(found, *expected, "{input:?}");
            assert_eq!(normalize(&found, Harakat::Drop), found, "again: {found:?}");
        }
    }

    #[test]
    fn letters_have_one_spelling() {
        check(&[
            ("", ""),
            ("علي و كتاب", "علی و کتاب"),
            ("موسى", "موسی"),
            ("رحمة", "رحمه"),
            ("خانهٔ ما", "خانۀ ما"),
            ("خانۀ ما", "خانۀ ما"),
            ("سـلام", "سلام"),
            ("ﺳﻼم", "سلام"),
            ("تأثیر مسئول رؤیا", "تأثیر مسئول رؤیا"),
            ("آب", "آب"),
            ("ا\u{0653}ب", "آب"),
        ]);
    }

    #[test]
    fn harakat_are_kept_or_dropped() {
        check(&[("سَلامٌ", "سلام"), ("مُحَمَّد", "محمد"), ("\u{064E}", ""), ("\u{FE77}", "")]);
        assert_eq!(normalize("مُحَمَّد", Harakat::Keep), "مُحَمَّد");
    }

    #[test]
    fn every_vowel_mark_is_kept_or_dropped() {
        for mark in ('\u{064B}'..='\u{0652}').chain(['\u{0670}']) {
            let marked = format!("می\u{200C}د{mark}هم ۲۵");
            assert_eq!(normalize(&marked, Harakat::Keep), format!("می\u{200C}د{mark}هم بیست و پنج"), "{mark:?}");
            assert_eq!(normalize(&marked, Harakat::Drop), "می\u{200C}دهم بیست و پنج", "{mark:?}");
        }
    }

    #[test]
    fn vowel_marks_change_nothing_else() {
        for (text, kept) in [
            // Two marks on one letter, in either order; as presentation forms.
            ("ب\u{0651}\u{064E}د", "ب\u{064E}\u{0651}د"),
            ("ب\u{064E}\u{0651}د", "ب\u{064E}\u{0651}د"),
            ("ب\u{FE77}د", "ب\u{064E}د"),
            // Before and behind a non-joiner.
            ("کتاب\u{0650}\u{200C}ها", "کتاب\u{0650}\u{200C}ها"),
            ("م\u{064E}ی\u{200C}خواهم", "م\u{064E}ی\u{200C}خواهم"),
            // A letter that composes with a hamza, with a vowel mark between them.
            ("خانه\u{0654}\u{0650} ما", "خانۀ\u{0650} ما"),
            ("خانه\u{0650}\u{0654} ما", "خانۀ\u{0650} ما"),
            ("مسی\u{0654}ول", "مسئول"),
            ("مسي\u{0654}ول", "مسئول"),
            ("مثلاً", "مثلا\u{064B}"),
            // No letter to stand on.
            ("\u{064E}ب", "ب"),
            ("۱۲\u{064E}۳", "صد و بیست و سه"),
            ("۲۰٪\u{0650} آن", "بیست درصد آن"),
            ("ـ\u{064E}", ""),
            ("سال\u{0650} ۱۴۰۳", "سال\u{0650} هزار و چهارصد و سه"),
        ] {
            assert_eq!(normalize(text, Harakat::Keep), kept, "{text:?}");
            assert_eq!(normalize(kept, Harakat::Keep), kept, "again: {kept:?}");
            assert_eq!(normalize(text, Harakat::Drop), without_harakat(kept), "{text:?}");
        }
    }

    #[test]
    fn digits_of_all_three_kinds_mix_with_joiners_and_marks() {
        check(&[
            ("۱٢3", "صد و بیست و سه"),
            ("۵\u{200C}ام", "پنجم"),
            ("۱\u{200C}۲", "یک دو"),
            ("کلاس۲", "کلاس دو"),
            ("می\u{200C}۲", "می دو"),
        ]);
    }

    #[test]
    fn non_joiners_stand_between_letters_only() {
        check(&[
            ("می\u{200C}خواهم", "می\u{200C}خواهم"),
            ("می\u{200C}\u{200C}خواهم", "می\u{200C}خواهم"),
            ("\u{200C}کتاب\u{200C}", "کتاب"),
            ("کتاب\u{200C} خانه", "کتاب خانه"),
            ("کتاب\u{200C}، خانه", "کتاب، خانه"),
            ("«\u{200C}کتاب\u{200C}»", "«کتاب»"),
        ]);
    }

    #[test]
    fn numbers() {
        check(&[
            ("سال ۱۴۰۳", "سال هزار و چهارصد و سه"),
            ("سال ١٤٠٣", "سال هزار و چهارصد و سه"),
            ("سال 1403", "سال هزار و چهارصد و سه"),
            ("۵کتاب", "پنج کتاب"),
            ("دمای ‎-۵ درجه", "دمای منفی پنج درجه"),
            ("۱٬۲۵۰٬۰۰۰ ریال", "یک میلیون و دویست و پنجاه هزار ریال"),
            ("۳٫۱۴", "سه ممیز چهارده"),
            ("۳/۵", "سه ممیز پنج"),
            ("0.05", "صفر ممیز صفر پنج"),
            ("2.71828", "دو ممیز هفت یک هشت دو هشت"),
            ("۲۰٪", "بیست درصد"),
            ("٪۲۰", "بیست درصد"),
            ("12.5 %", "دوازده ممیز پنج درصد"),
            ("۰۹۱۲", "صفر نه یک دو"),
            ("10-20 نفر", "ده تا بیست نفر"),
            ("ساعت ۱۲:۳۰", "ساعت دوازده و سی دقیقه"),
            ("ساعت 8:00", "ساعت هشت"),
            ("۱۴۰۳/۰۵/۱۲", "هزار و چهارصد و سه پنج دوازده"),
            ("قرن ۲۱ام", "قرن بیست و یکم"),
            ("نفر ۳م", "نفر سوم"),
            ("۵۰$ یا $۵۰", "پنجاه دلار یا پنجاه دلار"),
            ("۱، ۲ و ۳", "یک، دو و سه"),
        ]);
    }

    #[test]
    fn marks_are_persian() {
        check(&[
            ("سلام, خوبی?", "سلام، خوبی؟"),
            ("گفت: \"بیا\" ; رفت", "گفت: «بیا»؛ رفت"),
            ("او « رفت » .", "او «رفت»."),
            ("چرا...", "چرا…"),
            ("من & تو", "من و تو"),
            ("این – آن", "این — آن"),
            ("PCR 😀", "PCR 😀"),
        ]);
    }
}
