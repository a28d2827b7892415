//! One recording and the rows that name it.

use std::collections::HashMap;

use tandem_audio::{Clip, FeatureSettings, Lowpass};
use tandem_corpus::{Dataset, Extent, Length, ProblemKind, Sample, SampleIndex};

use super::CheckOptions;
use super::text::SymbolCounts;
use crate::FeedError;
use crate::featurize::on_host::{num_frames, num_resampled};
use crate::load::decode::{END_SLACK_S, load_whole_into, part_of};

/// What was found out about a recording.
pub(super) struct Recording {
    /// How long all of it is, if it could be decoded.
    pub(super) length: Option<Length>,
    pub(super) rows: Vec<CheckedRow>,
}

/// What was found out about a row.
pub(super) struct CheckedRow {
    pub(super) index: SampleIndex,
    /// How long its part of the recording is.
    pub(super) seconds: Option<f64>,
    /// Symbols of its text.
    pub(super) tokens: Option<u32>,
    /// Mel frames, if it is neither too short nor too long.
    frames: Option<u32>,
    pub(super) problems: Vec<(ProblemKind, String)>,
}

impl CheckedRow {
    /// Its lengths, if it could train.
    pub(super) fn extent(&self) -> Option<Extent> {
        Some(Extent { frames: self.frames?, tokens: self.tokens? })
    }
}

/// Looks at recordings, one after the other, with memory that it keeps.
pub(super) struct Inspector {
    options: CheckOptions,
    texts: SymbolCounts,
    clip: Clip,
    /// Why a rate cannot be resampled, by rate.
    rates: HashMap<u32, Option<String>>,
}

/// A list may round its durations, and encoders pad: the larger of this share and [`END_SLACK_S`] is no difference.
const DURATION_SLACK: f64 = 0.02;

impl Inspector {
    pub(super) fn new(options: &CheckOptions) -> Inspector {
        let texts = SymbolCounts::new(options.lang.as_deref());
        Inspector { options: options.clone(), texts, clip: Clip::default(), rates: HashMap::new() }
    }

    /// Decodes the recording that `rows` share, and checks each of them.
    pub(super) fn inspect(&mut self, dataset: &Dataset, rows: &[SampleIndex]) -> Recording {
        let samples: Vec<(SampleIndex, Sample<'_>)> =
            rows.iter().filter_map(|index| Some((*index, dataset.get(*index)?))).collect();
        let decoded = match samples.first() {
            Some((_, first)) => load_whole_into(&first.audio, &mut self.clip),
            None => Ok(()),
        };
        let length = Length { num_samples: self.clip.samples.len() as u64, rate_hz: self.clip.rate_hz };
        let length = decoded.is_ok().then_some(length);
        let rows = samples.iter().map(|(index, sample)| self.row(*index, sample, decoded.as_ref().err())).collect();
        Recording { length, rows }
    }

    fn row(&mut self, index: SampleIndex, sample: &Sample<'_>, failed: Option<&FeedError>) -> CheckedRow {
        let mut row = CheckedRow { index, seconds: None, tokens: None, frames: None, problems: Vec::new() };
        let part = match failed {
            Some(error) => Err((kind_of(error), error.to_string())),
            None => part_of(&sample.audio, &self.clip).map_err(|error| (kind_of(&error), error.to_string())),
        };
        match self.texts.count(sample.text, sample.lang) {
            Ok(tokens) => row.tokens = Some(tokens),
            Err(bad) => {
                row.tokens = bad.tokens;
                row.problems.push((bad.kind, bad.detail));
            }
        }
        match part {
            Ok(part) => {
                let num_samples = part.len();
                row.seconds = Some(num_samples as f64 / f64::from(self.clip.rate_hz));
                self.sound(sample, part, &mut row);
            }
            Err(problem) => row.problems.push(problem),
        }
        row
    }

    /// Checks what can be heard in `part` of the clip.
    fn sound(&mut self, sample: &Sample<'_>, part: std::ops::Range<usize>, row: &mut CheckedRow) {
        let (num_samples, rate_hz) = (part.len(), self.clip.rate_hz);
        let (features, place) = (&self.options.features, || sample.audio.show());
        let clipped = clipped_share(&self.clip.samples[part]);
        if clipped > self.options.max_clipped_share {
            let most = self.options.max_clipped_share * 100.0;
            let detail = format!(
                "{:.1} % of its samples are cut off at full scale, at most {most} % may be: {}",
                clipped * 100.0,
                place()
            );
            row.problems.push((ProblemKind::Clipping, detail));
        }
        if let Some(detail) = duration_differs(sample, row.seconds) {
            row.problems.push((ProblemKind::BadNumber, detail));
        }
        if let Some(reason) = cannot_resample(&mut self.rates, rate_hz, features.rate_hz) {
            row.problems.push((ProblemKind::UndecodableAudio, format!("{reason}: {}", place())));
            return;
        }
        let frames = num_frames(num_samples, rate_hz, features);
        let seconds = row.seconds.unwrap_or(0.0);
        if let Some(why) = self.too_short(num_samples, seconds, frames, row.tokens) {
            row.problems.push((ProblemKind::TooShort, format!("{why}: {}", place())));
        } else if seconds > self.options.max_seconds {
            let why = format!("{seconds:.1} s, at most {} s are trained on", self.options.max_seconds);
            row.problems.push((ProblemKind::TooLong, format!("{why}: {}", place())));
        } else {
            row.frames = u32::try_from(frames).ok();
        }
    }

    fn too_short(&self, num_samples: usize, seconds: f64, frames: usize, tokens: Option<u32>) -> Option<String> {
        let features: &FeatureSettings = &self.options.features;
        if seconds < self.options.min_seconds {
            return Some(format!("{seconds:.3} s, at least {} s are needed", self.options.min_seconds));
        }
        if num_resampled(num_samples, self.clip.rate_hz, features) < features.min_samples() {
            return Some(format!("{seconds:.3} s do not fill a frame"));
        }
        // A token is aligned with one frame at least.
        let tokens = tokens.filter(|tokens| *tokens as usize > frames)?;
        Some(format!("{seconds:.2} s ({frames} frames) cannot say {tokens} symbols"))
    }
}

fn kind_of(error: &FeedError) -> ProblemKind {
    match error {
        FeedError::Missing { .. } => ProblemKind::MissingAudio,
        FeedError::OutsideRecording { .. } => ProblemKind::BadNumber,
        _ => ProblemKind::UndecodableAudio,
    }
}

/// The list gives a whole recording another duration than it has. (Of a part, the list is right by definition.)
fn duration_differs(sample: &Sample<'_>, seconds: Option<f64>) -> Option<String> {
    let (said, found) = (sample.duration_s.filter(|_| sample.audio.range.is_none())?, seconds?);
    let differs = (said - found).abs() > END_SLACK_S.max(DURATION_SLACK * found);
    differs.then(|| format!("`duration` is {said} s, the recording has {found:.3} s: {}", sample.audio.show()))
}

/// Why sound at this rate cannot be brought to the features' rate. Designing the filter is what tells.
fn cannot_resample(rates: &mut HashMap<u32, Option<String>>, from_hz: u32, to_hz: u32) -> Option<&str> {
    let reason = rates.entry(from_hz).or_insert_with(|| {
        let refused = (from_hz != to_hz).then(|| Lowpass::design(from_hz, to_hz).err()).flatten();
        refused.map(|error| error.to_string())
    });
    reason.as_deref()
}

/// Samples this near to full scale may have been cut off: 99 % of it, so that 8-bit recordings, whose largest step is
/// a little below, are seen as well.
const NEAR_FULL_SCALE: u16 = 32_440;

/// The share of samples that lie in a flat top: near full scale, and equal to a neighbour. A single peak is none.
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
    fn odd_rates_are_refused_once() {
        let mut rates = HashMap::new();
        for rate_hz in [8_000, 22_050, 44_100, 48_000, 192_000] {
            assert_eq!(cannot_resample(&mut rates, rate_hz, 22_050), None);
        }
        assert!(cannot_resample(&mut rates, 4_000_000_007, 22_050).unwrap().contains("4000000007 Hz"));
        assert_eq!(rates.len(), 6);
    }
}
