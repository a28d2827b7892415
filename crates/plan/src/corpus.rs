//! What the plan must know of a corpus, and the shapes of batches that follow from it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tandem_corpus::SampleIndex;
use tandem_feed::{
    Bucket, BucketPlan, Extent, LeftOut, NUM_BUCKETS, Padding, RATE_HZ, TrainingSet, TrainingSetOptions, even_buckets,
    plain_table_bytes,
};

use crate::refusal::{Reason, Refusal};
use crate::setting::{Id, SettingKind};
use crate::settings::Settings;
use crate::speech::SpeechModels;
use crate::value::SettingValue;

/// A row of a corpus and its lengths.
type Row = (SampleIndex, Extent);

/// A corpus as a plan sees it: lengths, and nothing that needs a file.
#[derive(Clone, Debug)]
pub struct CorpusFacts {
    /// What it was called.
    pub name: String,
    /// The rows that can train, shortest recording first.
    rows: Arc<[Row]>,
    /// How long they are together.
    pub seconds: f64,
    /// Rates that the data device resamples.
    pub rates_hz: Vec<u32>,
    /// Bytes of the tables features are made with.
    pub table_bytes: u64,
    /// Different symbols of its texts.
    pub symbols: u32,
    /// The longest recording kept, in frames: the default of `--max-mel-frames`.
    pub max_frames: u32,
    /// The longest text kept, in symbols: the default of `--max-text-length`.
    pub max_tokens: u32,
    /// Whether every text was counted; else most rows carry a bound.
    pub counts_all: bool,
    /// What cannot train.
    pub left_out: LeftOut,
    /// Rows kept for validation.
    pub num_validation: usize,
    /// Rows that were named to be left out.
    pub num_excluded: usize,
    /// Bytes of all its recordings, decoded and kept.
    pub decoded_bytes: u64,
}

impl CorpusFacts {
    /// A corpus of these rows, all of them counted and at the features' rate. Cost: a sort.
    pub fn new(name: impl Into<String>, mut rows: Vec<Row>) -> CorpusFacts {
        rows.sort_by_key(|(_, extent)| extent.frames);
        let longest = |of: fn(&Extent) -> u32| rows.iter().map(|(_, extent)| of(extent)).max().unwrap_or(0);
        let frames: u64 = rows.iter().map(|(_, extent)| u64::from(extent.frames)).sum();
        let seconds = (frames * tandem_feed::HOP_SAMPLES) as f64 / f64::from(RATE_HZ);
        CorpusFacts {
            name: name.into(),
            seconds,
            rates_hz: Vec::new(),
            table_bytes: plain_table_bytes(),
            symbols: SpeechModels::USUAL_SYMBOLS,
            max_frames: longest(|extent| extent.frames),
            max_tokens: longest(|extent| extent.tokens),
            counts_all: true,
            left_out: LeftOut::default(),
            num_validation: 0,
            num_excluded: 0,
            decoded_bytes: decoded_bytes(seconds, RATE_HZ, rows.len()),
            rows: rows.into(),
        }
    }

    /// What `material` is like.
    pub fn of(name: impl Into<String>, material: &TrainingSet) -> CorpusFacts {
        let rates_hz = material.rates_hz().to_vec();
        // As if all of them had the highest rate: the cache is then never smaller than what it is for.
        let rate_hz = rates_hz.iter().copied().max().unwrap_or(RATE_HZ).max(RATE_HZ);
        CorpusFacts {
            seconds: material.audio_seconds(),
            rates_hz,
            table_bytes: material.table_bytes(),
            symbols: material.texts().map_or(0, |texts| texts.table().len() as u32),
            max_frames: material.max_frames(),
            max_tokens: material.max_tokens(),
            counts_all: material.counts_all(),
            left_out: *material.left_out(),
            decoded_bytes: decoded_bytes(material.audio_seconds(), rate_hz, material.rows().len()),
            ..CorpusFacts::new(name, material.rows().to_vec())
        }
    }

    /// The rows that can train, shortest recording first.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// What is kept of a recording beside its samples: a header, and the rest of a disk's last block.
const BESIDE_BYTES: u64 = 8192;

fn decoded_bytes(seconds: f64, rate_hz: u32, num_rows: usize) -> u64 {
    (seconds * f64::from(rate_hz) * 2.0) as u64 + BESIDE_BYTES * num_rows as u64
}

/// What of a corpus `settings` want: everything but its rows.
pub fn training_set_options(settings: &Settings) -> TrainingSetOptions {
    let most = |id| settings.given_count(id).map(|most| u32::try_from(most).unwrap_or(u32::MAX));
    TrainingSetOptions {
        lang: settings.text(Id::Lang),
        max_frames: most(Id::MaxMelFrames),
        max_tokens: most(Id::MaxTextLength),
        with_text: true,
        ..TrainingSetOptions::default()
    }
}

/// The corpus of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusPlan {
    /// What it was called.
    pub name: String,
    /// Rows that train.
    pub num_utterances: usize,
    /// How long they are together.
    pub seconds: f64,
    /// Rows kept for validation.
    pub num_validation: usize,
    /// Rows that were named to be left out.
    pub num_excluded: usize,
    /// What cannot train, or is too long.
    pub left_out: LeftOut,
    /// Bytes of its recordings, decoded.
    pub decoded_bytes: u64,
    /// What the first epoch carries and pads.
    pub padding: Padding,
    /// Whether texts were counted, so that the padding of symbols means something.
    pub counts_all: bool,
}

/// The shapes of batches: from the corpus, or as if its lengths were evenly spread. Shapes once solved are kept,
/// because a refusal tries many settings that have the same ones.
pub(crate) struct BucketShapes<'a> {
    corpus: Option<&'a CorpusFacts>,
    solved: RefCell<BTreeMap<(u64, u64, u64), Option<BucketPlan>>>,
}

impl<'a> BucketShapes<'a> {
    pub(crate) fn new(corpus: Option<&'a CorpusFacts>) -> BucketShapes<'a> {
        BucketShapes { corpus, solved: RefCell::default() }
    }

    /// `settings` with the longest recording and text spelled out, where the corpus says them.
    pub(crate) fn settle(&self, settings: &Settings) -> Settings {
        let mut settled = settings.clone();
        let Some(corpus) = self.corpus else { return settled };
        for (id, longest) in [(Id::MaxMelFrames, corpus.max_frames), (Id::MaxTextLength, corpus.max_tokens)] {
            let SettingKind::Count { min, max } = id.setting().kind else { continue };
            if settings.given(id).is_none() {
                settled.replace(id, SettingValue::Count(u64::from(longest).clamp(min, max)));
            }
        }
        settled
    }

    /// Rows that `settings` leave to train on; none without a corpus.
    pub(crate) fn num_rows(&self, settings: &Settings) -> Option<u64> {
        self.corpus.map(|corpus| kept(corpus, settings).len() as u64)
    }

    /// The least that a recording and a text can be limited to, in frames and tokens, so that something is left.
    pub(crate) fn least(&self) -> (u64, u64) {
        let shortest = self.corpus.and_then(|corpus| corpus.rows.first());
        shortest.map_or((8, 1), |(_, extent)| (u64::from(extent.frames).max(8), u64::from(extent.tokens).max(1)))
    }

    /// The rates that the data device resamples.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.corpus.map_or_else(plain_table_bytes, |corpus| corpus.table_bytes)
    }

    pub(crate) fn rates_hz(&self) -> Vec<u32> {
        self.corpus.map_or_else(Vec::new, |corpus| corpus.rates_hz.clone())
    }

    /// Recordings an index may name.
    pub(crate) fn num_recordings(&self) -> u64 {
        let rows = self.corpus.map_or(&[][..], CorpusFacts::rows);
        rows.iter().map(|(index, _)| index.at() as u64 + 1).max().unwrap_or(0)
    }

    /// The shapes for batches of `batch`: cut out of the corpus, or evenly spread ones.
    pub(crate) fn buckets(&self, settings: &Settings, batch: u64) -> Vec<Bucket> {
        let (frames, tokens) = longest(settings);
        match self.solve(settings, batch) {
            Some(plan) => plan.buckets().to_vec(),
            None => even_buckets(frames, tokens, batch),
        }
    }

    fn solve(&self, settings: &Settings, batch: u64) -> Option<BucketPlan> {
        let corpus = self.corpus?;
        let (frames, tokens) = longest(settings);
        let mut solved = self.solved.borrow_mut();
        let plan = solved.entry((frames, tokens, batch)).or_insert_with(|| {
            BucketPlan::solve(&kept(corpus, settings), NUM_BUCKETS, u32::try_from(batch).unwrap_or(u32::MAX))
        });
        plan.clone()
    }

    /// What a plan says of the corpus. Cost: linear in its rows where `with_padding`.
    pub(crate) fn plan(&self, settings: &Settings, batch: u64, with_padding: bool) -> Option<CorpusPlan> {
        let corpus = self.corpus?;
        let rows = kept(corpus, settings);
        let total = |rows: &[Row]| rows.iter().map(|(_, extent)| f64::from(extent.frames)).sum::<f64>();
        let share = if rows.is_empty() { 0.0 } else { total(&rows) / total(&corpus.rows) };
        let solved = if with_padding { self.solve(settings, batch) } else { None };
        let padding = solved.map_or_else(Padding::default, |plan| plan.padding(settings.count(Id::Seed)));
        Some(CorpusPlan {
            name: corpus.name.clone(),
            num_utterances: rows.len(),
            seconds: corpus.seconds * share,
            num_validation: corpus.num_validation,
            num_excluded: corpus.num_excluded,
            left_out: left_out(corpus, settings, rows.len()),
            decoded_bytes: (corpus.decoded_bytes as f64 * share) as u64,
            padding,
            counts_all: corpus.counts_all,
        })
    }

    /// The refusal of a corpus that does not make one batch.
    pub(crate) fn too_few(&self, settings: &Settings, wanted: &str) -> Refusal {
        let Some(corpus) = self.corpus else { return Refusal::new(Reason::Corpus, "❌ There is no corpus") };
        let usable = kept(corpus, settings).len();
        let why = show_left_out(&left_out(corpus, settings, usable), longest(settings));
        let why = if why.is_empty() { String::new() } else { format!("\n   Left out: {}", why.join("; ")) };
        let message = match usable {
            0 => format!("❌ No utterance can train: {}{why}", corpus.name),
            usable => format!("❌ {wanted} is more than the {usable} utterances that can train: {}{why}", corpus.name),
        };
        Refusal::new(Reason::Corpus, message)
    }
}

/// What was left out where these are the most frames and tokens, a part for each reason.
pub(crate) fn show_left_out(left_out: &LeftOut, (frames, tokens): (u64, u64)) -> Vec<String> {
    let parts = [
        (left_out.too_long, format!("over {frames} frames or {tokens} tokens")),
        (left_out.too_short, "too short for a frame, or for their text".to_owned()),
        (left_out.bad_text, "with an empty text or symbols outside the table".to_owned()),
        (left_out.no_length, "that cannot be measured".to_owned()),
    ];
    parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}

/// The longest recording and the longest text that `settings` keep, in frames and tokens.
fn longest(settings: &Settings) -> (u64, u64) {
    (settings.count(Id::MaxMelFrames), settings.count(Id::MaxTextLength))
}

/// The rows that `settings` leave. Nothing is copied where they leave all texts.
fn kept<'a>(corpus: &'a CorpusFacts, settings: &Settings) -> Cow<'a, [Row]> {
    let (frames, tokens) = longest(settings);
    let short = corpus.rows.partition_point(|(_, extent)| u64::from(extent.frames) <= frames);
    let short = &corpus.rows[..short];
    if u64::from(corpus.max_tokens) <= tokens {
        return Cow::Borrowed(short);
    }
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    // A bound says nothing about the text itself, which is looked at when it is loaded.
    let cut = |(index, extent): &Row| match extent.tokens <= tokens {
        true => Some((*index, *extent)),
        false => (!corpus.counts_all).then_some((*index, Extent { tokens, ..*extent })),
    };
    Cow::Owned(short.iter().filter_map(cut).collect())
}

/// What is left out when `usable` rows remain.
fn left_out(corpus: &CorpusFacts, settings: &Settings, usable: usize) -> LeftOut {
    let (frames, tokens) = longest(settings);
    let over = |extent: &Extent| u64::from(extent.frames) > frames || u64::from(extent.tokens) > tokens;
    let longer = corpus.rows.iter().filter(|(_, extent)| over(extent));
    longer.fold(
        LeftOut { too_long: corpus.left_out.too_long + corpus.rows.len() - usable, ..corpus.left_out },
        |left_out, (_, extent)| LeftOut {
            longest_frames: left_out.longest_frames.max(extent.frames.next_multiple_of(tandem_feed::FRAME_STEP)),
            longest_tokens: left_out.longest_tokens.max(extent.tokens),
            ..left_out
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{corpus, settings};

    #[test]
    fn shapes_come_from_the_corpus_and_stay_inside_the_settings() {
        let facts = corpus(1000);
        let check = |line: &str, batch: u64, rows: u64| {
            let shapes = BucketShapes::new(Some(&facts));
            let settings = shapes.settle(&settings(line));
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
        // The fixture: 80 to 1079 frames, a symbol for ten of them.
        check("", 16, 1000);
        check("--max-mel-frames 579", 16, 500);
        check("--max-text-length 57", 16, 500);
        check("--max-mel-frames 80", 1, 1);
        check("--max-mel-frames 100000", 16, 1000);
    }

    #[test]
    fn without_a_corpus_lengths_are_evenly_spread() {
        let shapes = BucketShapes::new(None);
        assert_eq!(shapes.buckets(&settings(""), 16), even_buckets(1000, 200, 16));
        assert_eq!((shapes.num_rows(&settings("")), shapes.least()), (None, (8, 1)));
        assert_eq!(shapes.plan(&settings(""), 16, true), None);
    }

    #[test]
    fn what_is_left_out_is_counted_with_what_it_would_have_cost() {
        let facts = corpus(1000);
        let shapes = BucketShapes::new(Some(&facts));
        let limited = shapes.settle(&settings("--max-mel-frames 579"));
        let plan = shapes.plan(&limited, 16, true).unwrap();
        assert_eq!((plan.num_utterances, plan.left_out.too_long), (500, 500));
        assert_eq!((plan.left_out.longest_frames, plan.left_out.longest_tokens), (1080, 107));
        assert!(plan.seconds < facts.seconds / 2.0 && plan.decoded_bytes < facts.decoded_bytes / 2);
        assert!(plan.padding.frame_waste() > 0.0 && plan.padding.frame_waste() < 0.2, "{:?}", plan.padding);
        let all = shapes.plan(&shapes.settle(&settings("")), 16, false).unwrap();
        assert_eq!((all.num_utterances, all.left_out.total(), all.padding.batches), (1000, 0, 0));
        assert!((all.seconds - facts.seconds).abs() < 1e-6);
    }

    #[test]
    fn bounds_are_cut_and_counts_are_left_out() {
        let mut facts = corpus(1000);
        let limited = settings("--max-text-length 57 --max-mel-frames 1079");
        assert_eq!(kept(&facts, &limited).len(), 500);
        facts.counts_all = false;
        let cut = kept(&facts, &limited);
        assert!(cut.len() == 1000 && cut.iter().all(|(_, extent)| extent.tokens <= 57));
    }
}
