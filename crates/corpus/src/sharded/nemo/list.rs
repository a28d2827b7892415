//! A manifest of a tarred dataset, in memory while its shards are scanned.

use std::io::{self, BufRead};

use serde::Deserialize;

use crate::json_value::{JsonValue, RejectedRow};
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::report_unreadable;
use crate::manifest::{ManifestEntry, ManifestObject};
use crate::problem::{Findings, ProblemKind};

/// The entries of a manifest by shard. An entry costs 56 bytes beside its letters.
pub(crate) struct NemoList {
    letters: String,
    /// By shard, those without one first; of one shard in the order of the lines.
    rows: Vec<ListRow>,
}

/// Where the strings of an entry are, one after the other: key, text, speaker, language.
struct ListRow {
    start: u64,
    /// Not a number when the whole recording is meant.
    offset_s: f64,
    /// Not a number when nobody knows.
    duration_s: f64,
    shard: Option<u32>,
    line: u32,
    key_len: u32,
    text_len: u32,
    /// 0 without one.
    speaker_len: u32,
    /// 0 without one.
    lang_len: u32,
}

/// The one key of an entry that other manifests do not have.
#[derive(Deserialize)]
struct ShardKey<'a> {
    #[serde(borrow, default)]
    shard_id: JsonValue<'a>,
}

impl NemoList {
    /// Reads a manifest. What is wrong with a line is a finding, and the entry is left out. Fails only when the file stops
    /// giving bytes.
    pub(crate) fn read(input: impl BufRead, findings: &mut Findings<'_>) -> io::Result<NemoList> {
        let mut list = NemoList { letters: String::new(), rows: Vec::new() };
        let mut lines = LineReader::new(input);
        let mut seen_any = false;
        while let Some((number, line)) = lines.next_line()? {
            seen_any |= line != ParsedLine::Blank;
            match line {
                ParsedLine::Blank => {}
                ParsedLine::Text(text) => match parse(text) {
                    Ok((shard, entry)) => list.push(number, shard, &entry),
                    Err((kind, detail)) => findings.on(number, kind, detail),
                },
                unreadable => report_unreadable(&unreadable, number, findings),
            }
        }
        if !seen_any {
            findings.whole(ProblemKind::NoRows, "there is nothing in the file");
        }
        list.rows.sort_by_key(|row| row.shard);
        list.letters.shrink_to_fit();
        list.rows.shrink_to_fit();
        Ok(list)
    }

    /// The entries of a shard with their lines, in the order of the manifest. Entries without a `shard_id` belong to every
    /// shard that is asked for; without a shard, all entries are handed out.
    pub(crate) fn entries(&self, shard: Option<u32>) -> impl Iterator<Item = (u32, ManifestEntry<'_>)> {
        let of_any = self.of_shard(None);
        let others = shard.map_or(&self.rows[of_any.len()..], |number| self.of_shard(Some(number)));
        let mut rows: Vec<&ListRow> = of_any.iter().chain(others).collect();
        // Runs in order: cheap.
        rows.sort_by_key(|row| row.line);
        rows.into_iter().map(|row| (row.line, self.entry(row)))
    }

    /// Every shard that entries name, with how many do, in order. `None` stands for entries that name none.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (Option<u32>, usize)> {
        self.rows.chunk_by(|a, b| a.shard == b.shard).map(|rows| (rows[0].shard, rows.len()))
    }

    fn of_shard(&self, shard: Option<u32>) -> &[ListRow] {
        let start = self.rows.partition_point(|row| row.shard < shard);
        let end = self.rows.partition_point(|row| row.shard <= shard);
        &self.rows[start..end]
    }

    fn push(&mut self, line: u32, shard: Option<u32>, entry: &ManifestEntry<'_>) {
        let start = self.letters.len() as u64;
        let (speaker, lang) = (entry.speaker.as_deref().unwrap_or(""), entry.lang.as_deref().unwrap_or(""));
        // Lines are at most a mebibyte long, and so is everything in them.
        let [key_len, text_len, speaker_len, lang_len] = [&*entry.key, &*entry.text, speaker, lang].map(|part| {
            self.letters.push_str(part);
            part.len() as u32
        });
        let (offset_s, duration_s) = (entry.offset_s.unwrap_or(f64::NAN), entry.duration_s.unwrap_or(f64::NAN));
        let row = ListRow { start, offset_s, duration_s, shard, line, key_len, text_len, speaker_len, lang_len };
        self.rows.push(row);
    }

    fn entry(&self, row: &ListRow) -> ManifestEntry<'_> {
        let mut at = row.start as usize;
        let [key, text, speaker, lang] = [row.key_len, row.text_len, row.speaker_len, row.lang_len].map(|len| {
            let start = at;
            at += len as usize;
            &self.letters[start..at]
        });
        let known = |seconds: f64| Some(seconds).filter(|seconds| !seconds.is_nan());
        ManifestEntry {
            key: key.into(),
            text: text.into(),
            duration_s: known(row.duration_s),
            offset_s: known(row.offset_s),
            speaker: Some(speaker).filter(|name| !name.is_empty()).map(Into::into),
            lang: Some(lang).filter(|name| !name.is_empty()).map(Into::into),
        }
    }
}

fn parse(line: &str) -> Result<(Option<u32>, ManifestEntry<'_>), RejectedRow> {
    let entry = ManifestObject::parse(line)?.check()?;
    let key: ShardKey<'_> =
        serde_json::from_str(line).map_err(|error| (ProblemKind::BadJson, format!("`shard_id`: {error}")))?;
    let shard = key.shard_id.number("shard_id")?.map(whole_number).transpose()?;
    Ok((shard, entry))
}

fn whole_number(number: f64) -> Result<u32, RejectedRow> {
    // Truncates and saturates: what comes back the same is whole and in range.
    let shard = number as u32;
    match f64::from(shard) == number {
        true => Ok(shard),
        false => Err((ProblemKind::BadNumber, format!("`shard_id` must be a whole number from 0, found {number}"))),
    }
}
