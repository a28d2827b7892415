//! Values of JSON lines that may hold anything: a wrong type is named with its key, instead of failing the line.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::problem::{ProblemKind, excerpt};

/// Why a line is no row: the sort of problem, and what was expected and found.
pub(crate) type RejectedRow = (ProblemKind, String);

/// Reads a line that must be an object.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, RejectedRow> {
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

/// Python writes what JSON has no word for. Which one, if the trouble at `place` is that.
fn not_a_number(line: &str, place: usize) -> Option<&'static str> {
    let from = line.as_bytes().get(place.saturating_sub(1)..)?;
    ["NaN", "Infinity", "-Infinity"]
        .into_iter()
        .find(|name| from.windows(name.len()).take(2).any(|window| window == name.as_bytes()))
}

/// What a key holds.
#[derive(Debug, Default)]
pub(crate) enum JsonValue<'a> {
    /// Nothing: the key is not there, or is null.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Number(f64),
    Other(&'static str),
}

impl<'a> JsonValue<'a> {
    pub(crate) fn required_text(self, key: &str) -> Result<Cow<'a, str>, RejectedRow> {
        match self {
            JsonValue::Text(text) => Ok(trimmed(text)),
            JsonValue::Absent => Err((ProblemKind::MissingKey, format!("`{key}` is missing"))),
            other => Err(other.unexpected(key, "a string")),
        }
    }

    pub(crate) fn number(self, key: &str) -> Result<Option<f64>, RejectedRow> {
        match self {
            JsonValue::Absent => Ok(None),
            JsonValue::Number(number) => Ok(Some(number)),
            other => Err(other.unexpected(key, "a number")),
        }
    }

    /// A name, or a number used as one.
    pub(crate) fn name(self, key: &str) -> Result<Option<Cow<'a, str>>, RejectedRow> {
        match self {
            JsonValue::Absent => Ok(None),
            JsonValue::Text(text) => Ok(Some(trimmed(text)).filter(|text| !text.is_empty())),
            JsonValue::Number(number) => Ok(Some(number.to_string().into())),
            other => Err(other.unexpected(key, "a string or a number")),
        }
    }

    pub(crate) fn unexpected(&self, key: &str, expected: &str) -> RejectedRow {
        let found = match self {
            JsonValue::Absent => "nothing",
            JsonValue::Text(_) => "a string",
            JsonValue::Number(_) => "a number",
            JsonValue::Other(found) => found,
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

impl<'de: 'a, 'a> Deserialize<'de> for JsonValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = JsonValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Number(number as f64))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Number(number as f64))
    }

    fn visit_unit<E: de::Error>(self) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Absent)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other("true or false"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue<'de>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonValue::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<JsonValue<'de>, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonValue::Other("an object"))
    }
}
