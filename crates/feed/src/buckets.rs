//! The few shapes in which batches come, chosen so that they waste as little as can be.
//!
//! Every batch is padded to the edge of its bucket. What a bucket's members do not fill goes up to the next one, and a
//! few rows sit an epoch out so that the sum comes out even (see [`tandem_corpus::Order`]). So of `N(e)` recordings of
//! up to `e` frames, those that do not sit out make whole batches in the buckets up to edge `e`, and a table costs
//! `sum over buckets of edge * (rows served up to it - rows served below it)`, of which the mean over epochs is known.
//! Edges are multiples of [`FRAME_STEP`], and only lengths that occur can be edges of the best table, so it is found
//! exactly, by dynamic programming over them. The cost grows ever faster with the edge, which makes the best previous
//! edge move only upwards: `O(buckets * n log n)` for `n` distinct lengths.

use std::ops::Range;

use tandem_corpus::{BucketTable, CorpusError, Order, SampleIndex, Tail};

use crate::shape::Bucket;

/// Frames of an edge are a multiple of this, so that matrix products meet whole tiles.
pub const FRAME_STEP: u32 = 8;
/// Shapes, unless somebody says otherwise. Each is compiled and captured before the first step.
pub const NUM_BUCKETS: usize = 8;
/// More shapes are not planned.
pub const MAX_BUCKETS: usize = 16;

/// How long an utterance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Mel frames of its recording.
    pub frames: u32,
    /// Symbols of its text.
    pub tokens: u32,
}

/// The shapes for a set of utterances. Holding one means that there is a bucket for each of them, and a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<Bucket>,
    batch: u32,
}

/// What one epoch carries, and what it pads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Batches of the epoch.
    pub batches: u64,
    /// Frames of recordings.
    pub real_frames: u64,
    /// Frames of padding.
    pub padded_frames: u64,
    /// Symbols of texts.
    pub real_tokens: u64,
    /// Symbols of padding.
    pub padded_tokens: u64,
}

impl BucketPlan {
    /// The best table of at most `num_buckets` (and at most [`MAX_BUCKETS`]) for `rows`: none pads less. When they do not make one
    /// `batch`, it is lowered to their number. None without rows.
    pub fn solve(rows: &[(SampleIndex, Extent)], num_buckets: usize, batch: u32) -> Option<BucketPlan> {
        let batch = batch.clamp(1, u32::try_from(rows.len()).unwrap_or(u32::MAX).max(1));
        let frames: Vec<u32> = rows.iter().map(|(_, extent)| extent.frames).collect();
        let edges = best_edges(&frames, num_buckets.clamp(1, MAX_BUCKETS), batch);
        let longest_text = |edge: u32| {
            let fitting = rows.iter().filter(|(_, extent)| extent.frames <= edge);
            fitting.map(|(_, extent)| extent.tokens).max().unwrap_or(0)
        };
        let buckets: Vec<Bucket> = edges
            .into_iter()
            .map(|edge| Bucket { frames: edge.into(), tokens: longest_text(edge).into(), batch: batch.into() })
            .collect();
        (!buckets.is_empty()).then_some(BucketPlan { buckets, batch })
    }

    /// The shapes, shortest first.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Utterances of a batch.
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// The table that [`Order`] takes.
    pub fn table(&self) -> Result<BucketTable, CorpusError> {
        BucketTable::new(self.buckets.iter().map(|bucket| bucket.frames as u32).collect(), self.batch)
    }

    /// The padding of the first epoch of `rows` under `seed`, batch by batch as training would see it. `rows` are those
    /// the plan was made for; others that fit no bucket are left out. Cost: one epoch of [`Order`].
    pub fn padding(&self, seed: u64, rows: &[(SampleIndex, Extent)]) -> Result<Padding, CorpusError> {
        let order = Order::new(
            seed,
            self.table()?,
            Tail::LeaveOut,
            rows.iter().map(|(index, extent)| (*index, extent.frames)),
        )?;
        let mut extents = vec![None; rows.iter().map(|(index, _)| index.at() + 1).max().unwrap_or(0)];
        rows.iter().for_each(|(index, extent)| extents[index.at()] = Some(*extent));
        let mut padding = Padding::default();
        for batch in (0..order.num_batches()).filter_map(|k| order.batch(0, k)) {
            let Bucket { frames, tokens, .. } = self.buckets[batch.bucket];
            padding.batches += 1;
            for extent in batch.samples.iter().filter_map(|sample| extents[sample.at()]) {
                padding.real_frames += u64::from(extent.frames);
                padding.padded_frames += frames - u64::from(extent.frames);
                padding.real_tokens += u64::from(extent.tokens);
                padding.padded_tokens += tokens - u64::from(extent.tokens);
            }
        }
        Ok(padding)
    }
}

impl Padding {
    /// The share of frames that are padding, 0 to 1.
    pub fn frame_waste(&self) -> f64 {
        share(self.padded_frames, self.real_frames)
    }

    /// The share of symbols that are padding, 0 to 1.
    pub fn token_waste(&self) -> f64 {
        share(self.padded_tokens, self.real_tokens)
    }
}

fn share(padded: u64, real: u64) -> f64 {
    if padded == 0 { 0.0 } else { padded as f64 / (padded + real) as f64 }
}

/// The lengths that can be edges, and how many rows buckets up to each serve in the mean of all epochs.
struct Candidates {
    edges: Vec<u32>,
    served: Vec<f64>,
}

impl Candidates {
    fn new(frames: &[u32], batch: u32) -> Candidates {
        let mut sorted = frames.to_vec();
        sorted.sort_unstable();
        let mut candidates = Candidates { edges: Vec::new(), served: Vec::new() };
        let mut below = 0;
        for alike in sorted.chunk_by(|a, b| rounded(*a) == rounded(*b)) {
            below += alike.len() as u64;
            candidates.edges.push(rounded(alike[0]));
            candidates.served.push(mean_served(below, frames.len() as u64, u64::from(batch)));
        }
        candidates
    }

    /// Frames of the batches in a bucket that ends at candidate `to`, where the one before ends at `from`.
    fn cost(&self, from: Option<usize>, to: usize) -> f64 {
        let before = from.map_or(0.0, |from| self.served[from]);
        f64::from(self.edges[to]) * (self.served[to] - before)
    }
}

/// No recording has four billion frames, so nothing overflows.
fn rounded(frames: u32) -> u32 {
    frames.max(1).next_multiple_of(FRAME_STEP)
}

/// Of `total` rows, `total mod batch` drawn at random sit out. How many of the `below` shortest are then served in
/// whole batches of their own, in the mean. Cost: linear in those who sit out.
fn mean_served(below: u64, total: u64, batch: u64) -> f64 {
    // Fewer than a batch sit out: they cost one batch or none.
    let one_less = chance_of_more(below % batch, total % batch, below, total);
    batch as f64 * ((below / batch) as f64 - one_less)
}

/// The chance that of `drawn` out of `total` more than `spare` are among `marked` ones: the tail of a hypergeometric
/// distribution. Weights are taken from its middle outwards, each from its neighbour, so that none of them overflows.
fn chance_of_more(spare: u64, drawn: u64, marked: u64, total: u64) -> f64 {
    let (least, most) = (drawn.saturating_sub(total - marked), drawn.min(marked));
    let middle = ((drawn + 1) * (marked + 1) / (total + 2)).clamp(least, most);
    let rise = |x: u64| {
        let up = (marked - x) as f64 * (drawn - x) as f64;
        up / ((x + 1) as f64 * (total + x + 1 - marked - drawn) as f64)
    };
    let (mut all, mut more) = (0.0, 0.0);
    let mut count = |x: u64, weight: f64| {
        all += weight;
        more += if x > spare { weight } else { 0.0 };
    };
    let mut weight = 1.0;
    for x in middle..=most {
        count(x, weight);
        weight *= rise(x);
    }
    weight = 1.0;
    for x in (least..middle).rev() {
        weight /= rise(x);
        count(x, weight);
    }
    more / all
}

/// The edges, rising, that give the fewest frames; of two such tables, the one with fewer buckets.
fn best_edges(frames: &[u32], num_buckets: usize, batch: u32) -> Vec<u32> {
    let candidates = Candidates::new(frames, batch);
    let Some(last) = candidates.edges.len().checked_sub(1) else { return Vec::new() };
    let first: Vec<f64> = (0..=last).map(|to| candidates.cost(None, to)).collect();
    // Layer `l` has, for each candidate, the cost of l + 1 buckets the last of which ends there, and the edge before.
    let mut layers = vec![Layer { costs: first, before: vec![0; last + 1] }];
    while layers.len() < num_buckets.min(last + 1) {
        let fewer = layers.len();
        let mut layer = Layer { costs: vec![f64::INFINITY; last + 1], before: vec![0; last + 1] };
        layer.fill(&candidates, &layers[fewer - 1].costs, fewer..last + 1, fewer - 1..last);
        layers.push(layer);
    }
    let least = layers.iter().map(|layer| layer.costs[last]).fold(f64::INFINITY, f64::min);
    // Sums of the same numbers in another order differ in their last digits.
    let best = layers.iter().position(|layer| layer.costs[last] <= least * (1.0 + 1e-9)).unwrap_or(0);
    let mut edges = vec![0; best + 1];
    let mut at = last;
    for l in (0..=best).rev() {
        edges[l] = candidates.edges[at];
        at = layers[l].before[at];
    }
    edges
}

struct Layer {
    costs: Vec<f64>,
    before: Vec<usize>,
}

impl Layer {
    /// Fills the candidates `ends`, whose best previous edges lie in `befores`: the middle one first, which halves
    /// both ranges for the others.
    fn fill(&mut self, candidates: &Candidates, fewer: &[f64], ends: Range<usize>, befores: Range<usize>) {
        if ends.is_empty() {
            return;
        }
        let end = ends.start + ends.len() / 2;
        let cost = |before: usize| fewer[before] + candidates.cost(Some(before), end);
        let tried = (befores.start..befores.end.min(end)).map(|before| (cost(before), before));
        let Some((cost, best)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        (self.costs[end], self.before[end]) = (cost, best);
        self.fill(candidates, fewer, ends.start..end, befores.start..best + 1);
        self.fill(candidates, fewer, end + 1..ends.end, best..befores.end);
    }
}

#[cfg(test)]
mod tests;
