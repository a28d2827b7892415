//! A corpus made ready to be served: which rows train, how long each is, and what that asks of the stages.
//!
//! In comes a dataset whose lengths have been scanned and the rows that train, out goes what every later stage starts
//! from. Nothing is decoded. Rows that cannot train are left out and counted; what turns out wrong only when a row is
//! loaded is the loader's business.
//!
//! Texts are counted exactly up to [`EXACT_ROWS`] rows. A larger corpus must start as fast as a small one, so there
//! [`COUNTED_ROWS`] evenly spread rows are counted, and every other row is given what the longest of those that are no
//! longer than it has, and a quarter more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tandem_audio::{DeviceFeatures, FeatureSettings, Lowpass, probe};
use tandem_corpus::{Dataset, Distribution, Extent, SampleIndex};
use tandem_text::{TextOptions, Tokens};

use crate::FeedError;
use crate::load::decode::open;
use crate::survey::buckets::{BucketPlan, FRAME_STEP};
use crate::survey::tokenizer::Tokenizer;

/// Texts of so many rows are all counted: about half a second.
pub const EXACT_ROWS: usize = 50_000;
/// Rows of a larger corpus whose texts are counted.
pub const COUNTED_ROWS: usize = 4096;
/// The share of utterances that is kept when nobody says otherwise: longer ones are left out.
pub const INCLUDED_PERCENT: f64 = 99.5;

/// Recordings that are asked for their rate.
const PROBED: usize = 32;
/// Rates that the data device resamples, at most: each has a table of its own there.
const MAX_RATES: usize = 8;
/// Above this rate, recordings are resampled by the thread that decodes them.
const MAX_DEVICE_RATE_HZ: u32 = 48_000;

/// What of a corpus is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingSetOptions {
    /// What recordings become.
    pub features: FeatureSettings,
    /// The language of rows that name none; none is English.
    pub lang: Option<String>,
    /// How texts are read; none: as [`Tokenizer::usual_options`] says.
    pub text: Option<TextOptions>,
    /// Longer recordings are left out; none: those above [`INCLUDED_PERCENT`].
    pub max_frames: Option<u32>,
    /// Longer texts are left out; none: those above [`INCLUDED_PERCENT`].
    pub max_tokens: Option<u32>,
    /// Whether batches carry text.
    pub with_text: bool,
}

/// A corpus made ready to be served.
#[derive(Clone, Debug)]
pub struct TrainingSet {
    dataset: Arc<Dataset>,
    rows: Vec<(SampleIndex, Extent)>,
    texts: Option<Tokenizer>,
    features: FeatureSettings,
    rates_hz: Vec<u32>,
    table_bytes: u64,
    left_out: LeftOut,
    max_frames: u32,
    max_tokens: u32,
    audio_seconds: f64,
    counts_all: bool,
}

/// Rows that do not train, by reason: the first that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// How long they are is not known: no list says so, and they cannot be measured.
    pub no_length: usize,
    /// Their text is empty or has characters that no symbol stands for.
    pub bad_text: usize,
    /// They do not fill a frame, or have fewer frames than symbols.
    pub too_short: usize,
    /// Their recording or their text is over the longest that is kept.
    pub too_long: usize,
    /// Frames of the row that the longest of those would have needed; 0 without any.
    pub longest_frames: u32,
    /// Symbols of the longest text of those; 0 without any.
    pub longest_tokens: u32,
}

impl LeftOut {
    /// All of them.
    pub fn total(&self) -> usize {
        self.no_length + self.bad_text + self.too_short + self.too_long
    }
}

impl TrainingSet {
    /// Looks at `rows` of `dataset`, without decoding anything.
    ///
    /// Cost: a million rows take about a fifth of a second; up to 32 files are opened. Fails with
    /// [`FeedError::Text`]; rows that are no good are counted in [`TrainingSet::left_out`].
    pub fn survey(
        dataset: Arc<Dataset>,
        rows: &[SampleIndex],
        options: &TrainingSetOptions,
    ) -> Result<TrainingSet, FeedError> {
        let mut left_out = LeftOut::default();
        let measured = measured(&dataset, rows, &options.features, &mut left_out);
        let texts = match options.with_text {
            true => {
                let lang = options.lang.as_deref();
                let text = options.text.unwrap_or_else(|| Tokenizer::usual_options(&dataset, lang));
                Some(Tokenizer::for_corpus(&dataset, lang, text)?)
            }
            false => None,
        };
        let counts_all = measured.len() <= EXACT_ROWS;
        let counts = texts.as_ref().map(|texts| Counts::new(&dataset, &measured, texts));
        let said = said(&measured, counts.as_ref(), &mut left_out);
        let max_frames = options.max_frames.unwrap_or_else(|| kept(said.iter().map(|row| row.extent.frames)));
        let counted = said.iter().filter(|row| row.counted).map(|row| row.extent.tokens);
        let max_tokens = options.max_tokens.unwrap_or_else(|| kept(counted));
        let mut material = TrainingSet {
            rows: Vec::with_capacity(said.len()),
            texts,
            features: options.features.clone(),
            rates_hz: Vec::new(),
            table_bytes: 0,
            left_out,
            max_frames,
            max_tokens,
            audio_seconds: 0.0,
            counts_all,
            dataset,
        };
        said.into_iter().for_each(|row| material.take(row));
        material.rates_hz = rates(&material.dataset, &material.rows, &material.features);
        material.table_bytes = DeviceFeatures::table_bytes(&material.features, &material.rates_hz)?;
        Ok(material)
    }

    /// The corpus.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The rows that train, with their lengths, in the order of the corpus.
    pub fn rows(&self) -> &[(SampleIndex, Extent)] {
        &self.rows
    }

    /// What makes tokens of its texts; none when no text is wanted.
    pub fn texts(&self) -> Option<&Tokenizer> {
        self.texts.as_ref()
    }

    /// What its recordings become.
    pub fn features(&self) -> &FeatureSettings {
        &self.features
    }

    /// Rates of recordings that the data device resamples, rising: as far as a few of them show.
    pub fn rates_hz(&self) -> &[u32] {
        &self.rates_hz
    }

    /// Bytes of the tables that features of these recordings are made with on a device.
    pub fn table_bytes(&self) -> u64 {
        self.table_bytes
    }

    /// What does not train.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The longest recording that is kept, in frames.
    pub fn max_frames(&self) -> u32 {
        self.max_frames
    }

    /// The longest text that is kept, in symbols.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// Whether every text was counted; else most rows carry a bound.
    pub fn counts_all(&self) -> bool {
        self.counts_all
    }

    /// How long all rows that train are together.
    pub fn audio_seconds(&self) -> f64 {
        self.audio_seconds
    }

    /// The shapes for its rows; none without rows. See [`BucketPlan::solve`].
    pub fn bucket_plan(&self, num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        BucketPlan::solve(&self.rows, num_buckets, batch)
    }

    /// Keeps a row, or counts it among those that are too long.
    fn take(&mut self, row: Row) {
        let Extent { frames, tokens } = row.extent;
        if frames <= self.max_frames && tokens <= self.max_tokens {
            self.rows.push((row.index, row.extent));
            self.audio_seconds += row.seconds;
        } else if frames <= self.max_frames && !row.counted {
            // A bound says nothing about the text itself: one that is too long shows when it is loaded.
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

/// A row that could train, if it is not too long.
struct Row {
    index: SampleIndex,
    seconds: f64,
    extent: Extent,
    /// Whether its tokens are counted, not bounded.
    counted: bool,
}

/// Frames of a recording of `duration_s`: what its samples will give, whatever their rate.
///
/// A duration is a number of samples divided by their rate, rounded in its sixteenth digit. Resampling rounds up to
/// whole samples, so what is a hair above a whole number is that number. Fractions that are no such hair are at least
/// 1 / 192 000.
fn num_frames(duration_s: f64, settings: &FeatureSettings) -> Option<u32> {
    const HAIR: f64 = 1e-6;
    // Casting saturates, and what is not a number becomes 0.
    let num_samples = (duration_s * f64::from(settings.rate_hz) - HAIR).ceil() as usize;
    let frames = settings.num_frames(num_samples);
    (num_samples >= settings.min_samples()).then(|| u32::try_from(frames).unwrap_or(u32::MAX))
}

/// The rows that have a length and fill a frame.
fn measured(
    dataset: &Dataset,
    rows: &[SampleIndex],
    features: &FeatureSettings,
    left_out: &mut LeftOut,
) -> Vec<(SampleIndex, f64, u32)> {
    let mut measured = Vec::with_capacity(rows.len());
    for index in rows {
        let Some(seconds) = dataset.get(*index).and_then(|sample| sample.duration_s) else {
            left_out.no_length += 1;
            continue;
        };
        match num_frames(seconds, features) {
            Some(frames) => measured.push((*index, seconds, frames)),
            None => left_out.too_short += 1,
        }
    }
    measured
}

/// How many symbols texts have: counted for some rows, bounded for all.
struct Counts {
    /// None for a text that is no good.
    counted: HashMap<SampleIndex, Option<u32>>,
    /// Frames, rising, and the most symbols of a counted row of up to those.
    most: Vec<(u32, u32)>,
}

impl Counts {
    fn new(dataset: &Dataset, rows: &[(SampleIndex, f64, u32)], texts: &Tokenizer) -> Counts {
        let num_counted = if rows.len() <= EXACT_ROWS { rows.len() } else { COUNTED_ROWS };
        let mut tokens = Tokens::default();
        let mut counts = Counts { counted: HashMap::with_capacity(num_counted), most: Vec::new() };
        for place in spread(rows.len(), num_counted) {
            let (index, _, frames) = rows[place];
            let sample = dataset.get(index);
            let encoded = sample.is_some_and(|sample| texts.encode_into(&sample, &mut tokens).is_ok());
            let count = encoded.then(|| u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX));
            counts.counted.insert(index, count);
            counts.most.extend(count.map(|count| (frames, count)));
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

/// The rows whose texts can be said in the time there is.
fn said(measured: &[(SampleIndex, f64, u32)], counts: Option<&Counts>, left_out: &mut LeftOut) -> Vec<Row> {
    let mut said = Vec::with_capacity(measured.len());
    for (index, seconds, frames) in measured.iter().copied() {
        let (tokens, counted) = match counts.map(|counts| (counts, counts.counted.get(&index))) {
            None => (1, true),
            Some((_, Some(Some(count)))) => (*count, true),
            Some((_, Some(None))) => {
                left_out.bad_text += 1;
                continue;
            }
            Some((counts, None)) => (counts.bound(frames), false),
        };
        // A symbol is aligned with one frame at least.
        if counted && tokens > frames {
            left_out.too_short += 1;
            continue;
        }
        said.push(Row { index, seconds, extent: Extent { frames, tokens }, counted });
    }
    said
}

fn kept(lengths: impl Iterator<Item = u32>) -> u32 {
    Distribution::new(lengths.map(f64::from)).percentile(INCLUDED_PERCENT).map_or(0, |longest| longest as u32)
}

/// The rates that occur in a few recordings and are left to the data device: the most frequent ones, rising.
fn rates(dataset: &Dataset, rows: &[(SampleIndex, Extent)], features: &FeatureSettings) -> Vec<u32> {
    let mut found: BTreeMap<u32, usize> = BTreeMap::new();
    for place in spread(rows.len(), PROBED.min(rows.len())) {
        let Some(sample) = dataset.get(rows[place].0) else { continue };
        // What cannot be read is found again when it is to be trained on, and told then.
        let Some(header) = open(&sample.audio).ok().and_then(|file| probe(file).ok()) else { continue };
        let rate_hz = header.rate_hz;
        if rate_hz != features.rate_hz && rate_hz <= MAX_DEVICE_RATE_HZ {
            *found.entry(rate_hz).or_default() += 1;
        }
    }
    found.retain(|rate_hz, _| Lowpass::design(*rate_hz, features.rate_hz).is_ok());
    let mut rates: Vec<(u32, usize)> = found.into_iter().collect();
    rates.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    rates.truncate(MAX_RATES);
    let mut rates: Vec<u32> = rates.into_iter().map(|(rate_hz, _)| rate_hz).collect();
    rates.sort_unstable();
    rates
}

/// `count` places below `len`, evenly spread.
fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * len / count)
}

#[cfg(test)]
mod tests;
