//! The rows of a corpus, a million of them at little more than the cost of their letters.
//!
//! All strings of a row lie one after the other in one big `String`; speakers and languages are kept once. A row costs
//! 56 bytes beside its letters, and an id that is part of its file name costs nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::locator::{AudioRange, Locator, Store};

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
    key_len: u32,
    text_len: u32,
    /// From `start`.
    id_at: u32,
    id_len: u32,
    speaker: u32,
    lang: u32,
    /// Of a text that is a file of its own: which one.
    line: u32,
    file: u16,
    part: Subset,
}

/// Stands for a list in rows whose text is a file of its own, so that a corpus of many files needs no wider rows.
const OWN_FILE: u16 = u16::MAX;

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
}

impl Samples {
    /// No rows yet; relative keys start at `root`.
    pub(crate) fn new(root: PathBuf) -> Samples {
        Samples {
            store: Store::Files { root },
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
        self.rows.iter().map(|row| self.slice(row, row.id_at, row.id_len))
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
            // Lines are at most a mebibyte long, and so is everything in them.
            key_len: new.key.len() as u32,
            text_len: new.text.len() as u32,
            id_at: id_at as u32,
            id_len: new.id.len() as u32,
            speaker: self.speakers.number(new.speaker),
            lang: self.langs.number(new.lang),
            line: new.line,
            file: self.files.len().saturating_sub(1) as u16,
            part: new.part,
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
        Sample {
            id: self.slice(row, row.id_at, row.id_len),
            text: self.slice(row, row.key_len, row.text_len),
            speaker: self.speakers.name(row.speaker),
            lang: self.langs.name(row.lang),
            audio: Locator { store: &self.store, key: self.slice(row, 0, row.key_len), range },
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
        assert!(samples.heap_bytes() <= 1000 * (56 + 30 + 52), "{}", samples.heap_bytes());
    }
}
