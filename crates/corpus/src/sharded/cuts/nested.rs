//! JSON values that hold others: an object with known keys, or a list of such objects.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::json_value::RejectedRow;
use crate::problem::ProblemKind;

/// What a key holds whose value should be an object `T` or a list of them. Anything else is noted, so that it can be named
/// with its key.
#[derive(Debug, Default)]
pub(super) enum NestedValue<T> {
    /// Nothing: the key is not there, or is null.
    #[default]
    Absent,
    Object(T),
    List(Vec<NestedValue<T>>),
    Other(&'static str),
}

impl<T> NestedValue<T> {
    /// The object, if there is one.
    pub(super) fn object(self, key: &str) -> Result<Option<T>, RejectedRow> {
        match self {
            NestedValue::Absent => Ok(None),
            NestedValue::Object(object) => Ok(Some(object)),
            other => Err(other.unexpected(key, "an object")),
        }
    }

    /// The objects of the list; none if there is no list.
    pub(super) fn list(self, key: &str) -> Result<Vec<T>, RejectedRow> {
        let items = match self {
            NestedValue::Absent => return Ok(Vec::new()),
            NestedValue::List(items) => items,
            other => return Err(other.unexpected(key, "a list")),
        };
        let object = |(at, item): (usize, NestedValue<T>)| match item {
            NestedValue::Object(object) => Ok(object),
            other => Err(other.unexpected(&format!("{key}[{at}]"), "an object")),
        };
        items.into_iter().enumerate().map(object).collect()
    }

    /// The length of the list; none if it is no list.
    pub(super) fn list_length(&self) -> Option<usize> {
        match self {
            NestedValue::List(items) => Some(items.len()),
            _ => None,
        }
    }

    fn unexpected(&self, key: &str, expected: &str) -> RejectedRow {
        let found = match self {
            NestedValue::Absent => "nothing",
            NestedValue::Object(_) => "an object",
            NestedValue::List(_) => "a list",
            NestedValue::Other(found) => found,
        };
        (ProblemKind::WrongType, format!("`{key}` must be {expected}, found {found}"))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NestedValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NestedVisitor(PhantomData))
    }
}

struct NestedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NestedVisitor<T> {
    type Value = NestedValue<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, items: A) -> Result<NestedValue<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(items)).map(NestedValue::Object)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NestedValue<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(NestedValue::List(list))
    }

    fn visit_unit<E: de::Error>(self) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Absent)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Other("a string"))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Other("a number"))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Other("a number"))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Other("a number"))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<NestedValue<T>, E> {
        Ok(NestedValue::Other("true or false"))
    }
}
