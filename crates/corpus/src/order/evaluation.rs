//! Every sample once, in as few batches of given shapes as a simple rule makes of them.
//!
//! Batch after batch, rows are filled from the longest down, each with the longest sample that is left and fits. Shapes
//! take turns, so that none is used more than another; where the longest sample that is left does not fit the shape
//! whose turn it is, one that holds it comes first. A batch takes that sample at least, so this ends. What a row finds
//! nothing for stays empty.

use super::Epoch;
use crate::parts::Extent;
use crate::sample::SampleIndex;

/// Packs `samples`, shortest first, each of which fits some row of `shapes`. Cost: about samples times the texts that
/// do not fit where their recordings do.
pub(super) fn pack(shapes: &[Vec<Extent>], samples: &[(SampleIndex, Extent)]) -> Epoch {
    let mut epoch = Epoch::default();
    let mut left = Left::all(samples);
    while let Some(longest) = left.longest() {
        let holds = |shape: &usize| shapes[*shape].iter().any(|row| longest.fits(row));
        let turn = epoch.batches.len();
        let Some(shape) = (0..shapes.len()).map(|i| (turn + i) % shapes.len()).find(holds) else {
            unreachable!("what fits nowhere was left out before")
        };
        let start = epoch.rows.len();
        epoch.batches.push((start, shape));
        epoch.rows.resize(start + shapes[shape].len(), None);
        let mut rows: Vec<usize> = (0..shapes[shape].len()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(shapes[shape][*row]));
        for row in rows {
            epoch.rows[start + row] = left.take(&shapes[shape][row]);
        }
    }
    epoch
}

/// The samples that are in no batch yet.
struct Left<'a> {
    samples: &'a [(SampleIndex, Extent)],
    /// For every place, and the one before the first: the nearest place at or below it that is still left, one more
    /// than it; 0 where there is none. Shortened whenever somebody walks along it.
    below: Vec<usize>,
}

impl Left<'_> {
    fn all(samples: &[(SampleIndex, Extent)]) -> Left<'_> {
        Left { samples, below: (0..=samples.len()).collect() }
    }

    fn longest(&mut self) -> Option<Extent> {
        let place = self.find(self.samples.len());
        place.checked_sub(1).map(|place| self.samples[place].1)
    }

    /// Takes the longest that fits `row`.
    fn take(&mut self, row: &Extent) -> Option<SampleIndex> {
        let mut place = self.samples.partition_point(|(_, extent)| extent.frames <= row.frames);
        loop {
            place = self.find(place);
            let (sample, extent) = self.samples[place.checked_sub(1)?];
            if extent.fits(row) {
                self.below[place] = place - 1;
                return Some(sample);
            }
            place -= 1;
        }
    }

    fn find(&mut self, mut place: usize) -> usize {
        while self.below[place] != place {
            let further = self.below[self.below[place]];
            self.below[place] = further;
            place = further;
        }
        place
    }
}
