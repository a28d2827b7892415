//! Phonemes are those of the `espeak-ng` program.

use std::process::Command;

use tandem_test_support::skip;

use crate::espeak_or_skip;

const REFERENCE: &str = include_str!("../data/phonemes-1.51.tsv");
/// The version that wrote the reference. Others have corrected rules.
const REFERENCE_VERSION: &str = "1.51";

/// Language, text and phonemes.
fn sentences() -> Vec<[&'static str; 3]> {
    let lines = REFERENCE.lines().filter(|line| !line.starts_with('#'));
    let sentences: Vec<_> = lines.map(|line| line.split('\t').collect::<Vec<_>>().try_into().unwrap()).collect();
    assert!(sentences.len() >= 14);
    sentences
}

#[test]
fn phonemes_are_those_of_the_reference() {
    let what = "reference phonemes";
    let Some(espeak) = espeak_or_skip(what) else { return };
    if espeak.version() != REFERENCE_VERSION && !espeak.version().starts_with(&format!("{REFERENCE_VERSION}.")) {
        let why = format!("they are of espeak-ng {REFERENCE_VERSION}, this is {}", espeak.version());
        return skip("TANDEM_REQUIRE_ESPEAK_REFERENCE", what, &why);
    }
    for [tag, text, expected] in sentences() {
        assert_eq!(espeak.phonemes(tag, text).unwrap(), expected, "{tag} {text}");
    }
}

#[test]
fn phonemes_are_those_of_the_program() {
    let what = "phonemes of the espeak-ng program";
    let Some(espeak) = espeak_or_skip(what) else { return };
    for [tag, text, _] in sentences() {
        // The tag is also one that the program knows as the name of a voice.
        let ran = Command::new("espeak-ng").args(["--ipa", "-q", "-v", tag, text]).output();
        let Ok(ran) = ran else {
            return skip("TANDEM_REQUIRE_ESPEAK", what, "the program is not installed");
        };
        assert!(ran.status.success(), "{ran:?}");
        let printed = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(espeak.phonemes(tag, text).unwrap(), without_marks(&printed), "{tag} {text}");
    }
}

/// On one line, without the marks around words of another language.
fn without_marks(printed: &str) -> String {
    let mut text = printed.to_owned();
    while let (Some(from), Some(to)) = (text.find('('), text.find(')')) {
        text.replace_range(from..=to, "");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn tags_are_read_in_any_spelling() {
    let Some(espeak) = espeak_or_skip("language tags") else { return };
    let phonemes = |tag: &str| espeak.phonemes(tag, "Zug dança").unwrap();
    assert_eq!(phonemes("de-AT"), phonemes("de"));
    assert_eq!(phonemes("DE_de"), phonemes("de"));
    assert_eq!(phonemes("pt_BR"), phonemes("pt-br"));
    assert_ne!(phonemes("pt_BR"), phonemes("de"));
    assert_ne!(espeak.phonemes("en-us", "a hot bath").unwrap(), espeak.phonemes("en-gb", "a hot bath").unwrap());
}

#[test]
fn a_language_without_a_voice_is_refused_with_where_to_look() {
    let Some(espeak) = espeak_or_skip("a language without a voice") else { return };
    for tag in ["xx", "", "english", "../../etc/passwd", "gmw/de", "de+f2", "!v/f2"] {
        let error = espeak.phonemes(tag, "a").unwrap_err().to_string();
        for part in [&format!("{tag:?}"), "`espeak-ng --voices`", "--lexicon", "--phonemizer characters"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}

#[test]
fn what_is_not_spoken_has_no_phonemes() {
    let Some(espeak) = espeak_or_skip("clauses without words") else { return };
    for text in ["", " ", "\0", "\n\n", "...", "\u{1}", "„ “ ( )"] {
        assert_eq!(espeak.phonemes("de", text).unwrap(), "", "{text:?}");
    }
    // A word of another language has no mark, and a clause of many sentences is read to its end.
    assert_eq!(espeak.phonemes("de", "cool").unwrap(), "kˈuːl");
    let long = espeak.phonemes("de", &"Ein Haus. ".repeat(500)).unwrap();
    assert_eq!(long, ["aɪn hˈaʊs"; 500].join(" "));
    let endless = espeak.phonemes("de", &"haus".repeat(5000)).unwrap();
    assert!(endless.matches("aʊ").count() > 1000, "{}", endless.len());
}

/// Each of these ended the process.
#[test]
fn texts_that_are_too_much_for_the_library_are_read_or_refused() {
    let Some(espeak) = espeak_or_skip("texts that no voice could learn from") else { return };
    for tag in ["de", "en-us", "fa", "fr"] {
        for piece in ["haus", "a.", "W", "9", "1.", "%", "-", "a'", "ñ", "\u{301}", " a. ", "a-1 "] {
            espeak.phonemes(tag, &piece.repeat(500)).unwrap();
        }
        for foreign in ["კ", "α", "中", "ไ", "😀"] {
            let error = espeak.phonemes(tag, &foreign.repeat(50)).unwrap_err().to_string();
            assert!(error.contains(&format!("{:?} (U+", foreign.chars().next().unwrap())), "{error}");
        }
    }
}
