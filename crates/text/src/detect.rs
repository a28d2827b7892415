//! The language of texts whose language nobody stated.
//!
//! Three letters at a time are compared with those of 70 languages (`whatlang`). One sentence is often too short for that,
//! so that a few of one script are judged together, then all of them, and nothing is said unless nearly all agree.

use std::collections::BTreeMap;

use whatlang::Lang;

use crate::script::{Script, dominant_script};

/// Letters of a text that can be judged.
const LEAST_LETTERS: usize = 20;
/// Texts that must look like the language.
const LEAST_TEXTS: usize = 5;
/// Letters that are judged together: two or three sentences.
const GROUP_LETTERS: usize = 100;
/// Bytes of all texts together that are judged as one.
const ALL_BYTES: usize = 1 << 14;

/// The language of texts, and how sure that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// Its ISO 639-1 tag: `de`, `fa`.
    pub language: &'static str,
    /// Its name in English.
    pub name: &'static str,
    /// Texts that look like it.
    pub agreeing: usize,
    /// Texts that were long enough to be judged.
    pub judged: usize,
}

/// Texts that are judged together.
#[derive(Default)]
struct TextGroup {
    text: String,
    letters: usize,
    texts: usize,
}

/// The language of `texts`, if at least five of them and four in five of those long enough look like it, and all of them
/// together are of it beyond doubt.
///
/// Cost: about 0.1 ms a text. A few hundred are enough.
pub fn detect<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<Detected> {
    let mut judged = 0;
    let mut all = String::new();
    let mut groups: BTreeMap<Script, TextGroup> = BTreeMap::new();
    let mut guesses: BTreeMap<&'static str, usize> = BTreeMap::new();
    for text in texts {
        let letters = text.chars().filter(|c| c.is_alphabetic()).count();
        let Some(script) = dominant_script(text).filter(|_| letters >= LEAST_LETTERS) else { continue };
        judged += 1;
        if all.len() < ALL_BYTES {
            all += text;
            all.push(' ');
        }
        let group = groups.entry(script).or_default();
        group.add(text, letters);
        if group.letters >= GROUP_LETTERS {
            std::mem::take(group).guess_into(&mut guesses);
        }
    }
    groups.into_values().for_each(|group| group.guess_into(&mut guesses));
    let (language, agreeing) = guesses.into_iter().max_by_key(|(_, texts)| *texts)?;
    let together = whatlang::detect(&all).filter(|guess| guess.is_reliable() && tag(guess.lang()) == language);
    let is_clear = agreeing >= LEAST_TEXTS && agreeing * 5 >= judged * 4;
    let name = together.filter(|_| is_clear)?.lang().eng_name();
    Some(Detected { language, name, agreeing, judged })
}

impl TextGroup {
    fn add(&mut self, text: &str, letters: usize) {
        self.text += text;
        self.text.push(' ');
        self.letters += letters;
        self.texts += 1;
    }

    /// Counts its texts for the language they look like.
    fn guess_into(self, guesses: &mut BTreeMap<&'static str, usize>) {
        if let Some(guess) = whatlang::detect(&self.text) {
            *guesses.entry(tag(guess.lang())).or_default() += self.texts;
        }
    }
}

/// ISO 639-1 for the detector's ISO 639-3.
fn tag(language: Lang) -> &'static str {
    match language {
        Lang::Epo => "eo",
        Lang::Eng => "en",
        Lang::Rus => "ru",
        Lang::Cmn => "zh",
        Lang::Spa => "es",
        Lang::Por => "pt",
        Lang::Ita => "it",
        Lang::Ben => "bn",
        Lang::Fra => "fr",
        Lang::Deu => "de",
        Lang::Ukr => "uk",
        Lang::Kat => "ka",
        Lang::Ara => "ar",
        Lang::Hin => "hi",
        Lang::Jpn => "ja",
        Lang::Heb => "he",
        Lang::Yid => "yi",
        Lang::Pol => "pl",
        Lang::Amh => "am",
        Lang::Jav => "jv",
        Lang::Kor => "ko",
        Lang::Nob => "nb",
        Lang::Dan => "da",
        Lang::Swe => "sv",
        Lang::Fin => "fi",
        Lang::Tur => "tr",
        Lang::Nld => "nl",
        Lang::Hun => "hu",
        Lang::Ces => "cs",
        Lang::Ell => "el",
        Lang::Bul => "bg",
        Lang::Bel => "be",
        Lang::Mar => "mr",
        Lang::Kan => "kn",
        Lang::Ron => "ro",
        Lang::Slv => "sl",
        Lang::Hrv => "hr",
        Lang::Srp => "sr",
        Lang::Mkd => "mk",
        Lang::Lit => "lt",
        Lang::Lav => "lv",
        Lang::Est => "et",
        Lang::Tam => "ta",
        Lang::Vie => "vi",
        Lang::Urd => "ur",
        Lang::Tha => "th",
        Lang::Guj => "gu",
        Lang::Uzb => "uz",
        Lang::Pan => "pa",
        Lang::Aze => "az",
        Lang::Ind => "id",
        Lang::Tel => "te",
        Lang::Pes => "fa",
        Lang::Mal => "ml",
        Lang::Ori => "or",
        Lang::Mya => "my",
        Lang::Nep => "ne",
        Lang::Sin => "si",
        Lang::Khm => "km",
        Lang::Tuk => "tk",
        Lang::Aka => "ak",
        Lang::Zul => "zu",
        Lang::Sna => "sn",
        Lang::Afr => "af",
        Lang::Lat => "la",
        Lang::Slk => "sk",
        Lang::Cat => "ca",
        Lang::Tgl => "tl",
        Lang::Hye => "hy",
        Lang::Cym => "cy",
    }
}
