//! Common Voice folders: lists `*.tsv` with the columns `path`, `sentence`, `client_id` and `locale`, recordings in
//! `clips/`.
//!
//! `train.tsv` trains and `dev.tsv` evaluates; without `train.tsv`, all of `validated.tsv` is split by the seed. Columns are
//! found by the names of the header, separated by tabs and by nothing else: quotes are text. The speaker is the
//! `client_id`, the language the `locale`.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use crate::audio_folder::AudioFolder;
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::{report_unreadable, speaker_of};
use crate::locator::without_extension;
use crate::problem::{Findings, ProblemKind, excerpt};
use crate::sample::{NewRow, Samples, Subset, check_name};
use crate::speaker::SpeakerPattern;

/// Where the recordings are.
pub(crate) const CLIPS: &str = "clips/";

/// The lists of a folder.
pub(crate) struct TsvLists {
    pub(crate) read: Vec<(PathBuf, Subset)>,
    /// TsvLists that could have been read instead, in words.
    pub(crate) not_read: Vec<String>,
    /// A list that is not read unless its path is given.
    pub(crate) other: Option<String>,
}

/// Which lists `folder` has.
pub(crate) fn lists(folder: &Path) -> TsvLists {
    let present = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let [train, dev, validated] = ["train.tsv", "dev.tsv", "validated.tsv"].map(present);
    let other =
        ["test.tsv", "other.tsv", "invalidated.tsv", "dev.tsv"].into_iter().find(|name| present(name).is_some());
    let unread = |name: &str| format!("{name} (train.tsv is there; to read it, give its path)");
    let (read, not_read) = match (train, dev, validated) {
        (Some(train), Some(dev), validated) => {
            let not_read = validated.map(|_| unread("validated.tsv"));
            (vec![(train, Subset::Train), (dev, Subset::Eval)], not_read)
        }
        (Some(train), None, validated) => {
            (vec![(train, Subset::Undecided)], validated.map(|_| unread("validated.tsv")))
        }
        (None, _, Some(validated)) => (vec![(validated, Subset::Undecided)], None),
        (None, _, None) => (Vec::new(), None),
    };
    TsvLists { read, not_read: not_read.into_iter().collect(), other: other.map(str::to_owned) }
}

/// Where the columns of a list are.
#[derive(Debug, PartialEq, Eq)]
struct Columns {
    path: usize,
    sentence: usize,
    client_id: Option<usize>,
    locale: Option<usize>,
}

/// What is wrong with the header of a list: nothing in it can be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadHeader {
    /// Columns that are missing, for a message.
    pub(crate) missing: String,
    /// The first line.
    pub(crate) found: String,
}

/// Why a list was not read to its end.
#[derive(Debug)]
pub(crate) enum TsvError {
    Io(io::Error),
    Header(BadHeader),
}

impl From<io::Error> for TsvError {
    fn from(error: io::Error) -> TsvError {
        TsvError::Io(error)
    }
}

impl Columns {
    fn of_header(line: &str) -> Result<Columns, BadHeader> {
        let names: Vec<String> = line.split('\t').map(|name| name.trim().to_ascii_lowercase()).collect();
        let place = |wanted: &str| names.iter().position(|name| name == wanted);
        match (place("path"), place("sentence")) {
            (Some(path), Some(sentence)) => {
                Ok(Columns { path, sentence, client_id: place("client_id"), locale: place("locale") })
            }
            (path, sentence) => {
                let missing = [("path", path), ("sentence", sentence)].into_iter().filter(|(_, at)| at.is_none());
                let missing: Vec<String> = missing.map(|(name, _)| format!("`{name}`")).collect();
                Err(BadHeader { missing: missing.join(" and "), found: excerpt(line) })
            }
        }
    }
}

/// Reads one list. Fails when the file stops giving bytes, and when its header lacks a column.
pub(crate) fn read(
    input: impl BufRead,
    part: Subset,
    pattern: Option<&SpeakerPattern>,
    audio: &mut AudioFolder,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> Result<(), TsvError> {
    let mut lines = LineReader::new(input);
    let (mut columns, mut seen_row): (Option<Columns>, bool) = (None, false);
    while let Some((number, line)) = lines.next_line()? {
        let text = match line {
            ParsedLine::Blank => continue,
            ParsedLine::Text(text) => text,
            unreadable => {
                seen_row = true;
                report_unreadable(&unreadable, number, findings);
                continue;
            }
        };
        let Some(columns) = &columns else {
            columns = Some(Columns::of_header(text).map_err(TsvError::Header)?);
            continue;
        };
        seen_row = true;
        if let Err((kind, detail)) = push(columns, text, number, part, pattern, audio, samples, findings) {
            findings.on(number, kind, detail);
        }
    }
    match (columns.is_some(), seen_row) {
        (_, true) => {}
        (true, false) => findings.whole(ProblemKind::HeaderOnly, "no rows under the header"),
        (false, false) => findings.whole(ProblemKind::NoRows, "there is nothing in the file"),
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "a row, and everything it is stored in")]
fn push(
    columns: &Columns,
    text: &str,
    line: u32,
    part: Subset,
    pattern: Option<&SpeakerPattern>,
    audio: &mut AudioFolder,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> Result<(), (ProblemKind, String)> {
    let fields: Vec<&str> = text.split('\t').map(str::trim).collect();
    let field = |at: usize, name: &str| {
        fields.get(at).copied().ok_or_else(|| {
            let detail = format!("`{name}` is column {}, found {} columns: {}", at + 1, fields.len(), excerpt(text));
            (ProblemKind::MissingColumn, detail)
        })
    };
    let optional = |at: Option<usize>| at.and_then(|at| fields.get(at).copied()).filter(|name| !name.is_empty());
    let path = field(columns.path, "path")?;
    let id = without_extension(path);
    if id.is_empty() {
        return Err((ProblemKind::EmptyId, format!("no path in {}", excerpt(text))));
    }
    check_name(path)?;
    let sentence = field(columns.sentence, "sentence")?;
    if sentence.is_empty() {
        return Err((ProblemKind::EmptyText, format!("`{}` says nothing", excerpt(id))));
    }
    let speaker = optional(columns.client_id).or_else(|| speaker_of(id, pattern, line, findings));
    // Nothing is called "", so an empty key says that nothing was found.
    let key = audio.find(path).unwrap_or_default();
    let lang = optional(columns.locale);
    samples.push(&NewRow {
        id,
        text: sentence,
        speaker,
        lang,
        key: &key,
        offset_s: None,
        duration_s: None,
        part,
        line,
        address: None,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let columns = Columns::of_header("client_id\tpath\tsentence_id\tsentence\tup_votes\tlocale").unwrap();
        assert_eq!(columns, Columns { path: 1, sentence: 3, client_id: Some(0), locale: Some(5) });
        let columns = Columns::of_header("Sentence\tPath").unwrap();
        assert_eq!(columns, Columns { path: 1, sentence: 0, client_id: None, locale: None });
        let missing = |line: &str| Columns::of_header(line).unwrap_err().missing;
        assert_eq!(missing("client_id\tpath\ttext"), "`sentence`");
        assert_eq!(missing("a.mp3|hello"), "`path` and `sentence`");
    }
}
