//! Lengths that no list gives: measured once, kept beside the run, measured again when a file changes.
//!
//! The index is a text file in a folder of the caller's choice, never in the corpus. Its first line says what it is and
//! of which corpus; each further line is `[key, bytes, modified_ns, num_samples, rate_hz]` of one recording; the last
//! line counts and sums them up. A file that is cut off, damaged, of another version or of another corpus is ignored as
//! a whole, and said. Measuring itself is the caller's: this crate knows no audio format.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_files::read_bounded;
use tandem_random::keyed;

use crate::dataset::{Dataset, problem_of};
use crate::error::CorpusError;
use crate::locator::{Locator, Stamp};
use crate::problem::{Problem, ProblemKind};
use crate::sample::{Sample, SampleIndex};
use crate::sources::is_url;

/// The most bytes of an index: more than ten million recordings.
const MAX_INDEX_BYTES: u64 = 4 << 30;

/// How long a whole recording is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Samples of one channel.
    pub num_samples: u64,
    /// Samples per second.
    pub rate_hz: u32,
}

impl Length {
    /// In seconds; 0 for a rate of 0.
    pub fn duration_s(self) -> f64 {
        if self.rate_hz == 0 { 0.0 } else { self.num_samples as f64 / f64::from(self.rate_hz) }
    }
}

/// Lengths of recordings as they were when they were measured.
#[derive(Debug)]
pub struct LengthIndex {
    path: PathBuf,
    dataset: String,
    entries: HashMap<Box<str>, (Stamp, Length)>,
    changed: bool,
}

/// What was found where the index should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// An index with this many lengths.
    Loaded(usize),
    /// Nothing: this is the first time.
    New,
    /// Something that cannot be used, and why. It is replaced when the index is saved.
    Rebuilt(String),
}

/// A sample whose recording is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct UnmeasuredSample {
    /// The sample.
    pub index: SampleIndex,
    stamp: Stamp,
}

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    /// Recordings measured.
    pub done: usize,
    /// Recordings to measure.
    pub total: usize,
}

/// What a scan did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Samples whose length was known already, from the corpus or from the index.
    pub known: usize,
    /// Recordings measured now.
    pub measured: usize,
    /// Recordings that are not there or could not be measured, by the rows that name them.
    pub problems: Vec<Problem>,
    /// Whether the caller ended it early.
    pub stopped: bool,
}

impl LengthIndex {
    /// The index of `dataset` in `folder`, and what was found there. Never fails: an index can always be rebuilt.
    pub fn open(folder: &Path, dataset: &Dataset) -> (LengthIndex, IndexState) {
        let identity = identity(dataset.path());
        let path = folder.join(format!("lengths-{:016x}.jsonl", keyed::hash(0, identity.as_bytes())));
        let (entries, state) = match read_bounded(&path, MAX_INDEX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (HashMap::new(), IndexState::New),
            Err(error) => (HashMap::new(), IndexState::Rebuilt(error.to_string())),
            Ok(bytes) => match decode(&bytes, &identity) {
                Ok(entries) => {
                    let state = IndexState::Loaded(entries.len());
                    (entries, state)
                }
                Err(reason) => (HashMap::new(), IndexState::Rebuilt(reason)),
            },
        };
        (LengthIndex { path, dataset: identity, entries, changed: false }, state)
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills in the durations that are known, and returns the samples that must be measured. Recordings that are not
    /// there are added to `problems`. Cost: one question to the file system per sample without a duration.
    pub fn apply(&self, dataset: &mut Dataset, problems: &mut Vec<Problem>) -> Vec<UnmeasuredSample> {
        let mut pending = Vec::new();
        for index in (0..dataset.samples().len() as u32).map(SampleIndex) {
            let Some(sample) = dataset.get(index).filter(|sample| sample.duration_s.is_none()) else { continue };
            // A scan of its shard has tried already, and reported why not.
            if dataset.unmeasured(index).is_some() {
                continue;
            }
            match sample.audio.stamp() {
                Err(error) => {
                    problems.push(problem_of(&sample, ProblemKind::MissingAudio, error.to_string()));
                    dataset.set_unmeasured(index, ProblemKind::MissingAudio);
                }
                Ok(stamp) => match self.entries.get(&*sample.audio.length_key()) {
                    Some((known, length)) if *known == stamp => problems.extend(dataset.set_length(index, *length)),
                    _ => pending.push(UnmeasuredSample { index, stamp }),
                },
            }
        }
        pending
    }

    /// Keeps what was measured. The rest of a range past the end of its recording is a problem.
    pub fn record(
        &mut self,
        dataset: &mut Dataset,
        pending: UnmeasuredSample,
        length: Length,
        problems: &mut Vec<Problem>,
    ) {
        let Some(sample) = dataset.get(pending.index) else { return };
        self.entries.insert(sample.audio.length_key().into(), (pending.stamp, length));
        self.changed = true;
        problems.extend(dataset.set_length(pending.index, length));
    }

    /// Keeps the length of a whole recording that was measured by other means, for the next time. Nothing happens if the
    /// recording is gone.
    pub fn keep(&mut self, audio: &Locator<'_>, length: Length) {
        let Ok(stamp) = audio.stamp() else { return };
        if self.entries.get(&*audio.length_key()) != Some(&(stamp, length)) {
            self.entries.insert(audio.length_key().into(), (stamp, length));
            self.changed = true;
        }
    }

    /// Fills in every duration that can be had: known ones at once, the others by `measure`, which is given a sample
    /// and answers for its whole recording. `progress` may end it; what was measured until then is kept.
    pub fn scan<E: Display>(
        &mut self,
        dataset: &mut Dataset,
        mut measure: impl FnMut(&Sample<'_>) -> Result<Length, E>,
        mut progress: impl FnMut(ScanProgress) -> ControlFlow<()>,
    ) -> ScanReport {
        let mut report = ScanReport::default();
        let pending = self.apply(dataset, &mut report.problems);
        let total = pending.len();
        report.known = dataset.samples().len() - total - report.problems.len();
        for (done, pending) in pending.into_iter().enumerate() {
            if progress(ScanProgress { done, total }).is_break() {
                report.stopped = true;
                return report;
            }
            let Some(sample) = dataset.get(pending.index) else { continue };
            // Several pieces of one recording are measured once.
            let known = self.entries.get(&*sample.audio.length_key()).filter(|(stamp, _)| *stamp == pending.stamp);
            let measured = match known {
                Some((_, length)) => Ok(*length),
                None => {
                    report.measured += 1;
                    measure(&sample)
                }
            };
            match measured {
                Ok(length) => self.record(dataset, pending, length, &mut report.problems),
                Err(error) => {
                    let detail = format!("{error} ({})", sample.audio.show());
                    report.problems.push(problem_of(&sample, ProblemKind::UndecodableAudio, detail));
                    dataset.set_unmeasured(pending.index, ProblemKind::UndecodableAudio);
                }
            }
        }
        if total > 0 && progress(ScanProgress { done: total, total }).is_break() {
            report.stopped = true;
        }
        report
    }

    /// Writes the index, to a temporary name first, so that what is there is always whole. Nothing is written when
    /// nothing has changed. Fails when the folder cannot be written to; the run does not depend on it.
    pub fn save(&mut self) -> Result<(), CorpusError> {
        if !self.changed {
            return Ok(());
        }
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = self.path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(&encode(&self.dataset, &self.entries))?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        });
        written.map_err(|source| {
            // Half an index under a temporary name is of no use to anybody; failing to remove it, of no consequence.
            let _ = fs::remove_file(&temporary);
            CorpusError::Write { path: self.path.clone(), source }
        })?;
        self.changed = false;
        Ok(())
    }
}

/// The path that tells this corpus from another, wherever the program was started.
fn identity(path: &Path) -> String {
    if let Some(url) = path.to_str().filter(|text| is_url(text)) {
        return url.to_owned();
    }
    let absolute = fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned());
    absolute.to_string_lossy().into_owned()
}

const FORMAT: &str = "tandem lengths";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    dataset: String,
}

#[derive(Serialize, Deserialize)]
struct Foot {
    entries: usize,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
struct Entry<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>, u64, u64, u64, u32);

fn encode(dataset: &str, entries: &HashMap<Box<str>, (Stamp, Length)>) -> Vec<u8> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    let mut text = Vec::new();
    // Strings and whole numbers always have a JSON form, and a vector takes everything.
    let _ = push_line(&mut text, &Head { format: FORMAT.into(), version: VERSION, dataset: dataset.into() });
    for (key, (stamp, length)) in sorted {
        let key = (&**key).into();
        let _ =
            push_line(&mut text, &Entry(key, stamp.num_bytes, stamp.modified_ns, length.num_samples, length.rate_hz));
    }
    let foot = Foot { entries: entries.len(), checksum: keyed::hash(0, &text) };
    let _ = push_line(&mut text, &foot);
    text
}

fn push_line(text: &mut Vec<u8>, line: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *text, line)?;
    text.push(b'\n');
    Ok(())
}

fn decode(bytes: &[u8], dataset: &str) -> Result<HashMap<Box<str>, (Stamp, Length)>, String> {
    let damaged = |what: &str| format!("the index is damaged ({what})");
    let body_end = bytes.strip_suffix(b"\n").and_then(|bytes| bytes.iter().rposition(|byte| *byte == b'\n'));
    let (body, foot) = bytes.split_at(body_end.ok_or_else(|| damaged("no end"))? + 1);
    let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Head = lines
        .next()
        .and_then(|line| serde_json::from_slice(line).ok())
        .filter(|head: &Head| head.format == FORMAT)
        .ok_or("this is no index of lengths")?;
    if head.version != VERSION {
        return Err(format!("the index has version {}, this program writes {VERSION}", head.version));
    }
    if head.dataset != dataset {
        return Err(format!("the index is of another corpus: {}", head.dataset));
    }
    let foot: Foot = serde_json::from_slice(foot).map_err(|_| damaged("no end"))?;
    if foot.checksum != keyed::hash(0, body) {
        return Err(damaged("checksum"));
    }
    let mut entries = HashMap::with_capacity(foot.entries.min(body.len()));
    for line in lines {
        let Entry(key, num_bytes, modified_ns, num_samples, rate_hz) =
            serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()))?;
        entries.insert(key.into(), (Stamp { num_bytes, modified_ns }, Length { num_samples, rate_hz }));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::io::Seek as _;

    use super::*;
    use crate::dataset::OpenOptions;
    use crate::fixture::CorpusFolder;

    fn corpus(name: &str) -> CorpusFolder {
        let folder = CorpusFolder::new(name);
        folder.write("data/metadata.csv", "a|first\nb|second\nc|third\n");
        for (id, size) in [("a", 10), ("b", 20), ("c", 30)] {
            folder.write(&format!("data/wavs/{id}.wav"), vec![0; size]);
        }
        folder
    }

    fn open(folder: &CorpusFolder) -> Dataset {
        Dataset::open(folder.path().join("data"), &OpenOptions::default()).unwrap()
    }

    /// Takes a file's size for its length; `b` cannot be measured. Returns the ids measured, too.
    fn scan(folder: &CorpusFolder, dataset: &mut Dataset) -> (IndexState, ScanReport, Vec<String>) {
        let (mut index, state) = LengthIndex::open(&folder.path().join("run"), dataset);
        let mut asked = Vec::new();
        let report = index.scan(
            dataset,
            |sample| {
                asked.push(sample.id.to_owned());
                let size = sample.audio.open().unwrap().seek(io::SeekFrom::End(0)).unwrap();
                if size == 20 { Err("no audio") } else { Ok(Length { num_samples: size, rate_hz: 10 }) }
            },
            |_| ControlFlow::Continue(()),
        );
        index.save().unwrap();
        (state, report, asked)
    }

    fn durations(dataset: &Dataset) -> Vec<Option<f64>> {
        dataset.samples().iter().map(|(_, sample)| sample.duration_s).collect()
    }

    #[test]
    fn what_was_measured_is_not_measured_again_until_it_changes() {
        let folder = corpus("index");
        let mut first = open(&folder);
        let (state, report, asked) = scan(&folder, &mut first);
        assert_eq!((state, report.known, report.measured, asked.len()), (IndexState::New, 0, 3, 3));
        assert_eq!(durations(&first), [Some(1.0), None, Some(3.0)]);
        assert_eq!(
            report.problems[0].to_string().split_once("data/").unwrap().1.split(" (").next().unwrap(),
            "metadata.csv:2: undecodable audio: no audio"
        );

        let mut second = open(&folder);
        let (state, report, asked) = scan(&folder, &mut second);
        assert_eq!((state, report.known, asked), (IndexState::Loaded(2), 2, vec!["b".to_owned()]));
        assert_eq!(durations(&second), durations(&first));

        folder.write("data/wavs/a.wav", vec![0; 50]);
        let mut third = open(&folder);
        fs::remove_file(folder.path().join("data/wavs/c.wav")).unwrap();
        let (_, report, asked) = scan(&folder, &mut third);
        assert_eq!(asked, ["a", "b"]);
        assert_eq!(durations(&third), [Some(5.0), None, None]);
        assert_eq!(report.problems[0].kind, ProblemKind::MissingAudio);
        let in_data: Vec<_> =
            fs::read_dir(folder.path().join("data")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(in_data.len(), 2, "nothing of ours in the corpus: {in_data:?}");
    }

    #[test]
    fn a_damaged_or_foreign_index_is_ignored_and_replaced() {
        let folder = corpus("bad_index");
        let mut dataset = open(&folder);
        scan(&folder, &mut dataset);
        let path = LengthIndex::open(&folder.path().join("run"), &dataset).0.path;
        let good = fs::read_to_string(&path).unwrap();
        let check = |content: &[u8], part: &str| {
            fs::write(&path, content).unwrap();
            let mut dataset = open(&folder);
            let (state, _, asked) = scan(&folder, &mut dataset);
            assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains(part)), "{state:?}");
            assert_eq!(asked.len(), 3);
            assert_eq!(fs::read_to_string(&path).unwrap(), good);
        };
        check(b"", "damaged");
        check(b"\n\n\n", "no index");
        check(b"\xff\xfe\n\0\n", "no index");
        check(b"{\"hello\":1}\n{}\n", "no index");
        check(good.replace("\"version\":1", "\"version\":2").as_bytes(), "version 2");
        check(good.replacen("data\"", "elsewhere\"", 1).as_bytes(), "another corpus");
        check(good.replace(",10,", ",11,").as_bytes(), "checksum");
        check(&good.as_bytes()[..good.len() - 1], "damaged");
        check(&good.as_bytes()[..good.len() / 2], "damaged");
    }

    #[test]
    fn a_scan_that_is_ended_keeps_what_it_has() {
        let folder = corpus("stopped_index");
        let mut dataset = open(&folder);
        let (mut index, _) = LengthIndex::open(&folder.path().join("run"), &dataset);
        let report = index.scan(
            &mut dataset,
            |_| Ok::<_, io::Error>(Length { num_samples: 10, rate_hz: 10 }),
            |progress| if progress.done == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) },
        );
        assert!(report.stopped && report.measured == 1);
        index.save().unwrap();
        assert_eq!(LengthIndex::open(&folder.path().join("run"), &dataset).1, IndexState::Loaded(1));
    }

    #[test]
    fn pieces_of_one_recording_are_measured_once() {
        let folder = CorpusFolder::new("pieces");
        folder.write("x.wav", vec![0; 40]);
        let lines: String = ["1", "2.5", "4"]
            .map(|offset| format!("{{\"audio_filepath\":\"x.wav\",\"text\":\"t\",\"offset\":{offset}}}\n"))
            .concat();
        folder.write("list.jsonl", lines);
        let mut dataset = Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap();
        let (_, report, asked) = scan(&folder, &mut dataset);
        assert_eq!(asked.len(), 1);
        assert_eq!(durations(&dataset), [Some(3.0), Some(1.5), None]);
        assert_eq!(report.problems[0].kind, ProblemKind::BadNumber);
        assert_eq!(report.problems[0].line, Some(3));
    }
}
