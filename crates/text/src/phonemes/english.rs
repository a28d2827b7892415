//! Normalised English to phonemes: words as phones, spaces as word boundaries, marks as pauses.

use super::phone::Phone;
use super::word::{PronunciationSource, is_known, pronounce};

/// One symbol of spoken English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phoneme {
    /// A sound.
    Phone(Phone),
    /// A space, a pause or another character as it stands in the text, and where it stands (in characters).
    Mark(char, usize),
}

/// What a text sounds like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pronunciation {
    /// In the order they are said.
    pub phonemes: Vec<Phoneme>,
    /// Words that no dictionary has, in order: they were guessed from their letters.
    pub guessed: Vec<String>,
}

/// Normalised English as phonemes. Characters that are neither letters nor joined to them stay as marks: whether the
/// symbol table has them is not decided here. Time is linear in the text.
pub fn speak(normalised: &str) -> Pronunciation {
    let mut spoken = Pronunciation::default();
    let mut position = 0;
    let mut rest = normalised;
    while let Some(c) = rest.chars().next() {
        let len = rest.find(|c| !is_wordy(c)).unwrap_or(rest.len());
        if len == 0 {
            spoken.phonemes.push(Phoneme::Mark(c, position));
            position += 1;
            rest = &rest[c.len_utf8()..];
        } else {
            let (word, after) = rest.split_at(len);
            say(word, position, &mut spoken);
            // All of a word is ASCII: bytes are characters.
            position += len;
            rest = after;
        }
    }
    spoken
}

fn is_wordy(c: char) -> bool {
    c.is_ascii_lowercase() || matches!(c, '\'' | '-')
}

/// A run of letters, apostrophes and hyphens.
fn say(run: &str, position: usize, spoken: &mut Pronunciation) {
    let plain = !run.contains('-') && !run.starts_with('\'') && !run.ends_with('\'');
    if plain || is_known(run) {
        return say_word(run, spoken);
    }
    let mut at = position;
    for (index, part) in run.split('-').enumerate() {
        if index > 0 {
            // The parts of "cat-hat" are two words to the ear.
            spoken.phonemes.push(Phoneme::Mark(' ', at));
            at += 1;
        }
        say_quoted(part, at, spoken);
        at += part.len();
    }
}

/// A word with apostrophes at its edges, which are quotation marks unless the word is known with them.
fn say_quoted(part: &str, position: usize, spoken: &mut Pronunciation) {
    let quote = |at: usize| Phoneme::Mark('"', at);
    let opened = part.trim_start_matches('\'');
    let opening = part.len() - opened.len();
    // "'em" and "'tis" are words; "''em" is a quotation mark before one.
    let keeps_one = opening > 0 && is_known(part[opening - 1..].trim_end_matches('\''));
    let start = opening - usize::from(keeps_one);
    spoken.phonemes.extend((0..start).map(|at| quote(position + at)));
    let word = &part[start..];
    let closed = word.trim_end_matches('\'');
    let closing = word.len() - closed.len();
    // "goin'" and "boys'" are words, and so is any plural's possessive.
    let keeps_one = closing > 0 && !closed.is_empty() && (is_known(&word[..closed.len() + 1]) || closed.ends_with('s'));
    let end = closed.len() + usize::from(keeps_one);
    if !closed.is_empty() {
        say_word(&word[..end], spoken);
    }
    spoken.phonemes.extend((end..word.len()).map(|at| quote(position + start + at)));
}

fn say_word(word: &str, spoken: &mut Pronunciation) {
    let mut phones = Vec::new();
    if pronounce(word, &mut phones) == PronunciationSource::Guessed {
        spoken.guessed.push(word.to_owned());
    }
    spoken.phonemes.extend(phones.into_iter().map(Phoneme::Phone));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let show = |phoneme: &Phoneme| match phoneme {
            Phoneme::Phone(phone) => phone.name().to_owned(),
            Phoneme::Mark(' ', _) => "|".to_owned(),
            Phoneme::Mark(c, _) => c.to_string(),
        };
        let spoken = speak(text);
        assert_eq!(spoken.phonemes.iter().map(show).collect::<Vec<_>>().join(" "), expected, "{text:?}");
        // Marks know where they stand.
        for phoneme in &spoken.phonemes {
            if let Phoneme::Mark(mark, at) = phoneme {
                let there = text.chars().nth(*at);
                assert!(
                    there == Some(*mark) || matches!((mark, there), (' ', Some('-')) | ('"', Some('\''))),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn words_spaces_and_marks() {
        check("", "");
        check("hello, world!", "HH AH0 L OW1 , | W ER1 L D !");
        check("中 a", "中 | AH0");
    }

    #[test]
    fn hyphens_and_apostrophes() {
        check("cat-hat", "K AE1 T | HH AE1 T");
        // Known as a whole.
        check("rifle-shot", "R AY1 F AH0 L SH AA2 T");
        check("god bless 'em", "G AA1 D | B L EH1 S | AH0 M");
        check("'hello'", "\" HH AH0 L OW1 \"");
        check("goin' on", "G OW1 AH0 N | AA1 N");
        check("the boys' hats", "DH AH0 | B OY1 Z | HH AE1 T S");
        check("''", "\" \"");
        check("-", "|");
    }

    #[test]
    fn guessed_words_are_named() {
        assert_eq!(speak("the vlick saw zorbles").guessed, ["vlick", "zorbles"]);
        assert!(speak("the cat sat").guessed.is_empty());
    }
}
