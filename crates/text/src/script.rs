//! The script a text is written in.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use unicode_script::UnicodeScript as _;

/// A script by its ISO 15924 name: `Latn`, `Arab`, `Cyrl`. Saved as that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Script(&'static str);

impl Script {
    /// The script of English, German and many others.
    pub const LATIN: Script = Script("Latn");
    /// The script of Persian, Arabic and Urdu.
    pub const ARABIC: Script = Script("Arab");

    /// The script with this name, such as `Latn`. `None` for other names, and for those of no script (`Zyyy`).
    pub fn from_name(name: &str) -> Option<Script> {
        unicode_script::Script::from_short_name(name).and_then(Script::real)
    }

    /// The script that a character belongs to; `None` for spaces, punctuation and the digits 0 to 9, which belong to all.
    ///
    /// The digits ٠ to ٩, which Unicode counts as common, are Arabic here, as ۰ to ۹ are.
    pub fn of(c: char) -> Option<Script> {
        match c {
            '٠'..='٩' => Some(Script::ARABIC),
            _ => Script::real(c.script()),
        }
    }

    /// Its name, four letters.
    pub fn name(self) -> &'static str {
        self.0
    }

    fn real(script: unicode_script::Script) -> Option<Script> {
        use unicode_script::Script::{Common, Inherited, Unknown};
        (!matches!(script, Common | Inherited | Unknown)).then(|| Script(script.short_name()))
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Script {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Script {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Script, D::Error> {
        let name = String::deserialize(deserializer)?;
        Script::from_name(&name)
            .ok_or_else(|| de::Error::custom(format!("expected a script such as Latn, found {name:?}")))
    }
}

/// The script of most characters of `text`. Characters that belong to all scripts do not count: a text of those alone has
/// none. Between equals, the first name in the alphabet.
pub fn dominant_script(text: &str) -> Option<Script> {
    let mut counts: BTreeMap<Script, usize> = BTreeMap::new();
    for script in text.chars().filter_map(Script::of) {
        *counts.entry(script).or_default() += 1;
    }
    // The last of equals is taken: the first in the alphabet.
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(script, _)| script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_characters_decide() {
        for (text, expected) in [
            ("Good morning, 2 friends!", Some("Latn")),
            ("Grüße — „Welt“", Some("Latn")),
            ("سلام دنیا", Some("Arab")),
            ("می\u{200C}خواهم PCR", Some("Arab")),
            ("PCR بد", Some("Latn")),
            ("Привет, мир", Some("Cyrl")),
            ("Καλημέρα", Some("Grek")),
            ("こんにちは世界", Some("Hira")),
            ("你好", Some("Hani")),
            ("a ب", Some("Arab")),
            ("۲۵", Some("Arab")),
            ("٢٥", Some("Arab")),
            ("25", None),
            ("", None),
            (" ?! 😀 \u{301}", None),
        ] {
            assert_eq!(dominant_script(text).map(Script::name), expected, "{text}");
        }
    }

    #[test]
    fn a_script_is_saved_as_its_name() {
        assert_eq!(serde_json::to_string(&Script::ARABIC).unwrap(), "\"Arab\"");
        assert_eq!(serde_json::from_str::<Script>("\"Latn\"").unwrap(), Script::LATIN);
        for wrong in ["\"latin\"", "\"Zyyy\"", "\"\"", "7"] {
            assert!(serde_json::from_str::<Script>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Script::from_name("Deva").unwrap().to_string(), "Deva");
    }
}
