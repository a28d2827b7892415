//! From the name of a corpus to the rows that become batches.

use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_corpus::{ColumnNames, Dataset, LengthIndex, OpenOptions, SpeakerPattern, Split, user_cache};
use tandem_feed::{
    BatchSchema, CustomText, TextSettings, TrainingSet, TrainingSetOptions, open_corpus, read_lexicon, scan_lengths,
    show_utterances,
};
use tandem_text::{Harakat, Phonemizer};

use crate::fields::with_text;
use crate::options::{ColumnOptions, SplitChoice};
use crate::{LoaderError, LoaderOptions};

/// Threads that scan shards and measure recordings.
const MAX_SCANNERS: usize = 8;

/// The rows of a corpus, and remarks about it for people.
pub(crate) struct Opened {
    pub(crate) rows: Arc<TrainingSet>,
    pub(crate) is_remote: bool,
    pub(crate) notes: Vec<String>,
}

/// Opens the corpus, measures its recordings and selects the rows. What was measured is stored in the user's cache, also if
/// `watch` stops it.
pub(crate) fn open(
    options: &LoaderOptions,
    schema: &BatchSchema,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Opened, LoaderError> {
    let mut notes = Vec::new();
    let names = options.sources();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_SCANNERS);
    let opened = open_corpus(&names, &open_options(options)?, threads, |_| ())?;
    notes.extend(opened.index_error.map(|error| format!("the index of its shards is not stored: {error}")));
    let dataset = opened.dataset;
    let mut num_problems = dataset.problems().len();
    let folder = user_cache::lengths();
    let (mut index, _) = LengthIndex::open(&folder.clone().unwrap_or_default(), &dataset);
    let scanned = scan_lengths(dataset, &mut index, threads, |_| watch())?;
    num_problems += scanned.problems.len();
    if folder.is_some()
        && scanned.measured > 0
        && let Err(error) = index.save()
    {
        notes.push(format!("cannot save the measured lengths: {error}"));
    }
    if scanned.stopped {
        return Err(LoaderError::Stopped);
    }
    if num_problems > 0 {
        notes.push(format!("problems in the corpus: {num_problems}; to list them: tandem corpus check"));
    }
    let is_remote = scanned.dataset.is_remote();
    let rows = select(options, scanned.dataset, schema)?;
    if rows.left_out().total() > 0 {
        let reasons = rows.left_out().reasons(&Default::default(), rows.max_frames().into(), rows.max_tokens().into());
        notes.push(format!("skipped {}: {}", show_utterances(rows.left_out().total()), reasons.join(", ")));
    }
    notes.extend(rows.text_error().map(|error| format!("the first text that was left out: {error}")));
    Ok(Opened { rows: Arc::new(rows), is_remote, notes })
}

fn select(options: &LoaderOptions, dataset: Dataset, schema: &BatchSchema) -> Result<TrainingSet, LoaderError> {
    let given = &options.given;
    let dataset = Arc::new(dataset);
    let Split { train, eval } = dataset.split(given.split_seed);
    let mut chosen = match given.split {
        SplitChoice::All => [train, eval].concat(),
        SplitChoice::Train => train,
        SplitChoice::Validation => eval,
    };
    chosen.sort_unstable();
    let training_set_options = TrainingSetOptions {
        features: options.features.clone(),
        text: text_settings(options)?,
        max_frames: given.max_frames,
        max_tokens: given.max_tokens,
        with_text: with_text(schema),
        allows_more_symbols_than_frames: true,
    };
    let rows = TrainingSet::survey(Arc::clone(&dataset), &chosen, &training_set_options)?;
    if rows.rows().is_empty() {
        let left_out = rows.left_out();
        let reasons = left_out.reasons(&dataset.rejected(), rows.max_frames().into(), rows.max_tokens().into());
        let first = rows.text_error().map(|error| format!(" (the first: {error})")).unwrap_or_default();
        let why = if reasons.is_empty() { "it has no rows".to_owned() } else { reasons.join(", ") };
        return Err(LoaderError::Nothing(format!("no utterance of the corpus can be used: {why}{first}")));
    }
    Ok(rows)
}

fn open_options(options: &LoaderOptions) -> Result<OpenOptions, LoaderError> {
    let given = &options.given;
    let pattern = given.speaker_id_pattern.as_deref().map(SpeakerPattern::parse).transpose();
    let ColumnOptions { audio, text, speaker, id, lang, duration } = given.columns.clone();
    Ok(OpenOptions {
        speaker_pattern: pattern.map_err(|error| LoaderError::Option(format!("speaker_id_pattern: {error}")))?,
        exclude_ids: given.exclude_ids.clone(),
        columns: ColumnNames { audio, text, speaker, id, lang, duration },
        index_folder: user_cache::shards(),
        ..OpenOptions::default()
    })
}

fn text_settings(options: &LoaderOptions) -> Result<TextSettings, LoaderError> {
    let text = &options.given.text;
    let phonemizer = match text.phonemizer.as_deref() {
        None | Some("auto") => None,
        Some(name) => {
            let found = Phonemizer::ALL.into_iter().find(|phonemizer| phonemizer.name() == name);
            let known = || Phonemizer::ALL.map(Phonemizer::name).join(", ");
            let refused = || LoaderError::Option(format!("text: phonemizer: expected {}, found {name:?}", known()));
            Some(found.ok_or_else(refused)?)
        }
    };
    let harakat = match text.harakat.as_deref() {
        None | Some("drop") => Harakat::Drop,
        Some("keep") => Harakat::Keep,
        Some(other) => {
            return Err(LoaderError::Option(format!("text: harakat: expected drop or keep, found {other:?}")));
        }
    };
    let lexicon = text.lexicon.as_deref().map(|path| {
        let refused = |why: String| LoaderError::Option(format!("text: lexicon: {why}: {}", path.display()));
        read_lexicon(path).map(Arc::new).map_err(refused)
    });
    Ok(TextSettings {
        lang: text.lang.clone(),
        phonemizer,
        harakat,
        lexicon: lexicon.transpose()?,
        custom: CustomText { encoder: options.encoder.clone(), map: options.map.clone(), pad: text.pad_id },
    })
}
