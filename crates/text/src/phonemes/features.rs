//! What a letter-to-sound tree may ask: shared by the trees' reader and their trainer.

use super::phone::{Phone, Stress};

/// Letters looked at on each side.
const REACH: usize = 5;
/// Phones looked at that were already chosen, nearest first.
const SOUNDS: usize = 3;
/// Letters looked at from the end of the word.
const ENDING: usize = 4;

/// How many features there are: neighbours, sounds, ending, and four small numbers.
pub const FEATURES: usize = 2 * REACH + SOUNDS + ENDING + 4;

/// A value from here on asks for a class and not for one letter or phone.
pub const CLASS: u8 = 100;

/// What a feature holds, and therefore how it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureKind {
    /// 0 outside the word, else 1 for `a` to 26 for `z`.
    Letter,
    /// 0 for none, else the phone's index plus one.
    Sound,
    /// A small number; a question asks whether it is no more than its value.
    Number,
}

/// The kind of a feature.
pub fn kind(feature: usize) -> FeatureKind {
    match feature {
        f if f < 2 * REACH => FeatureKind::Letter,
        f if f < 2 * REACH + SOUNDS => FeatureKind::Sound,
        f if f < 2 * REACH + SOUNDS + ENDING => FeatureKind::Letter,
        _ => FeatureKind::Number,
    }
}

/// Classes of letters that a question may name.
pub const LETTER_CLASSES: [&str; 8] = ["aeiou", "aeiouy", "eiy", "lr", "lmnr", "bdgkpt", "csxz", "aou"];

/// How many classes of sounds a question may name.
pub const SOUND_CLASSES: u8 = 6;

/// Whether the answer to a question (`feature`, `value`) is yes.
pub fn yes(features: &[u8; FEATURES], feature: u8, value: u8) -> bool {
    let Some(&found) = features.get(usize::from(feature)) else { return false };
    match kind(usize::from(feature)) {
        FeatureKind::Number => found <= value,
        _ if value < CLASS => found == value,
        FeatureKind::Letter => letter_in(found, value - CLASS),
        FeatureKind::Sound => sound_in(found, value - CLASS),
    }
}

/// Whether a letter feature's value belongs to a class.
pub fn letter_in(found: u8, class: u8) -> bool {
    let Some(letters) = LETTER_CLASSES.get(usize::from(class)) else { return false };
    found != 0 && letters.as_bytes().contains(&(b'a' - 1 + found))
}

/// Whether a sound feature's value belongs to a class.
pub fn sound_in(found: u8, class: u8) -> bool {
    let Some(phone) = found.checked_sub(1).and_then(Phone::from_index) else { return false };
    match class {
        0 => phone.is_vowel(),
        1 => phone.stress() == Some(Stress::None),
        2 => phone.stress() == Some(Stress::Primary),
        3 => phone.stress().is_none() && !phone.is_voiceless(),
        4 => phone.is_voiceless(),
        _ => matches!(phone.name(), "L" | "R" | "M" | "N" | "NG" | "W" | "Y"),
    }
}

/// What can be known about each letter of a word while its sounds are being chosen, last letter first.
pub struct LetterFeatures<'a> {
    letters: &'a [u8],
    /// Vowel groups that end at or before each letter.
    groups: Vec<u8>,
    sounds: [u8; SOUNDS],
    vowels: u8,
    stressed: u8,
}

/// Larger counts are all alike.
const MANY: u8 = 5;

impl<'a> LetterFeatures<'a> {
    /// Of a word of letters `a` to `z`, of which nothing has been said yet.
    pub fn new(letters: &'a [u8]) -> Self {
        let mut groups = Vec::with_capacity(letters.len());
        let (mut count, mut inside) = (0u8, false);
        for letter in letters {
            let vowel = b"aeiouy".contains(letter);
            groups.push(count);
            if vowel && !inside {
                count = (count + 1).min(MANY);
            }
            inside = vowel;
        }
        LetterFeatures { letters, groups, sounds: [0; SOUNDS], vowels: 0, stressed: 0 }
    }

    /// The features of the letter at `at`, given everything said so far.
    pub fn at(&self, at: usize) -> [u8; FEATURES] {
        let letter = |place: Option<usize>| place.and_then(|p| self.letters.get(p)).map_or(0, |l| l - b'a' + 1);
        let mut all = [0; FEATURES];
        let (neighbours, rest) = all.split_at_mut(2 * REACH);
        for distance in 1..=REACH {
            neighbours[2 * distance - 2] = letter(at.checked_sub(distance));
            neighbours[2 * distance - 1] = letter(at.checked_add(distance));
        }
        let (sounds, rest) = rest.split_at_mut(SOUNDS);
        sounds.copy_from_slice(&self.sounds);
        let (ending, numbers) = rest.split_at_mut(ENDING);
        for (back, slot) in ending.iter_mut().enumerate() {
            *slot = letter(self.letters.len().checked_sub(back + 1));
        }
        let place = at.min(usize::from(2 * MANY)) as u8;
        numbers.copy_from_slice(&[self.vowels, self.stressed, self.groups.get(at).copied().unwrap_or(0), place]);
        all
    }

    /// Notes the phone chosen next, going from the end of the word to its beginning.
    pub fn said(&mut self, phone: Phone) {
        self.sounds.rotate_right(1);
        self.sounds[0] = phone.index() + 1;
        self.vowels = (self.vowels + u8::from(phone.is_vowel())).min(MANY);
        self.stressed = match phone.stress() {
            Some(Stress::Primary) => 2,
            Some(Stress::Secondary) => self.stressed.max(1),
            _ => self.stressed,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_see_neighbours_sounds_and_the_ending() {
        let mut features = LetterFeatures::new(b"table");
        let l = features.at(3);
        assert_eq!(l[..4], [b'b' - b'a' + 1, b'e' - b'a' + 1, 1, 0]);
        assert_eq!(l[2 * REACH..2 * REACH + SOUNDS], [0, 0, 0]);
        assert_eq!(l[2 * REACH + SOUNDS..][..2], [5, 12]);
        features.said(Phone::from_name("L").unwrap());
        features.said(Phone::from_name("AH0").unwrap());
        let b = features.at(2);
        assert_eq!(b[2 * REACH], Phone::from_name("AH0").unwrap().index() + 1);
        assert_eq!(b[2 * REACH + SOUNDS + ENDING..], [1, 0, 1, 2]);
    }

    #[test]
    fn questions() {
        let asked = LetterFeatures::new(b"cat").at(1);
        assert!(yes(&asked, 0, 3) && !yes(&asked, 0, 4));
        assert!(yes(&asked, 0, CLASS + 6) && !yes(&asked, 0, CLASS));
        assert!(yes(&asked, (FEATURES - 1) as u8, 1) && !yes(&asked, (FEATURES - 1) as u8, 0));
        assert!(!yes(&asked, 0, 255) && !yes(&asked, 200, 0));
    }
}
