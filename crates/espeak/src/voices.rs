//! From a language tag to one of the library's voices.

use std::ffi::{CStr, CString};

/// A language that a voice speaks. One voice speaks several, and one language has several voices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VoiceTag {
    /// The language, lower case: `de`, `en-us`, `fr-be`.
    pub(crate) tag: String,
    /// The voice with the lowest number is the usual one of the language.
    pub(crate) priority: u8,
    /// The voice's file, below the folder of voices: `gmw/de`.
    pub(crate) identifier: CString,
}

/// The voice for a tag such as `de`, `en-us`, `de_AT` or `PT-br`, and if there is none, that for the tag without its last
/// part: `de` for `de_AT`.
pub(crate) fn find<'a>(voices: &'a [VoiceTag], tag: &str) -> Option<&'a CStr> {
    let tag = tag.trim().to_lowercase().replace('_', "-");
    let mut part = tag.as_str();
    loop {
        let speaks = voices.iter().filter(|voice| voice.tag == part);
        // Between equals the shortest name: `cmn` before `cmn-Latn-pinyin`. It does not depend on the order of files.
        let best = speaks.min_by_key(|voice| (voice.priority, voice.identifier.count_bytes(), &voice.identifier));
        if let Some(voice) = best {
            return Some(&voice.identifier);
        }
        part = part.rsplit_once('-')?.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voices() -> Vec<VoiceTag> {
        let listed = [
            ("fr-be", 5, "roa/fr-BE"),
            ("fr", 8, "roa/fr-BE"),
            ("fr-fr", 5, "roa/fr"),
            ("fr", 5, "roa/fr"),
            ("zh", 5, "sit/cmn-Latn-pinyin"),
            ("zh", 5, "sit/cmn"),
            ("pt-br", 5, "roa/pt-BR"),
            ("de", 5, "gmw/de"),
        ];
        let voice = |(tag, priority, file): (&str, u8, &str)| VoiceTag {
            tag: tag.to_owned(),
            priority,
            identifier: CString::new(file).unwrap(),
        };
        listed.map(voice).to_vec()
    }

    #[test]
    fn tags_find_the_usual_voice_of_their_language() {
        let voices = voices();
        for (tag, expected) in [
            ("de", Some("gmw/de")),
            (" DE ", Some("gmw/de")),
            ("de-AT", Some("gmw/de")),
            ("de_DE-1996-x-y", Some("gmw/de")),
            ("fr", Some("roa/fr")),
            ("fr_BE", Some("roa/fr-BE")),
            ("fr-CA", Some("roa/fr")),
            ("pt_BR", Some("roa/pt-BR")),
            ("zh-Hant-TW", Some("sit/cmn")),
            ("xx", None),
            ("", None),
            ("-", None),
            ("../../etc/passwd", None),
            ("gmw/de", None),
        ] {
            assert_eq!(find(&voices, tag).map(|voice| voice.to_str().unwrap()), expected, "{tag}");
        }
    }
}
