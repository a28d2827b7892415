//! What a run says of itself: one line of numbers per step, one per validation.

use std::sync::Arc;

use crate::step_clock::DeviceTimes;

/// Numbers by name, in the order the model gave them: the first is the one that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    names: Arc<[String]>,
    values: Vec<f64>,
}

impl Figures {
    /// `values` by `names`: as many of them, and one at least.
    pub fn new(names: Arc<[String]>, values: Vec<f64>) -> Figures {
        assert!(names.len() == values.len() && !names.is_empty(), "{names:?} for {values:?}");
        Figures { names, values }
    }

    /// The one that counts: what was minimised, or the score of a validation.
    pub fn first(&self) -> f64 {
        self.values[0]
    }

    /// The number of this name; none where the model gives no such number.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }
}

/// One optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// The epoch its last batch belongs to, from 0.
    pub epoch: u64,
    /// Which of the plan's shapes its batches had, from 0.
    pub buckets: Vec<usize>,
    /// What was minimised, and its parts: of the speech model `loss`, `mel`, `prior` and `duration`.
    pub losses: Figures,
    /// Norm of the gradients before clipping.
    pub gradient_norm: f32,
    /// The learning rate.
    pub lr: f64,
    /// Whether the step was left out because a gradient was no number.
    pub skipped: bool,
    /// From the end of the step before to the end of this one, as the host saw it.
    pub wall_ns: u64,
    /// How long the host waited for batches.
    pub wait_ns: u64,
    /// The same by the model device's own clock, and how long it worked: what the log is told, whose stages are told by
    /// devices' clocks too.
    pub on_device: DeviceTimes,
    /// CPU time of the process so far, over all cores; none beside simulated cards, which keep another time.
    pub cpu_ns: Option<u64>,
}

impl StepReport {
    /// What was minimised.
    pub fn loss(&self) -> f64 {
        self.losses.first()
    }
}

/// A look at held-out data.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationReport {
    /// After which step.
    pub step: u64,
    /// Utterances that were looked at.
    pub utterances: usize,
    /// The score, and what else the model is judged by. Of the speech model: `mel`, the mean distance of the spectrum in
    /// deviations of the corpus; `mean`, the same for guessing each band's mean; `prior`; and `duration`, the mean squared
    /// error of ln(1 + frames) of a token.
    pub figures: Figures,
    /// Frames of all utterances, against what was guessed for them: what guesses are to be multiplied with. None of a model
    /// that guesses no durations.
    pub duration_scale: Option<f64>,
    /// How the alignment of every utterance looks; none of a model that aligns nothing.
    pub alignment: Option<AlignmentReport>,
}

/// Whether alignments are what they should be: every token in order, none left out, no frame left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentReport {
    /// Tokens that have no frame.
    pub tokens_without_frames: u64,
    /// Utterances whose tokens do not add up to their frames.
    pub wrong_sums: u64,
    /// Frames of the longest token.
    pub longest: u32,
    /// Tokens in all.
    pub tokens: u64,
}

impl ValidationReport {
    /// What a checkpoint of this step is scored by.
    pub fn score(&self) -> f64 {
        self.figures.first()
    }

    /// The distance of the spectrum against that of guessing the mean, where the model gives both.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.figures.get("mel")? / self.figures.get("mean")?)
    }
}

impl AlignmentReport {
    /// Whether every token has a frame and every frame a token.
    pub fn is_whole(&self) -> bool {
        self.tokens_without_frames == 0 && self.wrong_sums == 0
    }

    /// Takes one utterance in.
    pub(crate) fn add(&mut self, durations: &[i32], frames: u32) {
        self.tokens += durations.len() as u64;
        self.tokens_without_frames += durations.iter().filter(|&&frames| frames < 1).count() as u64;
        self.wrong_sums += u64::from(durations.iter().map(|&d| i64::from(d)).sum::<i64>() != i64::from(frames));
        let longest = durations.iter().copied().max().unwrap_or(0);
        self.longest = self.longest.max(longest.max(0) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_names_and_the_first_counts() {
        let names: Arc<[String]> = ["mel", "mean"].map(str::to_owned).to_vec().into();
        let figures = Figures::new(names, vec![0.5, 2.0]);
        assert_eq!((figures.first(), figures.get("mean"), figures.get("prior")), (0.5, Some(2.0), None));
        let mut report = ValidationReport { step: 1, utterances: 1, figures, duration_scale: None, alignment: None };
        assert_eq!((report.score(), report.ratio()), (0.5, Some(0.25)));
        report.figures = Figures::new(["mel"].map(str::to_owned).to_vec().into(), vec![0.5]);
        assert_eq!(report.ratio(), None);
    }

    #[test]
    fn an_alignment_is_whole_or_says_why_not() {
        let check = |durations: &[i32], frames, whole| {
            let mut report = AlignmentReport::default();
            report.add(durations, frames);
            assert_eq!(report.is_whole(), whole, "{durations:?} over {frames}");
        };
        check(&[1, 3, 2], 6, true);
        check(&[1, 3, 2], 7, false);
        check(&[1, 0, 5], 6, false);
        check(&[], 0, true);
    }
}
