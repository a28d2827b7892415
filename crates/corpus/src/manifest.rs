//! JSONL manifests as NeMo writes them: an object per line with `audio_filepath`, `text`, `duration`, and perhaps
//! `offset`, `speaker`, `lang`. Other keys are none of our business.
//!
//! The id of a row is its path as written, without the ending of the file, and `@offset` after it where there is an
//! offset; so one recording may be cut into many rows, and the same piece twice is a duplicate. Paths are absolute or
//! relative to the manifest. A row without a duration is fine: somebody has to look. Whether the recordings are there
//! is not asked here: a million questions would cost more than a million rows.

use std::borrow::Cow;
use std::fmt::Write;
use std::io::{self, BufRead};

use serde::Deserialize;
use tandem_random::keyed;
use tandem_storage::redact;

use crate::json_value::{JsonValue, RejectedRow, parse_object};
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::{report_unreadable, speaker_of};
use crate::locator::without_extension;
use crate::problem::{Findings, ProblemKind, excerpt};
use crate::sample::{NewRow, Samples, Subset, check_name};
use crate::sources::is_url;
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
        match ManifestObject::parse(text).and_then(ManifestObject::check) {
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
                    address: None,
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

/// A line as it is written. Every key may hold anything, so that a wrong type can be named with its key.
#[derive(Deserialize)]
pub(crate) struct ManifestObject<'a> {
    #[serde(borrow, default)]
    audio_filepath: JsonValue<'a>,
    #[serde(borrow, default)]
    text: JsonValue<'a>,
    #[serde(borrow, default)]
    duration: JsonValue<'a>,
    #[serde(borrow, default)]
    offset: JsonValue<'a>,
    #[serde(borrow, default)]
    speaker: JsonValue<'a>,
    #[serde(borrow, default)]
    lang: JsonValue<'a>,
}

/// A line that makes sense.
#[derive(Debug, PartialEq)]
pub(crate) struct ManifestEntry<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) text: Cow<'a, str>,
    pub(crate) duration_s: Option<f64>,
    pub(crate) offset_s: Option<f64>,
    pub(crate) speaker: Option<Cow<'a, str>>,
    pub(crate) lang: Option<Cow<'a, str>>,
}

impl<'a> ManifestObject<'a> {
    pub(crate) fn parse(line: &'a str) -> Result<ManifestObject<'a>, RejectedRow> {
        parse_object(line)
    }

    pub(crate) fn check(self) -> Result<ManifestEntry<'a>, RejectedRow> {
        let key = self.audio_filepath.required_text("audio_filepath")?;
        if without_extension(&key).is_empty() || key.contains('\0') {
            return Err((ProblemKind::EmptyId, "`audio_filepath` names no file".into()));
        }
        check_name(&key)?;
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
        Ok(ManifestEntry { key, text, duration_s, offset_s, speaker, lang })
    }
}

impl ManifestEntry<'_> {
    pub(crate) fn write_id(&self, id: &mut String) {
        id.clear();
        let shown = if is_url(&self.key) { redact(&self.key) } else { String::new() };
        match shown.is_empty() || *shown == *self.key {
            true => id.push_str(without_extension(&self.key)),
            // Ids are shown and stored, so no password and no signature is part of one. A number keeps them apart.
            false => {
                id.push_str(without_extension(shown.split('?').next().unwrap_or(&shown)));
                // Writing to a string cannot fail.
                let _ = write!(id, "~{:08x}", keyed::hash(0, self.key.as_bytes()) as u32);
            }
        }
        if let Some(offset_s) = self.offset_s {
            // Writing to a string cannot fail.
            let _ = write!(id, "@{offset_s}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> Result<ManifestEntry<'_>, RejectedRow> {
        ManifestObject::parse(line).and_then(ManifestObject::check)
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
