//! LJSpeech folders: `metadata.csv` with `id|text|normalized[|speaker[|lang]]`, recordings in `wavs/`. Piper's folders: the
//! same with `wav/`, and perhaps `id|speaker|text`.
//!
//! Two to five columns, separated by `|` and by nothing else: quotes are text. The normalised column is what is said,
//! the raw one where it is empty. Surrounding white space is no part of a column. The first line is a header when every
//! column of it is a name that headers use (`id`, `file`, `text`, `transcript`, `speaker`, …): no recording is called
//! "id" and says "text". Columns are read by place all the same; a header in another order is reported.
//!
//! In: the lines of a file. Out: rows in [`Samples`], or a [`Problem`](crate::Problem) with its line for each that is
//! none. Rows without a recording come out with an empty key, for the caller to report once it knows which rows are
//! duplicates.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use crate::audio_folder::AudioFolder;
use crate::lines::{LineReader, MAX_LINE_BYTES, ParsedLine};
use crate::locator::without_extension;
use crate::problem::{Findings, ProblemKind, excerpt};
use crate::sample::{NewRow, Samples, Subset, check_name};
use crate::speaker::SpeakerPattern;

/// The lists of a folder, in the order they are read, and one that is there for nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) read: Vec<(PathBuf, Subset)>,
    pub(crate) unused: Option<PathBuf>,
}

/// The names of the lists of an LJSpeech folder.
pub const LISTS: [&str; 3] = ["metadata_train.csv", "metadata_eval.csv", "metadata.csv"];

/// Which lists `folder` has: `metadata_train.csv` and `metadata_eval.csv`, else `metadata.csv`.
pub(crate) fn lists(folder: &Path) -> Lists {
    let present = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let [train, eval, whole] = LISTS.map(present);
    match (train, eval, whole) {
        (Some(train), Some(eval), _) => {
            Lists { read: vec![(train, Subset::Train), (eval, Subset::Eval)], unused: None }
        }
        (Some(train), None, _) => Lists { read: vec![(train, Subset::Undecided)], unused: None },
        (None, unused, Some(all)) => Lists { read: vec![(all, Subset::Undecided)], unused },
        (None, Some(eval), None) => Lists { read: vec![(eval, Subset::Eval)], unused: None },
        (None, None, None) => Lists { read: Vec::new(), unused: None },
    }
}

/// What the columns of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnOrder {
    /// `id|text|normalized[|speaker[|lang]]`, or the first two.
    LjSpeech,
    /// `id|speaker|text`, or `id|text`.
    SpeakerText,
}

impl ColumnOrder {
    fn words(self) -> &'static str {
        match self {
            ColumnOrder::LjSpeech => "id|text|normalized|speaker|lang",
            ColumnOrder::SpeakerText => "id|speaker|text",
        }
    }

    /// The places of the columns in [`HEADER_NAMES`].
    fn places(self) -> &'static [usize] {
        match self {
            ColumnOrder::LjSpeech => &[0, 1, 2, 3, 4],
            ColumnOrder::SpeakerText => &[0, 3, 1],
        }
    }

    /// The order of the columns in a list of a Piper folder, where `id|speaker|text` and `id|text|normalized` have three
    /// columns both: a header decides, else that speakers repeat and texts do not. Both have the text in the third column,
    /// so that a wrong guess costs the speaker only.
    pub(crate) fn of_piper(input: impl BufRead) -> io::Result<ColumnOrder> {
        let mut lines = LineReader::new(input);
        let (mut seconds, mut num_rows, mut is_first) = (HashSet::new(), 0, true);
        while let Some((_, line)) = lines.next_line()? {
            let ParsedLine::Text(text) = line else { continue };
            if std::mem::take(&mut is_first)
                && let Some(places) = header_places(text)
            {
                let is_speaker = places.get(1) == Some(&SPEAKER);
                return Ok(if is_speaker { ColumnOrder::SpeakerText } else { ColumnOrder::LjSpeech });
            }
            let columns: Vec<&str> = text.split('|').map(str::trim).collect();
            let [_, second, third] = columns[..] else { continue };
            num_rows += 1;
            // A word that is said again and again, as it is and normalised, is no speaker.
            if second != third {
                seconds.insert(second.to_owned());
            }
            if num_rows == MAX_SAMPLED_ROWS {
                break;
            }
        }
        let repeats = !seconds.is_empty() && 2 * seconds.len() <= num_rows;
        Ok(if repeats { ColumnOrder::SpeakerText } else { ColumnOrder::LjSpeech })
    }
}

/// Rows that distinguish speakers from texts.
const MAX_SAMPLED_ROWS: usize = 10_000;

/// Reads one list. Fails only when the file stops giving bytes.
pub(crate) fn read(
    input: impl BufRead,
    order: ColumnOrder,
    part: Subset,
    pattern: Option<&SpeakerPattern>,
    audio: &mut AudioFolder,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> io::Result<()> {
    let mut lines = LineReader::new(input);
    let (mut seen_any, mut seen_row) = (false, false);
    while let Some((number, line)) = lines.next_line()? {
        let text = match line {
            ParsedLine::Blank => continue,
            ParsedLine::Text(text) => text,
            unreadable => {
                (seen_any, seen_row) = (true, true);
                report_unreadable(&unreadable, number, findings);
                continue;
            }
        };
        if !seen_any && let Some(header) = header(text, order) {
            seen_any = true;
            if header == Header::OtherOrder {
                let detail = format!("read as {}, found {}", order.words(), excerpt(text));
                findings.on(number, ProblemKind::HeaderOrder, detail);
            }
            continue;
        }
        (seen_any, seen_row) = (true, true);
        match Columns::parse(text, order) {
            Ok(columns) => push(&columns, number, part, pattern, audio, samples, findings),
            Err((kind, detail)) => findings.on(number, kind, detail),
        }
    }
    if !seen_row {
        let (kind, detail) = if seen_any {
            (ProblemKind::HeaderOnly, "no rows under the header")
        } else {
            (ProblemKind::NoRows, "there is nothing in the file")
        };
        findings.whole(kind, detail);
    }
    Ok(())
}

/// Says why a line is no text; also for the manifest.
pub(crate) fn report_unreadable(line: &ParsedLine<'_>, number: u32, findings: &mut Findings<'_>) {
    match line {
        ParsedLine::NotUtf8 { column, like_utf16 } => {
            let hint = if *like_utf16 { "; the file begins like UTF-16: save it as UTF-8" } else { "" };
            findings.on(number, ProblemKind::InvalidUtf8, format!("byte {column} of the line is no UTF-8{hint}"));
        }
        ParsedLine::TooLong { num_bytes } => {
            let detail = format!("{num_bytes} bytes, at most {MAX_LINE_BYTES} are read");
            findings.on(number, ProblemKind::LineTooLong, detail);
        }
        ParsedLine::Text(_) | ParsedLine::Blank => {}
    }
}

/// What headers call each column.
const HEADER_NAMES: [&[&str]; 5] = [
    &["id", "file", "filename", "file_name", "wav", "wav_file", "audio", "audio_file", "path", "utterance", "utt_id"],
    &["text", "transcript", "transcription", "raw_text", "raw_transcription", "sentence"],
    &["normalized", "normalised", "normalized_text", "normalized_transcription", "text_normalized"],
    &["speaker", "speaker_id", "speaker_name", "spk", "voice"],
    &["lang", "language", "lang_id", "locale"],
];
/// The place of speakers there.
const SPEAKER: usize = 3;

#[derive(Debug, PartialEq, Eq)]
enum Header {
    AsRead,
    OtherOrder,
}

/// Whether the first line is a header, and whether its columns stand where they are read.
fn header(line: &str, order: ColumnOrder) -> Option<Header> {
    let places = header_places(line)?;
    let in_order = order.places().get(..places.len()) == Some(&places[..]);
    // `id|text` is read as such in both orders.
    Some(if in_order || places == [0, 1] { Header::AsRead } else { Header::OtherOrder })
}

/// Where each column of a header stands in [`HEADER_NAMES`]; none if the line is no header.
fn header_places(line: &str) -> Option<Vec<usize>> {
    let place = |name: &str| {
        let name = name.trim().trim_matches('"').to_ascii_lowercase().replace([' ', '-'], "_");
        HEADER_NAMES.iter().position(|names| names.contains(&name.as_str()))
    };
    let places: Vec<usize> = line.split('|').take(HEADER_NAMES.len() + 1).map(place).collect::<Option<_>>()?;
    (places.len() >= 2).then_some(places)
}

/// The columns of a row.
#[derive(Debug, PartialEq, Eq)]
struct Columns<'a> {
    id: &'a str,
    text: &'a str,
    speaker: Option<&'a str>,
    lang: Option<&'a str>,
}

impl<'a> Columns<'a> {
    fn parse(line: &'a str, order: ColumnOrder) -> Result<Columns<'a>, (ProblemKind, String)> {
        let mut columns = [""; 5];
        let mut num_columns = 0;
        for column in line.split('|') {
            if let Some(place) = columns.get_mut(num_columns) {
                *place = column.trim();
            }
            num_columns += 1;
        }
        let (words, most) = (order.words(), order.places().len());
        let counted =
            |kind| Err((kind, format!("{words}: 2 to {most} columns, found {num_columns}: {}", excerpt(line))));
        let [id, raw, normalized, speaker, lang] = match (order, num_columns) {
            (_, 0 | 1) => return counted(ProblemKind::MissingColumn),
            (_, found) if found > most => return counted(ProblemKind::TooManyColumns),
            (ColumnOrder::SpeakerText, 3) => [columns[0], columns[2], "", columns[1], ""],
            _ => columns,
        };
        let id = without_extension(id);
        if id.is_empty() {
            return Err((ProblemKind::EmptyId, format!("no id in {}", excerpt(line))));
        }
        check_name(id)?;
        let text = if normalized.is_empty() { raw } else { normalized };
        if text.is_empty() {
            return Err((ProblemKind::EmptyText, format!("`{}` says nothing", excerpt(id))));
        }
        let named = |name: &'a str| Some(name).filter(|name| !name.is_empty());
        Ok(Columns { id, text, speaker: named(speaker), lang: named(lang) })
    }
}

fn push(
    columns: &Columns<'_>,
    line: u32,
    part: Subset,
    pattern: Option<&SpeakerPattern>,
    audio: &mut AudioFolder,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) {
    let speaker = columns.speaker.or_else(|| speaker_of(columns.id, pattern, line, findings));
    // Nothing is called "", so an empty key says that nothing was found.
    let key = audio.find(columns.id).unwrap_or_default();
    samples.push(&NewRow {
        id: columns.id,
        text: columns.text,
        speaker,
        lang: columns.lang,
        key: &key,
        offset_s: None,
        duration_s: None,
        part,
        line,
        address: None,
    });
}

/// The speaker in `id`, or a problem that says that there is none; also for the manifest.
pub(crate) fn speaker_of<'a>(
    id: &'a str,
    pattern: Option<&SpeakerPattern>,
    line: u32,
    findings: &mut Findings<'_>,
) -> Option<&'a str> {
    let pattern = pattern?;
    let speaker = pattern.find(id);
    if speaker.is_none() {
        findings.on(line, ProblemKind::NoSpeaker, format!("the speaker pattern does not match `{}`", excerpt(id)));
    }
    speaker
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let check = |line: &str, id: &str, text: &str, speaker: Option<&str>, lang: Option<&str>| {
            let parsed = Columns::parse(line, ColumnOrder::LjSpeech);
            assert_eq!(parsed, Ok(Columns { id, text, speaker, lang }), "{line}");
        };
        check("a|Dr. X|Doctor X", "a", "Doctor X", None, None);
        check("a|raw", "a", "raw", None, None);
        check("a|raw|", "a", "raw", None, None);
        check("a||said", "a", "said", None, None);
        check(" a.wav | raw | said |p1|en", "a", "said", Some("p1"), Some("en"));
        check("a|raw|said||fa", "a", "said", None, Some("fa"));
        check("a|\"Quoted,\" he said|", "a", "\"Quoted,\" he said", None, None);
        check("a|\"|b", "a", "b", None, None);
        let check = |line: &str, id: &str, text: &str, speaker: Option<&str>| {
            let parsed = Columns::parse(line, ColumnOrder::SpeakerText);
            assert_eq!(parsed, Ok(Columns { id, text, speaker, lang: None }), "{line}");
        };
        check("a|ada|hello", "a", "hello", Some("ada"));
        check("a.wav|hello", "a", "hello", None);
        check("a||hello", "a", "hello", None);
    }

    #[test]
    fn speakers_are_distinguished_from_texts() {
        let check = |text: &str, expected: ColumnOrder| {
            assert_eq!(ColumnOrder::of_piper(text.as_bytes()).unwrap(), expected, "{text}");
        };
        check("a|ada|one\nb|bob|two\nc|ada|three\nd|bob|four\n", ColumnOrder::SpeakerText);
        check("a|ada|one\nb|ada|two\n", ColumnOrder::SpeakerText);
        check("a|Dr. X|Doctor X\nb|No. 2|number two\n", ColumnOrder::LjSpeech);
        check("a|yes|yes\nb|no|no\nc|yes|yes\nd|no|no\n", ColumnOrder::LjSpeech);
        check("a|one\nb|two\n", ColumnOrder::LjSpeech);
        check("a|ada|one\n", ColumnOrder::LjSpeech);
        check("id|speaker|text\na|ada|one\n", ColumnOrder::SpeakerText);
        check("id|text|normalized\na|one|one\nb|one|two\n", ColumnOrder::LjSpeech);
        check("a|one|one|ada\nb|one|one|ada\n", ColumnOrder::LjSpeech);
        check("", ColumnOrder::LjSpeech);
    }

    #[test]
    fn rows_that_are_none() {
        let check = |line: &str, expected: ProblemKind| {
            let parsed = Columns::parse(line, ColumnOrder::LjSpeech);
            assert_eq!(parsed.map_err(|(kind, _)| kind), Err(expected), "{line}");
        };
        check("a", ProblemKind::MissingColumn);
        check("a, comma separated", ProblemKind::MissingColumn);
        check("a|b|c|d|e|f", ProblemKind::TooManyColumns);
        check("|b|c", ProblemKind::EmptyId);
        check(".wav|b", ProblemKind::EmptyId);
        check("a||", ProblemKind::EmptyText);
        check("a|  ", ProblemKind::EmptyText);
        check("||||", ProblemKind::EmptyId);
        let parsed = Columns::parse("a|ada|hello|more", ColumnOrder::SpeakerText);
        assert_eq!(parsed.map_err(|(kind, _)| kind), Err(ProblemKind::TooManyColumns));
    }

    #[test]
    fn headers() {
        let check =
            |line: &str, expected: Option<Header>| assert_eq!(header(line, ColumnOrder::LjSpeech), expected, "{line}");
        check("id|text", Some(Header::AsRead));
        check("ID | Transcription | Normalized Transcription", Some(Header::AsRead));
        check("file|text|normalized|speaker|lang", Some(Header::AsRead));
        check("id|speaker|text", Some(Header::OtherOrder));
        check("text|id", Some(Header::OtherOrder));
        check("id", None);
        check("id|the word id", None);
        check("LJ001-0001|text", None);
        let check = |line: &str, expected: Option<Header>| assert_eq!(header(line, ColumnOrder::SpeakerText), expected);
        check("id|speaker|text", Some(Header::AsRead));
        check("id|text", Some(Header::AsRead));
        check("id|text|normalized", Some(Header::OtherOrder));
    }
}
