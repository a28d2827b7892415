//! Checks one recording and the rows that name it.

use std::collections::HashMap;

use tandem_audio::{Clip, FeatureSettings, Header, Lowpass, probe};
use tandem_corpus::{Dataset, Length, Locator, ProblemKind, RecordingReader, Sample, SampleIndex};
use tandem_text::{TextError, Tokens};

use super::CheckOptions;
use crate::FeedError;
use crate::featurize::on_host::{num_frames, num_resampled};
use crate::load::decode::{END_SLACK_S, decode_whole_into, open, part_of};
use crate::load::storage_fault::undecodable;
use crate::survey::tokenizer::Tokenizer;

/// The result for one recording.
pub(super) struct Recording {
    /// The length of all of it as a run finds it: by its header, or else by decoding it. An error says why there is none.
    pub(super) length: Result<Length, ProblemKind>,
    pub(super) rows: Vec<CheckedRow>,
}

/// The result for one row.
pub(super) struct CheckedRow {
    pub(super) index: SampleIndex,
    /// The duration of its part of the recording.
    pub(super) seconds: Option<f64>,
    /// Symbols of its text; none if it is bad.
    pub(super) tokens: Option<u32>,
    pub(super) problems: Vec<(ProblemKind, String)>,
}

/// Checks one recording after the other. Reuses its memory.
pub(super) struct Inspector {
    options: CheckOptions,
    tokenizer: Tokenizer,
    tokens: Tokens,
    clip: Clip,
    /// Why a rate cannot be resampled, by rate.
    rates: HashMap<u32, Option<String>>,
}

/// Lists round durations, and encoders pad: a difference up to this share, or up to [`END_SLACK_S`], is no problem.
const DURATION_SLACK: f64 = 0.02;

impl Inspector {
    pub(super) fn new(options: &CheckOptions, tokenizer: Tokenizer) -> Inspector {
        let (tokens, clip) = (Tokens::default(), Clip::default());
        Inspector { options: options.clone(), tokenizer, tokens, clip, rates: HashMap::new() }
    }

    /// Decodes the recording of `rows`, and checks each of them. Fails if the storage of the corpus does: that says nothing
    /// about the recording.
    pub(super) fn inspect(&mut self, dataset: &Dataset, rows: &[SampleIndex]) -> Result<Recording, FeedError> {
        let samples: Vec<(SampleIndex, Sample<'_>)> =
            rows.iter().filter_map(|index| Some((*index, dataset.get(*index)?))).collect();
        let (header, decoded) = match samples.first() {
            Some((_, first)) => self.decode(&first.audio)?,
            None => (None, Ok(())),
        };
        let decoded_length = Length { num_samples: self.clip.samples.len() as u64, rate_hz: self.clip.rate_hz };
        let header_length =
            header.and_then(|header| Some(Length { num_samples: header.num_samples?, rate_hz: header.rate_hz }));
        let length = match (header_length, &decoded) {
            (Some(length), _) => Ok(length),
            (None, Ok(())) => Ok(decoded_length),
            (None, Err(error)) => Err(kind_of(error)),
        };
        let rows = samples.iter().map(|(index, sample)| self.row(*index, sample, decoded.as_ref().err())).collect();
        Ok(Recording { length, rows })
    }

    /// Reads the header of a recording, if it has one, and decodes all of it into the clip. Fails if the storage does.
    fn decode(&mut self, audio: &Locator<'_>) -> Result<(Option<Header>, Result<(), FeedError>), FeedError> {
        self.clip.clear();
        let recording = match open(audio) {
            Err(error) if error.is_about_storage() => return Err(error),
            Err(error) => return Ok((None, Err(error))),
            Ok(recording) => recording,
        };
        // What is in memory is not fetched twice.
        let again = match &recording {
            RecordingReader::Bytes(bytes) => Ok(RecordingReader::Bytes(bytes.clone())),
            _ => open(audio),
        };
        let header = match again.and_then(|again| probe(again).map_err(|error| undecodable(audio, error))) {
            Err(error) if error.is_about_storage() => return Err(error),
            header => header.ok(),
        };
        match decode_whole_into(audio, recording, &mut self.clip) {
            Err(error) if error.is_about_storage() => Err(error),
            decoded => Ok((header, decoded)),
        }
    }

    fn row(&mut self, index: SampleIndex, sample: &Sample<'_>, failed: Option<&FeedError>) -> CheckedRow {
        let mut row = CheckedRow { index, seconds: None, tokens: None, problems: Vec::new() };
        let part = match failed {
            Some(error) => Err((kind_of(error), error.to_string())),
            None => part_of(&sample.audio, &self.clip).map_err(|error| (kind_of(&error), error.to_string())),
        };
        match self.tokenizer.encode_into(sample, &mut self.tokens) {
            Ok(()) => row.tokens = Some(u32::try_from(self.tokens.ids.len()).unwrap_or(u32::MAX)),
            Err(error) => {
                let is_empty = matches!(error, TextError::Empty);
                let kind = if is_empty { ProblemKind::EmptyText } else { ProblemKind::UnknownSymbol };
                row.problems.push((kind, error.to_string()));
            }
        }
        match part {
            Ok(part) => {
                let num_samples = part.len();
                row.seconds = Some(num_samples as f64 / f64::from(self.clip.rate_hz));
                self.check_audio(sample, part, &mut row);
            }
            Err(problem) => row.problems.push(problem),
        }
        row
    }

    /// Checks the audio of `part` of the clip.
    fn check_audio(&mut self, sample: &Sample<'_>, part: std::ops::Range<usize>, row: &mut CheckedRow) {
        let (num_samples, rate_hz) = (part.len(), self.clip.rate_hz);
        let (features, location) = (&self.options.features, || sample.audio.show());
        let clipped = clipped_share(&self.clip.samples[part]);
        if clipped > self.options.max_clipped_share {
            let most = self.options.max_clipped_share * 100.0;
            let detail = format!(
                "{:.1} % of its samples are clipped at full scale, at most {most} % may be: {}",
                clipped * 100.0,
                location()
            );
            row.problems.push((ProblemKind::Clipping, detail));
        }
        if let Some(detail) = duration_differs(sample, row.seconds) {
            row.problems.push((ProblemKind::BadNumber, detail));
        }
        if let Some(reason) = cannot_resample(&mut self.rates, rate_hz, features.rate_hz) {
            row.problems.push((ProblemKind::UndecodableAudio, format!("{reason}: {}", location())));
            return;
        }
        let frames = num_frames(num_samples, rate_hz, features);
        let seconds = row.seconds.unwrap_or(0.0);
        if let Some(why) = self.too_short(num_samples, seconds, frames, row.tokens) {
            row.problems.push((ProblemKind::TooShort, format!("{why}: {}", location())));
        } else if seconds > self.options.max_seconds {
            let why = format!("{seconds:.1} s, the limit is {} s", self.options.max_seconds);
            row.problems.push((ProblemKind::TooLong, format!("{why}: {}", location())));
        }
    }

    fn too_short(&self, num_samples: usize, seconds: f64, frames: usize, tokens: Option<u32>) -> Option<String> {
        let features: &FeatureSettings = &self.options.features;
        if seconds < self.options.min_seconds {
            return Some(format!("{seconds:.3} s, the minimum is {} s", self.options.min_seconds));
        }
        if num_resampled(num_samples, self.clip.rate_hz, features) < features.min_samples() {
            return Some(format!("{seconds:.3} s is shorter than one frame"));
        }
        // A symbol is aligned to at least one frame.
        let tokens = tokens.filter(|tokens| *tokens as usize > frames)?;
        Some(format!("{seconds:.2} s ({frames} frames) is too short for a text of {tokens} symbols"))
    }
}

fn kind_of(error: &FeedError) -> ProblemKind {
    match error {
        FeedError::Missing { .. } => ProblemKind::MissingAudio,
        FeedError::OutsideRecording { .. } => ProblemKind::BadNumber,
        _ => ProblemKind::UndecodableAudio,
    }
}

/// The list gives a whole recording a wrong duration. (The duration of a part is part of its definition.)
fn duration_differs(sample: &Sample<'_>, seconds: Option<f64>) -> Option<String> {
    let (listed, found) = (sample.duration_s.filter(|_| sample.audio.range.is_none())?, seconds?);
    let differs = (listed - found).abs() > END_SLACK_S.max(DURATION_SLACK * found);
    differs.then(|| format!("`duration` is {listed} s, the recording has {found:.3} s: {}", sample.audio.show()))
}

/// Why audio at this rate cannot be resampled to the features' rate: the error of designing the filter.
fn cannot_resample(rates: &mut HashMap<u32, Option<String>>, from_hz: u32, to_hz: u32) -> Option<&str> {
    let reason = rates.entry(from_hz).or_insert_with(|| {
        let refused = (from_hz != to_hz).then(|| Lowpass::design(from_hz, to_hz).err()).flatten();
        refused.map(|error| error.to_string())
    });
    reason.as_deref()
}

/// Samples from here on may be clipped: 99 % of full scale, because the largest step of an 8-bit recording is a little below
/// full scale.
const NEAR_FULL_SCALE: u16 = 32_440;

/// The share of clipped samples: near full scale, and equal to a neighbour. A single peak does not count.
fn clipped_share(samples: &[i16]) -> f64 {
    let tops = samples.chunk_by(|a, b| a == b).filter(|run| run.len() > 1 && run[0].unsigned_abs() >= NEAR_FULL_SCALE);
    tops.map(<[i16]>::len).sum::<usize>() as f64 / samples.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_tops_are_clipping_and_peaks_are_not() {
        let check = |samples: &[i16], expected: f64| assert_eq!(clipped_share(samples), expected, "{samples:?}");
        check(&[], 0.0);
        check(&[0; 10], 0.0);
        check(&[0, 32_767, 0, -32_768], 0.0);
        check(&[0, 32_767, 32_767, 0], 0.5);
        check(&[-32_768, -32_768, -32_768, 0], 0.75);
        check(&[32_512, 32_512, 0, 0], 0.5);
        check(&[30_000, 30_000, 0, 0], 0.0);
    }

    #[test]
    fn each_rate_is_designed_once() {
        let mut rates = HashMap::new();
        for rate_hz in [8_000, 22_050, 44_100, 48_000, 192_000] {
            assert_eq!(cannot_resample(&mut rates, rate_hz, 22_050), None);
        }
        assert!(cannot_resample(&mut rates, 4_000_000_007, 22_050).unwrap().contains("4000000007 Hz"));
        assert_eq!(rates.len(), 6);
    }
}
