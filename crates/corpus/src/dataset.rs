//! A corpus as a whole: its rows, what is wrong with them, and which of them train.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_files::open_bounded;
use tandem_random::keyed;

use crate::audio_folder::AudioFolder;
use crate::common_voice::BadHeader;
use crate::error::CorpusError;
use crate::format::{CorpusLayout, Format, endings};
use crate::index::Length;
use crate::ljspeech::ColumnOrder;
use crate::problem::{Findings, Problem, ProblemKind, excerpt};
use crate::sample::{Sample, SampleIndex, Samples, Subset};
use crate::speaker::SpeakerPattern;
use crate::{common_voice, exclude, ljspeech, manifest, text_files, vctk};

/// How to read a corpus.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Takes the speaker from the id of rows that name none.
    pub speaker_pattern: Option<SpeakerPattern>,
    /// A list of ids that neither train nor evaluate.
    pub exclude_ids: Option<PathBuf>,
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
    /// Reads the corpus at `path`, a folder or a list; `format.rs` says which format it is taken for.
    ///
    /// Cost: one pass over the lists, and one listing of each folder of recordings; where texts are files, all of them are
    /// read. Of a manifest's recordings none is looked at (see [`Dataset::missing_audio`]). Memory: the letters and 56
    /// bytes a row. Fails when `path` is no corpus, or when a list cannot be read; what is wrong with rows is in
    /// [`Dataset::problems`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Dataset, CorpusError> {
        let path = path.as_ref();
        let layout = CorpusLayout::of(path)?;
        let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut dataset = Dataset {
            path: path.to_owned(),
            format: layout.format,
            audio: layout.audio.clone(),
            not_read: layout.not_read.clone(),
            samples: Samples::new(root.to_owned()),
            unmeasured: HashMap::new(),
            problems: Vec::new(),
            num_row_problems: 0,
        };
        dataset.read(root, &layout, options)?;
        dataset.num_row_problems = dataset.problems.len();
        if let Some(list) = &options.exclude_ids {
            exclude::apply(list, &mut dataset.samples, &mut dataset.problems)?;
        }
        dataset.samples.shrink();
        Ok(dataset)
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
        match self.audio.as_str() {
            "" => title.to_owned(),
            audio => format!("{title}, recordings in {audio}"),
        }
    }

    /// What else the folder holds that could be read as a corpus, and was not: `Common Voice`, `validated.tsv (…)`.
    pub fn not_read(&self) -> &[String] {
        &self.not_read
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

/// Keeps the first row of every id and reports the others, with the line of the first.
///
/// Sorting numbers that stand for ids costs a sixth of a second for a million rows, and no copy of an id.
fn drop_duplicates(samples: &mut Samples, problems: &mut Vec<Problem>) {
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
    drop_rows(samples, dropped);
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

fn drop_rows(samples: &mut Samples, mut dropped: Vec<SampleIndex>) {
    if !dropped.is_empty() {
        dropped.sort_unstable();
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
