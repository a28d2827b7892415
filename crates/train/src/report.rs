//! The numbers of a step and of a validation.

use std::sync::Arc;

use crate::step_clock::DeviceTimes;

/// Metrics by name, in the order of the model. The first is the loss, or the score of a validation.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedMetrics {
    names: Arc<[String]>,
    values: Vec<f64>,
}

impl ReportedMetrics {
    /// `values` by `names`: equally many, at least one.
    pub fn new(names: Arc<[String]>, values: Vec<f64>) -> ReportedMetrics {
        assert!(names.len() == values.len() && !names.is_empty(), "{names:?} for {values:?}");
        ReportedMetrics { names, values }
    }

    /// The loss, or the score of a validation.
    pub fn first(&self) -> f64 {
        self.values[0]
    }

    /// The metric with this name; `None` if the model has no such metric.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }
}

/// One optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, counted from 1.
    pub step: u64,
    /// The epoch of its last batch, counted from 0.
    pub epoch: u64,
    /// The bucket of each of its batches, counted from 0.
    pub buckets: Vec<usize>,
    /// The loss and its parts: for the speech model `loss`, `mel`, `prior` and `duration`.
    pub losses: ReportedMetrics,
    /// The gradient norm before clipping.
    pub gradient_norm: f32,
    /// The learning rate.
    pub lr: f64,
    /// Whether the update was skipped because of a non-finite gradient.
    pub skipped: bool,
    /// From the end of the previous step to the end of this one, by the host's clock.
    pub wall_ns: u64,
    /// How long the host waited for batches: the stall.
    pub wait_ns: u64,
    /// The same by the model device's clock, and how long the device was busy. The run log uses these, because its
    /// stages are timed by device clocks, too.
    pub on_device: DeviceTimes,
    /// How long each rank waited for the others in the step before, by rank; empty with one rank.
    pub rank_waits_ns: Vec<u64>,
    /// CPU time of the process so far, over all cores. `None` with simulated cards, which have simulated time.
    pub cpu_ns: Option<u64>,
}

impl StepReport {
    /// The loss.
    pub fn loss(&self) -> f64 {
        self.losses.first()
    }
}

/// The result of a validation.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationReport {
    /// The last step before it.
    pub step: u64,
    /// Utterances of the validation set.
    pub utterances: usize,
    /// The score and other metrics. For the speech model: `mel`, the L1 distance of the spectrogram in standard deviations
    /// of the corpus; `mean`, the same for the constant mean of each band, which is the baseline; `prior`; and `duration`,
    /// the mean squared error of ln(1 + frames) per token.
    pub metrics: ReportedMetrics,
    /// Frames of all utterances divided by the frames predicted for them: the factor that corrects predicted durations.
    /// `None` for a model that predicts no durations.
    pub duration_scale: Option<f64>,
    /// Checks of all alignments; `None` for a model without alignments.
    pub alignment: Option<AlignmentReport>,
}

/// Checks of monotonic alignments: every token has a frame, and every frame has a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentReport {
    /// Tokens without a frame.
    pub tokens_without_frames: u64,
    /// Utterances whose durations do not sum to their frames.
    pub wrong_duration_sums: u64,
    /// Frames of the longest token.
    pub longest: u32,
    /// All tokens.
    pub tokens: u64,
}

impl ValidationReport {
    /// The score of a checkpoint of this step.
    pub fn score(&self) -> f64 {
        self.metrics.first()
    }

    /// The mel distance divided by the baseline, if the model has both.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.metrics.get("mel")? / self.metrics.get("mean")?)
    }
}

impl AlignmentReport {
    /// Whether every token has a frame and every frame a token.
    pub fn is_complete(&self) -> bool {
        self.tokens_without_frames == 0 && self.wrong_duration_sums == 0
    }

    /// Adds one utterance.
    pub(crate) fn add(&mut self, durations: &[i32], frames: u32) {
        self.tokens += durations.len() as u64;
        self.tokens_without_frames += durations.iter().filter(|&&frames| frames < 1).count() as u64;
        self.wrong_duration_sums +=
            u64::from(durations.iter().map(|&d| i64::from(d)).sum::<i64>() != i64::from(frames));
        let longest = durations.iter().copied().max().unwrap_or(0);
        self.longest = self.longest.max(longest.max(0) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_names_and_the_first_is_the_score() {
        let names: Arc<[String]> = ["mel", "mean"].map(str::to_owned).to_vec().into();
        let metrics = ReportedMetrics::new(names, vec![0.5, 2.0]);
        assert_eq!((metrics.first(), metrics.get("mean"), metrics.get("prior")), (0.5, Some(2.0), None));
        let mut report = ValidationReport { step: 1, utterances: 1, metrics, duration_scale: None, alignment: None };
        assert_eq!((report.score(), report.ratio()), (0.5, Some(0.25)));
        report.metrics = ReportedMetrics::new(["mel"].map(str::to_owned).to_vec().into(), vec![0.5]);
        assert_eq!(report.ratio(), None);
    }

    #[test]
    fn incomplete_alignments_are_found() {
        let check = |durations: &[i32], frames, complete| {
            let mut report = AlignmentReport::default();
            report.add(durations, frames);
            assert_eq!(report.is_complete(), complete, "{durations:?} over {frames}");
        };
        check(&[1, 3, 2], 6, true);
        check(&[1, 3, 2], 7, false);
        check(&[1, 0, 5], 6, false);
        check(&[], 0, true);
    }
}
