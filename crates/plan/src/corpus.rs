//! The lengths of a corpus, and the batch shapes (buckets) computed from them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tandem_corpus::SampleIndex;
use tandem_feed::{
    Bucket, BucketPlan, CustomText, Extent, FRAME_LIMITS, LeftOut, NUM_BUCKETS, Padding, RATE_HZ, TOKEN_LIMITS,
    TextSettings, TrainingSet, TrainingSetOptions, even_buckets, plain_table_bytes, read_lexicon,
};
use tandem_model::Vocabulary;
use tandem_storage::redact;
use tandem_text::{Harakat, Phonemizer};

use crate::refusal::{Reason, Refusal};
use crate::setting::Id;
use crate::settings::{SettingError, Settings};
use crate::speech::SpeechModels;
use crate::value::SettingValue;

/// A row of the corpus and its lengths.
type Row = (SampleIndex, Extent);

/// The lengths of a corpus. Planning needs nothing else of it and opens no file.
#[derive(Clone, Debug)]
pub struct CorpusFacts {
    /// Its name, for messages. Without the secrets of URLs.
    pub name: String,
    /// Whether some of its recordings are in an object store: these are fetched ahead.
    pub is_remote: bool,
    /// The usable rows, shortest recording first.
    rows: Arc<[Row]>,
    /// The rows of an epoch, shortest recording first: those of a mixture as often as their weights say.
    epoch_rows: Arc<[Row]>,
    /// Total duration.
    pub seconds: f64,
    /// Sample rates that the data device resamples.
    pub rates_hz: Vec<u32>,
    /// Bytes of the feature tables.
    pub table_bytes: u64,
    /// What its texts are made of.
    pub vocabulary: Vocabulary,
    /// Number of speakers; 1 if the corpus names none.
    pub num_speakers: u64,
    /// Default of `--max-mel-frames`: frames of the longest recording that is not skipped.
    pub max_frames: u32,
    /// Default of `--max-text-length`: tokens of the longest text that is not skipped.
    pub max_tokens: u32,
    /// Whether every text was tokenized. If not, most rows have an upper bound instead of a token count.
    pub exact_tokens: bool,
    /// Unusable rows, by reason.
    pub left_out: LeftOut,
    /// Rows used for validation.
    pub num_validation: usize,
    /// Rows excluded by `--exclude-ids`.
    pub num_excluded: usize,
    /// Rows of its lists that cannot be read, by reason in words.
    pub rejected: BTreeMap<&'static str, usize>,
    /// Bytes of all recordings in the decoded-audio cache.
    pub decoded_bytes: u64,
}

impl CorpusFacts {
    /// A corpus of these rows, with exact token counts, at the sample rate of the features. Cost: a sort.
    pub fn new(name: impl Into<String>, rows: Vec<Row>) -> CorpusFacts {
        let rows = shortest_first(rows);
        let longest = |of: fn(&Extent) -> u32| rows.iter().map(|(_, extent)| of(extent)).max().unwrap_or(0);
        let frames: u64 = rows.iter().map(|(_, extent)| u64::from(extent.frames)).sum();
        let seconds = (frames * tandem_feed::HOP_SAMPLES) as f64 / f64::from(RATE_HZ);
        CorpusFacts {
            name: redact(&name.into()),
            is_remote: false,
            seconds,
            rates_hz: Vec::new(),
            table_bytes: plain_table_bytes(),
            vocabulary: SpeechModels::DEFAULT_VOCABULARY,
            num_speakers: 1,
            max_frames: longest(|extent| extent.frames).clamp(*FRAME_LIMITS.start(), *FRAME_LIMITS.end()),
            max_tokens: longest(|extent| extent.tokens).clamp(*TOKEN_LIMITS.start(), *TOKEN_LIMITS.end()),
            exact_tokens: true,
            left_out: LeftOut::default(),
            num_validation: 0,
            num_excluded: 0,
            rejected: BTreeMap::new(),
            decoded_bytes: decoded_bytes(seconds, RATE_HZ, rows.len()),
            epoch_rows: Arc::clone(&rows),
            rows,
        }
    }

    /// The same, where an epoch has `rows`: each of the corpus's at least once. Cost: a sort.
    pub fn with_epoch_rows(self, rows: Vec<Row>) -> CorpusFacts {
        CorpusFacts { epoch_rows: shortest_first(rows), ..self }
    }

    /// The lengths of `training_set`.
    pub fn of(name: impl Into<String>, training_set: &TrainingSet) -> CorpusFacts {
        let rates_hz = training_set.rates_hz().to_vec();
        // The highest rate for all recordings: an upper bound on the cache size.
        let rate_hz = rates_hz.iter().copied().max().unwrap_or(RATE_HZ).max(RATE_HZ);
        let facts = CorpusFacts::new(name, training_set.rows().to_vec());
        let facts = match training_set.epoch_rows() {
            Cow::Borrowed(_) => facts,
            Cow::Owned(repeated) => facts.with_epoch_rows(repeated),
        };
        CorpusFacts {
            seconds: training_set.audio_seconds(),
            rates_hz,
            table_bytes: training_set.table_bytes(),
            vocabulary: vocabulary(training_set),
            num_speakers: (training_set.dataset().samples().speakers().len() as u64).max(1),
            max_frames: training_set.max_frames(),
            max_tokens: training_set.max_tokens(),
            exact_tokens: training_set.counts_all(),
            left_out: *training_set.left_out(),
            decoded_bytes: decoded_bytes(training_set.audio_seconds(), rate_hz, training_set.rows().len()),
            ..facts
        }
    }

    /// The usable rows, shortest recording first.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rows of an epoch, shortest recording first. Only those of a mixture with weights are others than
    /// [`CorpusFacts::rows`].
    pub fn epoch_rows(&self) -> &[Row] {
        &self.epoch_rows
    }
}

fn shortest_first(mut rows: Vec<Row>) -> Arc<[Row]> {
    rows.sort_by_key(|(_, extent)| extent.frames);
    rows.into()
}

/// What the texts of a training set are made of. A model has at least one symbol.
pub fn vocabulary(training_set: &TrainingSet) -> Vocabulary {
    let Some(tokenizer) = training_set.tokenizer() else { return Vocabulary::of_one_language(1) };
    Vocabulary { symbols: tokenizer.table().len() as u32, languages: tokenizer.languages().len() as u32 }
}

/// Cache overhead per recording: a header and the unused rest of the last disk block.
const OVERHEAD_BYTES: u64 = 8192;

fn decoded_bytes(seconds: f64, rate_hz: u32, num_rows: usize) -> u64 {
    (seconds * f64::from(rate_hz) * 2.0) as u64 + OVERHEAD_BYTES * num_rows as u64
}

/// How `settings` select rows of a corpus. Reads the lexicon; fails if it cannot be read.
pub fn training_set_options(settings: &Settings) -> Result<TrainingSetOptions, SettingError> {
    let max = |id| settings.given_count(id).map(|max| u32::try_from(max).unwrap_or(u32::MAX));
    Ok(TrainingSetOptions {
        text: text_settings(settings)?,
        max_frames: max(Id::MaxMelFrames),
        max_tokens: max(Id::MaxTextLength),
        with_text: true,
        ..TrainingSetOptions::default()
    })
}

/// How `settings` turn texts into tokens. Reads the lexicon; fails if it cannot be read.
pub fn text_settings(settings: &Settings) -> Result<TextSettings, SettingError> {
    let named = |name: &str| Phonemizer::ALL.into_iter().find(|phonemizer| phonemizer.name() == name);
    let lexicon = |path: String| {
        let refused = |why: String| SettingError::UnusableFile { flag: "lexicon", why, path: path.clone() };
        read_lexicon(Path::new(&path)).map(Arc::new).map_err(refused)
    };
    Ok(TextSettings {
        lang: settings.text(Id::Lang),
        phonemizer: named(settings.choice(Id::Phonemizer)),
        harakat: if settings.choice(Id::Harakat) == "keep" { Harakat::Keep } else { Harakat::Drop },
        lexicon: settings.text(Id::Lexicon).map(lexicon).transpose()?,
        custom: CustomText::default(),
    })
}

/// The part of a corpus that a plan trains on.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusPlan {
    /// Its path, for messages.
    pub name: String,
    /// Rows used for training.
    pub num_utterances: usize,
    /// Their total duration.
    pub seconds: f64,
    /// Utterances of an epoch: those of a mixture as often as their weights say.
    pub epoch_utterances: usize,
    /// Total duration of an epoch.
    pub epoch_seconds: f64,
    /// Rows used for validation.
    pub num_validation: usize,
    /// Rows excluded by `--exclude-ids`.
    pub num_excluded: usize,
    /// Rows of its lists that cannot be read, by reason in words.
    pub rejected: BTreeMap<&'static str, usize>,
    /// Skipped rows, by reason: unusable or too long.
    pub left_out: LeftOut,
    /// Bytes of the recordings in the decoded-audio cache.
    pub decoded_bytes: u64,
    /// Padding of the first epoch.
    pub padding: Padding,
    /// Whether every text was tokenized. Only then is the padding of tokens meaningful.
    pub exact_tokens: bool,
}

/// Lengths of a recording and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lengths {
    pub(crate) frames: u64,
    pub(crate) tokens: u64,
}

impl Lengths {
    /// The longest recording and text that `settings` allow.
    pub(crate) fn max(settings: &Settings) -> Lengths {
        Lengths { frames: settings.count(Id::MaxMelFrames), tokens: settings.count(Id::MaxTextLength) }
    }
}

/// Batch shapes, from the corpus or for evenly spread lengths without one. Solved shapes are cached, because a refusal
/// tries many settings with the same shapes.
pub(crate) struct BucketShapes<'a> {
    corpus: Option<&'a CorpusFacts>,
    solved: RefCell<BTreeMap<ShapeKey, Option<BucketPlan>>>,
}

/// What a solved shape depends on, for one corpus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ShapeKey {
    max: Lengths,
    batch: u64,
}

impl<'a> BucketShapes<'a> {
    pub(crate) fn new(corpus: Option<&'a CorpusFacts>) -> BucketShapes<'a> {
        BucketShapes { corpus, solved: RefCell::default() }
    }

    /// `settings` with the length limits of the corpus, where the user gave none.
    pub(crate) fn with_corpus_lengths(&self, settings: &Settings) -> Settings {
        let mut resolved = settings.clone();
        let Some(corpus) = self.corpus else { return resolved };
        for (id, longest) in [(Id::MaxMelFrames, corpus.max_frames), (Id::MaxTextLength, corpus.max_tokens)] {
            // As they are: the feed trains on what the survey of the corpus selected, and on nothing else.
            if settings.given(id).is_none() {
                resolved.replace(id, SettingValue::Count(longest.into()));
            }
        }
        resolved
    }

    /// Number of rows that `settings` select; `None` without a corpus.
    pub(crate) fn num_rows(&self, settings: &Settings) -> Option<u64> {
        self.corpus.map(|corpus| selected_rows(corpus, &corpus.rows, settings).len() as u64)
    }

    /// The smallest length limits that still select a row.
    pub(crate) fn min_lengths(&self) -> Lengths {
        let (frames, tokens) = match self.corpus.and_then(|corpus| corpus.rows.first()) {
            Some((_, extent)) => (extent.frames, extent.tokens),
            None => (0, 0),
        };
        Lengths { frames: u64::from(frames).max(8), tokens: u64::from(tokens).max(1) }
    }

    /// Number of speakers, at least 1.
    pub(crate) fn num_speakers(&self) -> u64 {
        self.corpus.map_or(1, |corpus| corpus.num_speakers)
    }

    /// Bytes of the feature tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.corpus.map_or_else(plain_table_bytes, |corpus| corpus.table_bytes)
    }

    /// Whether recordings are in an object store.
    pub(crate) fn is_remote(&self) -> bool {
        self.corpus.is_some_and(|corpus| corpus.is_remote)
    }

    /// Sample rates that the data device resamples.
    pub(crate) fn rates_hz(&self) -> Vec<u32> {
        self.corpus.map_or_else(Vec::new, |corpus| corpus.rates_hz.clone())
    }

    /// One more than the largest row index.
    pub(crate) fn num_recordings(&self) -> u64 {
        let rows = self.corpus.map_or(&[][..], CorpusFacts::rows);
        rows.iter().map(|(index, _)| index.at() as u64 + 1).max().unwrap_or(0)
    }

    /// The shapes of batches of `batch` utterances.
    pub(crate) fn buckets(&self, settings: &Settings, batch: u64) -> Vec<Bucket> {
        let max = Lengths::max(settings);
        match self.solve(settings, batch) {
            Some(plan) => plan.buckets().to_vec(),
            None => even_buckets(max.frames, max.tokens, batch),
        }
    }

    fn solve(&self, settings: &Settings, batch: u64) -> Option<BucketPlan> {
        let corpus = self.corpus?;
        let mut solved = self.solved.borrow_mut();
        let plan = solved.entry(ShapeKey { max: Lengths::max(settings), batch }).or_insert_with(|| {
            let rows = selected_rows(corpus, &corpus.epoch_rows, settings);
            BucketPlan::solve(&rows, NUM_BUCKETS, u32::try_from(batch).unwrap_or(u32::MAX))
        });
        plan.clone()
    }

    /// The corpus part of a plan. Cost: linear in the rows if `with_padding`.
    pub(crate) fn plan(&self, settings: &Settings, batch: u64, with_padding: bool) -> Option<CorpusPlan> {
        let corpus = self.corpus?;
        let rows = selected_rows(corpus, &corpus.rows, settings);
        let epoch_rows = selected_rows(corpus, &corpus.epoch_rows, settings);
        let total = |rows: &[Row]| rows.iter().map(|(_, extent)| f64::from(extent.frames)).sum::<f64>();
        let share_of = |rows: &[Row]| if rows.is_empty() { 0.0 } else { total(rows) / total(&corpus.rows) };
        let share = share_of(&rows);
        let solved = if with_padding { self.solve(settings, batch) } else { None };
        let padding = solved.map_or_else(Padding::default, |plan| plan.padding(settings.count(Id::Seed)));
        Some(CorpusPlan {
            name: corpus.name.clone(),
            num_utterances: rows.len(),
            seconds: corpus.seconds * share,
            epoch_utterances: epoch_rows.len(),
            epoch_seconds: corpus.seconds * share_of(&epoch_rows),
            num_validation: corpus.num_validation,
            num_excluded: corpus.num_excluded,
            rejected: corpus.rejected.clone(),
            left_out: skipped(corpus, settings, rows.len()),
            decoded_bytes: (corpus.decoded_bytes as f64 * share) as u64,
            padding,
            exact_tokens: corpus.exact_tokens,
        })
    }

    /// The refusal of a corpus with too few usable rows for one batch.
    pub(crate) fn too_few_rows(&self, settings: &Settings, wanted: &str) -> Refusal {
        let Some(corpus) = self.corpus else { return Refusal::new(Reason::Corpus, "❌ No corpus") };
        let usable = selected_rows(corpus, &corpus.rows, settings).len();
        let Lengths { frames, tokens } = Lengths::max(settings);
        let why = skipped(corpus, settings, usable).reasons(&corpus.rejected, frames, tokens);
        let why = if why.is_empty() { String::new() } else { format!("\n   Skipped: {}", why.join("; ")) };
        let message = match usable {
            0 => format!("❌ No usable utterances: {}{why}", corpus.name),
            usable => format!("❌ {wanted} is more than the {usable} usable utterances: {}{why}", corpus.name),
        };
        Refusal::new(Reason::Corpus, message)
    }
}

/// Those of `rows` of the corpus, shortest recording first, that `settings` select. Borrowed if no text is too long.
fn selected_rows<'a>(corpus: &CorpusFacts, rows: &'a [Row], settings: &Settings) -> Cow<'a, [Row]> {
    let Lengths { frames, tokens } = Lengths::max(settings);
    let short = rows.partition_point(|(_, extent)| u64::from(extent.frames) <= frames);
    let short = &rows[..short];
    if u64::from(corpus.max_tokens) <= tokens {
        return Cow::Borrowed(short);
    }
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    // An upper bound above the limit does not mean that the text is too long: loading checks the text itself.
    let clamp = |(index, extent): &Row| match extent.tokens <= tokens {
        true => Some((*index, *extent)),
        false => (!corpus.exact_tokens).then_some((*index, Extent { tokens, ..*extent })),
    };
    Cow::Owned(short.iter().filter_map(clamp).collect())
}

/// The skipped rows, where `usable` rows remain.
fn skipped(corpus: &CorpusFacts, settings: &Settings, usable: usize) -> LeftOut {
    let Lengths { frames, tokens } = Lengths::max(settings);
    let over = |extent: &Extent| u64::from(extent.frames) > frames || u64::from(extent.tokens) > tokens;
    let longer = corpus.rows.iter().filter(|(_, extent)| over(extent));
    longer.fold(
        LeftOut { too_long: corpus.left_out.too_long + corpus.rows.len() - usable, ..corpus.left_out },
        |skipped, (_, extent)| LeftOut {
            longest_frames: skipped.longest_frames.max(extent.frames.next_multiple_of(tandem_feed::FRAME_STEP)),
            longest_tokens: skipped.longest_tokens.max(extent.tokens),
            ..skipped
        },
    )
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;
    use crate::fixture::{corpus, settings};

    #[test]
    fn shapes_come_from_the_corpus_and_respect_the_length_limits() {
        let facts = corpus(1000);
        let check = |line: &str, batch: u64, rows: u64| {
            let shapes = BucketShapes::new(Some(&facts));
            let settings = shapes.with_corpus_lengths(&settings(line));
            let buckets = shapes.buckets(&settings, batch);
            assert_eq!(shapes.num_rows(&settings), Some(rows), "{line}");
            assert!(!buckets.is_empty() && buckets.len() <= NUM_BUCKETS);
            for bucket in buckets {
                assert_eq!(bucket.batch(), batch.min(rows));
                assert!(bucket.longest_tokens() <= settings.count(Id::MaxTextLength), "{line}: {bucket:?}");
                let longest = settings.count(Id::MaxMelFrames).next_multiple_of(8);
                assert!(bucket.longest_frames() <= longest, "{line}: {bucket:?}");
            }
        };
        // The fixture: 80 to 1079 frames, a token per ten frames.
        check("", 16, 1000);
        check("--max-mel-frames 579", 16, 500);
        check("--max-text-length 57", 16, 500);
        check("--max-mel-frames 80", 1, 1);
        check("--max-mel-frames 100000", 16, 1000);
    }

    #[test]
    fn the_name_of_a_corpus_has_no_secrets() {
        let facts = CorpusFacts::new("https://anna:SECRET@host/a.tar?sig=SECRET b.tar", Vec::new());
        assert_eq!((facts.name.as_str(), facts.is_remote), ("https://…@host/a.tar?… b.tar", false));
    }

    #[test]
    fn without_a_corpus_lengths_are_evenly_spread() {
        let shapes = BucketShapes::new(None);
        assert_eq!(shapes.buckets(&settings(""), 16), even_buckets(1000, 200, 16));
        assert_eq!(shapes.num_rows(&settings("")), None);
        assert_eq!(shapes.min_lengths(), Lengths { frames: 8, tokens: 1 });
        assert_eq!(shapes.plan(&settings(""), 16, true), None);
    }

    #[test]
    fn skipped_rows_are_counted_with_their_longest_lengths() {
        let facts = corpus(1000);
        let shapes = BucketShapes::new(Some(&facts));
        let limited = shapes.with_corpus_lengths(&settings("--max-mel-frames 579"));
        let plan = shapes.plan(&limited, 16, true).unwrap();
        assert_eq!((plan.num_utterances, plan.left_out.too_long), (500, 500));
        assert_eq!((plan.left_out.longest_frames, plan.left_out.longest_tokens), (1080, 107));
        assert!(plan.seconds < facts.seconds / 2.0 && plan.decoded_bytes < facts.decoded_bytes / 2);
        assert!(plan.padding.frame_waste() > 0.0 && plan.padding.frame_waste() < 0.2, "{:?}", plan.padding);
        let all = shapes.plan(&shapes.with_corpus_lengths(&settings("")), 16, false).unwrap();
        assert_eq!((all.num_utterances, all.left_out.total(), all.padding.batches), (1000, 0, 0));
        assert!((all.seconds - facts.seconds).abs() < 1e-6);
    }

    #[test]
    fn shapes_and_epochs_of_a_mixture_are_those_of_the_repeated_rows() {
        let plain = corpus(100);
        // The 60 longest five times, as a mixture with weights 1 and 5 has them.
        let times = |index: SampleIndex| if index.at() < 40 { 1 } else { 5 };
        let repeated: Vec<Row> = plain.rows().iter().flat_map(|row| repeat_n(*row, times(row.0))).collect();
        let mixture = plain.clone().with_epoch_rows(repeated.clone());
        let (plain, mixture) = (BucketShapes::new(Some(&plain)), BucketShapes::new(Some(&mixture)));
        let all = mixture.with_corpus_lengths(&settings(""));
        let solved = BucketPlan::solve(&repeated, NUM_BUCKETS, 16).unwrap();
        assert_eq!(mixture.buckets(&all, 16), solved.buckets());
        assert_ne!(mixture.buckets(&all, 16), plain.buckets(&all, 16));

        let (once, planned) = (plain.plan(&all, 16, true).unwrap(), mixture.plan(&all, 16, true).unwrap());
        assert_eq!((planned.num_utterances, planned.epoch_utterances), (100, 340));
        assert_eq!((once.epoch_utterances, once.epoch_seconds), (once.num_utterances, once.seconds));
        assert_eq!(planned.padding, solved.padding(1234));
        assert_eq!((once.padding.batches, planned.padding.batches), (100 / 16, 340 / 16));
        assert_eq!((planned.seconds, planned.decoded_bytes), (once.seconds, once.decoded_bytes));
        let frames = |rows: &[Row]| rows.iter().map(|(_, extent)| f64::from(extent.frames)).sum::<f64>();
        let ratio = frames(&repeated) / frames(mixture.corpus.unwrap().rows());
        assert!((planned.epoch_seconds / planned.seconds - ratio).abs() < 1e-9, "{planned:?}");

        // Limits on lengths select from both alike: 80 to 129 frames, 40 of them once.
        let limited = mixture.with_corpus_lengths(&settings("--max-mel-frames 129"));
        let planned = mixture.plan(&limited, 16, true).unwrap();
        assert_eq!((planned.num_utterances, planned.epoch_utterances, planned.left_out.too_long), (50, 90, 50));
        assert_eq!(mixture.num_rows(&limited), Some(50));
    }

    #[test]
    fn rows_with_a_bound_are_clamped_and_rows_with_a_count_are_skipped() {
        let mut facts = corpus(1000);
        let limited = settings("--max-text-length 57 --max-mel-frames 1079");
        assert_eq!(selected_rows(&facts, facts.rows(), &limited).len(), 500);
        facts.exact_tokens = false;
        let clamped = selected_rows(&facts, facts.rows(), &limited);
        assert!(clamped.len() == 1000 && clamped.iter().all(|(_, extent)| extent.tokens <= 57));
    }
}
