//! The rows of a corpus that train: their lengths, their tokenizer, and what they need from the stages.
//!
//! Built from a dataset with known durations, without decoding. Rows that cannot train are left out and counted. The loader
//! finds problems that only decoding shows.
//!
//! Up to [`EXACT_ROWS`] rows, every text is tokenized and counted. A larger corpus must start as fast as a small one: there
//! [`COUNTED_ROWS`] evenly spaced rows are counted. Every other row gets a bound: the most tokens of the counted rows that
//! are no longer than it, plus a quarter.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::iter::repeat_n;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tandem_audio::{Arithmetic, DeviceFeatures, FeatureSettings, Lowpass, probe};
use tandem_corpus::{Dataset, Distribution, Extent, SampleIndex};
use tandem_text::{TextError, Tokens};

use crate::FeedError;
use crate::batch::shape::FRAME_STEP;
use crate::load::decode::open;
use crate::load::storage_fault::undecodable;
use crate::survey::buckets::BucketPlan;
use crate::survey::left_out::LeftOut;
use crate::survey::tokenizer::{TextSettings, Tokenizer};

/// Texts of so many rows are all counted: about half a second.
pub const EXACT_ROWS: usize = 50_000;
/// Rows of a larger corpus whose texts are counted.
pub const COUNTED_ROWS: usize = 4096;
/// The share of utterances that trains by default: longer ones are left out.
pub const INCLUDED_PERCENT: f64 = 99.5;

/// The shortest and the longest limit on recordings, in frames: 0.1 s and 19 minutes.
pub const FRAME_LIMITS: RangeInclusive<u32> = 8..=100_000;
/// The shortest and the longest limit on texts, in symbols.
pub const TOKEN_LIMITS: RangeInclusive<u32> = 1..=10_000;

/// Recordings whose header is read to find the sample rates of the corpus.
const PROBED: usize = 32;
/// Most sample rates that the data device resamples from: each has its own table there.
const MAX_RATES: usize = 8;
/// Above this rate, the decode thread resamples.
const MAX_DEVICE_RATE_HZ: u32 = 48_000;

/// What to select from a corpus.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingSetOptions {
    /// The features of a recording.
    pub features: FeatureSettings,
    /// How texts become tokens.
    pub text: TextSettings,
    /// Longer recordings are left out; none: those above [`INCLUDED_PERCENT`] or [`FRAME_LIMITS`].
    pub max_frames: Option<u32>,
    /// Longer texts are left out; none: those above [`INCLUDED_PERCENT`] or [`TOKEN_LIMITS`].
    pub max_tokens: Option<u32>,
    /// Whether batches have text.
    pub with_text: bool,
    /// Whether an utterance may have more symbols than frames. Models that align each symbol to a frame cannot train on it.
    pub allows_more_symbols_than_frames: bool,
}

/// The rows of a corpus that train.
#[derive(Clone, Debug)]
pub struct TrainingSet {
    dataset: Arc<Dataset>,
    rows: Vec<(SampleIndex, Extent)>,
    tokenizer: Option<Tokenizer>,
    features: FeatureSettings,
    rates_hz: Vec<u32>,
    table_bytes: u64,
    left_out: LeftOut,
    max_frames: u32,
    max_tokens: u32,
    audio_seconds: f64,
    counts_all: bool,
    aligns_text: bool,
    text_error: Option<String>,
}

impl TrainingSet {
    /// Selects from `rows` of `dataset`, without decoding.
    ///
    /// Cost: a million rows take about a fifth of a second; up to 32 files are opened. Fails with
    /// [`FeedError::Text`], and if the storage of the corpus fails; unusable rows are counted in [`TrainingSet::left_out`].
    pub fn survey(
        dataset: Arc<Dataset>,
        rows: &[SampleIndex],
        options: &TrainingSetOptions,
    ) -> Result<TrainingSet, FeedError> {
        let mut left_out = LeftOut::default();
        let measured = measured_rows(&dataset, rows, &options.features, &mut left_out);
        let tokenizer = match options.with_text {
            true => Some(Tokenizer::for_corpus(&dataset, &options.text)?),
            false => None,
        };
        let counts_all = measured.len() <= EXACT_ROWS;
        let counts = tokenizer.as_ref().map(|tokenizer| TokenCounts::new(&dataset, &measured, tokenizer));
        let aligns_text = !options.allows_more_symbols_than_frames;
        let usable = usable_rows(&measured, counts.as_ref(), aligns_text, &mut left_out);
        let max_frames =
            options.max_frames.unwrap_or_else(|| limit(usable.iter().map(|row| row.extent.frames), FRAME_LIMITS));
        let counted = usable.iter().filter(|row| row.counted).map(|row| row.extent.tokens);
        let max_tokens = options.max_tokens.unwrap_or_else(|| limit(counted, TOKEN_LIMITS));
        let mut training_set = TrainingSet {
            rows: Vec::with_capacity(usable.len()),
            tokenizer,
            features: options.features.clone(),
            rates_hz: Vec::new(),
            table_bytes: 0,
            left_out,
            max_frames,
            max_tokens,
            audio_seconds: 0.0,
            counts_all,
            aligns_text,
            text_error: counts.and_then(|counts| counts.custom_error),
            dataset,
        };
        usable.into_iter().for_each(|row| training_set.add(row));
        training_set.rates_hz = device_rates(&training_set.dataset, &training_set.rows, &training_set.features)?;
        training_set.table_bytes = DeviceFeatures::table_bytes(&training_set.features, &training_set.rates_hz)?;
        Ok(training_set)
    }

    /// The same rows with features in another arithmetic. Their sizes are the same.
    pub fn with_arithmetic(&self, arithmetic: Arithmetic) -> TrainingSet {
        TrainingSet { features: FeatureSettings { arithmetic, ..self.features.clone() }, ..self.clone() }
    }

    /// The corpus.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The rows that train, with their lengths, in corpus order.
    pub fn rows(&self) -> &[(SampleIndex, Extent)] {
        &self.rows
    }

    /// The tokenizer of its texts; none if batches have no text.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The features of its recordings.
    pub fn features(&self) -> &FeatureSettings {
        &self.features
    }

    /// Sample rates that the data device resamples from, rising. Found by probing a few recordings.
    pub fn rates_hz(&self) -> &[u32] {
        &self.rates_hz
    }

    /// Bytes of the feature tables on the data device.
    pub fn table_bytes(&self) -> u64 {
        self.table_bytes
    }

    /// The rows that do not train.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The longest recording that trains, in frames.
    pub fn max_frames(&self) -> u32 {
        self.max_frames
    }

    /// The longest text that trains, in symbols.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// Whether every text was counted; otherwise most rows have a bound.
    pub fn counts_all(&self) -> bool {
        self.counts_all
    }

    /// The first error of the program's own tokenizer, if a text was left out because of one.
    pub fn text_error(&self) -> Option<&str> {
        self.text_error.as_deref()
    }

    /// Whether every row has at least a frame for each symbol.
    pub fn aligns_text(&self) -> bool {
        self.aligns_text
    }

    /// Total duration of the rows that train.
    pub fn audio_seconds(&self) -> f64 {
        self.audio_seconds
    }

    /// The shapes for the rows of an epoch; none without rows. See [`BucketPlan::solve`].
    pub fn bucket_plan(&self, num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        BucketPlan::solve(&self.epoch_rows(), num_buckets, batch)
    }

    /// The rows of an epoch: those of a mixture as often as their weights say. Shapes, batches and padding are theirs. Cost: a
    /// copy where rows are repeated.
    pub fn epoch_rows(&self) -> Cow<'_, [(SampleIndex, Extent)]> {
        match self.dataset.has_repeats() {
            false => Cow::Borrowed(&self.rows),
            true => {
                let times = |index: SampleIndex| self.dataset.repeats(index) as usize;
                self.rows.iter().flat_map(|row| repeat_n(*row, times(row.0))).collect()
            }
        }
    }

    /// Adds a row, or counts it as too long.
    fn add(&mut self, row: UsableRow) {
        let Extent { frames, tokens } = row.extent;
        if frames <= self.max_frames && tokens <= self.max_tokens {
            self.rows.push((row.index, row.extent));
            self.audio_seconds += row.seconds;
        } else if frames <= self.max_frames && !row.counted {
            // Only the bound is over the limit. The loader rejects a text that is really too long.
            self.rows.push((row.index, Extent { frames, tokens: self.max_tokens }));
            self.audio_seconds += row.seconds;
        } else {
            let LeftOut { too_long, longest_frames, longest_tokens, .. } = &mut self.left_out;
            *too_long += 1;
            *longest_frames = (*longest_frames).max(frames.saturating_add(FRAME_STEP - 1) / FRAME_STEP * FRAME_STEP);
            *longest_tokens = (*longest_tokens).max(tokens);
        }
    }
}

/// A row with a duration of at least one frame.
#[derive(Clone, Copy)]
struct MeasuredRow {
    index: SampleIndex,
    seconds: f64,
    frames: u32,
}

/// A row that trains unless it is too long.
struct UsableRow {
    index: SampleIndex,
    seconds: f64,
    extent: Extent,
    /// Whether its tokens are counted, not bounded.
    counted: bool,
}

/// Frames of a recording of `duration_s`: exactly those of its samples, at any sample rate. None for less than one frame.
///
/// A duration is a number of samples divided by their rate, rounded in its sixteenth digit. Resampling rounds up to whole
/// samples, so the rounding error is subtracted before rounding up. A true fraction is at least 1 / 192 000.
fn num_frames(duration_s: f64, settings: &FeatureSettings) -> Option<u32> {
    const ROUNDING_ERROR: f64 = 1e-6;
    // The cast saturates, and turns NaN into 0.
    let num_samples = (duration_s * f64::from(settings.rate_hz) - ROUNDING_ERROR).ceil() as usize;
    let frames = settings.num_frames(num_samples);
    (num_samples >= settings.min_samples()).then(|| u32::try_from(frames).unwrap_or(u32::MAX))
}

/// The rows with a length of at least one frame.
fn measured_rows(
    dataset: &Dataset,
    rows: &[SampleIndex],
    features: &FeatureSettings,
    left_out: &mut LeftOut,
) -> Vec<MeasuredRow> {
    let mut measured = Vec::with_capacity(rows.len());
    for &index in rows {
        let Some(seconds) = dataset.get(index).and_then(|sample| sample.duration_s) else {
            left_out.count_no_length(dataset.unmeasured(index));
            continue;
        };
        match num_frames(seconds, features) {
            Some(frames) => measured.push(MeasuredRow { index, seconds, frames }),
            None => left_out.too_short += 1,
        }
    }
    measured
}

/// Why a text cannot be trained on.
#[derive(Clone, Copy)]
enum BadText {
    Empty,
    UnknownSymbol,
    Refused,
}

/// Symbols of texts: counted for some rows, bounded for all.
struct TokenCounts {
    /// An error for a bad text.
    counted: HashMap<SampleIndex, Result<u32, BadText>>,
    /// Frames, rising, and the most symbols of a counted row of at most that many frames.
    most: Vec<(u32, u32)>,
    /// The first error of the program's own tokenizer.
    custom_error: Option<String>,
}

impl TokenCounts {
    fn new(dataset: &Dataset, rows: &[MeasuredRow], tokenizer: &Tokenizer) -> TokenCounts {
        let num_counted = if rows.len() <= EXACT_ROWS { rows.len() } else { COUNTED_ROWS };
        let mut tokens = Tokens::default();
        let counted = HashMap::with_capacity(num_counted);
        let mut counts = TokenCounts { counted, most: Vec::new(), custom_error: None };
        for position in evenly_spaced(rows.len(), num_counted) {
            let MeasuredRow { index, frames, .. } = rows[position];
            let Some(sample) = dataset.get(index) else { continue };
            let count = match tokenizer.encode_into(&sample, &mut tokens) {
                Ok(()) => Ok(u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX)),
                Err(TextError::Empty) => Err(BadText::Empty),
                Err(error @ TextError::Custom { .. }) => {
                    counts.custom_error.get_or_insert_with(|| format!("{}: {error}", sample.id));
                    Err(BadText::Refused)
                }
                Err(_) => Err(BadText::UnknownSymbol),
            };
            counts.counted.insert(index, count);
            counts.most.extend(count.ok().map(|count| (frames, count)));
        }
        counts.most.sort_unstable();
        let mut most = 0;
        for (_, count) in &mut counts.most {
            most = most.max(*count);
            *count = most;
        }
        counts
    }

    /// More symbols than a row of `frames` is likely to have.
    fn bound(&self, frames: u32) -> u32 {
        let shorter = self.most.partition_point(|(other, _)| *other <= frames);
        let most = self.most.get(shorter.saturating_sub(1)).map_or(0, |(_, most)| *most);
        most.saturating_add(most / 4 + 8)
    }
}

/// The rows with a good text and, if `aligns_text`, at least one frame per symbol.
fn usable_rows(
    measured: &[MeasuredRow],
    counts: Option<&TokenCounts>,
    aligns_text: bool,
    left_out: &mut LeftOut,
) -> Vec<UsableRow> {
    let mut usable = Vec::with_capacity(measured.len());
    for MeasuredRow { index, seconds, frames } in measured.iter().copied() {
        let (tokens, counted) = match counts.map(|counts| (counts, counts.counted.get(&index))) {
            None => (1, true),
            Some((_, Some(Ok(count)))) => (*count, true),
            Some((_, Some(Err(bad)))) => {
                match bad {
                    BadText::Empty => left_out.empty_text += 1,
                    BadText::UnknownSymbol => left_out.unknown_symbol += 1,
                    BadText::Refused => left_out.refused_text += 1,
                }
                continue;
            }
            Some((counts, None)) => (counts.bound(frames), false),
        };
        if aligns_text && counted && tokens > frames {
            left_out.too_short += 1;
            continue;
        }
        usable.push(UsableRow { index, seconds, extent: Extent { frames, tokens }, counted });
    }
    usable
}

/// The default limit: the length that [`INCLUDED_PERCENT`] do not exceed, inside what a limit may be.
fn limit(lengths: impl Iterator<Item = u32>, limits: RangeInclusive<u32>) -> u32 {
    let included = Distribution::new(lengths.map(f64::from)).percentile(INCLUDED_PERCENT);
    included.map_or(0, |longest| longest as u32).clamp(*limits.start(), *limits.end())
}

/// The most frequent sample rates of a few recordings that the data device resamples from, rising. Fails if the storage of the
/// corpus does.
fn device_rates(
    dataset: &Dataset,
    rows: &[(SampleIndex, Extent)],
    features: &FeatureSettings,
) -> Result<Vec<u32>, FeedError> {
    let mut found: BTreeMap<u32, usize> = BTreeMap::new();
    for position in evenly_spaced(rows.len(), PROBED.min(rows.len())) {
        let Some(sample) = dataset.get(rows[position].0) else { continue };
        let probed =
            open(&sample.audio).and_then(|file| probe(file).map_err(|error| undecodable(&sample.audio, error)));
        let rate_hz = match probed {
            Ok(header) => header.rate_hz,
            Err(error) if error.is_about_storage() => return Err(error),
            // The loader reports a recording that cannot be read.
            Err(_) => continue,
        };
        if rate_hz != features.rate_hz && rate_hz <= MAX_DEVICE_RATE_HZ {
            *found.entry(rate_hz).or_default() += 1;
        }
    }
    found.retain(|rate_hz, _| Lowpass::design(*rate_hz, features.rate_hz).is_ok());
    let mut rates: Vec<(u32, usize)> = found.into_iter().collect();
    rates.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    rates.truncate(MAX_RATES);
    let mut rates: Vec<u32> = rates.into_iter().map(|(rate_hz, _)| rate_hz).collect();
    rates.sort_unstable();
    Ok(rates)
}

/// `count` evenly spaced positions below `len`.
fn evenly_spaced(len: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * len / count)
}

#[cfg(test)]
mod tests;
