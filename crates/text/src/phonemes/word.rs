//! One English word to phones: the dictionary, the dictionary without an ending, and letters to sounds at last.

use super::dictionary::Dictionary;
use super::letter_to_sound::LetterToSound;
use super::phone::Phone;

/// How the pronunciation of a word was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PronunciationSource {
    /// It is in the dictionary.
    Dictionary,
    /// What it is made of is in the dictionary.
    Derived,
    /// It was guessed from its letters.
    Guessed,
}

/// Words the dictionary lacks and the normaliser writes: names of letters.
const ADDED: [(&str, &[&str]); 3] = [
    ("aitch", &["EY1", "CH"]),
    ("eff", &["EH1", "F"]),
    ("quadrillion", &["K", "W", "AA0", "D", "R", "IH1", "L", "Y", "AH0", "N"]),
];

/// Endings, their sound, and what the stem may have lost before them. The plural and the past are said in three ways and
/// are not here.
const ENDINGS: [(&str, &[&str], &[&str]); 11] = [
    ("ing", &["IH0", "NG"], &["", "e"]),
    ("in'", &["IH0", "N"], &["", "e"]),
    ("ly", &["L", "IY0"], &["", "le"]),
    ("ness", &["N", "AH0", "S"], &["", "y"]),
    ("less", &["L", "AH0", "S"], &[""]),
    ("ful", &["F", "AH0", "L"], &[""]),
    ("ment", &["M", "AH0", "N", "T"], &[""]),
    ("like", &["L", "AY2", "K"], &[""]),
    ("able", &["AH0", "B", "AH0", "L"], &["", "e"]),
    ("er", &["ER0"], &["", "e"]),
    ("y", &["IY0"], &["", "e"]),
];

/// No word of the dictionary is longer, in bytes, with the ending it may have lost.
const LONGEST: usize = 48;
/// A stem of fewer letters is more likely an accident.
const SHORTEST_STEM: usize = 3;
/// Parts of a compound are no shorter.
const SHORTEST_PART: usize = 4;

/// Appends how `word` is said to `out` and says how that was found. The word is in lower case, of letters and apostrophes.
///
/// Homographs get their first pronunciation. Costs a microsecond when the word is in the dictionary, some tens when not.
pub fn pronounce(word: &str, out: &mut Vec<Phone>) -> PronunciationSource {
    if known(word, out) {
        return PronunciationSource::Dictionary;
    }
    if word.len() <= LONGEST && derived(word, out) {
        return PronunciationSource::Derived;
    }
    LetterToSound::english().guess(word, out);
    PronunciationSource::Guessed
}

/// Whether a word is said without guessing, by itself.
pub(crate) fn is_known(word: &str) -> bool {
    ADDED.iter().any(|(added, _)| *added == word) || Dictionary::english().contains(word)
}

fn known(word: &str, out: &mut Vec<Phone>) -> bool {
    if let Some((_, phones)) = ADDED.iter().find(|(added, _)| *added == word) {
        append(phones, out);
        return true;
    }
    Dictionary::english().look_up(word, out)
}

fn derived(word: &str, out: &mut Vec<Phone>) -> bool {
    possessive(word, out) || derived_plain(word, out)
}

/// "unquenchable": what follows is known, or made of what is.
fn negated(word: &str, out: &mut Vec<Phone>) -> bool {
    let Some(stem) = word.strip_prefix("un").filter(|stem| stem.len() > SHORTEST_STEM) else { return false };
    let start = out.len();
    append(&["AH0", "N"], out);
    let found = known(stem, out) || plural(stem, out) || past(stem, out) || ending(stem, out);
    if !found {
        out.truncate(start);
    }
    found
}

/// "whittemore's", "steels'".
fn possessive(word: &str, out: &mut Vec<Phone>) -> bool {
    if let Some(stem) = word.strip_suffix('\'') {
        return known(stem, out) || (stem.len() < word.len() && derived_plain(stem, out));
    }
    let Some(stem) = word.strip_suffix("'s") else { return false };
    let found = known(stem, out) || derived_plain(stem, out);
    if found {
        hiss(out);
    }
    found
}

/// Endings, beginnings and compounds, after what was said of possessives.
fn derived_plain(word: &str, out: &mut Vec<Phone>) -> bool {
    let rules = [plural, past, ending, negated, compound];
    rules.iter().any(|rule| rule(word, out))
}

/// "rowboats", "foxes", "ponies".
fn plural(word: &str, out: &mut Vec<Phone>) -> bool {
    let Some(stem) = word.strip_suffix('s').filter(|stem| !stem.ends_with('s')) else { return false };
    let found = stem_known(stem, out)
        || stem.strip_suffix('e').is_some_and(|stem| stem_known(stem, out))
        || stem.strip_suffix("ie").is_some_and(|stem| stem_known(&format!("{stem}y"), out));
    if found {
        hiss(out);
    }
    found
}

/// "clubbed", "hoped", "petrified".
fn past(word: &str, out: &mut Vec<Phone>) -> bool {
    let Some(stem) = word.strip_suffix("ed") else { return false };
    let found = with_lost(stem, &["", "e"], out)
        || stem.strip_suffix('i').is_some_and(|stem| stem_known(&format!("{stem}y"), out));
    if found {
        match out.last().map(|phone| (phone.name(), phone.is_voiceless())) {
            Some(("T" | "D", _)) => append(&["IH0", "D"], out),
            Some((_, true)) => append(&["T"], out),
            _ => append(&["D"], out),
        }
    }
    found
}

fn ending(word: &str, out: &mut Vec<Phone>) -> bool {
    ENDINGS.iter().any(|(ending, phones, lost)| {
        let Some(stem) = word.strip_suffix(ending) else { return false };
        let found = with_lost(stem, lost, out);
        if found {
            append(phones, out);
        }
        found
    })
}

/// Two words written as one, the longer first part preferred: "handkerchiefbox".
fn compound(word: &str, out: &mut Vec<Phone>) -> bool {
    let splits = (SHORTEST_PART..=word.len().saturating_sub(SHORTEST_PART)).rev();
    for at in splits.filter(|at| word.is_char_boundary(*at)) {
        let (first, second) = word.split_at(at);
        if is_known(first) && is_known(second) {
            known(first, out);
            let start = out.len();
            known(second, out);
            // The main stress of an English compound is on its first part.
            out[start..].iter_mut().filter(|phone| phone.stress() == Some(super::Stress::Primary)).for_each(|phone| {
                *phone = phone.with_stress(super::Stress::Secondary);
            });
            return true;
        }
    }
    false
}

/// The stem as it is, with what it lost, or with its doubled last letter undone ("clubb").
fn with_lost(stem: &str, lost: &[&str], out: &mut Vec<Phone>) -> bool {
    if lost.iter().any(|lost| stem_known(&format!("{stem}{lost}"), out)) {
        return true;
    }
    let mut back = stem.bytes().rev();
    let doubled = back.next().is_some_and(|last| last.is_ascii_lowercase() && back.next() == Some(last));
    doubled && stem_known(&stem[..stem.len() - 1], out)
}

fn stem_known(stem: &str, out: &mut Vec<Phone>) -> bool {
    stem.len() >= SHORTEST_STEM && known(stem, out)
}

/// The sound of an s after what has been said.
fn hiss(out: &mut Vec<Phone>) {
    match out.last().map(|phone| (phone.name(), phone.is_voiceless())) {
        Some(("S" | "Z" | "SH" | "ZH" | "CH" | "JH", _)) => append(&["IH0", "Z"], out),
        Some((_, true)) => append(&["S"], out),
        _ => append(&["Z"], out),
    }
}

fn append(names: &[&str], out: &mut Vec<Phone>) {
    out.extend(names.iter().filter_map(|name| Phone::from_name(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, source: PronunciationSource, expected: &str) {
        let mut phones = Vec::new();
        let found = pronounce(word, &mut phones);
        let said = phones.iter().map(|phone| phone.name()).collect::<Vec<_>>().join(" ");
        assert_eq!((found, said.as_str()), (source, expected), "{word}");
    }

    #[test]
    fn words_of_the_dictionary() {
        check("hello", PronunciationSource::Dictionary, "HH AH0 L OW1");
        check("aitch", PronunciationSource::Dictionary, "EY1 CH");
        check("eff", PronunciationSource::Dictionary, "EH1 F");
    }

    #[test]
    fn endings_are_taken_off() {
        check("hello's", PronunciationSource::Derived, "HH AH0 L OW1 Z");
        check("handkerchief's", PronunciationSource::Derived, "HH AE1 NG K ER0 CH IH0 F S");
        check("aurora's", PronunciationSource::Derived, "ER0 AO1 R AH0 Z");
        check("xylophones", PronunciationSource::Derived, "Z AY1 L AH0 F OW2 N Z");
        check("clubbed", PronunciationSource::Dictionary, "K L AH1 B D");
        check("unquenchable", PronunciationSource::Derived, "AH0 N K W EH1 N CH AH0 B AH0 L");
        check("springy", PronunciationSource::Derived, "S P R IH1 NG IY0");
        check("trampolining", PronunciationSource::Derived, "T R AE2 M P AH0 L IY1 N IH0 NG");
    }

    #[test]
    fn compounds_are_taken_apart() {
        check("rainwalker", PronunciationSource::Derived, "R EY1 N W AO2 K ER0");
        check("sealhunters", PronunciationSource::Derived, "S IY1 L HH AH2 N T ER0 Z");
    }

    #[test]
    fn the_rest_is_guessed() {
        check("vlick", PronunciationSource::Guessed, "V L IH1 K");
        check("", PronunciationSource::Guessed, "");
        check("'", PronunciationSource::Guessed, "");
    }

    #[test]
    fn every_name_in_the_tables_is_a_phone() {
        let names = ENDINGS.iter().flat_map(|(_, phones, _)| phones.iter());
        let names = names.chain(ADDED.iter().flat_map(|(_, phones)| phones.iter()));
        names.for_each(|name| assert!(Phone::from_name(name).is_some(), "{name}"));
    }
}
