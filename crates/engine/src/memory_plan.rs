//! Memory plan: what must be remembered at once decides where everything lies.
//!
//! Every buffer has a first and a last moment. Buffers whose times meet get places that do not; the largest are placed
//! first, each at the lowest offset that is free for its whole life. The same in, the same out.
//!
//! Memory that belongs to somebody who needs it only later is *lent*: a buffer that is gone by then is a guest there, and takes
//! nothing of the program's own memory. That is how activations lie where gradients will be.

use std::ops::Range;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};

/// Something that needs memory from one moment to another, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// How much.
    pub bytes: u64,
    /// First moment it is written.
    pub first: usize,
    /// Last moment it is read.
    pub last: usize,
    /// What it is, for reports.
    pub label: String,
}

/// Memory of somebody else, free for guests before a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReusableSpan {
    /// Its first byte, in the memory it is a part of.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// The moment at which its owner writes it: guests are gone by then.
    pub until: usize,
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPlacement {
    /// In the program's own memory, at this offset.
    Own(u64),
    /// In lent memory, at this offset.
    Aliased(u64),
}

/// Where every buffer lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The place of each buffer, in the order they were given.
    pub placements: Vec<BufferPlacement>,
    /// All of the program's own memory: no buffer in it ends behind this.
    pub peak_bytes: u64,
    /// The most of it that is alive at any one moment: with these guests no plan can do with less.
    pub floor_bytes: u64,
    /// What is alive at that moment, largest first.
    pub holders: Vec<PeakBuffer>,
}

/// A buffer that is alive when most is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakBuffer {
    /// What it is.
    pub label: String,
    /// How much it holds.
    pub bytes: u64,
}

/// Holders a report names.
const NAMED: usize = 8;

impl MemoryPlan {
    /// Places `buffers`; `lent` is in order of offset. Cost: quadratic in their number, which is some thousands.
    pub fn solve(buffers: &[Buffer], lent: &[ReusableSpan]) -> MemoryPlan {
        let mut by_size: Vec<usize> = (0..buffers.len()).collect();
        by_size.sort_by_key(|&i| (std::cmp::Reverse(size(&buffers[i])), buffers[i].first, i));
        let mut placements = vec![BufferPlacement::Own(0); buffers.len()];
        let (mut own, mut guests) = (Placed::default(), Placed::default());
        let mut peak_bytes = 0;
        for at in by_size {
            let buffer = &buffers[at];
            let welcome = free_runs(lent, buffer.last).find_map(|run| {
                let offset = guests.lowest(buffer, run.start);
                (offset + buffer.bytes <= run.end).then_some(offset)
            });
            placements[at] = match welcome {
                Some(offset) => {
                    guests.put(buffer, offset);
                    BufferPlacement::Aliased(offset)
                }
                None => {
                    let offset = own.lowest(buffer, 0);
                    own.put(buffer, offset);
                    peak_bytes = peak_bytes.max(offset + size(buffer));
                    BufferPlacement::Own(offset)
                }
            };
        }
        let staying = buffers.iter().zip(&placements).filter(|(_, spot)| matches!(spot, BufferPlacement::Own(_)));
        let (floor_bytes, holders) = fullest_moment(&staying.map(|(buffer, _)| buffer).collect::<Vec<_>>());
        MemoryPlan { placements, peak_bytes, floor_bytes, holders }
    }

    /// The largest holders in one line.
    pub fn describe(&self) -> String {
        let named = self.holders.iter().take(NAMED).map(|h| format!("{} ({} bytes)", h.label, h.bytes));
        named.collect::<Vec<_>>().join(", ")
    }
}

/// What a buffer takes, in whole blocks.
fn size(buffer: &Buffer) -> u64 {
    round_up(buffer.bytes, BLOCK_ALIGN)
}

/// Buffers that have their place in one memory, lowest first.
#[derive(Default)]
struct Placed<'b> {
    list: Vec<(u64, &'b Buffer)>,
}

impl<'b> Placed<'b> {
    /// The lowest offset from `start` on that is free for the buffer's whole life.
    fn lowest(&self, buffer: &Buffer, start: u64) -> u64 {
        let mut offset = round_up(start, BLOCK_ALIGN);
        for &(taken, other) in &self.list {
            let meets = other.first <= buffer.last && buffer.first <= other.last;
            if meets && taken < offset + size(buffer) {
                offset = offset.max(taken + size(other));
            }
        }
        offset
    }

    fn put(&mut self, buffer: &'b Buffer, offset: u64) {
        let rank = self.list.partition_point(|(other, _)| *other <= offset);
        self.list.insert(rank, (offset, buffer));
    }
}

/// Lent memory that is free up to and including the moment `last`, what touches taken together.
fn free_runs(lent: &[ReusableSpan], last: usize) -> impl Iterator<Item = Range<u64>> {
    let mut free = lent.iter().filter(move |part| part.until > last).peekable();
    std::iter::from_fn(move || {
        let first = free.next()?;
        let mut end = first.offset + first.bytes;
        while let Some(next) = free.next_if(|next| next.offset == end) {
            end += next.bytes;
        }
        Some(first.offset..end)
    })
}

/// The moment at which most is alive: how much, and what.
fn fullest_moment(buffers: &[&Buffer]) -> (u64, Vec<PeakBuffer>) {
    let moments = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
    let mut change = vec![0_i64; moments + 1];
    for buffer in buffers {
        change[buffer.first] += size(buffer) as i64;
        change[buffer.last + 1] -= size(buffer) as i64;
    }
    let (mut alive, mut most, mut when) = (0, 0, 0);
    for (moment, change) in change.iter().enumerate() {
        alive += change;
        if alive > most {
            (most, when) = (alive, moment);
        }
    }
    let mut holders: Vec<PeakBuffer> = buffers
        .iter()
        .filter(|buffer| buffer.first <= when && when <= buffer.last)
        .map(|buffer| PeakBuffer { label: buffer.label.clone(), bytes: size(buffer) })
        .collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    (most as u64, holders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buffer(bytes: u64, first: usize, last: usize) -> Buffer {
        Buffer { bytes, first, last, label: format!("{bytes} at {first}") }
    }

    #[test]
    fn what_follows_takes_the_place_of_what_ended() {
        let plan = MemoryPlan::solve(&[buffer(512, 0, 1), buffer(256, 1, 2), buffer(512, 2, 3)], &[]);
        assert_eq!((plan.placements.clone(), plan.peak_bytes), ([0, 512, 0].map(BufferPlacement::Own).to_vec(), 768));
        assert_eq!(plan.holders.iter().map(|h| h.bytes).collect::<Vec<_>>(), [512, 256]);
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(MemoryPlan::solve(&[], &[]).peak_bytes, 0);
    }

    #[test]
    fn a_guest_is_gone_when_the_owner_comes_and_may_lie_across_two_that_touch() {
        let lent = |offset, bytes, until| ReusableSpan { offset, bytes, until };
        let spot = |buffer: Buffer, lent: &[ReusableSpan]| MemoryPlan::solve(&[buffer], lent).placements[0];
        assert_eq!(spot(buffer(512, 0, 4), &[lent(0, 512, 5)]), BufferPlacement::Aliased(0));
        assert_eq!(spot(buffer(512, 0, 5), &[lent(0, 512, 5)]), BufferPlacement::Own(0));
        assert_eq!(spot(buffer(512, 0, 4), &[lent(256, 256, 5), lent(512, 256, 6)]), BufferPlacement::Aliased(256));
        assert_eq!(spot(buffer(512, 0, 4), &[lent(256, 200, 5), lent(512, 256, 6)]), BufferPlacement::Own(0));
        assert_eq!(spot(buffer(512, 0, 5), &[lent(256, 256, 5), lent(512, 512, 6)]), BufferPlacement::Aliased(512));
    }

    proptest! {
        #[test]
        fn buffers_that_live_at_once_do_not_overlap(
            given in prop::collection::vec((1_u64..5000, 0_usize..40, 0_usize..12), 1..60),
            parts in prop::collection::vec((1_u64..12, 0_usize..50, 0_u64..2), 0..12),
        ) {
            let buffers: Vec<Buffer> = given.iter().map(|&(bytes, first, more)| buffer(bytes, first, first + more)).collect();
            let mut end = 0;
            let lent: Vec<ReusableSpan> = parts.iter().map(|&(blocks, until, gap)| {
                let offset = end + gap * BLOCK_ALIGN;
                end = offset + blocks * BLOCK_ALIGN;
                ReusableSpan { offset, bytes: blocks * BLOCK_ALIGN, until }
            }).collect();
            let plan = MemoryPlan::solve(&buffers, &lent);
            for (a, spot) in buffers.iter().zip(&plan.placements) {
                match *spot {
                    BufferPlacement::Own(offset) => prop_assert!(offset + a.bytes <= plan.peak_bytes && offset.is_multiple_of(BLOCK_ALIGN)),
                    BufferPlacement::Aliased(offset) => {
                        // Every byte lies in a part whose owner comes later.
                        let inside = |part: &&ReusableSpan| part.until > a.last;
                        let covered: u64 = lent.iter().filter(inside).map(|part| {
                            let (from, to) = (offset.max(part.offset), (offset + a.bytes).min(part.offset + part.bytes));
                            to.saturating_sub(from)
                        }).sum();
                        prop_assert_eq!(covered, a.bytes);
                    }
                }
            }
            for (i, a) in buffers.iter().enumerate() {
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let meet = a.first <= b.last && b.first <= a.last;
                    let apart = match (plan.placements[i], plan.placements[j]) {
                        (BufferPlacement::Own(x), BufferPlacement::Own(y)) | (BufferPlacement::Aliased(x), BufferPlacement::Aliased(y)) => x + a.bytes <= y || y + b.bytes <= x,
                        _ => true,
                    };
                    prop_assert!(!meet || apart);
                }
            }
            prop_assert!(plan.peak_bytes >= plan.floor_bytes);
        }
    }
}
