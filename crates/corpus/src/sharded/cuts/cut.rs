//! One cut: a line of a manifest that makes sense.

use std::borrow::Cow;

use serde::Deserialize;

use super::nested::NestedValue;
use crate::json_value::{JsonValue, RejectedRow, parse_object};
use crate::locator::without_extension;
use crate::problem::{ProblemKind, excerpt};
use crate::sample::check_name;

/// A cut is all of its recording if it is shorter by no more than this: durations are rounded.
const ROUNDING_S: f64 = 1e-6;

/// A cut of a recording with something to say.
#[derive(Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) id: Cow<'a, str>,
    /// What its supervisions say, in order of their start.
    pub(crate) text: Cow<'a, str>,
    /// Of the supervision that speaks first.
    pub(crate) speaker: Option<Cow<'a, str>>,
    pub(crate) lang: Option<Cow<'a, str>>,
    /// Where it begins in the recording.
    pub(crate) start_s: f64,
    pub(crate) duration_s: f64,
    /// Channels of the recording that it has.
    num_channels: usize,
    recording: Option<CutRecording<'a>>,
}

/// The recording as the cut describes it.
#[derive(Debug)]
struct CutRecording<'a> {
    duration_s: Option<f64>,
    sources: Vec<SourceObject<'a>>,
    transforms: Vec<TransformObject<'a>>,
}

impl<'a> Cut<'a> {
    /// Reads a line. Fails if it is no cut, or one that cannot be a row.
    pub(crate) fn parse(line: &'a str) -> Result<Cut<'a>, RejectedRow> {
        let object: CutObject<'a> = parse_object(line)?;
        object.check()
    }

    /// Where it begins, if it is less than the whole recording.
    pub(crate) fn offset_s(&self) -> Option<f64> {
        let whole_s = self.recording.as_ref().and_then(|recording| recording.duration_s);
        let is_part = self.start_s > 0.0 || whole_s.is_some_and(|whole_s| self.duration_s < whole_s - ROUNDING_S);
        is_part.then_some(self.start_s)
    }

    /// The path or URL of the recording. Fails if it is not a single file that is read as it is.
    pub(crate) fn source(&self) -> Result<&str, RejectedRow> {
        let wrong = |detail: String| Err((ProblemKind::WrongType, detail));
        let Some(recording) = &self.recording else {
            let detail = format!("`recording` is missing: `{}` has no audio", excerpt(&self.id));
            return Err((ProblemKind::MissingKey, detail));
        };
        let [source] = recording.sources.as_slice() else {
            return wrong(format!("expected a recording with one source, found {}", recording.sources.len()));
        };
        let kind = required_text(&source.kind, "type")?;
        if !matches!(kind, "file" | "url") {
            return wrong(format!("expected a source of type file or url, found {}", excerpt(kind)));
        }
        let channels = source.channels.list_length().unwrap_or(1);
        if self.num_channels > 1 && self.num_channels < channels {
            let found = self.num_channels;
            return wrong(format!("expected a cut with one channel or all {channels}, found {found} of them"));
        }
        recording.transforms.iter().try_for_each(TransformObject::check)?;
        let key = required_text(&source.source, "source")?;
        if without_extension(key).is_empty() || key.contains('\0') {
            return Err((ProblemKind::EmptyId, "`source` names no file".into()));
        }
        check_name(key)?;
        Ok(key)
    }
}

/// A line as it is written. Every key may hold anything, so that a wrong type can be named with its key.
#[derive(Deserialize)]
struct CutObject<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: JsonValue<'a>,
    #[serde(borrow, default)]
    id: JsonValue<'a>,
    #[serde(borrow, default)]
    start: JsonValue<'a>,
    #[serde(borrow, default)]
    duration: JsonValue<'a>,
    #[serde(default)]
    channel: NestedValue<AnyObject>,
    #[serde(borrow, default)]
    supervisions: NestedValue<SupervisionObject<'a>>,
    #[serde(borrow, default)]
    recording: NestedValue<RecordingObject<'a>>,
}

#[derive(Deserialize)]
struct SupervisionObject<'a> {
    #[serde(borrow, default)]
    start: JsonValue<'a>,
    #[serde(borrow, default)]
    text: JsonValue<'a>,
    #[serde(borrow, default)]
    speaker: JsonValue<'a>,
    #[serde(borrow, default)]
    language: JsonValue<'a>,
}

#[derive(Deserialize)]
struct RecordingObject<'a> {
    #[serde(borrow, default)]
    sources: NestedValue<SourceObject<'a>>,
    #[serde(borrow, default)]
    duration: JsonValue<'a>,
    #[serde(borrow, default)]
    transforms: NestedValue<TransformObject<'a>>,
}

#[derive(Debug, Deserialize)]
struct SourceObject<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: JsonValue<'a>,
    #[serde(borrow, default)]
    source: JsonValue<'a>,
    #[serde(default)]
    channels: NestedValue<AnyObject>,
}

#[derive(Debug, Deserialize)]
struct TransformObject<'a> {
    #[serde(borrow, default)]
    name: JsonValue<'a>,
}

/// An object of which no key matters.
#[derive(Debug, Deserialize)]
struct AnyObject {}

/// A supervision that says something.
struct Spoken<'a> {
    start_s: f64,
    text: Cow<'a, str>,
    speaker: Option<Cow<'a, str>>,
    lang: Option<Cow<'a, str>>,
}

impl<'a> CutObject<'a> {
    fn check(self) -> Result<Cut<'a>, RejectedRow> {
        check_kind(&self.kind)?;
        let id = self.id.name("id")?.unwrap_or_default();
        if id.is_empty() {
            return Err((ProblemKind::EmptyId, "the cut has no `id`".into()));
        }
        check_name(&id)?;
        let start_s = required_number(self.start, "start")?;
        if start_s < 0.0 || !start_s.is_finite() {
            return Err((ProblemKind::BadNumber, format!("`start` must be 0 or more, found {start_s}")));
        }
        let duration_s = required_number(self.duration, "duration")?;
        if duration_s <= 0.0 || !duration_s.is_finite() {
            return Err((ProblemKind::BadNumber, format!("`duration` must be over 0, found {duration_s}")));
        }
        let num_channels = self.channel.list_length().unwrap_or(1);
        let mut spoken = Vec::new();
        for supervision in self.supervisions.list("supervisions")? {
            spoken.extend(supervision.check()?);
        }
        // Stable: supervisions that start together stay in the order of the list.
        spoken.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        let recording = self.recording.object("recording")?.map(RecordingObject::check).transpose()?;
        let mut spoken = spoken.into_iter();
        let Some(Spoken { mut text, speaker, lang, .. }) = spoken.next() else {
            return Err((ProblemKind::EmptyText, format!("no supervision of `{}` has a text", excerpt(&id))));
        };
        for next in spoken {
            let text = text.to_mut();
            text.push(' ');
            text.push_str(&next.text);
        }
        Ok(Cut { id, text, speaker, lang, start_s, duration_s, num_channels, recording })
    }
}

impl<'a> SupervisionObject<'a> {
    /// None if it says nothing: noise, a pause, a speaker turn without a transcript.
    fn check(self) -> Result<Option<Spoken<'a>>, RejectedRow> {
        if matches!(self.text, JsonValue::Absent) {
            return Ok(None);
        }
        let text = self.text.required_text("text")?;
        if text.is_empty() {
            return Ok(None);
        }
        let start_s = required_number(self.start, "supervisions.start")?;
        let (speaker, lang) = (self.speaker.name("speaker")?, self.language.name("language")?);
        Ok(Some(Spoken { start_s, text, speaker, lang }))
    }
}

impl<'a> RecordingObject<'a> {
    fn check(self) -> Result<CutRecording<'a>, RejectedRow> {
        Ok(CutRecording {
            duration_s: self.duration.number("recording.duration")?,
            sources: self.sources.list("recording.sources")?,
            transforms: self.transforms.list("recording.transforms")?,
        })
    }
}

impl TransformObject<'_> {
    /// Lhotse applies transforms when it loads audio. Resampling happens here as well, and changes no duration.
    fn check(&self) -> Result<(), RejectedRow> {
        match required_text(&self.name, "recording.transforms.name")? {
            "Resample" => Ok(()),
            name => {
                let name = excerpt(name);
                let detail =
                    format!("expected a recording as it is in its file, found the transform {name} ({TO_FILES})");
                Err((ProblemKind::WrongType, detail))
            }
        }
    }
}

const TO_FILES: &str = "`CutSet.save_audios` writes the audio of cuts to files";

fn check_kind(kind: &JsonValue<'_>) -> Result<(), RejectedRow> {
    if matches!(kind, JsonValue::Absent) {
        let detail =
            "`type` is missing: expected a cut (`lhotse cut simple` makes cuts of recordings and supervisions)";
        return Err((ProblemKind::MissingKey, detail.into()));
    }
    match required_text(kind, "type")? {
        // Before version 0.8 of Lhotse, `MonoCut` was `Cut`.
        "MonoCut" | "MultiCut" | "Cut" => Ok(()),
        other => {
            let detail = format!("expected a MonoCut or MultiCut, found {} ({TO_FILES})", excerpt(other));
            Err((ProblemKind::WrongType, detail))
        }
    }
}

fn required_number(value: JsonValue<'_>, key: &str) -> Result<f64, RejectedRow> {
    value.number(key)?.ok_or_else(|| (ProblemKind::MissingKey, format!("`{key}` is missing")))
}

/// A text that must be there.
fn required_text<'v>(value: &'v JsonValue<'_>, key: &str) -> Result<&'v str, RejectedRow> {
    match value {
        JsonValue::Text(text) => Ok(text.trim()),
        JsonValue::Absent => Err((ProblemKind::MissingKey, format!("`{key}` is missing"))),
        other => Err(other.unexpected(key, "a string")),
    }
}
