//! Random choices of one case, all from its seed.

use tandem_random::{SplitMix, keyed};

/// A sequence of random choices.
#[derive(Clone, Debug)]
pub(crate) struct Choices(SplitMix);

impl Choices {
    /// The choices of case `number` of the kind with this index, in the campaign with this seed.
    pub(crate) fn of_case(seed: u64, kind: u64, number: u64) -> Choices {
        Choices(SplitMix::new(keyed::key(&[seed, kind, number])))
    }

    /// Any 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit.max(1) as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number in [0, 1).
    pub(crate) fn fraction(&mut self) -> f64 {
        self.0.unit()
    }

    /// One of `options`, which must not be empty.
    pub(crate) fn pick<'a, T>(&mut self, options: &'a [T]) -> &'a T {
        assert!(!options.is_empty(), "nothing to pick from");
        &options[self.below(options.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_the_same_choices_every_time_and_other_cases_have_others() {
        let numbers = |seed, kind, number| {
            let mut choices = Choices::of_case(seed, kind, number);
            (0..8).map(|_| choices.bits()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1, 2, 3), numbers(1, 2, 3));
        assert!([numbers(2, 2, 3), numbers(1, 3, 3), numbers(1, 2, 4)].iter().all(|other| *other != numbers(1, 2, 3)));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut choices = Choices::of_case(7, 0, 0);
        for _ in 0..1000 {
            assert!((3..=5).contains(&choices.between(3, 5)) && choices.below(2) < 2 && choices.fraction() < 1.0);
        }
        assert_eq!((choices.below(0), choices.between(4, 4)), (0, 4));
    }
}
