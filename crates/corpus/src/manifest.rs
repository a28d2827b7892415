//! JSONL manifests as NeMo writes them: an object per line with `audio_filepath`, `text`, `duration`, and perhaps
//! `offset`, `speaker`, `lang`. Other keys are none of our business.
//!
//! The id of a row is its path as written, without the ending of the file, and `@offset` after it where there is an
//! offset; so one recording may be cut into many rows, and the same piece twice is a duplicate. Paths are absolute or
//! relative to the manifest. A row without a duration is fine: somebody has to look. Whether the recordings are there
//! is not asked here: a million questions would cost more than a million rows.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::io::{self, BufRead};

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::{report_unreadable, speaker_of};
use crate::locator::without_extension;
use crate::problem::{Findings, ProblemKind, excerpt};
use crate::sample::{NewRow, Samples, Subset};
use crate::speaker::SpeakerPattern;

/// Reads a manifest. Fails only when the file stops giving bytes.
pub(crate) fn read(
    input: impl BufRead,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> io::Result<()> {
    let mut lines = LineReader::new(input);
    let mut id = String::new();
    let mut seen_any = false;
    while let Some((number, line)) = lines.next_line()? {
        let text = match line {
            ParsedLine::Blank => continue,
            ParsedLine::Text(text) => text,
            unreadable => {
                seen_any = true;
                report_unreadable(&unreadable, number, findings);
                continue;
            }
        };
        seen_any = true;
        match Object::parse(text).and_then(Object::check) {
            Ok(entry) => {
                entry.write_id(&mut id);
                let speaker = entry.speaker.as_deref().or_else(|| speaker_of(&id, pattern, number, findings));
                samples.push(&NewRow {
                    id: &id,
                    text: &entry.text,
                    speaker,
                    lang: entry.lang.as_deref(),
                    key: &entry.key,
                    offset_s: entry.offset_s,
                    duration_s: entry.duration_s,
                    part: Subset::Undecided,
                    line: number,
                });
            }
            Err((kind, detail)) => findings.on(number, kind, detail),
        }
    }
    if !seen_any {
        findings.whole(ProblemKind::NoRows, "there is nothing in the file");
    }
    Ok(())
}

type Fault = (ProblemKind, String);

/// A line as it is written. Every key may hold anything, so that a wrong type can be named with its key.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    audio_filepath: Value<'a>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    duration: Value<'a>,
    #[serde(borrow, default)]
    offset: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow, default)]
    lang: Value<'a>,
}

/// A line that makes sense.
#[derive(Debug, PartialEq)]
struct Entry<'a> {
    key: Cow<'a, str>,
    text: Cow<'a, str>,
    duration_s: Option<f64>,
    offset_s: Option<f64>,
    speaker: Option<Cow<'a, str>>,
    lang: Option<Cow<'a, str>>,
}

impl<'a> Object<'a> {
    fn parse(line: &'a str) -> Result<Object<'a>, Fault> {
        // Serde would take an array for a struct as well.
        if !line.trim_start().starts_with('{') {
            return Err((ProblemKind::BadJson, format!("expected a JSON object, found {}", excerpt(line))));
        }
        serde_json::from_str(line).map_err(|error| {
            let place = error.column().saturating_sub(1);
            match not_a_number(line, place) {
                Some(name) => (ProblemKind::BadNumber, format!("{name} is no number in JSON (byte {})", place + 1)),
                None => (ProblemKind::BadJson, error.to_string().replace(" at line 1 column ", ", byte ")),
            }
        })
    }

    fn check(self) -> Result<Entry<'a>, Fault> {
        let key = self.audio_filepath.required_text("audio_filepath")?;
        if without_extension(&key).is_empty() || key.contains('\0') {
            return Err((ProblemKind::EmptyId, "`audio_filepath` names no file".into()));
        }
        let text = self.text.required_text("text")?;
        if text.is_empty() {
            return Err((ProblemKind::EmptyText, format!("`{}` says nothing", excerpt(&key))));
        }
        let duration_s = self.duration.number("duration")?;
        if let Some(duration) = duration_s.filter(|duration| *duration <= 0.0 || !duration.is_finite()) {
            return Err((ProblemKind::BadNumber, format!("`duration` must be over 0, found {duration}")));
        }
        let offset_s = self.offset.number("offset")?;
        if let Some(offset) = offset_s.filter(|offset| *offset < 0.0 || !offset.is_finite()) {
            return Err((ProblemKind::BadNumber, format!("`offset` must be 0 or more, found {offset}")));
        }
        let (speaker, lang) = (self.speaker.name("speaker")?, self.lang.name("lang")?);
        Ok(Entry { key, text, duration_s, offset_s, speaker, lang })
    }
}

impl Entry<'_> {
    fn write_id(&self, id: &mut String) {
        id.clear();
        id.push_str(without_extension(&self.key));
        if let Some(offset_s) = self.offset_s {
            // Writing to a string cannot fail.
            let _ = write!(id, "@{offset_s}");
        }
    }
}

/// Python writes what JSON has no word for. Which one, if the trouble at `place` is that.
fn not_a_number(line: &str, place: usize) -> Option<&'static str> {
    let from = line.as_bytes().get(place.saturating_sub(1)..)?;
    ["NaN", "Infinity", "-Infinity"]
        .into_iter()
        .find(|name| from.windows(name.len()).take(2).any(|window| window == name.as_bytes()))
}

/// What a key holds.
#[derive(Debug, Default)]
enum Value<'a> {
    /// Nothing: the key is not there, or is null.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Number(f64),
    Other(&'static str),
}

impl<'a> Value<'a> {
    fn required_text(self, key: &str) -> Result<Cow<'a, str>, Fault> {
        match self {
            Value::Text(text) => Ok(trimmed(text)),
            Value::Absent => Err((ProblemKind::MissingKey, format!("`{key}` is missing"))),
            other => Err(other.unexpected(key, "a string")),
        }
    }

    fn number(self, key: &str) -> Result<Option<f64>, Fault> {
        match self {
            Value::Absent => Ok(None),
            Value::Number(number) => Ok(Some(number)),
            other => Err(other.unexpected(key, "a number")),
        }
    }

    /// A name, or a number used as one.
    fn name(self, key: &str) -> Result<Option<Cow<'a, str>>, Fault> {
        match self {
            Value::Absent => Ok(None),
            Value::Text(text) => Ok(Some(trimmed(text)).filter(|text| !text.is_empty())),
            Value::Number(number) => Ok(Some(number.to_string().into())),
            other => Err(other.unexpected(key, "a string or a number")),
        }
    }

    fn unexpected(&self, key: &str, expected: &str) -> Fault {
        let found = match self {
            Value::Absent => "nothing",
            Value::Text(_) => "a string",
            Value::Number(_) => "a number",
            Value::Other(found) => found,
        };
        (ProblemKind::WrongType, format!("`{key}` must be {expected}, found {found}"))
    }
}

fn trimmed(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value<'de>, E> {
        Ok(Value::Absent)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Value<'de>, E> {
        Ok(Value::Other("true or false"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> Result<Entry<'_>, Fault> {
        Object::parse(line).and_then(Object::check)
    }

    #[test]
    fn rows() {
        let check = |line: &str, id: &str, text: &str, times: (Option<f64>, Option<f64>), speaker: Option<&str>| {
            let entry = entry(line).unwrap();
            let mut found = String::new();
            entry.write_id(&mut found);
            assert_eq!((found.as_str(), &*entry.text, (entry.offset_s, entry.duration_s)), (id, text, times), "{line}");
            assert_eq!(entry.speaker.as_deref(), speaker, "{line}");
        };
        check(r#"{"audio_filepath":"a/b.wav","text":" hi ","duration":2.5}"#, "a/b", "hi", (None, Some(2.5)), None);
        check(
            r#"{"text":"hi","audio_filepath":"/x.flac","pitch":[1,{}],"speaker":7}"#,
            "/x",
            "hi",
            (None, None),
            Some("7"),
        );
        check(
            r#"{"audio_filepath":"b.wav","text":"h\u00e9 \"q\"","duration":3,"offset":1.25,"speaker":"p1","lang":null}"#,
            "b@1.25",
            "hé \"q\"",
            (Some(1.25), Some(3.0)),
            Some("p1"),
        );
        check(r#" {"audio_filepath":"b","text":"x","duration":null,"speaker":""} "#, "b", "x", (None, None), None);
    }

    #[test]
    fn rows_that_are_none() {
        let check = |line: &str, kind: ProblemKind, part: &str| {
            let (found, detail) = entry(line).unwrap_err();
            assert!(found == kind && detail.contains(part), "{line}: {found:?} {detail}");
        };
        check("{", ProblemKind::BadJson, "byte 1");
        check("[1]", ProblemKind::BadJson, "object");
        check(r#"["a.wav","x",1,0,"s","l"]"#, ProblemKind::BadJson, "object");
        check("null", ProblemKind::BadJson, "object");
        check("id|text|text", ProblemKind::BadJson, "object");
        check(r#"{"audio_filepath":"a","text":"x"} trailing"#, ProblemKind::BadJson, "trailing");
        check(r#"{"audio_filepath":"a","audio_filepath":"b","text":"x"}"#, ProblemKind::BadJson, "duplicate");
        check(r#"{"text":"x","duration":1}"#, ProblemKind::MissingKey, "`audio_filepath`");
        check(r#"{"audio_filepath":"a","duration":1}"#, ProblemKind::MissingKey, "`text`");
        check(r#"{"audio_filepath":null,"text":"x"}"#, ProblemKind::MissingKey, "`audio_filepath`");
        check(r#"{"audio_filepath":["a","b"],"text":"x"}"#, ProblemKind::WrongType, "a list");
        check(r#"{"audio_filepath":"a","text":5}"#, ProblemKind::WrongType, "`text` must be a string, found a number");
        check(r#"{"audio_filepath":"a","text":"x","duration":"2"}"#, ProblemKind::WrongType, "`duration`");
        check(r#"{"audio_filepath":"a","text":"x","offset":{"s":1}}"#, ProblemKind::WrongType, "an object");
        check(r#"{"audio_filepath":"a","text":"x","lang":true}"#, ProblemKind::WrongType, "`lang`");
        check(r#"{"audio_filepath":"a","text":"x","duration":-1}"#, ProblemKind::BadNumber, "-1");
        check(r#"{"audio_filepath":"a","text":"x","duration":0}"#, ProblemKind::BadNumber, "over 0");
        check(r#"{"audio_filepath":"a","text":"x","offset":-0.5}"#, ProblemKind::BadNumber, "`offset`");
        check(r#"{"audio_filepath":"a","text":"x","duration":NaN}"#, ProblemKind::BadNumber, "NaN");
        check(r#"{"audio_filepath":"a","text":"x","duration": -Infinity}"#, ProblemKind::BadNumber, "Infinity");
        check(r#"{"audio_filepath":"a","text":"x","duration":1e999}"#, ProblemKind::BadJson, "range");
        check(r#"{"audio_filepath":" ","text":"x"}"#, ProblemKind::EmptyId, "no file");
        check(r#"{"audio_filepath":"a","text":"  "}"#, ProblemKind::EmptyText, "`a`");
    }
}
