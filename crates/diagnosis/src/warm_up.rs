//! Warm-up: the beginning of a run, whose step times say nothing about the rest of it.

use std::time::Duration;

use crate::facts::WARM_UP_STEPS;

/// The cache of a large corpus fills for longer; from here on a wait for decoding is worth a warning.
const LONGEST_FILLING: Duration = Duration::from_secs(60);

/// Decides for each step of a run, in order, whether it belongs to the warm-up: the first steps, which include one-time costs,
/// and the steps that wait for decoding because the audio cache is still being filled.
#[derive(Clone, Debug, Default)]
pub struct StepWarmUp {
    steps: usize,
    cached_from_epoch: Option<u64>,
    began_ns: u64,
    is_over: bool,
}

impl StepWarmUp {
    /// A run that begins at `now_ns`. From `cached_from_epoch` on every recording is in the cache; `None` without a cache.
    pub fn new(cached_from_epoch: Option<u64>, now_ns: u64) -> StepWarmUp {
        StepWarmUp { cached_from_epoch, began_ns: now_ns, ..StepWarmUp::default() }
    }

    /// Counts a step of `epoch` that ended at `now_ns`. Returns whether it belongs to the warm-up.
    pub fn covers(&mut self, epoch: u64, now_ns: u64) -> bool {
        self.steps += 1;
        let is_filling = self.cached_from_epoch.is_some_and(|cached| epoch < cached)
            && now_ns.saturating_sub(self.began_ns) < LONGEST_FILLING.as_nanos() as u64;
        self.is_over = self.is_over || (self.steps > WARM_UP_STEPS && !is_filling);
        !self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// How many of 100 steps belong to the warm-up: ten an epoch, `step_ns` each.
    fn covered(cached_from_epoch: Option<u64>, step_ns: u64) -> u64 {
        let mut warm_up = StepWarmUp::new(cached_from_epoch, 7 * SECOND);
        let covered: Vec<bool> =
            (0..100).map(|step| warm_up.covers(step / 10, 7 * SECOND + (step + 1) * step_ns)).collect();
        let count = covered.iter().filter(|is| **is).count();
        assert!(covered[..count].iter().all(|is| *is), "the warm-up is one piece: {covered:?}");
        count as u64
    }

    #[test]
    fn warm_up_ends_after_five_steps_or_once_the_cache_is_full() {
        assert_eq!(covered(None, SECOND), 5);
        assert_eq!(covered(Some(0), SECOND), 5);
        assert_eq!(covered(Some(1), SECOND), 10);
        assert_eq!(covered(Some(2), SECOND), 20, "resumed in the middle of an epoch");
    }

    #[test]
    fn a_cache_that_fills_for_longer_than_a_minute_is_no_warm_up() {
        assert_eq!(covered(Some(9), SECOND), 59);
        assert_eq!(covered(Some(9), 30 * SECOND), 5);
    }
}
