//! What the host gives the programs of a step besides the batch: RNG keys, loss scales, the normalisation of spectrograms.

use tandem_checkpoint::MelStatistics;
use tandem_engine::HostValue;
use tandem_feed::Utterance;
use tandem_model::host;

/// The RNG keys of a batch, besides the op that uses them: an utterance gets the same random numbers in any batch and row,
/// and others in the next step.
#[derive(Debug, PartialEq)]
pub(crate) struct StepKeys {
    pub(crate) seed: [u32; 2],
    pub(crate) step: [u32; 1],
    pub(crate) utterances: Vec<u32>,
}

impl StepKeys {
    pub(crate) fn of(seed: u64, step: u64, utterances: &[Option<Utterance>]) -> StepKeys {
        let key = |utterance: &Option<Utterance>| utterance.map_or(0, |utterance| utterance.sample.0);
        StepKeys {
            seed: [seed as u32, (seed >> 32) as u32],
            step: [step as u32],
            utterances: utterances.iter().map(key).collect(),
        }
    }
}

/// How much speech is in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    pub(crate) frames: u64,
    pub(crate) tokens: u64,
}

impl StepCounts {
    pub(crate) fn of<'u>(utterances: impl Iterator<Item = &'u Utterance>) -> StepCounts {
        let one =
            |utterance: &Utterance| StepCounts { frames: utterance.frames.into(), tokens: utterance.tokens.into() };
        utterances.map(one).fold(StepCounts::default(), StepCounts::plus)
    }

    pub(crate) fn plus(self, other: StepCounts) -> StepCounts {
        StepCounts { frames: self.frames + other.frames, tokens: self.tokens + other.tokens }
    }
}

/// What loss sums are multiplied with: one over the numbers, and one over the tokens, of the whole optimizer step
/// on all ranks.
pub(crate) struct LossScales {
    per_element: [f32; 1],
    per_token: [f32; 1],
}

impl LossScales {
    pub(crate) fn new(counts: StepCounts, bands: usize) -> LossScales {
        let StepCounts { frames, tokens } = counts;
        let one_over = |count: u64| [(1.0 / count.max(1) as f64) as f32];
        LossScales { per_element: one_over(frames * bands as u64), per_token: one_over(tokens) }
    }

    pub(crate) fn host_values<'a>(&'a self, normalisation: &'a Normalisation) -> Vec<(&'static str, HostValue<'a>)> {
        vec![
            (host::PER_ELEMENT, HostValue::F32(&self.per_element)),
            (host::PER_TOKEN, HostValue::F32(&self.per_token)),
            (host::MEL_MEAN, HostValue::F32(&normalisation.mean)),
            (host::MEL_SCALE, HostValue::F32(&normalisation.scale)),
        ]
    }
}

/// The mean of spectrograms and one over their standard deviation, as the programs take them.
pub(crate) struct Normalisation {
    mean: [f32; 1],
    scale: [f32; 1],
}

impl Normalisation {
    pub(crate) fn of(statistics: &MelStatistics) -> Normalisation {
        Normalisation { mean: [statistics.mean], scale: [1.0 / statistics.std] }
    }
}

#[cfg(test)]
mod tests {
    use tandem_corpus::SampleIndex;

    use super::*;

    fn utterances() -> Vec<Option<Utterance>> {
        let utterance = |sample, frames, tokens| Some(Utterance { sample: SampleIndex(sample), frames, tokens });
        vec![utterance(9, 30, 4), None, utterance(3, 10, 1)]
    }

    #[test]
    fn rng_keys_depend_on_seed_step_and_utterance() {
        let expected = StepKeys { seed: [5, 3], step: [7], utterances: vec![9, 0, 3] };
        assert_eq!(StepKeys::of((3 << 32) | 5, 7, &utterances()), expected);
    }

    #[test]
    fn losses_are_means_over_all_numbers_and_tokens_of_a_step() {
        let scales =
            |utterances: &[Option<Utterance>]| LossScales::new(StepCounts::of(utterances.iter().flatten()), 80);
        let whole = scales(&utterances());
        assert_eq!((whole.per_element, whole.per_token), ([1.0 / 3200.0], [1.0 / 5.0]));
        // An empty step does not divide by zero.
        let empty = scales(&[]);
        assert_eq!((empty.per_element, empty.per_token), ([1.0], [1.0]));
    }
}
