//! Whether the texts of a corpus are in the languages they are read in: hints to print before anything is trained.

use std::collections::BTreeMap;

use tandem_corpus::Dataset;
use tandem_text::{Detected, Language, Script, detect, dominant_script, normalized_tag, primary_subtag};

use crate::survey::tokenizer::{DEFAULT_LANG, TextSettings};

/// Texts of a language that the detector looks at.
const SAMPLE: usize = 200;

/// Rows that name the same language, or none.
#[derive(Default)]
struct Rows<'a> {
    count: usize,
    /// Every so many rows one: enough to see the language of all.
    texts: Vec<&'a str>,
}

/// What does not fit: a `--lang` that no row needs, and texts that look like another language than the one they are read in.
/// Empty for a corpus in order. Cost: one pass over the rows, and the detection of a few hundred texts.
pub fn language_hints(dataset: &Dataset, settings: &TextSettings) -> Vec<String> {
    let default = normalized_tag(settings.lang.as_deref().unwrap_or(DEFAULT_LANG));
    let mut by_language: BTreeMap<Option<String>, Rows<'_>> = BTreeMap::new();
    let step = dataset.samples().len().div_ceil(SAMPLE).max(1);
    for (_, sample) in dataset.samples().iter() {
        let rows = by_language.entry(sample.lang.map(normalized_tag)).or_default();
        if rows.count.is_multiple_of(step) {
            rows.texts.push(sample.text);
        }
        rows.count += 1;
    }
    let mut hints = Vec::new();
    if let (Some(lang), false) = (&settings.lang, by_language.contains_key(&None))
        && !by_language.is_empty()
        && !by_language.contains_key(&Some(default.clone()))
    {
        let named: Vec<&str> = by_language.keys().flatten().map(String::as_str).collect();
        hints.push(format!("--lang {lang} changes nothing: every row names its own language ({})", named.join(", ")));
    }
    for (named, rows) in &by_language {
        let tag = named.as_deref().unwrap_or(&default);
        let count = rows.count;
        let look = match detect(rows.texts.iter().copied()) {
            Some(found) if found.language == primary_subtag(tag) => continue,
            Some(Detected { language, name, agreeing, judged }) => {
                Look { text: format!("{agreeing} of {judged} texts look like {name}"), lang: Some(language) }
            }
            None => match other_script(rows, tag) {
                Some(look) => look,
                None => continue,
            },
        };
        let Look { text, lang } = look;
        let unnamed = format!("{count} rows name no language and are read as `{tag}`, but {text}");
        hints.push(match (named, lang) {
            (Some(_), _) => format!("{count} rows are marked `{tag}`, but {text}: correct the language in the corpus"),
            (None, Some(lang)) => format!("{unnamed}: --lang {lang}"),
            (None, None) => format!("{unnamed}: give theirs with --lang"),
        });
    }
    hints
}

/// What texts look like.
struct Look {
    text: String,
    /// The tag of their language, if it is known.
    lang: Option<&'static str>,
}

/// English texts in another script than Latin: texts too short to detect their language still show that.
fn other_script(rows: &Rows<'_>, tag: &str) -> Option<Look> {
    let script = dominant_script(&rows.texts.concat()).filter(|script| *script != Script::LATIN)?;
    let is_english = Language::from_tag(tag) == Language::English;
    let lang = (script == Script::ARABIC).then_some("fa");
    is_english.then(|| Look { text: format!("they are written in another script ({})", script.name()), lang })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::FeedFolder;
    use tandem_corpus::OpenOptions;

    const ENGLISH: [&str; 3] = [
        "The train leaves a little later today.",
        "We waited for a long time yesterday.",
        "She would like another cup of coffee.",
    ];
    const GERMAN: [&str; 3] = [
        "Der Zug fährt heute etwas später ab.",
        "Wir haben gestern lange gewartet.",
        "Sie möchte noch eine Tasse Kaffee.",
    ];
    const PERSIAN: [&str; 3] = ["سلام.", "کتاب ۲۵", "گل زرد"];

    fn hints(rows: &[(&str, [&str; 3])], lang: Option<&str>) -> Vec<String> {
        let folder = FeedFolder::new("languages");
        let mut list = String::new();
        for (number, (tag, texts)) in rows.iter().enumerate() {
            for (at, text) in texts.iter().cycle().take(9).enumerate() {
                let lang = if tag.is_empty() { String::new() } else { format!(",\"lang\":\"{tag}\"") };
                list += &format!("{{\"audio_filepath\":\"{number}-{at}.wav\",\"text\":\"{text}\"{lang}}}\n");
            }
        }
        folder.write("list.jsonl", list);
        let dataset = Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap();
        language_hints(&dataset, &TextSettings { lang: lang.map(str::to_owned), ..TextSettings::default() })
    }

    #[test]
    fn texts_in_their_language_need_no_hint() {
        assert!(hints(&[("", ENGLISH)], None).is_empty());
        assert!(hints(&[("de-AT", GERMAN), ("", ENGLISH)], None).is_empty());
        assert!(hints(&[("", PERSIAN)], Some("fa")).is_empty());
        assert!(hints(&[("de", GERMAN), ("fa", PERSIAN)], Some("de")).is_empty());
    }

    #[test]
    fn other_languages_and_useless_flags_are_named_with_what_to_type() {
        let check = |rows: &[(&str, [&str; 3])], lang: Option<&str>, parts: &[&str]| {
            let hints = hints(rows, lang);
            assert!(hints.len() == 1 && parts.iter().all(|part| hints[0].contains(part)), "{hints:?}");
        };
        check(&[("", GERMAN)], None, &["9 rows name no language", "as `en`", "look like German", "--lang de"]);
        check(&[("", PERSIAN)], None, &["another script (Arab)", "--lang fa"]);
        check(&[("en", GERMAN), ("", ENGLISH)], None, &["9 rows are marked `en`", "German", "correct the language"]);
        check(&[("en", ENGLISH)], Some("fa"), &["--lang fa changes nothing", "own language (en)"]);
    }
}
