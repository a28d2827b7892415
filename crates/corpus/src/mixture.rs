//! Mixtures: `corpus.yaml`, a list of corpora with weights.
//!
//! ```yaml
//! sources:
//!   - path: ljspeech/
//!   - path: s3://voices/radio-{000..127}.tar
//!     weight: 0.5
//!     name: radio
//!     lang: fa
//! ```
//!
//! Relative paths begin at the folder of the file. A weight says how often a row is trained on in an epoch, compared with rows
//! of the other sources. Ids get the name of their source and a slash before them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use tandem_files::read_text;
use tandem_storage::redact;

use crate::error::CorpusError;
use crate::sample::MAX_SOURCES;
use crate::sources::{CorpusSource, MixedSource, SourceFinder};

/// More than a thousand sources fit.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The parser nests a call for each list or mapping inside another.
const MAX_OPENERS: usize = 2000;

/// A weight above is a mistake.
const MAX_WEIGHT: f64 = 1000.0;

/// Reads the mixture at `path` and looks at its sources.
pub(crate) fn read(path: &Path, finder: &SourceFinder<'_>) -> Result<CorpusSource, CorpusError> {
    let text = read_text(path, MAX_FILE_BYTES).map_err(|source| CorpusError::Read { path: path.to_owned(), source })?;
    let entries = parse(&text).map_err(|reason| CorpusError::BadSource { name: path.display().to_string(), reason })?;
    let base = path.parent().unwrap_or(Path::new(""));
    let mut sources = Vec::with_capacity(entries.len());
    for entry in entries {
        let source = finder.find(&entry.paths, base)?;
        let name = entry.name.unwrap_or_else(|| short_name(&entry.paths[0]));
        sources.push(MixedSource { name, weight: entry.weight, lang: entry.lang, source });
    }
    Ok(CorpusSource::Mixture { path: path.to_owned(), sources: with_unique_names(sources) })
}

/// An entry of the list, as written.
#[derive(Debug, PartialEq)]
struct MixtureEntry {
    paths: Vec<String>,
    weight: f64,
    name: Option<String>,
    lang: Option<String>,
}

fn parse(text: &str) -> Result<Vec<MixtureEntry>, String> {
    let openers: usize = ["[", "{", "- ", "? "].iter().map(|opener| text.matches(opener).count()).sum();
    if openers > MAX_OPENERS {
        return Err(format!("expected a list of corpora, found {openers} lists and mappings"));
    }
    let documents = Yaml::load_from_str(text).map_err(|error| format!("not YAML: {error}"))?;
    let [document] = documents.as_slice() else {
        return Err(format!("expected one document with `sources:`, found {}", documents.len()));
    };
    let mapping = document.as_mapping().ok_or("expected `sources:` with a list of corpora, found no mapping")?;
    let mut sources = None;
    for (key, value) in mapping {
        match key.as_str() {
            Some("sources") => sources = value.as_sequence(),
            Some(other) => return Err(format!("unknown key `{other}`; expected `sources`")),
            None => return Err("expected `sources:`, found a key that is no text".to_owned()),
        }
    }
    let sources = sources.ok_or("expected `sources:` with a list of corpora")?;
    match sources.len() {
        0 => Err("expected at least one source, found none".to_owned()),
        count if count > MAX_SOURCES => Err(format!("expected at most {MAX_SOURCES} sources, found {count}")),
        _ => {
            let entries: Vec<MixtureEntry> =
                (1..).zip(sources).map(|(number, source)| entry(number, source)).collect::<Result<_, _>>()?;
            let weights = || entries.iter().map(|entry| entry.weight);
            let (least, most) = (weights().fold(f64::INFINITY, f64::min), weights().fold(0.0, f64::max));
            match most / least <= MAX_WEIGHT {
                true => Ok(entries),
                false => Err(format!(
                    "expected weights that differ by a factor of {MAX_WEIGHT} at most, found {least} and {most}"
                )),
            }
        }
    }
}

fn entry(number: usize, source: &Yaml<'_>) -> Result<MixtureEntry, String> {
    let wrong = |what: String| format!("source {number}: {what}");
    let mapping = source.as_mapping().ok_or_else(|| wrong("expected `path:` and perhaps `weight:`".to_owned()))?;
    let mut entry = MixtureEntry { paths: Vec::new(), weight: 1.0, name: None, lang: None };
    for (key, value) in mapping {
        let text = || value.as_str().map(str::to_owned).filter(|text| !text.is_empty());
        match key.as_str().unwrap_or_default() {
            "path" => {
                let several =
                    value.as_sequence().map(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect());
                entry.paths = several.unwrap_or_else(|| text().map(|one| vec![one])).unwrap_or_default();
            }
            "weight" => {
                let weight = number_of(value).filter(|weight| *weight > 0.0 && *weight <= MAX_WEIGHT);
                let found = || wrong(format!("`weight` must be above 0 and at most {MAX_WEIGHT}"));
                entry.weight = weight.ok_or_else(found)?;
            }
            "name" => {
                let name = text().filter(|name| name.len() <= 64 && !name.contains('/'));
                entry.name = Some(name.ok_or_else(|| wrong("`name` must be a short text without a slash".to_owned()))?);
            }
            "lang" => entry.lang = Some(text().ok_or_else(|| wrong("`lang` must be a text".to_owned()))?),
            other => {
                return Err(wrong(format!("unknown key `{other}`; expected path, weight, name or lang")));
            }
        }
    }
    match entry.paths.is_empty() {
        true => Err(wrong("`path` must be a name or a list of names".to_owned())),
        false => Ok(entry),
    }
}

fn number_of(value: &Yaml<'_>) -> Option<f64> {
    match value {
        Yaml::Value(Scalar::Integer(number)) => Some(*number as f64),
        Yaml::Value(Scalar::FloatingPoint(number)) => Some(**number),
        _ => None,
    }
}

/// What ids of a source begin with if nobody says: the last part of its name, without patterns and endings.
pub(crate) fn short_name(name: &str) -> String {
    let shown = redact(name);
    let path = PathBuf::from(shown.trim_end_matches('/'));
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("source");
    let plain: String = stem.chars().take_while(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
    match plain.trim_matches(['-', '_']) {
        "" => "source".to_owned(),
        plain => plain.chars().take(64).collect(),
    }
}

/// Names of sources, with a number where several are alike.
pub(crate) fn with_unique_names(mut sources: Vec<MixedSource>) -> Vec<MixedSource> {
    let mut taken: HashSet<String> = HashSet::new();
    for source in &mut sources {
        let numbered = (2..).map(|number| format!("{}-{number}", source.name));
        let free = std::iter::once(source.name.clone()).chain(numbered).find(|name| !taken.contains(name));
        source.name = free.unwrap_or_default();
        taken.insert(source.name.clone());
    }
    sources
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mixture_is_a_list_of_names_with_weights() {
        let text = "sources:\n  - path: a/\n  - {path: [b.tar, c.tar], weight: 0.5, name: radio, lang: fa}\n  - path: d\n    weight: 3\n";
        let entries = parse(text).unwrap();
        let entry = |paths: &[&str], weight: f64, name: Option<&str>, lang: Option<&str>| MixtureEntry {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            weight,
            name: name.map(str::to_owned),
            lang: lang.map(str::to_owned),
        };
        let expected = [
            entry(&["a/"], 1.0, None, None),
            entry(&["b.tar", "c.tar"], 0.5, Some("radio"), Some("fa")),
            entry(&["d"], 3.0, None, None),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn what_is_no_mixture_is_refused_with_its_place() {
        let check = |text: &str, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        };
        check("", "found 0");
        check("a: [", "not YAML");
        check("- a\n", "no mapping");
        check("source: []\n", "unknown key `source`");
        check("sources: a\n", "a list of corpora");
        check("sources: []\n", "at least one");
        check("sources: [a]\n", "source 1: expected `path:`");
        check("sources: [{weight: 1}]\n", "source 1: `path`");
        check("sources: [{path: a}, {path: b, weight: 0}]\n", "source 2: `weight`");
        check("sources: [{path: a, weight: .nan}]\n", "`weight`");
        check("sources: [{path: a, weight: 0.00001}, {path: b, weight: 1000}]\n", "differ by a factor of 1000");
        check("sources: [{path: a, weight: x}]\n", "`weight`");
        check("sources: [{path: a, name: b/c}]\n", "`name`");
        check("sources: [{path: a, share: 1}]\n", "unknown key `share`");
        check("sources: [{path: [a, 1]}]\n", "`path`");
    }

    #[test]
    fn a_source_is_called_after_its_last_part() {
        let check = |name: &str, expected: &str| assert_eq!(short_name(name), expected, "{name}");
        check("voices/ljspeech/", "ljspeech");
        check("s3://user-bucket/radio-{000..127}.tar", "radio");
        check("https://user:secret@host/a/news.parquet?X-Amz-Signature=1", "news");
        check("*.tar", "source");
        check("/", "source");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[ a-z:\\-\\[\\]{},0-9.\n]{0,80}") {
            let _ = parse(&text);
        }
    }
}
