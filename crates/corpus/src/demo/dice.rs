//! Numbers drawn one after the other, from a key.

use tandem_random::keyed;

/// A sequence of numbers that its key decides.
pub(super) struct Dice {
    key: u64,
    drawn: u64,
}

impl Dice {
    pub(super) fn new(words: &[u64]) -> Dice {
        Dice { key: keyed::key(words), drawn: 0 }
    }

    /// A whole number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        keyed::below(self.key, self.next(), bound.max(1) as u64) as usize
    }

    /// True this often out of a hundred times.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number from -1 to 1.
    pub(super) fn around_zero(&mut self) -> f64 {
        // 53 bits are what a double holds exactly.
        let bits = keyed::draw(self.key, self.next()) >> 11;
        bits as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// One of `items`, which must not be empty.
    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn next(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }
}
