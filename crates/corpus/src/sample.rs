//! The rows of a corpus, a million of them at little more than the cost of their letters.
//!
//! All strings of a row lie one after the other in one big `String`; speakers and languages are kept once. A row costs
//! 64 bytes beside its letters, its place in a shard included, and an id that is part of its file name costs nothing.

pub(crate) mod bytes;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tandem_random::keyed;
use tandem_shards::ValueAddress;

use crate::locator::{AudioRange, Locator, Piece, Store};
use crate::problem::{ProblemKind, excerpt};
use crate::shard::ShardFile;
use crate::sources::is_url;

/// The place of a sample in its corpus: the same as long as the corpus is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SampleIndex(pub u32);

impl SampleIndex {
    /// As an index into a slice.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// A row of a corpus: what is said, by whom, and where the recording is. No payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The name of the utterance, unique in its corpus, without the ending of a file.
    pub id: &'a str,
    /// What is said.
    pub text: &'a str,
    /// Who says it.
    pub speaker: Option<&'a str>,
    /// The language, as the corpus spells it.
    pub lang: Option<&'a str>,
    /// Where the recording is.
    pub audio: Locator<'a>,
    /// How long it is (of a range: that range), when the corpus or a scan said so.
    pub duration_s: Option<f64>,
    /// Which set the row belongs to.
    pub part: Subset,
    /// The list it comes from, or the file of its text.
    pub file: &'a Path,
    /// Its line there, from 1; 1 in a file of its own.
    pub line: u32,
}

/// Which set a row belongs to by its own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// It comes from `metadata_train.csv`.
    Train,
    /// It comes from `metadata_eval.csv`.
    Eval,
    /// Its list does not say: the seed decides.
    Undecided,
    /// It was named to be left out, of training and of evaluation.
    Excluded,
}

/// All rows of a corpus, in the order of their lists.
#[derive(Clone, Debug)]
pub struct Samples {
    store: Store,
    /// How often rows of each source are trained on in an epoch; one source unless the corpus is a mixture.
    weights: Vec<f64>,
    /// Containers of recordings.
    shards: Vec<Arc<ShardFile>>,
    files: Vec<Arc<Path>>,
    /// Texts that are a file each.
    text_files: Vec<Box<Path>>,
    letters: String,
    rows: Vec<Row>,
    speakers: Names,
    langs: Names,
}

/// Where the strings of a row are: key, text, and the id where it is not part of the key.
#[derive(Clone, Debug)]
struct Row {
    start: u64,
    /// Not a number when the whole recording is meant.
    offset_s: f64,
    /// Not a number when nobody knows.
    duration_s: f64,
    /// With `extent`: the place in the shard.
    position: u64,
    extent: u32,
    text_len: u32,
    /// From `start`.
    id_at: u32,
    speaker: u32,
    /// Of a text that is a file of its own: which one.
    line: u32,
    key_len: u16,
    id_len: u16,
    lang: u16,
    file: u16,
    shard: u16,
    part: Subset,
    source: u8,
}

/// Stands for a list in rows whose text is a file of its own, so that a corpus of many files needs no wider rows.
const OWN_FILE: u16 = u16::MAX;

/// Stands for a shard in rows whose recording is a file of its own.
const NO_SHARD: u16 = u16::MAX;

/// The most lists, and the most shards, of a corpus.
pub(crate) const MAX_SHARDS: usize = u16::MAX as usize;

/// The most corpora of a mixture.
pub(crate) const MAX_SOURCES: usize = 1 << 8;

/// What the random numbers are for.
const REPEATS: u64 = 0x7265_7065;

/// The longest name of a recording or an utterance in a list: longer than any path that a system opens. With a prefix or an
/// offset it still fits its field.
const MAX_NAME_BYTES: usize = 32_000;

/// Refuses a name that is too long for a row.
pub(crate) fn check_name(name: &str) -> Result<(), (ProblemKind, String)> {
    match name.len() <= MAX_NAME_BYTES {
        true => Ok(()),
        false => {
            let (found, shown) = (name.len(), excerpt(name));
            Err((ProblemKind::LineTooLong, format!("a name has {found} bytes, at most {MAX_NAME_BYTES}: {shown}")))
        }
    }
}

/// A row about to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) id: &'a str,
    pub(crate) text: &'a str,
    pub(crate) speaker: Option<&'a str>,
    pub(crate) lang: Option<&'a str>,
    pub(crate) key: &'a str,
    pub(crate) offset_s: Option<f64>,
    pub(crate) duration_s: Option<f64>,
    pub(crate) part: Subset,
    pub(crate) line: u32,
    /// Its place in the shard that was added last; none for a file of its own.
    pub(crate) address: Option<ValueAddress>,
}

impl Samples {
    /// No rows yet; relative keys start at `root`.
    pub(crate) fn new(root: PathBuf) -> Samples {
        Samples::of_store(Store::Files { root })
    }

    /// No rows yet; recordings that are files of their own are in `store`.
    pub(crate) fn of_store(store: Store) -> Samples {
        Samples {
            store,
            weights: Vec::new(),
            shards: Vec::new(),
            files: Vec::new(),
            text_files: Vec::new(),
            letters: String::new(),
            rows: Vec::new(),
            speakers: Names::default(),
            langs: Names::default(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row at `index`; none past the end.
    pub fn get(&self, index: SampleIndex) -> Option<Sample<'_>> {
        self.rows.get(index.at()).map(|row| self.sample(row))
    }

    /// All rows with their places.
    pub fn iter(&self) -> impl Iterator<Item = (SampleIndex, Sample<'_>)> {
        (0..).map(SampleIndex).zip(self.rows.iter().map(|row| self.sample(row)))
    }

    /// All ids, in the order of the rows: a third of the cost of all that a sample says.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &str> {
        self.rows.iter().map(|row| self.slice(row, row.id_at, row.id_len.into()))
    }

    /// The sets that all rows belong to, in the order of the rows.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = Subset> {
        self.rows.iter().map(|row| row.part)
    }

    /// Every speaker once, in the order of first appearance.
    pub fn speakers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.speakers.names.iter().map(|name| &**name)
    }

    /// Every language once, in the order of first appearance.
    pub fn langs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.langs.names.iter().map(|name| &**name)
    }

    /// The place of a sample's speaker in [`Samples::speakers`].
    pub fn speaker_number(&self, index: SampleIndex) -> Option<u32> {
        self.rows.get(index.at()).map(|row| row.speaker).filter(|speaker| *speaker != NO_NAME)
    }

    /// Keeps what a scan has found. Nothing happens past the end.
    pub(crate) fn set_duration(&mut self, index: SampleIndex, duration_s: f64) {
        if let Some(row) = self.rows.get_mut(index.at()) {
            row.duration_s = duration_s;
        }
    }

    pub(crate) fn set_part(&mut self, index: SampleIndex, part: Subset) {
        if let Some(row) = self.rows.get_mut(index.at()) {
            row.part = part;
        }
    }

    /// Whether rows have different weights.
    pub(crate) fn has_repeats(&self) -> bool {
        self.weights.iter().any(|weight| *weight != self.weights[0])
    }

    /// How often a row is trained on in an epoch: its weight divided by the smallest one. What is left of a whole number is
    /// decided by the id, so that the share is right for many rows. 1 unless the corpus is a mixture.
    pub(crate) fn repeats(&self, index: SampleIndex) -> u32 {
        let Some(row) = self.rows.get(index.at()) else { return 0 };
        let least = self.weights.iter().copied().fold(f64::INFINITY, f64::min);
        let Some(weight) = self.weights.get(usize::from(row.source)) else { return 1 };
        let times = weight / least;
        let drawn = keyed::hash(REPEATS, self.slice(row, row.id_at, row.id_len.into()).as_bytes());
        let more = (drawn as f64 / u64::MAX as f64) < times.fract();
        times as u32 + u32::from(more)
    }

    /// Whether any recording is in an object store.
    pub(crate) fn is_remote(&self) -> bool {
        let in_shards = self.shards.iter().any(|shard| shard.location().is_remote());
        let in_store = self.store.is_remote() && self.rows.iter().any(|row| row.shard == NO_SHARD);
        in_shards || in_store || self.has_urls()
    }

    /// Whether recordings are named by URLs.
    pub(crate) fn has_urls(&self) -> bool {
        self.rows.iter().any(|row| row.shard == NO_SHARD && is_url(self.slice(row, 0, row.key_len.into())))
    }

    /// Looks for recordings that are in no shard in `store`.
    pub(crate) fn set_store(&mut self, store: Store) {
        self.store = store;
    }

    pub(crate) fn set_speaker(&mut self, index: SampleIndex, speaker: &str) {
        let number = self.speakers.number(Some(speaker));
        if let Some(row) = self.rows.get_mut(index.at()) {
            row.speaker = number;
        }
    }

    /// How many lists and shards its rows are from.
    pub(crate) fn num_files(&self) -> usize {
        self.files.len()
    }

    /// Whether most shards count their utterances from the beginning again: a tenth of all rows and more have an id that a row of
    /// another shard has too. Fewer are mistakes, and are reported as duplicates.
    pub(crate) fn repeats_ids_between_shards(&self) -> bool {
        if self.shards.len() < 2 {
            return false;
        }
        let ids = self.ids().zip(&self.rows).map(|(id, row)| (keyed::hash(0, id.as_bytes()), row.file));
        let mut ids: Vec<(u64, u16)> = ids.collect();
        ids.sort_unstable();
        let shared =
            ids.chunk_by(|a, b| a.0 == b.0).filter(|alike| alike.first().map(|a| a.1) != alike.last().map(|a| a.1));
        10 * shared.map(<[_]>::len).sum::<usize>() >= ids.len()
    }

    /// Names for the lists and shards that tell them apart: their stems, with as many folders before them as that takes.
    fn file_labels(&self) -> Vec<String> {
        let parts = |file: &Path| -> Vec<String> {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let folders = file.parent().into_iter().flat_map(Path::components).rev();
            let folders = folders.map(|folder| folder.as_os_str().to_string_lossy().into_owned());
            std::iter::once(stem).chain(folders).collect()
        };
        let all: Vec<Vec<String>> = self.files.iter().map(|file| parts(file)).collect();
        let label = |parts: &Vec<String>, depth: usize| {
            parts.iter().take(depth).rev().map(String::as_str).collect::<Vec<_>>().join("/")
        };
        let deepest = all.iter().map(Vec::len).max().unwrap_or(1);
        let labels = |depth: usize| all.iter().map(|parts| label(parts, depth)).collect::<Vec<_>>();
        let are_apart = |labels: &Vec<String>| labels.iter().collect::<HashSet<_>>().len() == labels.len();
        (1..=deepest).map(labels).find(are_apart).unwrap_or_else(|| labels(deepest))
    }

    /// The same rows with the name of their shard before each id.
    pub(crate) fn with_shard_names(&self) -> Samples {
        let mut named = Samples { rows: Vec::new(), letters: String::new(), ..self.clone() };
        named.reserve(self.len(), self.num_letters() + 16 * self.len());
        let labels = self.file_labels();
        let mut id = String::new();
        for (row, (_, sample)) in self.rows.iter().zip(self.iter()) {
            id.clear();
            id.push_str(labels.get(usize::from(row.file)).map_or("", String::as_str));
            id.push('/');
            id.push_str(sample.id);
            named.push(&NewRow {
                id: &id,
                text: sample.text,
                speaker: sample.speaker,
                lang: sample.lang,
                key: sample.audio.key,
                offset_s: sample.audio.range.map(|range| range.offset_s),
                duration_s: sample.duration_s,
                part: sample.part,
                line: row.line,
                address: sample.audio.piece.map(|piece| piece.address),
            });
            if let Some(new) = named.rows.last_mut() {
                (new.shard, new.file, new.source) = (row.shard, row.file, row.source);
            }
        }
        named
    }

    /// The containers of recordings, in the order they are read.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &ShardFile> {
        self.shards.iter().map(|shard| &**shard)
    }

    /// Appends the rows of `other`, a corpus of `weight`. Its ids get `prefix` before them, and its recordings are named in
    /// full, so that corpora may use the same names. The caller has counted corpora, lists and shards.
    pub(crate) fn append(&mut self, other: &Samples, prefix: &str, weight: f64, lang: Option<&str>) {
        let (shards, files, text_files) = (self.shards.len(), self.files.len(), self.text_files.len());
        let source = self.weights.len() as u8;
        self.weights.push(weight);
        self.reserve(other.len(), other.num_letters());
        self.shards.extend(other.shards.iter().cloned());
        self.files.extend(other.files.iter().cloned());
        self.text_files.extend(other.text_files.iter().cloned());
        let mut id = String::new();
        for (row, (_, sample)) in other.rows.iter().zip(other.iter()) {
            id.clear();
            id.push_str(prefix);
            id.push_str(sample.id);
            let address = sample.audio.piece.map(|piece| piece.address);
            self.push(&NewRow {
                id: &id,
                text: sample.text,
                speaker: sample.speaker,
                lang: sample.lang.or(lang),
                key: &sample.audio.full_key(),
                offset_s: sample.audio.range.map(|range| range.offset_s),
                duration_s: sample.duration_s,
                part: sample.part,
                line: row.line,
                address,
            });
            if let Some(new) = self.rows.last_mut() {
                new.source = source;
                new.shard = if row.shard == NO_SHARD { NO_SHARD } else { row.shard + shards as u16 };
                (new.file, new.line) = match row.file {
                    OWN_FILE => (OWN_FILE, row.line + text_files as u32),
                    file => (file + files as u16, row.line),
                };
            }
        }
    }

    /// Rows pushed from here on come from `file`.
    pub(crate) fn begin_file(&mut self, file: Arc<Path>) {
        self.files.push(file);
    }

    /// Stores a row whose text is all of `file`.
    pub(crate) fn push_file(&mut self, new: &NewRow<'_>, file: &Path) {
        self.push(&NewRow { line: self.text_files.len() as u32, ..*new });
        self.text_files.push(file.into());
        if let Some(row) = self.rows.last_mut() {
            row.file = OWN_FILE;
        }
    }

    /// Stores a row whose names have passed [`check_name`].
    pub(crate) fn push(&mut self, new: &NewRow<'_>) {
        let start = self.letters.len();
        self.letters.push_str(new.key);
        self.letters.push_str(new.text);
        let id_at = place_in(new.key, new.id).unwrap_or_else(|| {
            self.letters.push_str(new.id);
            new.key.len() + new.text.len()
        });
        self.rows.push(Row {
            start: start as u64,
            offset_s: new.offset_s.unwrap_or(f64::NAN),
            duration_s: new.duration_s.unwrap_or(f64::NAN),
            position: new.address.map_or(0, |address| address.position),
            extent: new.address.map_or(0, |address| address.extent),
            // Lines are at most a mebibyte long, and so is everything in them.
            text_len: new.text.len() as u32,
            id_at: id_at as u32,
            speaker: self.speakers.number(new.speaker),
            line: new.line,
            key_len: new.key.len() as u16,
            id_len: new.id.len() as u16,
            // No corpus has that many languages; those past the end count as none.
            lang: self.langs.number(new.lang).min(NO_LANG.into()) as u16,
            file: self.files.len().saturating_sub(1) as u16,
            shard: new.address.map_or(NO_SHARD, |_| self.shards.len().saturating_sub(1) as u16),
            part: new.part,
            source: 0,
        });
    }

    /// Drops the rows for which `keep` says so. Their letters stay until the corpus goes.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(SampleIndex) -> bool) {
        let mut index = 0;
        self.rows.retain(|_| {
            index += 1;
            keep(SampleIndex(index - 1))
        });
    }

    /// The place of `file` among the lists; past the last for one that is none.
    pub(crate) fn file_number(&self, file: &Path) -> usize {
        self.files.iter().position(|known| **known == *file).unwrap_or(self.files.len())
    }

    /// Gives back memory that growing left over.
    pub(crate) fn shrink(&mut self) {
        self.letters.shrink_to_fit();
        self.rows.shrink_to_fit();
    }

    /// Bytes held on the heap, names of speakers and languages not counted.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.letters.capacity() + self.rows.capacity() * size_of::<Row>()
    }

    fn sample(&self, row: &Row) -> Sample<'_> {
        let duration_s = Some(row.duration_s).filter(|duration| !duration.is_nan());
        let range = (!row.offset_s.is_nan()).then_some(AudioRange { offset_s: row.offset_s, duration_s });
        let (file, line) = match row.file {
            OWN_FILE => (self.text_files.get(row.line as usize).map(|file| &**file), 1),
            list => (self.files.get(usize::from(list)).map(|file| &**file), row.line),
        };
        let piece = self
            .shards
            .get(usize::from(row.shard))
            .map(|shard| Piece { shard, address: ValueAddress { position: row.position, extent: row.extent } });
        Sample {
            id: self.slice(row, row.id_at, row.id_len.into()),
            text: self.slice(row, row.key_len.into(), row.text_len),
            speaker: self.speakers.name(row.speaker),
            lang: self.langs.name(if row.lang == NO_LANG { NO_NAME } else { row.lang.into() }),
            audio: Locator { store: &self.store, key: self.slice(row, 0, row.key_len.into()), piece, range },
            duration_s,
            part: row.part,
            file: file.unwrap_or(Path::new("")),
            line,
        }
    }

    fn slice(&self, row: &Row, at: u32, len: u32) -> &str {
        let from = row.start as usize + at as usize;
        &self.letters[from..from + len as usize]
    }
}

/// Where `id` stands in `key`, if it does. In manifests it stands first, and looking there costs a third of searching.
fn place_in(key: &str, id: &str) -> Option<usize> {
    if key.starts_with(id) { Some(0) } else { key.find(id) }
}

const NO_NAME: u32 = u32::MAX;
/// [`NO_NAME`] in the narrower field of a language.
const NO_LANG: u16 = u16::MAX;

/// Names kept once each, in the order of first appearance.
#[derive(Clone, Debug, Default)]
struct Names {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
}

impl Names {
    fn number(&mut self, name: Option<&str>) -> u32 {
        let Some(name) = name else { return NO_NAME };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        number
    }

    fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(id: &'a str, key: &'a str, text: &'a str, line: u32) -> NewRow<'a> {
        NewRow {
            id,
            text,
            speaker: Some("ada").filter(|_| line.is_multiple_of(2)),
            lang: None,
            key,
            offset_s: Some(1.5).filter(|_| line == 3),
            duration_s: Some(2.5).filter(|_| line >= 2),
            part: Subset::Undecided,
            line,
            address: None,
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut samples = Samples::new("root".into());
        samples.begin_file(Path::new("list.csv").into());
        samples.push(&row("a", "wavs/a.wav", "first", 1));
        samples.push(&row("b", "x.flac", "zweite Zeile: ü", 2));
        samples.push(&row("c@1.5", "c.wav", "", 3));
        let all: Vec<Sample<'_>> = samples.iter().map(|(_, sample)| sample).collect();
        assert_eq!([all[0].id, all[1].id, all[2].id], ["a", "b", "c@1.5"]);
        assert_eq!([all[0].text, all[1].text, all[2].text], ["first", "zweite Zeile: ü", ""]);
        assert_eq!([all[0].audio.key, all[1].audio.key, all[2].audio.key], ["wavs/a.wav", "x.flac", "c.wav"]);
        assert_eq!([all[0].duration_s, all[1].duration_s], [None, Some(2.5)]);
        assert_eq!(all[1].audio.range, None);
        assert_eq!(all[2].audio.range, Some(AudioRange { offset_s: 1.5, duration_s: Some(2.5) }));
        assert_eq!([all[0].speaker, all[1].speaker, all[0].lang], [None, Some("ada"), None]);
        assert_eq!((all[2].line, all[2].file), (3, Path::new("list.csv")));
        assert_eq!(all[0].audio.show(), Path::new("root").join("wavs/a.wav").display().to_string());
        assert_eq!((samples.speaker_number(SampleIndex(1)), samples.speaker_number(SampleIndex(0))), (Some(0), None));
        assert_eq!(samples.get(SampleIndex(3)), None);

        samples.retain(|index| index.0 != 1);
        assert_eq!(samples.iter().map(|(_, sample)| sample.id).collect::<Vec<_>>(), ["a", "c@1.5"]);

        samples.push_file(&row("d", "d.wav", "fourth", 7), Path::new("d.txt"));
        samples.push_file(&row("e", "e.wav", "fifth", 7), Path::new("e.txt"));
        samples.retain(|index| index.0 != 2);
        let last = samples.get(SampleIndex(2)).unwrap();
        assert_eq!((last.id, last.file, last.line), ("e", Path::new("e.txt"), 1));
    }

    #[test]
    fn a_row_stays_light() {
        let mut samples = Samples::new("".into());
        samples.begin_file(Path::new("list").into());
        for line in 0..1000 {
            let id = format!("speaker{}/utterance{line:06}", line % 7);
            samples.push(&row(&id, &format!("{id}.wav"), "about fifty letters of what somebody is saying here", line));
        }
        samples.shrink();
        assert!(samples.heap_bytes() <= 1000 * (64 + 30 + 52), "{}", samples.heap_bytes());
    }
}
