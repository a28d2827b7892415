//! The names of the letters, and the words that are spelled with them.

/// Chosen so that the pronouncing dictionary, or the words added to it, say the letter.
const NAMES: [&str; 26] = [
    "ay",
    "bee",
    "see",
    "dee",
    "ee",
    "eff",
    "gee",
    "aitch",
    "eye",
    "jay",
    "kay",
    "ell",
    "em",
    "en",
    "oh",
    "pee",
    "cue",
    "are",
    "ess",
    "tee",
    "you",
    "vee",
    "double you",
    "ex",
    "why",
    "zee",
];

/// Spelled although they have vowels. Words that are common when somebody shouts (IT, US, WHO) are not here.
const SPELLED: [&str; 34] = [
    "AI", "API", "ATM", "CEO", "CFO", "CIA", "CPU", "DIY", "DNA", "EU", "FAQ", "FBI", "GPU", "IBM", "IOU", "IP", "IQ",
    "IRA", "IRS", "ISP", "MIT", "NBA", "PIN", "RNA", "SUV", "UAE", "UFO", "UHF", "UK", "UN", "URL", "USA", "USB",
    "VIP",
];

/// Not spelled although they have none.
const SOUNDS: [&str; 7] = ["BRR", "GRR", "HMM", "PFFT", "PSST", "SHH", "TSK"];

/// Longer words in capitals are shouted, not spelled.
const LONGEST: usize = 4;

/// The names of the letters in `word`, one after the other.
pub(crate) fn spell(word: &[char]) -> String {
    let names = word.iter().filter(|c| c.is_ascii_alphabetic()).map(|c| name(*c));
    names.collect::<Vec<_>>().join(" ")
}

/// The name of one ASCII letter.
fn name(letter: char) -> &'static str {
    let index = (letter.to_ascii_lowercase() as usize).wrapping_sub('a' as usize);
    NAMES.get(index).copied().unwrap_or("")
}

/// Whether a word that consists of capitals is said letter by letter.
pub(crate) fn is_spelled(word: &[char]) -> bool {
    if word.len() < 2 || word.len() > LONGEST || !word.iter().all(char::is_ascii_uppercase) {
        return false;
    }
    let text: String = word.iter().collect();
    let vowel = text.contains(['A', 'E', 'I', 'O', 'U', 'Y']);
    if vowel { SPELLED.contains(&text.as_str()) } else { !SOUNDS.contains(&text.as_str()) }
}

/// The letters of "BBC", or of "CDs" with the plural on the last one; nothing for words that are not spelled.
pub(crate) fn acronym(word: &[char]) -> Option<String> {
    if is_spelled(word) {
        return Some(spell(word));
    }
    let (last, stem) = word.split_last()?;
    let stem = stem.strip_suffix(&['\'']).unwrap_or(stem);
    (*last == 's' && is_spelled(stem)).then(|| plural(&spell(stem)))
}

/// Several of a letter: "dees", "esses".
fn plural(names: &str) -> String {
    let hissing = ["aitch", "ess", "ex"].iter().any(|name| names.ends_with(name));
    format!("{names}{}", if hissing { "es" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: Option<&str>) {
        let chars: Vec<char> = word.chars().collect();
        assert_eq!(acronym(&chars).as_deref(), expected, "{word}");
    }

    #[test]
    fn acronyms() {
        check("BBC", Some("bee bee see"));
        check("FBI", Some("eff bee eye"));
        check("TV", Some("tee vee"));
        check("CDs", Some("see dees"));
        check("PC's", Some("pee sees"));
        check("SMSs", Some("ess em esses"));
        for word in ["NASA", "Tv", "I", "X", "HMM", "WHO", "XYLPH", "s", "", "'s", "BCDFG"] {
            check(word, None);
        }
    }
}
