//! What the JSON object of a sample says.

use serde_json::{Map, Value};

use crate::json_value::RejectedRow;
use crate::problem::{ProblemKind, excerpt};

/// Keys of the text, the one preferred first: what is said before what is written.
const TEXT_KEYS: [&str; 6] = ["normalized_text", "text", "transcript", "transcription", "sentence", "caption"];
const SPEAKER_KEYS: [&str; 4] = ["speaker", "speaker_id", "spk", "spk_id"];
/// An id that differs from the key: `tandem corpus pack` stores it where a name cannot have its characters.
const ID_KEY: &str = "id";
const LANG_KEYS: [&str; 3] = ["language", "lang", "locale"];

/// What an object says of a sample. Keys that are absent, null or blank say nothing.
#[derive(Debug, PartialEq)]
pub(super) struct Metadata {
    /// A fault of it matters only where no file has the text.
    pub(super) text: Result<Option<String>, RejectedRow>,
    pub(super) id: Option<String>,
    pub(super) speaker: Option<String>,
    pub(super) lang: Option<String>,
    pub(super) duration_s: Option<f64>,
}

impl Metadata {
    /// Reads the object in `bytes`, without a byte order mark.
    pub(super) fn parse(bytes: &[u8]) -> Result<Metadata, RejectedRow> {
        let json = as_text(bytes)?;
        if !json.trim_start().starts_with('{') {
            return Err((ProblemKind::BadJson, format!("expected a JSON object, found {}", excerpt(json))));
        }
        let object: Map<String, Value> =
            serde_json::from_str(json).map_err(|error| (ProblemKind::BadJson, error.to_string()))?;
        let text = first(&object, &TEXT_KEYS, |value| value.as_str().map(str::to_owned), "a string");
        let speaker = first(&object, &SPEAKER_KEYS, name, "a string or a whole number")?;
        // Only text: numbers often count from the beginning in every shard.
        let id = object.get(ID_KEY).and_then(Value::as_str).map(str::to_owned).filter(|id| !id.trim().is_empty());
        let lang = first(&object, &LANG_KEYS, |value| value.as_str().map(str::to_owned), "a string")?;
        let duration_s = match object.get("duration") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_f64().ok_or_else(|| wrong_type("duration", "a number", value))?),
        };
        Ok(Metadata { text, id, speaker, lang, duration_s })
    }
}

/// `bytes` as text, without a byte order mark.
pub(super) fn as_text(bytes: &[u8]) -> Result<&str, RejectedRow> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    str::from_utf8(bytes)
        .map_err(|error| (ProblemKind::InvalidUtf8, format!("byte {} is no UTF-8", error.valid_up_to() + 1)))
}

/// The first of `keys` that says something, as `read` reads it.
fn first(
    object: &Map<String, Value>,
    keys: &[&str],
    read: fn(&Value) -> Option<String>,
    expected: &str,
) -> Result<Option<String>, RejectedRow> {
    for key in keys {
        let value = match object.get(*key) {
            None | Some(Value::Null) => continue,
            Some(value) => value,
        };
        let text = read(value).ok_or_else(|| wrong_type(key, expected, value))?;
        if !text.trim().is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// A name, or a whole number used as one. Python writes whole numbers as `7.0` once a column has gaps.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        Value::Number(number) => {
            number.as_f64().filter(|number| number.fract() == 0.0).map(|number| number.to_string())
        }
        _ => None,
    }
}

fn wrong_type(key: &str, expected: &str, value: &Value) -> RejectedRow {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    (ProblemKind::WrongType, format!("`{key}` must be {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_key_that_says_something_counts() {
        let check =
            |json: &str, text: Option<&str>, speaker: Option<&str>, lang: Option<&str>, duration_s: Option<f64>| {
                let found = Metadata::parse(json.as_bytes()).unwrap();
                let found_text = found.text.as_ref().unwrap();
                assert_eq!((found_text.as_deref(), found.speaker.as_deref()), (text, speaker), "{json}");
                assert_eq!((found.lang.as_deref(), found.duration_s), (lang, duration_s), "{json}");
            };
        check("{}", None, None, None, None);
        check(r#"{"text":"Dr. A","normalized_text":"doctor a"}"#, Some("doctor a"), None, None, None);
        check(r#"{"text":"Dr. A","normalized_text":" "}"#, Some("Dr. A"), None, None, None);
        check(r#"{"caption":"c","sentence":"s","transcription":null}"#, Some("s"), None, None, None);
        check(r#"{"spk":"p1","speaker_id":12345678901234567890}"#, None, Some("12345678901234567890"), None, None);
        check(r#"{"speaker":7.0,"duration":2}"#, None, Some("7"), None, Some(2.0));
        check(r#"{"speaker":"","spk_id":"-3","locale":"de","lang":null}"#, None, Some("-3"), Some("de"), None);
        check("\u{feff} {\"transcript\":\"t\",\n \"snr\":[1,{}]}", Some("t"), None, None, None);
    }

    #[test]
    fn objects_that_are_none() {
        let check = |json: &[u8], kind: ProblemKind, part: &str| {
            let (found, detail) = Metadata::parse(json).unwrap_err();
            assert!(found == kind && detail.contains(part), "{found:?} {detail}");
        };
        check(b"", ProblemKind::BadJson, "object");
        check(b"[1]", ProblemKind::BadJson, "[1]");
        check(b"{\"text\":\n\"a\"", ProblemKind::BadJson, "line 2");
        check(br#"{"text":"a","snr":NaN}"#, ProblemKind::BadJson, "");
        check(b"{\"text\":\"\xff\"}", ProblemKind::InvalidUtf8, "byte 10");
        check(br#"{"speaker":[1]}"#, ProblemKind::WrongType, "a list");
        check(br#"{"speaker":0.5}"#, ProblemKind::WrongType, "whole number");
        check(br#"{"lang":1}"#, ProblemKind::WrongType, "`lang`");
        check(br#"{"duration":"2"}"#, ProblemKind::WrongType, "`duration` must be a number, found a string");
        let wrong_text = Metadata::parse(br#"{"text":["a","b"]}"#).unwrap().text.unwrap_err();
        assert_eq!(wrong_text, (ProblemKind::WrongType, "`text` must be a string, found a list".to_owned()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_object_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Metadata::parse(&bytes);
        }

        #[test]
        fn a_text_comes_out_as_it_was_written(text in "\\PC*[a-z]", speaker in any::<u64>()) {
            let json = serde_json::json!({ "text": text, "speaker": speaker }).to_string();
            let found = Metadata::parse(json.as_bytes()).unwrap();
            prop_assert_eq!(found.text.unwrap(), Some(text));
            prop_assert_eq!(found.speaker, Some(speaker.to_string()));
        }
    }
}
