//! Which front end a text goes through.

use std::fmt;

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

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Units {
    /// Characters of the normalised text.
    #[default]
    Characters,
    /// Phones, with pauses and word boundaries.
    Phonemes,
}

impl Language {
    /// The language of a tag such as `en`, `en-us`, `fa-IR` or `de_AT`: what stands before the first `-` or `_` decides,
    /// in any case.
    pub fn from_tag(tag: &str) -> Language {
        let primary = tag.trim().split(['-', '_']).next().unwrap_or("");
        match primary.to_ascii_lowercase().as_str() {
            "en" | "eng" => Language::English,
            "fa" | "fas" | "per" | "pes" => Language::Persian,
            _ => Language::Other,
        }
    }
}

impl Units {
    /// As it is written in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Units::Characters => "characters",
            Units::Phonemes => "phonemes",
        }
    }
}

impl fmt::Display for Units {
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
    }
}
