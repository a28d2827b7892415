//! A corpus as a whole: its rows, what is wrong with them, and which of them train.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_files::open_bounded;
use tandem_random::keyed;
use tandem_storage::{ObjectLocation, Storage};

use crate::audio_folder::AudioFolder;
use crate::common_voice::BadHeader;
use crate::error::CorpusError;
use crate::format::{CorpusLayout, Format, endings};
use crate::index::Length;
use crate::ljspeech::ColumnOrder;
use crate::locator::Store;
use crate::opening::{CorpusOpening, MixedDataset};
use crate::problem::{Findings, Problem, ProblemKind, excerpt};
use crate::sample::{Sample, SampleIndex, Samples, Subset};
use crate::sharded::cuts;
use crate::sharded::segment::ScannedShard;
use crate::sharded::source::{ColumnNames, ShardSource, open_list as open_stored_list};
use crate::sources::StoredLists;
use crate::speaker::SpeakerPattern;
use crate::{common_voice, exclude, ljspeech, manifest, text_files, vctk};

/// How to read a corpus.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Takes the speaker from the id of rows that name none.
    pub speaker_pattern: Option<SpeakerPattern>,
    /// A list of ids that neither train nor evaluate.
    pub exclude_ids: Option<PathBuf>,
    /// Columns of tables, where they are not the usual ones.
    pub columns: ColumnNames,
    /// The way to files and objects. Clones share connections.
    pub storage: Storage,
    /// The folder of the indexes of shards. Without one, shards are scanned every time.
    pub index_folder: Option<PathBuf>,
}

/// A corpus that was read. Every line of its lists is a sample, or a problem that names it.
#[derive(Clone, Debug)]
pub struct Dataset {
    path: PathBuf,
    format: Format,
    /// Where its recordings are, and what is not read.
    audio: String,
    not_read: Vec<String>,
    samples: Samples,
    /// Why rows have no length.
    unmeasured: HashMap<SampleIndex, ProblemKind>,
    /// Those of the corpus, then those of the list of excluded ids.
    problems: Vec<Problem>,
    num_row_problems: usize,
}

/// Which samples train and which evaluate. No sample does both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// For training, in the order of the corpus.
    pub train: Vec<SampleIndex>,
    /// For evaluation, in the order of the corpus.
    pub eval: Vec<SampleIndex>,
}

impl Dataset {
    /// Reads the corpus at `path`: a folder, a list, a pattern of shards or a URL. `format.rs` and `sources.rs` say which format
    /// it is taken for.
    ///
    /// Cost: one pass over the lists, and one listing of each folder of recordings; where texts are files, all of them are
    /// read. Of a manifest's recordings none is looked at (see [`Dataset::missing_audio`]). Shards are scanned here, one after
    /// the other and without measuring recordings: [`CorpusOpening`] leaves that to the caller's threads. Memory: the letters
    /// and 64 bytes a row. Fails when `path` is no corpus, or when a list cannot be read; what is wrong with rows is in
    /// [`Dataset::problems`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Dataset, CorpusError> {
        let name = path.as_ref().to_str().map(str::to_owned);
        let Some(name) = name else {
            // Names in lists are text, and so are patterns and URLs: this can only be a folder or a list.
            return Dataset::read_local(path.as_ref(), &CorpusLayout::of(path.as_ref())?, options)?.finished(options);
        };
        let mut opening = CorpusOpening::begin(&[name], options)?;
        for (number, shard) in opening.pending() {
            let scanned = shard.scan(None)?;
            opening.add(number, scanned);
        }
        opening.finish()
    }

    /// Reads lists and folders of this machine.
    pub(crate) fn read_local(
        path: &Path,
        layout: &CorpusLayout,
        options: &OpenOptions,
    ) -> Result<Dataset, CorpusError> {
        let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut dataset = Dataset::new(path.to_owned(), layout.format, Samples::new(root.to_owned()));
        (dataset.audio, dataset.not_read) = (layout.audio.clone(), layout.not_read.clone());
        dataset.read(root, layout, options)?;
        if layout.format == Format::Manifest && dataset.samples.has_urls() {
            dataset.samples.set_store(Store::of(&ObjectLocation::file(root), &options.storage));
        }
        Ok(dataset)
    }

    /// Reads lists through storage.
    pub(crate) fn read_stored(lists: &StoredLists, options: &OpenOptions) -> Result<Dataset, CorpusError> {
        let StoredLists { format, lists, root, audio } = lists;
        let store = Store::of(root, &options.storage);
        let path = PathBuf::from(lists.first().map_or_else(|| root.to_string(), |(list, _)| list.location.to_string()));
        let mut dataset = Dataset::new(path, *format, Samples::of_store(store));
        dataset.audio.clone_from(audio);
        let mut folder = AudioFolder::stored(root.clone(), audio, options.storage.clone());
        let pattern = options.speaker_pattern.as_ref();
        let Dataset { samples, problems, .. } = &mut dataset;
        for (list, part) in lists {
            let file: Arc<Path> = Path::new(&list.location.to_string()).into();
            samples.begin_file(Arc::clone(&file));
            let mut findings = Findings { file, list: problems };
            let lines = open_stored_list(&options.storage, list)?;
            let read = match format {
                Format::LhotseCuts => cuts::read(lines, pattern, samples, &mut findings),
                Format::Manifest => manifest::read(lines, pattern, samples, &mut findings),
                format => {
                    let order = match format {
                        Format::Piper => ColumnOrder::of_piper(open_stored_list(&options.storage, list)?)
                            .map_err(|source| CorpusError::of_io(source, &list.location))?,
                        _ => ColumnOrder::LjSpeech,
                    };
                    ljspeech::read(lines, order, *part, pattern, &mut folder, samples, &mut findings)
                }
            };
            read.map_err(|source| CorpusError::of_io(source, &list.location))?;
        }
        drop_duplicates(samples, problems);
        if !audio.is_empty() {
            drop_rows_without_audio(samples, &mut folder, problems);
        }
        sort(problems, samples);
        Ok(dataset)
    }

    /// No rows yet.
    pub(crate) fn new(path: PathBuf, format: Format, samples: Samples) -> Dataset {
        Dataset {
            path,
            format,
            audio: String::new(),
            not_read: Vec::new(),
            samples,
            unmeasured: HashMap::new(),
            problems: Vec::new(),
            num_row_problems: 0,
        }
    }

    pub(crate) fn with_not_read(self, not_read: Vec<String>) -> Dataset {
        Dataset { not_read, ..self }
    }

    /// Puts several corpora together: ids get the name of their source before them.
    pub(crate) fn mixed(path: PathBuf, storage: &Storage, parts: Vec<MixedDataset>) -> Dataset {
        let store = Store::of(&ObjectLocation::file(""), storage);
        let mut mixed = Dataset::new(path, Format::Mixture, Samples::of_store(store));
        for MixedDataset { name, weight, lang, dataset } in parts {
            let first = mixed.samples.len() as u32;
            mixed.samples.append(&dataset.samples, &format!("{name}/"), weight, lang.as_deref());
            let moved = dataset.unmeasured.into_iter().map(|(index, kind)| (SampleIndex(index.0 + first), kind));
            mixed.unmeasured.extend(moved);
            mixed.problems.extend(dataset.problems);
            mixed.not_read.extend(dataset.not_read.into_iter().map(|what| format!("{what} ({name})")));
        }
        mixed
    }

    /// Leaves out the ids of the list, and gives back memory: the last step of opening.
    pub(crate) fn finished(mut self, options: &OpenOptions) -> Result<Dataset, CorpusError> {
        self.num_row_problems = self.problems.len();
        if let Some(list) = &options.exclude_ids {
            exclude::apply(list, &mut self.samples, &mut self.problems)?;
        }
        self.samples.shrink();
        Ok(self)
    }

    /// Appends the rows of a shard and what is wrong with them.
    pub(crate) fn append_shard(&mut self, source: &ShardSource, scanned: ScannedShard) {
        let ScannedShard { samples, problems, unmeasured, kind, .. } = scanned;
        let first = self.samples.len() as u32;
        self.unmeasured.extend(unmeasured.into_iter().map(|(row, kind)| (SampleIndex(first + row), kind)));
        self.problems.extend(problems);
        self.samples.append_shard(samples, Arc::new(source.file(kind)), source.file_name());
    }

    /// The last steps for rows of shards: ids that are unique, and speakers by the pattern.
    pub(crate) fn finish_shards(&mut self, options: &OpenOptions) {
        if self.samples.repeats_ids_between_shards() {
            self.samples = self.samples.with_shard_names();
        }
        self.drop_duplicates();
        let Some(pattern) = &options.speaker_pattern else { return };
        for index in (0..self.samples.len() as u32).map(SampleIndex) {
            let Some(sample) = self.samples.get(index).filter(|sample| sample.speaker.is_none()) else { continue };
            match pattern.find(sample.id).map(str::to_owned) {
                Some(speaker) => self.samples.set_speaker(index, &speaker),
                None => {
                    let detail = format!("`{}` does not match the speaker pattern", excerpt(sample.id));
                    let problem = problem_of(&sample, ProblemKind::NoSpeaker, detail);
                    self.problems.push(problem);
                }
            }
        }
    }

    /// Rows that are left out must not move what is known of others.
    fn drop_duplicates(&mut self) {
        let before = self.samples.len();
        let dropped = duplicates(&self.samples, &mut self.problems);
        if dropped.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(before);
        let mut next = 0;
        for index in (0..before as u32).map(SampleIndex) {
            let is_kept = dropped.binary_search(&index).is_err();
            kept.push(is_kept.then_some(SampleIndex(next)));
            next += u32::from(is_kept);
        }
        let moved = std::mem::take(&mut self.unmeasured).into_iter();
        self.unmeasured = moved.filter_map(|(index, kind)| Some((kept[index.at()]?, kind))).collect();
        drop_rows(&mut self.samples, dropped);
    }

    fn read(&mut self, root: &Path, layout: &CorpusLayout, options: &OpenOptions) -> Result<(), CorpusError> {
        let pattern = options.speaker_pattern.as_ref();
        let Dataset { samples, problems, .. } = self;
        match layout.format {
            Format::Vctk => vctk::read(root, &layout.audio, pattern, samples, problems)?,
            Format::TextFiles => text_files::read(root, pattern, samples, problems)?,
            _ => {
                read_lists(root, layout, pattern, samples, problems)?;
                sort(problems, samples);
                return Ok(());
            }
        }
        problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        Ok(())
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is written as.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The format and where it has its recordings, for people: `LJSpeech, recordings in wavs/`.
    pub fn describe(&self) -> String {
        let title = self.format.title();
        match (self.audio.as_str(), self.samples.shards().len()) {
            ("", 0) => title.to_owned(),
            ("", 1) => format!("{title}, 1 shard"),
            ("", shards) => format!("{title}, {shards} shards"),
            (audio, _) => format!("{title}, recordings in {audio}"),
        }
    }

    /// What else the folder holds that could be read as a corpus, and was not: `Common Voice`, `validated.tsv (…)`.
    pub fn not_read(&self) -> &[String] {
        &self.not_read
    }

    /// Whether it has tables, whose columns can be named.
    pub fn has_columns(&self) -> bool {
        matches!(self.format, Format::Parquet | Format::Arrow | Format::Mixture)
    }

    /// Whether any of its recordings is in an object store.
    pub fn is_remote(&self) -> bool {
        self.samples.is_remote()
    }

    /// Whether some rows are trained on more often than others: the corpus is a mixture with weights.
    pub fn has_repeats(&self) -> bool {
        self.samples.has_repeats()
    }

    /// How often a row is trained on in an epoch, compared with those that are trained on least: 1 unless the corpus is a
    /// mixture with weights.
    pub fn repeats(&self, index: SampleIndex) -> u32 {
        self.samples.repeats(index)
    }

    /// All rows, those left out of training included.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Fills in the duration of a row whose whole recording has this length. The rest of a range past the end of its
    /// recording is a problem, which is returned.
    pub fn set_length(&mut self, index: SampleIndex, length: Length) -> Option<Problem> {
        let sample = self.get(index)?;
        let offset_s = sample.audio.range.map_or(0.0, |range| range.offset_s);
        let duration_s = length.duration_s() - offset_s;
        if duration_s > 0.0 || sample.audio.range.is_none() {
            self.samples.set_duration(index, duration_s);
            return None;
        }
        let detail = format!("`offset` {offset_s} lies past the end, at {:.3} s", length.duration_s());
        let problem = problem_of(&sample, ProblemKind::BadNumber, detail);
        self.set_unmeasured(index, problem.kind);
        Some(problem)
    }

    /// Keeps why the recording of a row could not be measured.
    pub fn set_unmeasured(&mut self, index: SampleIndex, kind: ProblemKind) {
        self.unmeasured.insert(index, kind);
    }

    /// Why the recording of a row could not be measured; none if it could, or if nobody tried.
    pub fn unmeasured(&self, index: SampleIndex) -> Option<ProblemKind> {
        self.unmeasured.get(&index).copied()
    }

    /// The row at `index`; none past the end.
    pub fn get(&self, index: SampleIndex) -> Option<Sample<'_>> {
        self.samples.get(index)
    }

    /// What is wrong, in the order of files and lines.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Rows of its lists that are not part of it, by reason in words.
    pub fn rejected(&self) -> BTreeMap<&'static str, usize> {
        let mut rejected = BTreeMap::new();
        let of_rows = &self.problems[..self.num_row_problems];
        for problem in of_rows.iter().filter(|problem| problem.kind.rejects_row()) {
            *rejected.entry(problem.kind.words()).or_default() += 1;
        }
        rejected
    }

    /// How many rows were named to be left out.
    pub fn num_excluded(&self) -> usize {
        self.samples.parts().filter(|part| *part == Subset::Excluded).count()
    }

    /// Whether the corpus brings its own evaluation set.
    pub fn has_eval(&self) -> bool {
        self.samples.parts().any(|part| part == Subset::Eval)
    }

    /// Training and evaluation set: by file where the corpus says so, else nine to one by the seed.
    ///
    /// By the seed, where a row goes is a function of the seed and its id alone, so rows that come or go move no other
    /// row. One exception keeps small corpora usable: where that leaves one of the sets empty and there are two rows
    /// at least, the row nearest to the border crosses it.
    pub fn split(&self, seed: u64) -> Split {
        if self.has_eval() {
            return Split { train: self.train_rows(), eval: self.eval_rows() };
        }
        let key = keyed::key(&[seed, SPLIT]);
        let mut drawn: Vec<(u64, SampleIndex)> = (0..)
            .map(SampleIndex)
            .zip(self.samples.parts().zip(self.samples.ids()))
            .filter(|(_, (part, _))| *part != Subset::Excluded)
            .map(|(index, (_, id))| (keyed::hash(key, id.as_bytes()), index))
            .collect();
        drawn.sort_unstable();
        let last = drawn.len().saturating_sub(1);
        let num_eval = drawn.partition_point(|(drawn, _)| *drawn < u64::MAX / 10).clamp(last.min(1), last);
        let (eval, train) = drawn.split_at(num_eval);
        let in_order = |part: &[(u64, SampleIndex)]| {
            let mut rows: Vec<SampleIndex> = part.iter().map(|(_, index)| *index).collect();
            rows.sort_unstable();
            rows
        };
        Split { train: in_order(train), eval: in_order(eval) }
    }

    /// What trains when the evaluation set comes from elsewhere: every row that is not the corpus's own evaluation.
    pub fn train_rows(&self) -> Vec<SampleIndex> {
        self.rows(|part| part != Subset::Eval)
    }

    /// What evaluates when this corpus was given for that: its own evaluation set, or all of it.
    pub fn eval_rows(&self) -> Vec<SampleIndex> {
        let own = self.has_eval();
        self.rows(|part| !own || part == Subset::Eval)
    }

    /// Rows whose recording is not there, as problems. Asks once per row: for a manifest of a million, seconds.
    pub fn missing_audio(&self) -> Vec<Problem> {
        let missing = self.samples.iter().filter_map(|(_, sample)| {
            let error = sample.audio.stamp().err()?;
            Some(problem_of(&sample, ProblemKind::MissingAudio, error.to_string()))
        });
        missing.collect()
    }

    /// A number for what the corpus says (ids, texts, speakers, places): another corpus has another one.
    pub fn fingerprint(&self) -> u64 {
        self.samples.iter().fold(keyed::key(&[FINGERPRINT]), |key, (_, sample)| {
            let fields =
                [sample.id, sample.text, sample.audio.key, sample.speaker.unwrap_or(""), sample.lang.unwrap_or("")];
            let key = fields.iter().fold(key, |key, field| keyed::hash(key, field.as_bytes()));
            keyed::draw(key, sample.audio.range.map_or(0, |range| range.offset_s.to_bits()))
        })
    }

    fn rows(&self, keep: impl Fn(Subset) -> bool) -> Vec<SampleIndex> {
        let rows = (0..).map(SampleIndex).zip(self.samples.parts());
        rows.filter(|(_, part)| *part != Subset::Excluded && keep(*part)).map(|(index, _)| index).collect()
    }
}

/// What the random numbers are for.
const SPLIT: u64 = 0x7370_6c69;
const FINGERPRINT: u64 = 0x6669_6e67;

/// A problem at the row of `sample`.
pub(crate) fn problem_of(sample: &Sample<'_>, kind: ProblemKind, detail: String) -> Problem {
    Problem { file: sample.file.into(), line: Some(sample.line), kind, detail }
}

fn open_list(path: &Path) -> Result<BufReader<File>, CorpusError> {
    let file = open_list_file(path).map_err(|source| CorpusError::Read { path: path.to_owned(), source })?;
    Ok(BufReader::with_capacity(1 << 18, file))
}

/// The most bytes of a list: more than ten million rows.
const MAX_LIST_BYTES: u64 = 4 << 30;

/// Opens a list of rows or ids. Anything without an end, and anything that could not be one, is an error at once.
pub(crate) fn open_list_file(path: &Path) -> io::Result<File> {
    open_bounded(path, MAX_LIST_BYTES)
}

/// Reads the lists of a corpus, and leaves out the rows without a recording.
fn read_lists(
    root: &Path,
    layout: &CorpusLayout,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    problems: &mut Vec<Problem>,
) -> Result<(), CorpusError> {
    let mut audio = AudioFolder::new(root, &layout.audio);
    for (list, part) in &layout.lists {
        let failed = |source| CorpusError::Read { path: list.clone(), source };
        let file: Arc<Path> = list.as_path().into();
        samples.begin_file(Arc::clone(&file));
        let mut findings = Findings { file, list: problems };
        match layout.format {
            Format::Manifest => manifest::read(open_list(list)?, pattern, samples, &mut findings).map_err(failed)?,
            Format::CommonVoice => {
                common_voice::read(open_list(list)?, *part, pattern, &mut audio, samples, &mut findings)
                    .map_err(|error| tsv_error(list, error))?;
            }
            format => {
                let order = match format {
                    Format::Piper => ColumnOrder::of_piper(open_list(list)?).map_err(failed)?,
                    _ => ColumnOrder::LjSpeech,
                };
                ljspeech::read(open_list(list)?, order, *part, pattern, &mut audio, samples, &mut findings)
                    .map_err(failed)?;
            }
        }
    }
    if let Some(unused) = &layout.unused {
        let mut findings = Findings { file: unused.as_path().into(), list: problems };
        findings.whole(ProblemKind::UnusedFile, "read beside metadata_train.csv only, and there is none");
    }
    drop_duplicates(samples, problems);
    if layout.format == Format::Manifest {
        return Ok(());
    }
    let none_found = !samples.is_empty() && samples.iter().all(|(_, sample)| sample.audio.key.is_empty());
    if none_found && !root.join(&layout.audio).is_dir() {
        return Err(without_recordings(root, layout));
    }
    drop_rows_without_audio(samples, &mut audio, problems);
    Ok(())
}

/// The refusal of metadata that no folder of recordings lies beside.
fn without_recordings(root: &Path, layout: &CorpusLayout) -> CorpusError {
    let lists = layout.lists.iter().filter_map(|(list, _)| list.file_name()).map(|name| name.to_string_lossy());
    let lists = lists.collect::<Vec<_>>().join(" and ");
    let missing =
        format!("LJSpeech and Piper: {lists} is there, wavs/ or wav/ with the recordings beside it is missing");
    CorpusError::NotADataset {
        path: root.to_owned(),
        found: "metadata without recordings".to_owned(),
        missing: vec![missing],
        inside: None,
    }
}

fn tsv_error(list: &Path, error: common_voice::TsvError) -> CorpusError {
    let path = list.to_owned();
    match error {
        common_voice::TsvError::Io(source) => CorpusError::Read { path, source },
        common_voice::TsvError::Header(BadHeader { missing, found }) => {
            CorpusError::MissingColumns { path, missing, found }
        }
    }
}

/// Keeps the first row of every id and reports the others.
fn drop_duplicates(samples: &mut Samples, problems: &mut Vec<Problem>) {
    let dropped = duplicates(samples, problems);
    drop_rows(samples, dropped);
}

/// The rows whose id an earlier row has, rising, each reported with the line of the first.
///
/// Sorting numbers that stand for ids costs a sixth of a second for a million rows, and no copy of an id.
fn duplicates(samples: &Samples, problems: &mut Vec<Problem>) -> Vec<SampleIndex> {
    let mut hashes: Vec<(u64, SampleIndex)> =
        samples.ids().zip(0..).map(|(id, row)| (keyed::hash(0, id.as_bytes()), SampleIndex(row))).collect();
    hashes.sort_unstable();
    let mut dropped = Vec::new();
    for alike in hashes.chunk_by(|a, b| a.0 == b.0).filter(|alike| alike.len() > 1) {
        for (place, (_, index)) in alike.iter().enumerate() {
            let Some(sample) = samples.get(*index) else { continue };
            let mut earlier = alike[..place].iter().filter_map(|(_, earlier)| samples.get(*earlier));
            if let Some(first) = earlier.find(|earlier| earlier.id == sample.id) {
                let file = first.file.file_name().unwrap_or_default().to_string_lossy();
                let place = if first.file == sample.file { String::new() } else { format!(" of {file}") };
                let detail = format!("`{}` is on line {}{place} already", excerpt(sample.id), first.line);
                problems.push(problem_of(&sample, ProblemKind::DuplicateId, detail));
                dropped.push(*index);
            }
        }
    }
    dropped.sort_unstable();
    dropped
}

fn drop_rows_without_audio(samples: &mut Samples, audio: &mut AudioFolder, problems: &mut Vec<Problem>) {
    let folder = audio.prefix().to_owned();
    let named = folder.trim_end_matches('/');
    let trouble = audio.trouble().map(|error| format!(" ({named} could not be listed: {error})")).unwrap_or_default();
    let mut dropped = Vec::new();
    for (index, sample) in samples.iter().filter(|(_, sample)| sample.audio.key.is_empty()) {
        let detail = format!("no {folder}{}{}{trouble}", excerpt(sample.id), endings());
        problems.push(problem_of(&sample, ProblemKind::MissingAudio, detail));
        dropped.push(index);
    }
    drop_rows(samples, dropped);
}

/// Drops rows, which are given rising.
fn drop_rows(samples: &mut Samples, dropped: Vec<SampleIndex>) {
    if !dropped.is_empty() {
        samples.retain(|index| dropped.binary_search(&index).is_err());
    }
}

/// By file in the order they were read, then by line.
fn sort(problems: &mut [Problem], samples: &Samples) {
    problems.sort_by_key(|problem| (samples.file_number(&problem.file), problem.line));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::CorpusFolder;

    fn manifest(folder: &CorpusFolder, ids: impl Iterator<Item = u32>) -> Dataset {
        let lines: String = ids.map(|id| format!("{{\"audio_filepath\":\"{id}.wav\",\"text\":\"x\"}}\n")).collect();
        folder.write("list.jsonl", lines);
        Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap()
    }

    fn ids(dataset: &Dataset, rows: &[SampleIndex]) -> Vec<String> {
        rows.iter().map(|row| dataset.get(*row).unwrap().id.to_owned()).collect()
    }

    #[test]
    fn a_row_keeps_its_side_whatever_comes_and_goes() {
        let folder = CorpusFolder::new("split");
        let all = manifest(&folder, 0..1000);
        let split = all.split(1234);
        assert!((70..=130).contains(&split.eval.len()), "{}", split.eval.len());
        assert_eq!(split.train.len() + split.eval.len(), 1000);
        let eval = ids(&all, &split.eval);
        assert_ne!(eval, ids(&all, &all.split(1235).eval));

        let fewer = manifest(&folder, (0..1000).filter(|id| id % 3 != 0).chain(5000..5100));
        let kept: Vec<String> = eval.into_iter().filter(|id| id.parse::<u32>().unwrap() % 3 != 0).collect();
        let mut now = ids(&fewer, &fewer.split(1234).eval);
        now.retain(|id| id.parse::<u32>().unwrap() < 1000);
        assert_eq!(now, kept);
    }

    #[test]
    fn small_corpora_have_both_sets() {
        let folder = CorpusFolder::new("small_split");
        for (rows, expected) in [(0, (0, 0)), (1, (1, 0)), (2, (1, 1)), (3, (2, 1))] {
            let dataset = manifest(&folder, 0..rows);
            for seed in 0..20 {
                let split = dataset.split(seed);
                assert_eq!(split.train.len() + split.eval.len(), rows as usize);
                assert!(split.train.len().min(expected.0) >= rows.min(1) as usize);
                assert!(split.eval.len() >= expected.1, "{rows} {seed}");
            }
        }
    }

    #[test]
    fn another_corpus_has_another_fingerprint() {
        let folder = CorpusFolder::new("fingerprint");
        let prints: Vec<u64> = [0..10, 0..10, 0..11, 1..11].map(|ids| manifest(&folder, ids).fingerprint()).into();
        assert_eq!(prints[0], prints[1]);
        assert!(prints[0] != prints[2] && prints[0] != prints[3]);
    }
}
