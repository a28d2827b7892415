//! The phones of American English: ARPAbet, vowels with their stress.

use std::fmt;

/// One phone, such as `AH0` or `K`: an index into a fixed list of [`Phone::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phone(u8);

/// Vowels first, three stresses each (none, primary, secondary): the stress is the remainder by three. Data files and
/// saved symbol tables rely on this order, so it never changes.
const NAMES: [&str; Phone::COUNT] = [
    "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1", "AO2", "AW0", "AW1", "AW2", "AY0",
    "AY1", "AY2", "EH0", "EH1", "EH2", "ER0", "ER1", "ER2", "EY0", "EY1", "EY2", "IH0", "IH1", "IH2", "IY0", "IY1",
    "IY2", "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "UH0", "UH1", "UH2", "UW0", "UW1", "UW2", "B", "CH", "D", "DH",
    "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH", "V", "W", "Y", "Z", "ZH",
];

/// How many entries of [`NAMES`] are vowels.
const VOWELS: u8 = 45;

/// How strongly a vowel is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stress {
    /// Written 0.
    None,
    /// Written 1.
    Primary,
    /// Written 2.
    Secondary,
}

impl Phone {
    /// How many phones there are.
    pub const COUNT: usize = 69;

    /// Every phone, in the order of their indices.
    pub fn all() -> impl Iterator<Item = Phone> {
        (0..NAMES.len() as u8).map(Phone)
    }

    /// The phone with this index, if there is one.
    pub fn from_index(index: u8) -> Option<Phone> {
        (usize::from(index) < Phone::COUNT).then_some(Phone(index))
    }

    /// The phone with this ARPAbet name, if there is one. Vowels need their stress.
    pub fn from_name(name: &str) -> Option<Phone> {
        NAMES.binary_search_by_key(&sort_key(name), |known| sort_key(known)).ok().map(|index| Phone(index as u8))
    }

    /// Its place in the list.
    pub fn index(self) -> u8 {
        self.0
    }

    /// Its ARPAbet name.
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// Whether it is a vowel, and therefore carries a stress.
    pub fn is_vowel(self) -> bool {
        self.0 < VOWELS
    }

    /// Whether the vocal folds are at rest while it is said.
    pub fn is_voiceless(self) -> bool {
        matches!(self.name(), "CH" | "F" | "HH" | "K" | "P" | "S" | "SH" | "T" | "TH")
    }

    /// Its stress; nothing for a consonant.
    pub fn stress(self) -> Option<Stress> {
        self.is_vowel().then_some(match self.0 % 3 {
            0 => Stress::None,
            1 => Stress::Primary,
            _ => Stress::Secondary,
        })
    }

    /// The same vowel with another stress. A consonant stays what it is.
    pub fn with_stress(self, stress: Stress) -> Phone {
        if self.is_vowel() { Phone(self.0 - self.0 % 3 + stress as u8) } else { self }
    }
}

impl fmt::Display for Phone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Vowels come first in the list, each part in alphabetical order.
fn sort_key(name: &str) -> (bool, &str) {
    (!name.ends_with(|c: char| c.is_ascii_digit()), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indices_are_one_to_one() {
        assert_eq!(Phone::all().count(), Phone::COUNT);
        for phone in Phone::all() {
            assert_eq!(Phone::from_name(phone.name()), Some(phone));
            assert_eq!(Phone::from_index(phone.index()), Some(phone));
            assert_eq!(phone.is_vowel(), phone.name().len() == 3 && phone.name().ends_with(['0', '1', '2']));
        }
        for unknown in ["", "AA", "AA3", "aa0", "X", "ZHH"] {
            assert_eq!(Phone::from_name(unknown), None, "{unknown}");
        }
        assert_eq!(Phone::from_index(Phone::COUNT as u8), None);
    }

    #[test]
    fn stress_is_the_digit() {
        for (name, stress) in [("AH0", Stress::None), ("OW1", Stress::Primary), ("UW2", Stress::Secondary)] {
            assert_eq!(Phone::from_name(name).and_then(Phone::stress), Some(stress));
        }
        let k = Phone::from_name("K").unwrap();
        assert_eq!(k.stress(), None);
        assert_eq!(k.with_stress(Stress::Primary), k);
        let weak = Phone::from_name("IY0").unwrap();
        assert_eq!(weak.with_stress(Stress::Secondary).name(), "IY2");
    }
}
