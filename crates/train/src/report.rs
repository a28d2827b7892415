//! What a run says of itself: one line of numbers per step, one per validation.

/// One optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// The epoch its last batch belongs to, from 0.
    pub epoch: u64,
    /// What was minimised.
    pub loss: f32,
    /// The part of the spectrum.
    pub mel_loss: f32,
    /// The part of the prior.
    pub prior_loss: f32,
    /// The part of the durations.
    pub duration_loss: f32,
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
}

/// A look at held-out data.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationReport {
    /// After which step.
    pub step: u64,
    /// Utterances that were looked at.
    pub utterances: usize,
    /// Mean distance of the spectrum, in deviations of the corpus.
    pub mel_loss: f64,
    /// The same for guessing each band's mean.
    pub mean_loss: f64,
    /// Mean squared error of ln(1 + frames) of a token.
    pub duration_loss: f64,
    /// Frames of all utterances, against what was guessed for them: what guesses are to be multiplied with.
    pub duration_scale: f64,
    /// How the alignment of every utterance looks.
    pub alignment: AlignmentReport,
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
    /// The distance against that of guessing the mean.
    pub fn ratio(&self) -> f64 {
        self.mel_loss / self.mean_loss
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
