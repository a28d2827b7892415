//! Which samples batch k of an epoch holds: a pure function of (seed, epoch, k, parts).
//!
//! **Training**: row i of a shape takes samples of its own part ([`Parts`]). In each epoch every part is shuffled,
//! batch j of a shape takes the j-th of each of its parts, and the batches of all shapes are shuffled. Every batch is
//! full, because shapes are static. Fewer samples than a batch are left over, one of each longer part: they sit the
//! epoch out. Who it is moves through a fixed shuffle of the part, so nobody sits out twice in a row, and over many
//! epochs all of a part sit out equally often.
//!
//! **Evaluation** ([`Order::evaluation`]): other samples in the same shapes, each exactly once; rows may stay empty.
//!
//! Who needs batch k prepares the epoch once (cost: linear in samples, 8 bytes each) and has any k of it from then on.

mod evaluation;

use std::sync::{Arc, Mutex, PoisonError};

use tandem_random::keyed;

use crate::cursor::Cursor;
use crate::error::CorpusError;
use crate::parts::{Extent, Parts};
use crate::sample::SampleIndex;

/// The batches of one rank of a data-parallel run: of every `world` batches in a row, the one with number `rank`.
///
/// Whole batches, not rows of each: rows differ in length, so a share of the rows would be another shape on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which of them, from 0.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
}

impl Shard {
    /// All batches.
    pub const WHOLE: Shard = Shard { rank: 0, world: 1 };
}

/// A batch of the global order, before anything of it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where it is: resuming here gives this batch first.
    pub cursor: Cursor,
    /// Its bucket: the shape it is padded to.
    pub bucket: usize,
    /// Its samples, row by row. Only evaluation leaves rows empty.
    pub rows: Vec<Option<SampleIndex>>,
}

impl Batch {
    /// Its samples, without the empty rows.
    pub fn samples(&self) -> impl Iterator<Item = SampleIndex> {
        self.rows.iter().flatten().copied()
    }
}

/// The order of a set of samples for ever. Shared by all who need it; asking is safe from anywhere, in any order.
#[derive(Debug)]
pub struct Order {
    source: Source,
    num_batches: usize,
    num_samples: usize,
    batch: usize,
    /// The epochs asked for last: two, because workers straddle the border between two.
    prepared: Mutex<Vec<Arc<Epoch>>>,
}

/// Where epochs come from.
#[derive(Debug)]
enum Source {
    Training {
        seed: u64,
        parts: Arc<Parts>,
    },
    Evaluation {
        /// What the rows of each shape hold.
        shapes: Vec<Vec<Extent>>,
        /// Those that fit somewhere, shortest first.
        samples: Vec<(SampleIndex, Extent)>,
        /// The same in every epoch.
        epoch: Arc<Epoch>,
    },
}

/// An epoch, spelled out.
#[derive(Debug, Default)]
struct Epoch {
    number: u64,
    /// All batches' rows, batch after batch.
    rows: Vec<Option<SampleIndex>>,
    /// Where each batch starts in `rows`, and its shape, in the order they are served.
    batches: Vec<(usize, usize)>,
}

impl Order {
    /// The order of training on `parts`: full batches, in another order every epoch.
    pub fn training(seed: u64, parts: Arc<Parts>) -> Order {
        Order {
            num_batches: (0..parts.num_shapes()).map(|shape| parts.num_batches(shape)).sum(),
            num_samples: parts.num_samples(),
            batch: parts.batch(),
            source: Source::Training { seed, parts },
            prepared: Mutex::default(),
        }
    }

    /// The order of looking at every one of `samples` once, in shapes that were made for others: `shapes` has for every
    /// shape what each of its rows holds. The same in every epoch. Samples that no row holds are left out and returned.
    ///
    /// Fails with [`CorpusError::NothingFits`] when that is all of them.
    pub fn evaluation(
        shapes: Vec<Vec<Extent>>,
        samples: impl IntoIterator<Item = (SampleIndex, Extent)>,
    ) -> Result<(Order, Vec<SampleIndex>), CorpusError> {
        let fits = |(_, extent): &(SampleIndex, Extent)| shapes.iter().flatten().any(|row| extent.fits(row));
        let (mut samples, too_long): (Vec<_>, Vec<_>) = samples.into_iter().partition(fits);
        if samples.is_empty() {
            return Err(CorpusError::NothingFits { too_long: too_long.len() });
        }
        samples.sort_unstable_by_key(|(index, extent)| (*extent, *index));
        let epoch = Arc::new(evaluation::pack(&shapes, &samples));
        let order = Order {
            num_batches: epoch.batches.len(),
            num_samples: samples.len(),
            batch: shapes.iter().map(Vec::len).max().unwrap_or(0),
            source: Source::Evaluation { shapes, samples, epoch },
            prepared: Mutex::default(),
        };
        Ok((order, too_long.into_iter().map(|(index, _)| index).collect()))
    }

    /// Batches of an epoch: the same number in every one.
    pub fn num_batches(&self) -> u64 {
        self.num_batches as u64
    }

    /// Samples it is an order of.
    pub fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// Rows of a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Samples that sit `epoch` out: fewer than a batch, and none of an evaluation.
    pub fn sitting_out(&self, epoch: u64) -> Vec<SampleIndex> {
        let Source::Training { seed, parts } = &self.source else { return Vec::new() };
        let rows = (0..parts.num_shapes()).flat_map(|shape| (0..parts.batch()).map(move |row| (shape, row)));
        rows.filter_map(|(shape, row)| sits_out(*seed, parts, epoch, shape, row)).collect()
    }

    /// The sample of a row of a shape that sits `epoch` out, if one does.
    pub fn sits_out(&self, epoch: u64, shape: usize, row: usize) -> Option<SampleIndex> {
        let Source::Training { seed, parts } = &self.source else { return None };
        sits_out(*seed, parts, epoch, shape, row)
    }

    /// Batch `k` of `epoch`; none past the epoch's end.
    ///
    /// Cost: the batch, once the epoch is prepared; the first to ask prepares it, and others wait for that.
    pub fn batch(&self, epoch: u64, k: u64) -> Option<Batch> {
        let prepared = self.prepared(epoch);
        let (start, bucket) = *prepared.batches.get(usize::try_from(k).ok()?)?;
        let rows = prepared.rows[start..][..self.rows_of(bucket)].to_vec();
        Some(Batch { cursor: Cursor { epoch, k }, bucket, rows })
    }

    /// The sample to try for row `position` of batch `k` when the one before could not be used: `attempt` counts from
    /// 0.
    ///
    /// A pure function of its arguments and of what the order was made of. Every other sample that fits the row comes
    /// up once: those of its own part first, then shorter ones, and last those that are in the batch already. None when
    /// all were tried, or when there is no such row or nothing in it. Cost: attempts times batch.
    pub fn replacement(&self, epoch: u64, k: u64, position: usize, attempt: usize) -> Option<SampleIndex> {
        let batch = self.batch(epoch, k)?;
        let bad = (*batch.rows.get(position)?)?;
        let (seed, own, shorter, row) = match &self.source {
            Source::Training { seed, parts } => {
                let (shape, row) = (batch.bucket, position);
                (*seed, parts.members(shape, row), parts.before(shape, row), parts.longest(shape, row))
            }
            Source::Evaluation { shapes, samples, .. } => (0, &[][..], &samples[..], shapes[batch.bucket][position]),
        };
        let key = keyed::key(&[seed, REPLACEMENT, epoch, k, position as u64]);
        let fitting = || walk(key, 0, own).chain(walk(key, 1, shorter)).filter(|(_, extent)| extent.fits(&row));
        let there = |sample: &SampleIndex| batch.rows.contains(&Some(*sample));
        let fresh = fitting().map(|(sample, _)| sample).filter(|sample| !there(sample));
        let repeated = fitting().map(|(sample, _)| sample).filter(|sample| there(sample) && *sample != bad);
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

    /// The batch of `shard` among the `shard.world` batches from `cursor`. None if the shard has no such rank.
    pub fn shard_batch(&self, cursor: Cursor, shard: Shard) -> Option<Batch> {
        let Cursor { epoch, k } = self.advance(cursor, u64::from(shard.rank));
        self.batch(epoch, k).filter(|_| shard.rank < shard.world)
    }

    /// The place after `cursor`.
    pub fn after(&self, cursor: Cursor) -> Cursor {
        self.advance(cursor, 1)
    }

    /// The place `count` batches after `cursor`, over the ends of epochs.
    pub fn advance(&self, cursor: Cursor, count: u64) -> Cursor {
        let Cursor { epoch, k } = self.normal(cursor);
        let (k, num_batches) = (k.saturating_add(count), self.num_batches().max(1));
        Cursor { epoch: epoch.saturating_add(k / num_batches), k: k % num_batches }
    }

    /// The end of an epoch is the beginning of the next.
    fn normal(&self, cursor: Cursor) -> Cursor {
        if cursor.k < self.num_batches() { cursor } else { Cursor { epoch: cursor.epoch.saturating_add(1), k: 0 } }
    }

    fn rows_of(&self, shape: usize) -> usize {
        match &self.source {
            Source::Training { parts, .. } => parts.batch(),
            Source::Evaluation { shapes, .. } => shapes[shape].len(),
        }
    }

    fn prepared(&self, number: u64) -> Arc<Epoch> {
        let (seed, parts) = match &self.source {
            Source::Training { seed, parts } => (*seed, parts),
            Source::Evaluation { epoch, .. } => return Arc::clone(epoch),
        };
        // Nothing is left half done under the lock, so a poisoned one holds what it should.
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = prepared.iter().find(|epoch| epoch.number == number) {
            return Arc::clone(epoch);
        }
        let epoch = Arc::new(Epoch::of_training(seed, parts, number));
        prepared.truncate(1);
        prepared.insert(0, Arc::clone(&epoch));
        epoch
    }
}

impl Epoch {
    fn of_training(seed: u64, parts: &Parts, number: u64) -> Epoch {
        let batch = parts.batch();
        let mut epoch = Epoch { number, rows: Vec::with_capacity(parts.num_samples()), batches: Vec::new() };
        for shape in 0..parts.num_shapes() {
            let start = epoch.rows.len();
            let num_batches = parts.num_batches(shape);
            epoch.rows.resize(start + num_batches * batch, None);
            epoch.batches.extend((0..num_batches).map(|j| (start + j * batch, shape)));
            for row in 0..batch {
                let column = epoch.rows[start + row..].iter_mut().step_by(batch);
                let members = shuffled(seed, parts, number, shape, row);
                column.zip(members).for_each(|(place, member)| *place = Some(member));
            }
        }
        keyed::shuffle(keyed::key(&[seed, BATCHES, number]), &mut epoch.batches);
        epoch
    }
}

/// Those of a part who take part in an epoch, in its order.
fn shuffled(seed: u64, parts: &Parts, epoch: u64, shape: usize, row: usize) -> Vec<SampleIndex> {
    let out = sits_out(seed, parts, epoch, shape, row);
    let mut members: Vec<SampleIndex> = parts.members(shape, row).iter().map(|(member, _)| *member).collect();
    // One of them only: a mixture may have a sample several times in a part.
    if let Some(place) = members.iter().position(|member| Some(*member) == out) {
        members.remove(place);
    }
    keyed::shuffle(keyed::key(&[seed, MEMBERS, epoch, shape as u64, row as u64]), &mut members);
    members
}

/// Who of a part sits `epoch` out: one, where it has one more than its shape has batches.
fn sits_out(seed: u64, parts: &Parts, epoch: u64, shape: usize, row: usize) -> Option<SampleIndex> {
    let members = parts.members(shape, row);
    if members.len() == parts.num_batches(shape) {
        return None;
    }
    // The walk is a fixed order of the part; an epoch takes the next of it.
    let key = keyed::key(&[seed, SITTING_OUT, shape as u64, row as u64]);
    let turn = epoch % members.len() as u64;
    walk(key, 0, members).nth(turn as usize).map(|(member, _)| member)
}

/// What the random numbers are for.
const MEMBERS: u64 = 1;
const BATCHES: u64 = 3;
const SITTING_OUT: u64 = 4;
const REPLACEMENT: u64 = 5;

type Member = (SampleIndex, Extent);

/// All of `members` in an order that `key` decides, without shuffling them: a stride that has no factor in common with
/// their number meets each once.
fn walk(key: u64, salt: u64, members: &[Member]) -> impl Iterator<Item = Member> {
    let total = members.len() as u64;
    let first = keyed::below(key, 2 * salt, total.max(1));
    let mut stride = 1 + keyed::below(key, 2 * salt + 1, total.max(1));
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
