//! Which front end a text goes through.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::script::Script;

/// A language with rules of its own, or any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    /// Numbers, abbreviations and symbols are written out; phonemes from a dictionary.
    English,
    /// Letters are unified and numbers written out.
    Persian,
    /// Any script, as the characters it is written in.
    Other,
}

/// What turns the words of a language into symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phonemizer {
    /// Nothing: symbols are the characters of the normalised text.
    #[default]
    Characters,
    /// The built-in English dictionary, and letter-to-sound rules for words it lacks: ARPAbet.
    Dictionary,
    /// The system's espeak-ng library: the International Phonetic Alphabet.
    Espeak,
}

/// A language as a model knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanguageRules {
    /// Its tag, as [`normalized_tag`] writes it.
    pub tag: String,
    /// What turns its words into symbols.
    pub phonemizer: Phonemizer,
    /// The script of most of its texts, if they have letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
}

/// A language tag in one spelling: `en_US`, `EN-us` and ` en-us ` are the same language.
pub fn normalized_tag(tag: &str) -> String {
    tag.trim().replace('_', "-").to_lowercase()
}

/// What stands before the first `-` of a normalised tag: `en` of `en-us`.
pub fn primary_subtag(tag: &str) -> &str {
    tag.split('-').next().unwrap_or(tag)
}

impl Language {
    /// The language of a tag such as `en`, `en-us`, `fa-IR` or `de_AT`: what stands before the first `-` or `_` decides,
    /// in any case.
    pub fn from_tag(tag: &str) -> Language {
        match primary_subtag(&normalized_tag(tag)) {
            "en" | "eng" => Language::English,
            "fa" | "fas" | "per" | "pes" => Language::Persian,
            _ => Language::Other,
        }
    }
}

impl Phonemizer {
    /// All of them.
    pub const ALL: [Phonemizer; 3] = [Phonemizer::Characters, Phonemizer::Dictionary, Phonemizer::Espeak];

    /// The one for a language unless another is asked for: the dictionary for English, else characters.
    pub fn default_for(tag: &str) -> Phonemizer {
        match Language::from_tag(tag) {
            Language::English => Phonemizer::Dictionary,
            Language::Persian | Language::Other => Phonemizer::Characters,
        }
    }

    /// As it is written in files and flags.
    pub fn name(self) -> &'static str {
        match self {
            Phonemizer::Characters => "characters",
            Phonemizer::Dictionary => "dictionary",
            Phonemizer::Espeak => "espeak",
        }
    }
}

impl fmt::Display for Phonemizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        for (tag, expected) in [
            ("en", Language::English),
            ("en-us", Language::English),
            ("EN_GB", Language::English),
            (" en ", Language::English),
            ("fa", Language::Persian),
            ("fa-IR", Language::Persian),
            ("fas", Language::Persian),
            ("de", Language::Other),
            ("english", Language::Other),
            ("", Language::Other),
            ("-en", Language::Other),
        ] {
            assert_eq!(Language::from_tag(tag), expected, "{tag}");
        }
        for tag in ["en_US", "EN-us", " en-US "] {
            assert_eq!(normalized_tag(tag), "en-us");
        }
    }
}
