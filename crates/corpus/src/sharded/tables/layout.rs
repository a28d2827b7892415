//! Which column of a table is what.
//!
//! Tables of speech have no common names for their columns. A name that is given is taken; otherwise the usual names are
//! looked for, in the order of [`Role::names`], and the first that exists with a fitting kind is taken. Lists of strings come
//! last.

use std::borrow::Cow;

use tandem_shards::{ColumnKind, ShardFault, TableColumn};

use super::super::source::ColumnNames;

/// The columns of a table that make an utterance. At least one of `bytes` and `path` is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableLayout {
    /// Recordings.
    pub(super) bytes: Option<TableColumn>,
    /// Names of recordings; paths of files where `bytes` is null or not there.
    pub(super) path: Option<TableColumn>,
    pub(super) text: TableColumn,
    pub(super) id: Option<TableColumn>,
    pub(super) speaker: Option<TableColumn>,
    pub(super) lang: Option<TableColumn>,
    /// Seconds.
    pub(super) duration: Option<TableColumn>,
}

/// What a column can be for.
struct Role {
    /// What a user calls it when naming a column.
    setting: &'static str,
    /// The usual names, the best first.
    names: &'static [&'static str],
    /// Kinds that fit.
    kinds: &'static [ColumnKind],
    /// The same in words.
    expected: &'static str,
}

/// Recordings. CosyVoice has `audio_data`, Hugging Face `audio.bytes`.
const BYTES: Role = Role {
    setting: "audio",
    names: &[
        "audio.bytes",
        "audio",
        "audio_data",
        "wav.bytes",
        "wav",
        "mp3",
        "flac",
        "recording.bytes",
        "speech.bytes",
        "file.bytes",
        "bytes",
    ],
    kinds: &[ColumnKind::Bytes],
    expected: "bytes of audio files",
};

/// Recordings that are files. F5-TTS has `audio_path`.
const PATH: Role = Role {
    setting: "audio",
    names: &["audio_path", "audio_filepath", "audio", "path", "file", "wav"],
    kinds: &[ColumnKind::Text],
    expected: "paths",
};

/// Names of recordings beside their bytes. `wav` is CosyVoice's.
const NAME: Role =
    Role { setting: "audio", names: &["wav", "path", "file"], kinds: &[ColumnKind::Text], expected: "paths" };

/// What is said. Some writers of Parquet do not mark text as such. F5-TTS has lists of characters or syllables.
const TEXT: Role = Role {
    setting: "text",
    names: &["normalized_text", "text_normalized", "text", "sentence", "transcription", "transcript", "caption"],
    kinds: &[ColumnKind::Text, ColumnKind::Bytes, ColumnKind::TextList],
    expected: "text",
};

/// Names of utterances. `utt` is CosyVoice's.
const ID: Role = Role {
    setting: "id",
    names: &["id", "utt", "utt_id", "key", "__key__", "file_id", "segment_id", "utterance_id"],
    kinds: &[ColumnKind::Text, ColumnKind::Number, ColumnKind::Bytes],
    expected: "text or numbers",
};

const SPEAKER: Role = Role {
    setting: "speaker",
    names: &["speaker", "speaker_id", "spk", "spk_id", "client_id"],
    kinds: &[ColumnKind::Text, ColumnKind::Number, ColumnKind::Bytes],
    expected: "text or numbers",
};

const LANG: Role = Role {
    setting: "lang",
    names: &["language", "lang", "locale"],
    kinds: &[ColumnKind::Text, ColumnKind::Bytes],
    expected: "text",
};

const DURATION: Role = Role {
    setting: "duration",
    names: &["duration", "duration_s", "audio_duration", "audio_seconds"],
    kinds: &[ColumnKind::Number],
    expected: "numbers",
};

impl TableLayout {
    /// Finds the columns. Fails if there is no text or no recording, or if a column that is `wanted` is not there or holds
    /// something else.
    pub(super) fn find(columns: &[TableColumn], wanted: &ColumnNames) -> Result<TableLayout, ShardFault> {
        let (bytes, path) = match &wanted.audio {
            Some(name) => named_audio(columns, name)?,
            None => usual_audio(columns)?,
        };
        let text = TEXT.find(columns, wanted.text.as_deref())?.ok_or_else(|| {
            let (names, found) = (listed(TEXT.names.iter().copied()), names_of(columns));
            refusal(format!("expected a column with text ({names}), found {found}"), &TEXT)
        })?;
        Ok(TableLayout {
            bytes: bytes.cloned(),
            path: path.cloned(),
            text: text.clone(),
            id: ID.find(columns, wanted.id.as_deref())?.cloned(),
            speaker: SPEAKER.find(columns, wanted.speaker.as_deref())?.cloned(),
            lang: LANG.find(columns, wanted.lang.as_deref())?.cloned(),
            duration: DURATION.find(columns, wanted.duration.as_deref())?.cloned(),
        })
    }

    /// The column whose file names may be ids; none if a column has ids.
    pub(super) fn stem_column(&self) -> Option<&TableColumn> {
        self.path.as_ref().filter(|_| self.id.is_none())
    }

    /// Fails if text is in a column of bytes: in Arrow, text is marked as such.
    pub(super) fn check_arrow(&self) -> Result<(), ShardFault> {
        let texts = [Some(&self.text), self.id.as_ref(), self.speaker.as_ref(), self.lang.as_ref()];
        match texts.into_iter().flatten().find(|column| column.kind == ColumnKind::Bytes) {
            None => Ok(()),
            Some(column) => {
                let reason = format!(
                    "column `{}`: expected strings, found bytes; write the table with strings (`pyarrow.string()`)",
                    column.name
                );
                Err(ShardFault::Unsupported { reason })
            }
        }
    }
}

impl Role {
    /// The column called `wanted`, which must fit; otherwise the first usual one that does.
    fn find<'c>(
        &self,
        columns: &'c [TableColumn],
        wanted: Option<&str>,
    ) -> Result<Option<&'c TableColumn>, ShardFault> {
        let Some(name) = wanted else { return Ok(self.usual(columns)) };
        match named(columns, name) {
            Some(column) if self.fits(column) => Ok(Some(column)),
            Some(column) => Err(self.wrong_kind(column)),
            None => Err(self.missing(columns, name)),
        }
    }

    fn usual<'c>(&self, columns: &'c [TableColumn]) -> Option<&'c TableColumn> {
        let find = |is_list: bool| {
            let fits = |column: &&TableColumn| self.fits(column) && (column.kind == ColumnKind::TextList) == is_list;
            self.names.iter().find_map(|name| named(columns, name).filter(fits))
        };
        // Beside a column of strings, a list may be anything: words, tokens.
        find(false).or_else(|| find(true))
    }

    fn fits(&self, column: &TableColumn) -> bool {
        self.kinds.contains(&column.kind)
    }

    fn wrong_kind(&self, column: &TableColumn) -> ShardFault {
        let (name, expected, found) = (&column.name, self.expected, kind_words(column));
        refusal(format!("column `{name}`: expected {expected}, found {found}"), self)
    }

    fn missing(&self, columns: &[TableColumn], name: &str) -> ShardFault {
        refusal(format!("expected a column `{name}`, found {}", names_of(columns)), self)
    }
}

/// The columns of recordings and of their names.
type AudioColumns<'c> = (Option<&'c TableColumn>, Option<&'c TableColumn>);

/// A column of bytes or paths, or a struct with `bytes` and `path`.
fn named_audio<'c>(columns: &'c [TableColumn], name: &str) -> Result<AudioColumns<'c>, ShardFault> {
    if let Some(column) = named(columns, name) {
        return match column.kind {
            ColumnKind::Bytes => Ok((Some(column), name_beside(columns, column))),
            ColumnKind::Text => Ok((None, Some(column))),
            ColumnKind::TextList | ColumnKind::Number | ColumnKind::Other => Err(BYTES.wrong_kind(column)),
        };
    }
    let field = |field: &str| named(columns, &format!("{name}.{field}"));
    match (field("bytes").filter(|column| BYTES.fits(column)), field("path").filter(|column| PATH.fits(column))) {
        (Some(bytes), path) => Ok((Some(bytes), path)),
        (None, _) => Err(match opaque(columns, name) {
            Some(column) => BYTES.wrong_kind(column),
            None => BYTES.missing(columns, name),
        }),
    }
}

fn usual_audio(columns: &[TableColumn]) -> Result<AudioColumns<'_>, ShardFault> {
    if let Some(bytes) = BYTES.usual(columns) {
        return Ok((Some(bytes), name_beside(columns, bytes)));
    }
    let opaque = BYTES.names.iter().find_map(|name| opaque(columns, name));
    match (PATH.usual(columns), opaque) {
        // Beside decoded audio, `path` and `file` are often left over from where the audio came from.
        (Some(path), Some(opaque)) if matches!(path.name.as_str(), "path" | "file") => Err(BYTES.wrong_kind(opaque)),
        (Some(path), _) => Ok((None, Some(path))),
        (None, Some(opaque)) => Err(BYTES.wrong_kind(opaque)),
        (None, None) => {
            let (bytes, found) = (listed(BYTES.names.iter().copied()), names_of(columns));
            let paths = listed(PATH.names.iter().copied());
            let reason = format!("expected a column with audio (bytes in {bytes}, or paths in {paths}), found {found}");
            Err(refusal(reason, &BYTES))
        }
    }
}

/// The column with the names of the recordings in `bytes`.
fn name_beside<'c>(columns: &'c [TableColumn], bytes: &TableColumn) -> Option<&'c TableColumn> {
    let sibling = bytes.name.strip_suffix(".bytes").map(|parent| format!("{parent}.path"));
    let sibling = sibling.and_then(|name| named(columns, &name)).filter(|column| NAME.fits(column));
    sibling.or_else(|| NAME.usual(columns))
}

/// A column called `name`, or a part of it, that holds something that cannot be read as audio: a list of samples.
fn opaque<'c>(columns: &'c [TableColumn], name: &str) -> Option<&'c TableColumn> {
    let is_part = |column: &TableColumn| {
        column.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_opaque = |column: &TableColumn| matches!(column.kind, ColumnKind::TextList | ColumnKind::Other);
    columns.iter().find(|column| is_opaque(column) && is_part(column))
}

fn named<'c>(columns: &'c [TableColumn], name: &str) -> Option<&'c TableColumn> {
    columns.iter().find(|column| column.name == name)
}

fn refusal(found: String, role: &Role) -> ShardFault {
    ShardFault::Unsupported { reason: format!("{found}; name another with `--columns {}=NAME`", role.setting) }
}

fn kind_words(column: &TableColumn) -> Cow<'static, str> {
    match column.kind {
        ColumnKind::Text => "text".into(),
        ColumnKind::TextList => "lists of strings".into(),
        ColumnKind::Number => "numbers".into(),
        ColumnKind::Bytes => "bytes".into(),
        ColumnKind::Other => format!("values of type {}", column.type_name).into(),
    }
}

fn names_of(columns: &[TableColumn]) -> String {
    match columns {
        [] => "no columns".to_owned(),
        columns => listed(columns.iter().map(|column| column.name.as_str())),
    }
}

/// Names for a message. A table may have thousands.
fn listed<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    const MOST: usize = 20;
    let more = names.len().saturating_sub(MOST);
    let shown: Vec<String> = names.take(MOST).map(|name| format!("`{}`", crate::problem::excerpt(name))).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;
