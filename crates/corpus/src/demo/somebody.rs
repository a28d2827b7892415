//! Where somebody without a name stands among all who could speak.
//!
//! Numbers drawn each for itself fall together now and then, and two voices that nobody can tell apart teach nothing.
//! Here the next voice is a fixed step further in every way people differ, round and round, and the seed says where the
//! first one stands. How far apart two voices are depends mostly on their numbers, so good steps could be searched for:
//! those that [`super::DemoVoice::number`] gives keep the nearest two of 60 far apart in what a judge of speakers hears.

use super::dice::Dice;

/// What the numbers of a voice are drawn for.
const SOMEBODY: u64 = 0x566f_6963_6573;

/// Somebody, asked for one thing after the other.
pub(super) struct Somebody {
    start: Dice,
    number: f64,
}

impl Somebody {
    pub(super) fn new(seed: u64, number: usize) -> Somebody {
        Somebody { start: Dice::new(&[seed, SOMEBODY]), number: number as f64 }
    }

    /// Between `from` and `to`, everything as often.
    pub(super) fn evenly(&mut self, from: f64, to: f64, step: f64) -> f64 {
        from + (to - from) * self.place(step)
    }

    /// Between `from` and `to`, which are positive: as often below their geometric mean as above.
    pub(super) fn in_ratio(&mut self, from: f64, to: f64, step: f64) -> f64 {
        // Close to from^(1 - place) to^place, with nothing that machines round differently.
        let place = self.place(step);
        let (arithmetic, inverse) = (from + (to - from) * place, (1.0 - place) / from + place / to);
        (arithmetic / inverse).sqrt()
    }

    /// Between `from` and `to`: half of all people within an eighth of the way.
    pub(super) fn seldom(&mut self, from: f64, to: f64, step: f64) -> f64 {
        let place = self.place(step);
        from + (to - from) * place * place * place
    }

    /// From 0 to below 1.
    fn place(&mut self, step: f64) -> f64 {
        let along = 0.5 + 0.5 * self.start.around_zero() + self.number * step;
        along - along.floor()
    }
}
