//! Counter-based random numbers, Philox 4x32-10 (Salmon et al. 2011): a word is a pure function of the seed, the step, the
//! utterance, the op and the element of the utterance's row.
//!
//! So an utterance gets the same numbers in another batch, another bucket, a micro-batch, a recomputed block and a resumed run.
//! The key of Philox is the seed; its counter is `(element / 4, utterance, op, step)` with `element = frame · columns + column`
//! inside the row, and element `4·i + k` takes word `k`.

use tandem_device::DType;

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::op::refuse;
use crate::rows::Rows;
use crate::tensor::TensorType;

/// Counters processed together: four vectors of four words, enough to hide the latency of the multiplications.
const LANES: usize = 16;
/// Words of [`LANES`] counters.
pub(super) const BLOCK: usize = 4 * LANES;

/// The keys of a batch's random numbers. The host sets `seed` (two words), `step` (one word) and `utterances` (one word per
/// row, the same for an utterance in every batch).
#[derive(Clone, Debug)]
pub struct RngKeys {
    pub(super) seed: Value,
    pub(super) step: Value,
    pub(super) utterances: Value,
    pub(super) rows: Rows,
}

impl RngKeys {
    /// Declares the host values, or finds those already declared. Row tables with equal numbers of rows share them.
    pub fn new(graph: &mut Graph, rows: &Rows) -> Result<RngKeys, EngineError> {
        let words = |count: u32| TensorType::new(DType::U32, &[count]);
        Ok(RngKeys {
            seed: graph.host("seed", words(2))?,
            step: graph.host("step", words(1))?,
            utterances: graph.host("utterances", words(rows.count()))?,
            rows: rows.clone(),
        })
    }

    /// The rows that random numbers are generated for.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The inputs of a random op, in the order of [`Words::new`].
    pub(super) fn inputs(&self, graph: &mut Graph) -> [Value; 4] {
        [self.seed, self.step, self.utterances, graph.row_starts(&self.rows)]
    }
}

/// Checks the four inputs of [`RngKeys::inputs`] against a tensor of `frames` frames.
pub(super) fn check(op: &'static str, rows: &Rows, frames: u32, inputs: &[TensorType]) -> Result<(), EngineError> {
    if frames != rows.total() {
        return refuse(op, format!("its RNG keys are for rows of {} frames", rows.total()), inputs);
    }
    Ok(())
}

/// The random words of one op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    key: [u32; 2],
    step: u32,
    /// The number of the op.
    draw: u32,
    utterances: &'a [u32],
    /// The first frame of each row.
    pub(super) starts: &'a [u32],
}

impl<'a> Words<'a> {
    /// From the arguments of a kernel. `seed` has two words and `step` one.
    pub(super) fn new(seed: &[u32], step: &[u32], utterances: &'a [u32], starts: &'a [u32], draw: u32) -> Words<'a> {
        Words { key: [seed[0], seed[1]], step: step[0], utterances, starts, draw }
    }

    /// The words of `row` from element `first` on, a multiple of four.
    pub(super) fn block(&self, row: usize, first: usize) -> [u32; BLOCK] {
        debug_assert_eq!(first % 4, 0, "a counter covers four elements");
        let first = (first / 4) as u32;
        let lanes = std::array::from_fn(|lane| first.wrapping_add(lane as u32));
        philox_lanes(self.key, lanes, [self.utterances[row], self.draw, self.step])
    }

    /// Calls `work(offset, words)` for runs of elements `first..end` of `row`, with one word per element.
    pub(super) fn each_run(&self, row: usize, first: usize, end: usize, mut work: impl FnMut(usize, &[u32])) {
        let mut at = first;
        while at < end {
            let from = at - at % 4;
            let until = (from + BLOCK).min(end);
            let words = self.block(row, from);
            work(at - first, &words[at - from..until - from]);
            at = until;
        }
    }
}

/// [`philox`](crate::random::philox) for several counters at once, which differ in their first word: loops that vectorise.
#[inline]
fn philox_lanes(mut key: [u32; 2], first: [u32; LANES], rest: [u32; 3]) -> [u32; BLOCK] {
    let (mut a, mut b, mut c, mut d) = (first, [rest[0]; LANES], [rest[1]; LANES], [rest[2]; LANES]);
    for _ in 0..10 {
        for i in 0..LANES {
            let p = 0xD251_1F53_u64 * u64::from(a[i]);
            let q = 0xCD9E_8D57_u64 * u64::from(c[i]);
            a[i] = (q >> 32) as u32 ^ b[i] ^ key[0];
            b[i] = q as u32;
            c[i] = (p >> 32) as u32 ^ d[i] ^ key[1];
            d[i] = p as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    let mut words = [0; BLOCK];
    for (i, four) in words.chunks_exact_mut(4).enumerate() {
        four.copy_from_slice(&[a[i], b[i], c[i], d[i]]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::philox;

    #[test]
    fn lanes_match_the_scalar_generator() {
        let first = std::array::from_fn(|lane| 0xFFFF_FFF8_u32.wrapping_add(lane as u32));
        let words = philox_lanes([3, 0xA409_3822], first, [7, 8, 9]);
        for (counter, four) in first.iter().zip(words.chunks(4)) {
            assert_eq!(philox([3, 0xA409_3822], [*counter, 7, 8, 9]), four);
        }
    }

    #[test]
    fn a_word_depends_on_its_element_alone() {
        let words = Words { key: [1, 2], step: 3, draw: 4, utterances: &[50, 60], starts: &[0, 100, 200] };
        let word_at = |element: usize| philox([1, 2], [element as u32 / 4, 60, 4, 3])[element % 4];
        for (first, end) in [(0, 7), (5, 6), (3, 200), (63, 66), (64, 64)] {
            let mut found = Vec::new();
            words.each_run(1, first, end, |at, run| {
                assert_eq!(at, found.len());
                found.extend_from_slice(run);
            });
            let expected: Vec<u32> = (first..end).map(word_at).collect();
            assert_eq!(found, expected, "{first}..{end}");
        }
    }
}
