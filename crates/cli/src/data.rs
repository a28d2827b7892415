//! Opens the corpus of a run, measures it and splits it, before the plan is made.
//!
//! A path without a corpus and a list that cannot be read are wrong usage: exit code 2. Rows that cannot be measured are
//! skipped; the plan counts them, and `-v` names them.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tandem_corpus::{CorpusError, Dataset, LengthIndex, Locator, OpenOptions, SampleIndex, SpeakerPattern, user_cache};
use tandem_feed::{
    FeedError, OpenedCorpus, TrainingSet, TrainingSetOptions, language_hints, open_corpus, scan_lengths,
};
use tandem_launch::demo;
use tandem_launch::inventory::host_facts;
use tandem_launch::launch::{Corpora, ValidationUtterances};
use tandem_plan::setting::Id;
use tandem_plan::{CorpusFacts, Settings, parse_columns, training_set_options};
use tandem_storage::Storage;

use crate::args::PlanArgs;
use crate::corpus::{counted, shown_names, silence_decoder_panics};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// More threads do not measure lengths faster.
const MAX_SCANNERS: usize = 8;

/// An opened corpus.
pub(crate) struct FoundCorpus {
    /// What the plan needs to know about it.
    pub(crate) facts: CorpusFacts,
    /// The training set and the validation set.
    pub(crate) corpora: Corpora,
}

/// The corpus of the settings, or synthetic speech generated into `folder`.
pub(crate) fn open_or_generate(args: &PlanArgs, folder: &Scratch, screen: &Screen) -> Result<FoundCorpus, Exit> {
    open(args, screen)?.map_or_else(|| generate(args, folder), Ok)
}

/// Generates synthetic speech into `folder`.
pub(crate) fn generate(args: &PlanArgs, folder: &Scratch) -> Result<FoundCorpus, Exit> {
    let (facts, corpora) = demo::corpora(&folder.path().join("speech"), &args.settings).map_err(anyhow::Error::new)?;
    Ok(FoundCorpus { facts, corpora })
}

/// The corpus of `--train-data`. None without the flag.
pub(crate) fn open(args: &PlanArgs, screen: &Screen) -> Result<Option<FoundCorpus>, Exit> {
    let settings = &args.settings;
    let Some(name) = settings.text(Id::TrainData) else { return Ok(None) };
    silence_decoder_panics();
    // One for both corpora: they share connections and credentials.
    let storage = Storage::default();
    let train = read(args, screen, Id::TrainData, &storage)?;
    let mut validation_dataset = None;
    let (rows, mut validation_rows) = match settings.text(Id::ValData) {
        Some(_) => {
            let validation = read(args, screen, Id::ValData, &storage)?;
            let rows = validation.eval_rows();
            warn_of_overlap(&train, &validation, &rows, screen);
            validation_dataset = Some(Arc::new(validation));
            (train.train_rows(), rows)
        }
        None => {
            let split = train.split(settings.count(Id::Seed));
            (split.train, split.eval)
        }
    };
    validation_rows.sort_unstable();
    let (num_excluded, rejected) = (train.num_excluded(), train.rejected());
    let options = training_set_options(settings).map_err(|error| Exit::Usage(format!("❌ {error}")))?;
    language_hints(&train, &options.text).iter().for_each(|hint| screen.warn(hint));
    let training_set = survey(train, &rows, &options)?;
    if let Some(validation) = &validation_dataset {
        leave_out_other_languages(&training_set, validation, &mut validation_rows, screen);
    }
    let mut facts = CorpusFacts::of(name, &training_set);
    (facts.num_validation, facts.num_excluded, facts.rejected) = (validation_rows.len(), num_excluded, rejected);
    facts.is_remote = training_set.dataset().is_remote();
    let dataset = validation_dataset.unwrap_or_else(|| Arc::clone(training_set.dataset()));
    let corpora =
        Corpora { train: Arc::new(training_set), validation: ValidationUtterances { dataset, rows: validation_rows } };
    Ok(Some(FoundCorpus { facts, corpora }))
}

/// Leaves out utterances of the validation set in languages that the model does not learn: it would read them as another.
fn leave_out_other_languages(train: &TrainingSet, validation: &Dataset, rows: &mut Vec<SampleIndex>, screen: &Screen) {
    let Some(tokenizer) = train.tokenizer() else { return };
    let (total, mut others) = (rows.len(), BTreeSet::new());
    rows.retain(|row| {
        let Some(sample) = validation.get(*row).filter(|sample| !tokenizer.knows_language_of(sample)) else {
            return true;
        };
        others.extend(sample.lang.map(str::to_owned));
        false
    });
    if rows.len() < total {
        let (count, others) = (total - rows.len(), others.into_iter().collect::<Vec<_>>().join(", "));
        screen.warn(&format!(
            "--val-data: {count} of its {total} utterances are not used: --train-data has nothing in their language ({others})"
        ));
    }
}

/// Warns if utterances of the validation set are trained on: validation would measure memory, not speech.
fn warn_of_overlap(train: &Dataset, validation: &Dataset, rows: &[SampleIndex], screen: &Screen) {
    let file_name = |key: &str| key.rsplit('/').next().unwrap_or(key).to_owned();
    let recording = |audio: &Locator<'_>| {
        let path = audio.show();
        // One folder can be reached by several names.
        let path = std::fs::canonicalize(&path).map_or(path, |path| path.display().to_string());
        (path, audio.range.map(|range| range.offset_s.to_bits()))
    };
    let validated = || rows.iter().filter_map(|row| validation.get(*row)).map(|sample| sample.audio);
    // Paths are only resolved where file names agree: a training set may have a million rows.
    let names: HashSet<String> = validated().map(|audio| file_name(audio.key)).collect();
    let trained = train.train_rows().into_iter().filter_map(|row| train.get(row)).map(|sample| sample.audio);
    let trained: HashSet<_> =
        trained.filter(|audio| names.contains(&file_name(audio.key))).map(|audio| recording(&audio)).collect();
    let both = validated().filter(|audio| trained.contains(&recording(audio))).count();
    if both > 0 {
        let total = rows.len();
        screen.warn(&format!(
            "--val-data: {both} of its {total} utterances are also in --train-data, so validation will look better \
             than it is. Leave --val-data out to split --train-data"
        ));
    }
}

/// Reads the lists and shards of a corpus and measures the recordings whose length they do not give.
fn read(args: &PlanArgs, screen: &Screen, id: Id, storage: &Storage) -> Result<Dataset, Exit> {
    let settings = &args.settings;
    let usage = |error: String| Exit::Usage(format!("❌ {error}"));
    let pattern = settings.text(Id::SpeakerIdPattern);
    let speaker_pattern = pattern.as_deref().map(SpeakerPattern::parse).transpose();
    let columns = settings.text(Id::Columns).as_deref().map(parse_columns).transpose();
    let options = OpenOptions {
        speaker_pattern: speaker_pattern.map_err(|error| usage(error.to_string()))?,
        exclude_ids: settings.text(Id::ExcludeIds).map(PathBuf::from),
        columns: columns.map_err(|error| usage(format!("--columns: {error}")))?.unwrap_or_default(),
        storage: storage.clone(),
        index_folder: user_cache::shards()
            .or_else(|| run_folder(settings).is_dir().then(|| run_folder(settings).join("shards"))),
    };
    let flag = id.setting().flag;
    let names = settings.texts(id);
    let opened = open_shards(&names, &options, screen).map_err(|error| not_opened(error, id, &options))?;
    if let Some(error) = &opened.index_error {
        screen.warn(&format!("--{flag}: the index of its shards is not stored: {error}"));
    }
    if args.verbose && (opened.num_scanned > 0 || opened.num_indexed > 0) {
        screen.progress(&format!("--{flag}: {}", describe_index(&opened)))?;
    }
    let dataset = opened.dataset;
    if settings.text(Id::Columns).is_some() && !dataset.has_columns() {
        screen.warn(&format!("--columns has no effect: {} has no columns", dataset.format().title()));
    }
    if !dataset.not_read().is_empty() {
        let (taken, others) = (dataset.describe(), dataset.not_read().join(", "));
        screen.warn(&format!("--{flag}: read as {taken}; not read: {others}"));
    }
    let found = dataset.problems().to_vec();
    let LengthFolder { path: folder, is_writable } = length_folder(&args.settings);
    let (mut index, _) = LengthIndex::open(&folder, &dataset);
    let mut ticker = screen.ticker("Measuring recordings");
    let scanned = scan_lengths(dataset, &mut index, host_facts().cores.min(MAX_SCANNERS), |progress| {
        ticker.show(progress.done, progress.total);
        ControlFlow::Continue(())
    });
    drop(ticker);
    let scanned = scanned.context("cannot measure the recordings")?;
    if is_writable && let Err(error) = index.save() {
        screen.warn(&format!("cannot save the measured lengths: {error}"));
    }
    let num_problems = found.len() + scanned.problems.len();
    if num_problems > 0 {
        let shown = shown_names(&names);
        screen.warn(&format!("--{flag}: {num_problems} problems; to list them: tandem corpus check {shown}"));
    }
    if args.verbose {
        let run = run_folder(&args.settings);
        let saved = match is_writable {
            true => format!("lengths saved in {}", folder.display()),
            false => format!("lengths not saved: no folder {}", run.display()),
        };
        screen.progress(&format!("--{flag}: measured {} recordings, {saved}", scanned.measured))?;
        found.iter().chain(&scanned.problems).for_each(|problem| screen.warn(&problem.to_string()));
    }
    Ok(scanned.dataset)
}

/// Where known lengths are read from.
struct LengthFolder {
    path: PathBuf,
    /// New lengths are saved there.
    is_writable: bool,
}

/// The run's folder, once it exists. Until then, the lengths that `corpus check` has saved, read-only.
fn length_folder(settings: &Settings) -> LengthFolder {
    let run = run_folder(settings);
    match run.is_dir() {
        true => LengthFolder { path: run, is_writable: true },
        false => LengthFolder { path: user_cache::lengths().unwrap_or_default(), is_writable: false },
    }
}

fn run_folder(settings: &Settings) -> PathBuf {
    settings.text(Id::CheckpointDir).unwrap_or_default().into()
}

fn survey(dataset: Dataset, rows: &[SampleIndex], options: &TrainingSetOptions) -> Result<TrainingSet, Exit> {
    TrainingSet::survey(Arc::new(dataset), rows, options).map_err(|error| match error {
        FeedError::Espeak(_) | FeedError::Text(_) => Exit::Usage(format!("❌ --phonemizer: {error}")),
        other => Exit::Failed(anyhow::Error::new(other).context("the corpus cannot be used")),
    })
}

/// Opens a corpus, with progress while its shards are scanned.
pub(crate) fn open_shards(names: &[String], options: &OpenOptions, screen: &Screen) -> Result<OpenedCorpus, FeedError> {
    let mut ticker = None;
    open_corpus(names, options, host_facts().cores.min(MAX_SCANNERS), |progress| {
        let ticker = ticker.get_or_insert_with(|| screen.ticker("Indexing shards"));
        ticker.show(progress.done, progress.total);
    })
}

/// What opening did about shards, in words.
pub(crate) fn describe_index(opened: &OpenedCorpus) -> String {
    let OpenedCorpus { num_indexed, num_scanned, num_measured, num_decoded, .. } = opened;
    let decoded = match num_decoded {
        0 => String::new(),
        _ => format!(", {num_decoded} of them by decoding, because their headers have no length"),
    };
    let measured = match num_measured {
        0 => String::new(),
        _ => format!("; measured {num_measured} recordings{decoded}"),
    };
    format!("{} from the index, {num_scanned} scanned{measured}", counted(*num_indexed, "shard"))
}

fn not_opened(error: FeedError, id: Id, options: &OpenOptions) -> Exit {
    let id = match &error {
        FeedError::Corpus(CorpusError::Read { path, .. }) if Some(path) == options.exclude_ids.as_ref() => {
            Id::ExcludeIds
        }
        _ => id,
    };
    let flag = id.setting().flag;
    if is_failure(&error) {
        return Exit::Failed(anyhow::Error::new(error).context(format!("--{flag}")));
    }
    let help = match id {
        Id::ExcludeIds => "Expected: a text file with one id per line",
        _ => "For a demo corpus: tandem corpus demo -o DIR",
    };
    Exit::Usage(format!("❌ --{flag}: {error}\n   {help}"))
}

/// Whether the world failed, rather than the command that was typed.
pub(crate) fn is_failure(error: &FeedError) -> bool {
    match error {
        FeedError::Corpus(error) => error.is_failure(),
        _ => true,
    }
}
