//! What is wrong with a corpus, said so that it can be found: file, line, kind, detail.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// Something wrong with a corpus. It never stopped the reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The list that holds the faulty row, or the list that is faulty itself.
    #[serde(serialize_with = "lossy")]
    pub file: Arc<Path>,
    /// The line, from 1; none when the whole file is meant.
    pub line: Option<u32>,
    /// What sort of thing it is.
    pub kind: ProblemKind,
    /// What was expected and what was found, in at most a few hundred bytes.
    pub detail: String,
}

/// The sorts of problems. The names are an interface: reports carry them.
///
/// Reading a list finds the first ones; opening and decoding the recordings, which this crate leaves to others, finds
/// the last ones. One list, so that a report speaks one language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// A row has fewer than two columns. The row is left out.
    MissingColumn,
    /// A row has more than five columns. The row is left out.
    TooManyColumns,
    /// A header names known columns in an order in which they are not read.
    HeaderOrder,
    /// A line is not UTF-8. The line is left out.
    InvalidUtf8,
    /// A line is longer than [`crate::MAX_LINE_BYTES`]. The line is left out, and was never held.
    LineTooLong,
    /// An id was there before. The first row is kept, this one is left out.
    DuplicateId,
    /// A row has no id. The row is left out.
    EmptyId,
    /// A row has nothing to say. The row is left out.
    EmptyText,
    /// A recording has no text. The recording is left out.
    MissingText,
    /// The file has a header and nothing under it.
    HeaderOnly,
    /// The file has nothing in it.
    NoRows,
    /// A file is there that will not be read, though its name says it should be.
    UnusedFile,
    /// A line is not a JSON object. The line is left out.
    BadJson,
    /// A JSON object lacks a key it must have. The row is left out.
    MissingKey,
    /// A value is of another type than it must be. The row is left out.
    WrongType,
    /// A duration or offset is negative, not a number, or past the end. The row is left out.
    BadNumber,
    /// The speaker pattern does not match an id. The row is kept, without a speaker.
    NoSpeaker,
    /// An id to be left out is not in the corpus.
    UnknownExcluded,
    /// The recording of a row is not there. The row is left out.
    MissingAudio,
    /// The recording of a row cannot be decoded.
    UndecodableAudio,
    /// The recording is too short to train on.
    TooShort,
    /// The recording or its text is longer than the longest shape.
    TooLong,
    /// The recording is driven past full scale.
    Clipping,
    /// The text has characters outside the symbol table.
    UnknownSymbol,
    /// A shard cannot be read, or not to its end. Its rows before the damage are kept.
    DamagedShard,
}

impl ProblemKind {
    /// Whether the row with this problem is not part of the corpus.
    pub fn rejects_row(self) -> bool {
        match self {
            Self::MissingColumn
            | Self::TooManyColumns
            | Self::InvalidUtf8
            | Self::LineTooLong
            | Self::DuplicateId
            | Self::EmptyId
            | Self::EmptyText
            | Self::MissingText
            | Self::BadJson
            | Self::MissingKey
            | Self::WrongType
            | Self::BadNumber
            | Self::MissingAudio => true,
            Self::HeaderOrder
            | Self::HeaderOnly
            | Self::NoRows
            | Self::UnusedFile
            | Self::NoSpeaker
            | Self::UnknownExcluded
            | Self::UndecodableAudio
            | Self::TooShort
            | Self::TooLong
            | Self::Clipping
            | Self::UnknownSymbol
            | Self::DamagedShard => false,
        }
    }

    /// The kind in words, as a report shows it.
    pub fn words(self) -> &'static str {
        match self {
            Self::MissingColumn => "missing column",
            Self::TooManyColumns => "too many columns",
            Self::HeaderOrder => "header in another order",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::LineTooLong => "line too long",
            Self::DuplicateId => "duplicate id",
            Self::EmptyId => "empty id",
            Self::EmptyText => "empty text",
            Self::MissingText => "missing text",
            Self::HeaderOnly => "header only",
            Self::NoRows => "no rows",
            Self::UnusedFile => "unused file",
            Self::BadJson => "bad JSON",
            Self::MissingKey => "missing key",
            Self::WrongType => "wrong type",
            Self::BadNumber => "bad number",
            Self::NoSpeaker => "no speaker",
            Self::UnknownExcluded => "unknown excluded id",
            Self::MissingAudio => "missing audio",
            Self::UndecodableAudio => "undecodable audio",
            Self::TooShort => "too short",
            Self::TooLong => "too long",
            Self::Clipping => "clipping",
            Self::UnknownSymbol => "unknown symbol",
            Self::DamagedShard => "damaged shard",
        }
    }
}

impl fmt::Display for Problem {
    /// `file:line: kind: detail`, which editors and terminals make clickable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}", self.kind.words(), self.detail)
    }
}

/// The problems of one list while it is read.
pub(crate) struct Findings<'a> {
    pub(crate) file: Arc<Path>,
    pub(crate) list: &'a mut Vec<Problem>,
}

impl Findings<'_> {
    /// Notes a problem on `line`.
    pub(crate) fn on(&mut self, line: u32, kind: ProblemKind, detail: impl Into<String>) {
        self.list.push(Problem { file: Arc::clone(&self.file), line: Some(line), kind, detail: detail.into() });
    }

    /// Notes a problem of the whole file.
    pub(crate) fn whole(&mut self, kind: ProblemKind, detail: impl Into<String>) {
        self.list.push(Problem { file: Arc::clone(&self.file), line: None, kind, detail: detail.into() });
    }
}

/// The first characters of `text`, for a message: what a row holds may be a megabyte.
pub(crate) fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut short: String = text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn lossy<S: Serializer>(path: &Arc<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_where_it_is() {
        let check = |line, shown: &str, json: &str| {
            let problem = Problem {
                file: Path::new("d/metadata.csv").into(),
                line,
                kind: ProblemKind::InvalidUtf8,
                detail: "byte 3".into(),
            };
            assert_eq!(problem.to_string(), shown);
            assert_eq!(serde_json::to_string(&problem).unwrap(), json);
        };
        check(
            Some(7),
            "d/metadata.csv:7: invalid UTF-8: byte 3",
            r#"{"file":"d/metadata.csv","line":7,"kind":"invalid-utf8","detail":"byte 3"}"#,
        );
        check(
            None,
            "d/metadata.csv: invalid UTF-8: byte 3",
            r#"{"file":"d/metadata.csv","line":null,"kind":"invalid-utf8","detail":"byte 3"}"#,
        );
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt("a\tb"), "a b");
        assert_eq!(excerpt(&"ü".repeat(100)), format!("{}…", "ü".repeat(60)));
    }
}
