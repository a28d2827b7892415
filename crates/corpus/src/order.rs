//! Which samples batch k of an epoch holds: a pure function of (seed, epoch, k, bucket table).
//!
//! Samples go to the bucket with the least edge that holds them. In each epoch, the samples of a bucket are shuffled
//! and cut into batches, and the batches of all buckets are shuffled. Every batch is full, because shapes are static:
//!
//! - What is left of a bucket moves up to the next larger one, where it fits as well, with a little more padding.
//! - So that the last bucket comes out even, `usable mod batch` samples sit an epoch out. A window over a fixed
//!   shuffle says which; it moves on by its own length every epoch, so nobody sits out twice in a row, and over many
//!   epochs all sit out equally often.
//!
//! With [`Tail::Short`] nobody sits out, and one short batch comes last.
//!
//! Who needs batch k prepares the epoch once (cost: linear in samples, 4 bytes each) and has any k of it from then on.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cursor::Cursor;
use crate::error::CorpusError;
use crate::random;
use crate::sample::SampleIndex;

/// The shapes of batches: how long, and how many to a batch. Holding one means that edges rise and batches have room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketTable {
    max_frames: Vec<u32>,
    batch: u32,
}

impl BucketTable {
    /// Buckets for recordings of up to each of `max_frames`, `batch` recordings to a batch.
    pub fn new(max_frames: Vec<u32>, batch: u32) -> Result<BucketTable, CorpusError> {
        let rising = max_frames.windows(2).all(|pair| pair[0] < pair[1]);
        if max_frames.first().is_none_or(|first| *first == 0) || !rising || batch == 0 {
            return Err(CorpusError::BucketTable { reason: format!("edges {max_frames:?}, batch {batch}") });
        }
        Ok(BucketTable { max_frames, batch })
    }

    /// The longest recording of each bucket, in frames, rising.
    pub fn max_frames(&self) -> &[u32] {
        &self.max_frames
    }

    /// Recordings of a batch.
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// The bucket for a recording of `num_frames`; none when it is too long for all of them.
    pub fn bucket_of(&self, num_frames: u32) -> Option<usize> {
        let bucket = self.max_frames.partition_point(|max| *max < num_frames);
        (bucket < self.max_frames.len()).then_some(bucket)
    }
}

/// What happens to samples that do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// They sit the epoch out, others the next one: for training.
    LeaveOut,
    /// They make one short batch: for evaluation, where every sample counts once.
    Short,
}

/// One of the equal parts of every batch: `rank` of `world`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 0.
    pub rank: u32,
    /// How many there are.
    pub world: u32,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Shard = Shard { rank: 0, world: 1 };
}

/// A batch of the global order, before anything of it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where it is: resuming here gives this batch first.
    pub cursor: Cursor,
    /// Its bucket: the shape it is padded to.
    pub bucket: usize,
    /// Its samples, by position.
    pub samples: Vec<SampleIndex>,
}

impl Batch {
    /// The part of the batch that a rank works on: consecutive positions. All ranks share the bucket.
    pub fn shard(&self, shard: Shard) -> &[SampleIndex] {
        let edge = |rank: u32| self.samples.len() * rank.min(shard.world) as usize / shard.world.max(1) as usize;
        &self.samples[edge(shard.rank)..edge(shard.rank.saturating_add(1))]
    }
}

/// The order of a set of samples for ever. Shared by all who need it; asking is safe from anywhere, in any order.
#[derive(Debug)]
pub struct Order {
    seed: u64,
    table: BucketTable,
    tail: Tail,
    /// The samples of each bucket, in the order they were given.
    members: Vec<Vec<SampleIndex>>,
    num_usable: usize,
    too_long: Vec<SampleIndex>,
    /// The epochs asked for last: two, because workers straddle the border between two.
    prepared: Mutex<Vec<Arc<Epoch>>>,
}

/// An epoch, spelled out.
#[derive(Debug)]
struct Epoch {
    number: u64,
    /// All batches' samples, bucket by bucket.
    samples: Vec<SampleIndex>,
    /// Where each batch starts in `samples`, and its bucket, in the order they are served.
    batches: Vec<(u32, u32)>,
}

impl Order {
    /// The order of samples with their lengths in frames. Those longer than the last bucket are left out, and kept in
    /// [`Order::too_long`]. Fails when they do not make one batch (or with [`Tail::Short`], when there are none).
    pub fn new(
        seed: u64,
        table: BucketTable,
        tail: Tail,
        num_frames: impl IntoIterator<Item = (SampleIndex, u32)>,
    ) -> Result<Order, CorpusError> {
        let mut members = vec![Vec::new(); table.max_frames.len()];
        let mut too_long = Vec::new();
        for (index, num_frames) in num_frames {
            match table.bucket_of(num_frames) {
                Some(bucket) => members[bucket].push(index),
                None => too_long.push(index),
            }
        }
        let num_usable = members.iter().map(Vec::len).sum();
        let needed = if tail == Tail::Short { 1 } else { table.batch as usize };
        if num_usable < needed {
            return Err(CorpusError::TooFewSamples { usable: num_usable, batch: table.batch });
        }
        Ok(Order { seed, table, tail, members, num_usable, too_long, prepared: Mutex::new(Vec::new()) })
    }

    /// Batches of an epoch: the same number in every one.
    pub fn num_batches(&self) -> u64 {
        let batch = self.table.batch as usize;
        let num = if self.tail == Tail::Short { self.num_usable.div_ceil(batch) } else { self.num_usable / batch };
        num as u64
    }

    /// The shapes.
    pub fn table(&self) -> &BucketTable {
        &self.table
    }

    /// Samples that fit a bucket.
    pub fn num_usable(&self) -> usize {
        self.num_usable
    }

    /// Samples of each bucket, before leftovers move up.
    pub fn bucket_sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        self.members.iter().map(Vec::len)
    }

    /// Samples too long for every bucket.
    pub fn too_long(&self) -> &[SampleIndex] {
        &self.too_long
    }

    /// Samples that sit `epoch` out: fewer than a batch.
    pub fn sitting_out(&self, epoch: u64) -> Vec<SampleIndex> {
        let mut rows: Vec<SampleIndex> = self.members.iter().flatten().copied().collect();
        if self.tail == Tail::Short {
            return Vec::new();
        }
        random::shuffle(random::key(&[self.seed, SITTING_OUT]), &mut rows);
        let (total, out) = (rows.len() as u128, self.num_usable % self.table.batch as usize);
        let first = (u128::from(epoch) * out as u128 % total) as usize;
        rows.rotate_left(first);
        rows.truncate(out);
        rows
    }

    /// Batch `k` of `epoch`; none past the epoch's end.
    ///
    /// Cost: the batch, once the epoch is prepared; the first to ask prepares it, and others wait for that.
    pub fn batch(&self, epoch: u64, k: u64) -> Option<Batch> {
        let prepared = self.prepared(epoch);
        let (start, bucket) = *prepared.batches.get(usize::try_from(k).ok()?)?;
        let start = start as usize;
        // Only the very last one can be short.
        let end = (start + self.table.batch as usize).min(prepared.samples.len());
        let samples = prepared.samples[start..end].to_vec();
        Some(Batch { cursor: Cursor { epoch, k }, bucket: bucket as usize, samples })
    }

    /// The sample to try for `position` of batch `k` when the one before could not be used: `attempt` counts from 0.
    ///
    /// A pure function of its arguments, seed and table. Every other sample that fits the batch's shape comes up once:
    /// those of its bucket first, then of shorter ones, and last those that are in the batch already. None when all
    /// were tried, or when there is no such position. Cost: attempts times batch.
    pub fn replacement(&self, epoch: u64, k: u64, position: usize, attempt: usize) -> Option<SampleIndex> {
        let batch = self.batch(epoch, k)?;
        let bad = *batch.samples.get(position)?;
        let key = random::key(&[self.seed, REPLACEMENT, epoch, k, position as u64]);
        let walks = || (0..=batch.bucket).rev().flat_map(|bucket| walk(key, bucket as u64, &self.members[bucket]));
        let fresh = walks().filter(|sample| !batch.samples.contains(sample));
        let repeated = walks().filter(|sample| batch.samples.contains(sample) && *sample != bad);
        fresh.chain(repeated).nth(attempt)
    }

    /// Batches one after the other from `cursor`, over the ends of epochs, for ever.
    pub fn batches_from(&self, cursor: Cursor) -> impl Iterator<Item = Batch> {
        let mut next = self.normal(cursor);
        std::iter::from_fn(move || {
            let batch = self.batch(next.epoch, next.k)?;
            next = self.after(next);
            Some(batch)
        })
    }

    /// The place after `cursor`.
    pub fn after(&self, cursor: Cursor) -> Cursor {
        self.normal(Cursor { epoch: cursor.epoch, k: cursor.k.saturating_add(1) })
    }

    /// The end of an epoch is the beginning of the next.
    fn normal(&self, cursor: Cursor) -> Cursor {
        if cursor.k < self.num_batches() { cursor } else { Cursor { epoch: cursor.epoch.saturating_add(1), k: 0 } }
    }

    fn prepared(&self, number: u64) -> Arc<Epoch> {
        // Nothing is left half done under the lock, so a poisoned one holds what it should.
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = prepared.iter().find(|epoch| epoch.number == number) {
            return Arc::clone(epoch);
        }
        let epoch = Arc::new(self.prepare(number));
        prepared.truncate(1);
        prepared.insert(0, Arc::clone(&epoch));
        epoch
    }

    fn prepare(&self, number: u64) -> Epoch {
        let batch = self.table.batch as usize;
        let mut out = self.sitting_out(number);
        out.sort_unstable();
        let mut epoch = Epoch { number, samples: Vec::with_capacity(self.num_usable), batches: Vec::new() };
        let mut carried: Vec<SampleIndex> = Vec::new();
        for (bucket, members) in self.members.iter().enumerate() {
            let from_below = carried.len();
            carried.extend(members.iter().filter(|sample| out.binary_search(sample).is_err()));
            random::shuffle(random::key(&[self.seed, MEMBERS, number, bucket as u64]), &mut carried[from_below..]);
            // Those from below stand first, so that nobody moves up twice while there are others.
            let used = carried.len() / batch * batch;
            let mut rest = carried.split_off(used);
            random::shuffle(random::key(&[self.seed, MIXED, number, bucket as u64]), &mut carried);
            epoch.push(bucket, &carried, batch);
            std::mem::swap(&mut carried, &mut rest);
        }
        // Nobody is left here unless tails may be short: the window above made the sum come out even.
        let fits = |sample: &SampleIndex| self.members.iter().rposition(|members| members.contains(sample));
        let largest = carried.iter().filter_map(fits).max().unwrap_or(0);
        let short = epoch.batches.len();
        epoch.push(largest, &carried, batch);
        random::shuffle(random::key(&[self.seed, BATCHES, number]), &mut epoch.batches[..short]);
        epoch
    }
}

impl Epoch {
    /// Adds `samples` as batches of `bucket`.
    fn push(&mut self, bucket: usize, samples: &[SampleIndex], batch: usize) {
        for part in samples.chunks(batch) {
            self.batches.push((self.samples.len() as u32, bucket as u32));
            self.samples.extend_from_slice(part);
        }
    }
}

/// What the random numbers are for.
const MEMBERS: u64 = 1;
const MIXED: u64 = 2;
const BATCHES: u64 = 3;
const SITTING_OUT: u64 = 4;
const REPLACEMENT: u64 = 5;

/// All of `members` in an order that `key` decides, without shuffling them: a stride that has no factor in common with
/// their number meets each once.
fn walk(key: u64, bucket: u64, members: &[SampleIndex]) -> impl Iterator<Item = SampleIndex> {
    let total = members.len() as u64;
    let first = random::below(key, 2 * bucket, total.max(1));
    let mut stride = 1 + random::below(key, 2 * bucket + 1, total.max(1));
    while total > 0 && gcd(stride, total) != 1 {
        stride += 1;
    }
    (0..total).map(move |step| {
        members[((u128::from(first) + u128::from(step) * u128::from(stride)) % u128::from(total)) as usize]
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
