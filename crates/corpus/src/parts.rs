//! A corpus by length, cut into parts: one for every row of every shape.
//!
//! Shapes are static, and their rows are not equally long. Samples are sorted by length and cut by rank into as many
//! parts as all shapes have rows; a row takes samples of its own part only, so it is padded to the longest of that part
//! and no further. Parts are dealt to shapes to and fro (0 1 2, 2 1 0, 0 1 2 …): every shape then has a row of every
//! length, and all of them nearly the same sum, so that steps take equally long and no shape needs much more memory
//! than another. Dealt always in the same direction, the last shape would have the longest row of every round.
//!
//! Tensors with one length for all rows are for other loops than ours: there a shape has neighbouring parts
//! ([`Arrangement::ByLength`]), so that its rows are nearly equally long and shapes differ instead.
//!
//! Which sample is in which part is a pure function of the samples, their lengths, the number of shapes and the batch.

use std::ops::Range;

use crate::sample::SampleIndex;

/// How long an utterance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Mel frames of its recording.
    pub frames: u32,
    /// Symbols of its text.
    pub tokens: u32,
}

impl Extent {
    /// Whether an utterance this long has room in a row of `row`.
    pub fn fits(&self, row: &Extent) -> bool {
        self.frames <= row.frames && self.tokens <= row.tokens
    }

    /// What holds both.
    pub fn or(self, other: Extent) -> Extent {
        Extent { frames: self.frames.max(other.frames), tokens: self.tokens.max(other.tokens) }
    }
}

/// Which parts are the rows of a shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// Parts of every length: shapes have nearly the same sum.
    #[default]
    Interleaved,
    /// Neighbouring parts: the rows of a shape have nearly the same length.
    ByLength,
}

/// Samples of a part, at least. With one, a batch would be made of the same samples in every epoch.
const LEAST_MEMBERS: usize = 2;

/// Samples cut into parts. Holding one means that there is at least one batch of each shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    arrangement: Arrangement,
    num_shapes: usize,
    batch: usize,
    /// All of them, shortest first.
    sorted: Vec<(SampleIndex, Extent)>,
    /// Where each part begins in `sorted`, and behind the last one the end.
    starts: Vec<usize>,
}

impl Parts {
    /// Cuts `samples`, of which a mixture may give some several times: `num_shapes` times `batch` parts whose sizes differ by at most one. Of samples that do not give
    /// each part two members, fewer shapes are made; of fewer than `batch`, a smaller batch. None without samples.
    ///
    /// Cost: a sort; a million samples take a tenth of a second.
    pub fn cut(
        samples: impl IntoIterator<Item = (SampleIndex, Extent)>,
        num_shapes: usize,
        batch: u32,
    ) -> Option<Parts> {
        Parts::arrange(samples, num_shapes, batch, Arrangement::Interleaved)
    }

    /// [`cut`](Parts::cut) with the parts of a shape chosen by `arrangement`.
    pub fn arrange(
        samples: impl IntoIterator<Item = (SampleIndex, Extent)>,
        num_shapes: usize,
        batch: u32,
        arrangement: Arrangement,
    ) -> Option<Parts> {
        let mut sorted: Vec<(SampleIndex, Extent)> = samples.into_iter().collect();
        // Two that are equal are the same sample, so the order in which they were given does not matter.
        sorted.sort_unstable_by_key(|(index, extent)| (*extent, *index));
        let batch = (batch as usize).clamp(1, sorted.len().max(1));
        let num_shapes = num_shapes.clamp(1, (sorted.len() / (LEAST_MEMBERS * batch)).max(1));
        let mut parts = Parts { arrangement, num_shapes, batch, starts: vec![0], sorted };
        if parts.sorted.is_empty() {
            return None;
        }
        let mut end = 0;
        for part in 0..num_shapes * batch {
            end += parts.planned_size(part);
            parts.starts.push(end);
        }
        Some(parts)
    }

    /// Shapes, at least one.
    pub fn num_shapes(&self) -> usize {
        self.num_shapes
    }

    /// Rows of a shape: samples of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// All samples.
    pub fn num_samples(&self) -> usize {
        self.sorted.len()
    }

    /// Batches of a shape in an epoch: as many as its smallest part has members.
    pub fn num_batches(&self, shape: usize) -> usize {
        let over = self.sorted.len() % (self.num_shapes * self.batch);
        self.equal_size() + usize::from(shape < over / self.batch)
    }

    /// The samples of a row, shortest first.
    pub fn members(&self, shape: usize, row: usize) -> &[(SampleIndex, Extent)] {
        &self.sorted[self.range(shape, row)]
    }

    /// The samples that are sorted before those of a row, shortest first.
    pub fn before(&self, shape: usize, row: usize) -> &[(SampleIndex, Extent)] {
        &self.sorted[..self.range(shape, row).start]
    }

    /// What a row must hold.
    pub fn longest(&self, shape: usize, row: usize) -> Extent {
        self.members(shape, row).iter().fold(Extent::default(), |longest, (_, extent)| longest.or(*extent))
    }

    fn range(&self, shape: usize, row: usize) -> Range<usize> {
        let part = self.part_of(shape, row);
        self.starts[part]..self.starts[part + 1]
    }

    /// The part behind a row.
    fn part_of(&self, shape: usize, row: usize) -> usize {
        match self.arrangement {
            Arrangement::Interleaved => row * self.num_shapes + self.turned(shape, row),
            Arrangement::ByLength => shape * self.batch + row,
        }
    }

    /// The shape and the row of a part.
    fn row_of(&self, part: usize) -> (usize, usize) {
        match self.arrangement {
            Arrangement::Interleaved => {
                let row = part / self.num_shapes;
                (self.turned(part % self.num_shapes, row), row)
            }
            Arrangement::ByLength => (part / self.batch, part % self.batch),
        }
    }

    /// Every other row is dealt backwards. Applied twice, it changes nothing.
    fn turned(&self, shape: usize, row: usize) -> usize {
        if row.is_multiple_of(2) { shape } else { self.num_shapes - 1 - shape }
    }

    /// Samples beyond an equal number for all parts go to whole shapes first, a batch more each. What is still left
    /// over is spread over the rows of the next shape: fewer samples than a batch, of which as many sit an epoch out.
    fn planned_size(&self, part: usize) -> usize {
        let (shape, row) = self.row_of(part);
        let over = self.sorted.len() % (self.num_shapes * self.batch);
        let (whole, left) = (over / self.batch, over % self.batch);
        let spread = (row + 1) * left / self.batch - row * left / self.batch;
        let more = if shape < whole { 1 } else { spread };
        self.equal_size() + if shape <= whole { more } else { 0 }
    }

    /// Members that every part has.
    fn equal_size(&self) -> usize {
        self.sorted.len() / (self.num_shapes * self.batch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(frames: &[u32]) -> Vec<(SampleIndex, Extent)> {
        let extent = |frames: u32| Extent { frames, tokens: frames / 7 + frames % 5 };
        frames.iter().enumerate().map(|(i, frames)| (SampleIndex(i as u32), extent(*frames))).collect()
    }

    fn rows(parts: &Parts) -> impl Iterator<Item = (usize, usize)> {
        let batch = parts.batch();
        (0..parts.num_shapes()).flat_map(move |shape| (0..batch).map(move |row| (shape, row)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn every_sample_is_in_one_part_and_parts_are_equal(
            frames in prop::collection::vec(1_u32..900, 1..400), num_shapes in 0_usize..9, batch in 0_u32..40,
            arrangement in prop_oneof![Just(Arrangement::Interleaved), Just(Arrangement::ByLength)],
        ) {
            let parts = Parts::arrange(samples(&frames), num_shapes, batch, arrangement).unwrap();
            prop_assert!(parts.batch() <= frames.len() && parts.batch() <= batch.max(1) as usize);
            let mut seen: Vec<SampleIndex> = Vec::new();
            let mut sizes = Vec::new();
            for (shape, row) in rows(&parts) {
                let members = parts.members(shape, row);
                sizes.push(members.len());
                seen.extend(members.iter().map(|(index, _)| *index));
                let longest = parts.longest(shape, row);
                prop_assert!(members.iter().all(|(_, extent)| extent.fits(&longest)));
                prop_assert!(parts.before(shape, row).iter().all(|(_, extent)| extent.frames <= longest.frames));
                // Rows rise inside a shape.
                prop_assert!(row == 0 || parts.longest(shape, row - 1).frames <= longest.frames);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, samples(&frames).iter().map(|(index, _)| *index).collect::<Vec<_>>());
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            prop_assert!(most - least <= 1 && *least >= 1, "{:?}", sizes);
            // Fewer than a batch are left over.
            for shape in 0..parts.num_shapes() {
                let smallest = (0..parts.batch()).map(|row| parts.members(shape, row).len()).min();
                prop_assert_eq!(Some(parts.num_batches(shape)), smallest);
            }
            let served: usize = (0..parts.num_shapes()).map(|shape| parts.num_batches(shape)).sum();
            prop_assert_eq!(served, frames.len() / parts.batch());
        }

        #[test]
        fn how_they_were_given_does_not_matter(frames in prop::collection::vec(1_u32..50, 1..100)) {
            let (mut given, there) = (samples(&frames), Parts::cut(samples(&frames), 3, 4));
            given.reverse();
            prop_assert_eq!(Parts::cut(given, 3, 4), there);
        }
    }

    #[test]
    fn too_few_samples_make_fewer_shapes_then_a_smaller_batch() {
        let check = |count: usize, num_shapes: usize, batch: u32, expected: (usize, usize)| {
            let parts = Parts::cut(samples(&vec![100; count]), num_shapes, batch).unwrap();
            assert_eq!((parts.num_shapes(), parts.batch()), expected, "{count} {num_shapes} {batch}");
        };
        check(1000, 8, 16, (8, 16));
        check(256, 8, 16, (8, 16));
        check(255, 8, 16, (7, 16));
        check(63, 8, 16, (1, 16));
        check(16, 8, 16, (1, 16));
        check(15, 8, 16, (1, 15));
        check(1, 8, 16, (1, 1));
        check(5, 0, 0, (1, 1));
        assert_eq!(Parts::cut(Vec::new(), 2, 16), None);
    }

    #[test]
    fn by_length_every_shape_is_longer_than_the_one_before() {
        let frames: Vec<u32> = (0..1000).map(|i| 100 + (i * 7919) % 997).collect();
        let parts = Parts::arrange(samples(&frames), 8, 16, Arrangement::ByLength).unwrap();
        let shortest = |shape| parts.members(shape, 0)[0].1.frames;
        for shape in 1..8 {
            assert!(parts.longest(shape - 1, 15).frames <= shortest(shape), "{shape}");
        }
        // An eighth of the lengths, where interleaved shapes have all of them.
        assert!(parts.longest(3, 15).frames - shortest(3) <= 997 / 8 + 16);
    }

    #[test]
    fn shapes_have_nearly_the_same_sum() {
        // Lengths as speech has them, with a long tail: their squares are evenly spread.
        let frames: Vec<u32> = (0..1000).map(|i| 100 + i * i / 1200).collect();
        for num_shapes in [2, 3, 4, 8] {
            let parts = Parts::cut(samples(&frames), num_shapes, 16).unwrap();
            let sum = |shape: usize| (0..16).map(|row| parts.longest(shape, row).frames).sum::<u32>();
            let sums: Vec<u32> = (0..num_shapes).map(sum).collect();
            let (least, most) = (*sums.iter().min().unwrap(), *sums.iter().max().unwrap());
            assert!(f64::from(most) < 1.02 * f64::from(least), "{num_shapes}: {sums:?}");
        }
    }
}
