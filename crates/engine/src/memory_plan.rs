//! Memory plan: buffer placement from liveness.
//!
//! Every buffer has a live range, from the item that first writes it to the item that last reads it. Buffers whose live
//! ranges overlap get disjoint addresses. Placement is greedy by size: the largest buffers first, each at the lowest offset
//! that is free for its whole live range. It is deterministic.
//!
//! A *reusable span* is memory that its owner first writes at a later item: gradients before the backward pass reaches them.
//! A buffer that is dead by then aliases it and takes no activation memory.

use std::ops::Range;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};

/// A buffer with its live range: items `first` to `last`, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its size.
    pub bytes: u64,
    /// The item that first writes it.
    pub first: usize,
    /// The item that last reads it.
    pub last: usize,
    /// Its name in reports.
    pub label: String,
}

/// Memory with another owner that buffers may alias until the owner writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReusableSpan {
    /// Its first byte, in the region it is part of.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The item at which its owner first writes it: aliasing buffers are dead by then.
    pub until: usize,
}

/// Where a buffer is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPlacement {
    /// In the program's activation memory, at this offset.
    Own(u64),
    /// In reusable memory, at this offset.
    Aliased(u64),
}

/// The placement of every buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The placement of each buffer, in the order they were given.
    pub placements: Vec<BufferPlacement>,
    /// Size of the activation memory: every buffer placed in it ends at or below this.
    pub peak_bytes: u64,
    /// The most bytes live in it at once: with these aliased buffers, no plan needs less.
    pub floor_bytes: u64,
    /// The buffers live at that point, largest first.
    pub peak_buffers: Vec<PeakBuffer>,
}

/// A buffer that is live at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakBuffer {
    /// Its name in reports.
    pub label: String,
    /// Its size.
    pub bytes: u64,
}

/// Buffers that [`MemoryPlan::describe`] names.
const DESCRIBED: usize = 8;

impl MemoryPlan {
    /// Places `buffers`; `reusable` is sorted by offset. Cost: quadratic in the number of buffers, which is a few thousand.
    pub fn solve(buffers: &[Buffer], reusable: &[ReusableSpan]) -> MemoryPlan {
        let mut by_size: Vec<usize> = (0..buffers.len()).collect();
        by_size.sort_by_key(|&i| (std::cmp::Reverse(size(&buffers[i])), buffers[i].first, i));
        let mut placements = vec![BufferPlacement::Own(0); buffers.len()];
        let (mut own, mut aliased) = (PlacedBuffers::default(), PlacedBuffers::default());
        let mut peak_bytes = 0;
        for at in by_size {
            let buffer = &buffers[at];
            let aliased_offset = free_runs(reusable, buffer.last).find_map(|run| {
                let offset = aliased.lowest_free(buffer, run.start);
                (offset + buffer.bytes <= run.end).then_some(offset)
            });
            placements[at] = match aliased_offset {
                Some(offset) => {
                    aliased.insert(buffer, offset);
                    BufferPlacement::Aliased(offset)
                }
                None => {
                    let offset = own.lowest_free(buffer, 0);
                    own.insert(buffer, offset);
                    peak_bytes = peak_bytes.max(offset + size(buffer));
                    BufferPlacement::Own(offset)
                }
            };
        }
        let own = buffers.iter().zip(&placements).filter(|(_, placement)| matches!(placement, BufferPlacement::Own(_)));
        let (floor_bytes, peak_buffers) = peak(&own.map(|(buffer, _)| buffer).collect::<Vec<_>>());
        MemoryPlan { placements, peak_bytes, floor_bytes, peak_buffers }
    }

    /// The largest buffers at the peak, on one line.
    pub fn describe(&self) -> String {
        let largest = self.peak_buffers.iter().take(DESCRIBED);
        let largest = largest.map(|buffer| format!("{} ({} bytes)", buffer.label, buffer.bytes));
        largest.collect::<Vec<_>>().join(", ")
    }
}

/// The size of a buffer, in whole blocks.
fn size(buffer: &Buffer) -> u64 {
    round_up(buffer.bytes, BLOCK_ALIGN)
}

/// The buffers placed in one memory so far, lowest first.
#[derive(Default)]
struct PlacedBuffers<'b> {
    list: Vec<(u64, &'b Buffer)>,
}

impl<'b> PlacedBuffers<'b> {
    /// The lowest offset from `start` on that is free for the buffer's whole live range.
    fn lowest_free(&self, buffer: &Buffer, start: u64) -> u64 {
        let mut offset = round_up(start, BLOCK_ALIGN);
        for &(taken, other) in &self.list {
            let overlaps = other.first <= buffer.last && buffer.first <= other.last;
            if overlaps && taken < offset + size(buffer) {
                offset = offset.max(taken + size(other));
            }
        }
        offset
    }

    fn insert(&mut self, buffer: &'b Buffer, offset: u64) {
        let rank = self.list.partition_point(|(other, _)| *other <= offset);
        self.list.insert(rank, (offset, buffer));
    }
}

/// Reusable memory that is free up to and including item `last`, with adjacent spans merged.
fn free_runs(reusable: &[ReusableSpan], last: usize) -> impl Iterator<Item = Range<u64>> {
    let mut free = reusable.iter().filter(move |span| span.until > last).peekable();
    std::iter::from_fn(move || {
        let first = free.next()?;
        let mut end = first.offset + first.bytes;
        while let Some(next) = free.next_if(|next| next.offset == end) {
            end += next.bytes;
        }
        Some(first.offset..end)
    })
}

/// The most bytes that are live at once, and the buffers live at that point.
fn peak(buffers: &[&Buffer]) -> (u64, Vec<PeakBuffer>) {
    let items = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
    let mut change = vec![0_i64; items + 1];
    for buffer in buffers {
        change[buffer.first] += size(buffer) as i64;
        change[buffer.last + 1] -= size(buffer) as i64;
    }
    let (mut live, mut most, mut peak_item) = (0, 0, 0);
    for (item, change) in change.iter().enumerate() {
        live += change;
        if live > most {
            (most, peak_item) = (live, item);
        }
    }
    let mut at_peak: Vec<PeakBuffer> = buffers
        .iter()
        .filter(|buffer| buffer.first <= peak_item && peak_item <= buffer.last)
        .map(|buffer| PeakBuffer { label: buffer.label.clone(), bytes: size(buffer) })
        .collect();
    at_peak.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    (most as u64, at_peak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buffer(bytes: u64, first: usize, last: usize) -> Buffer {
        Buffer { bytes, first, last, label: format!("{bytes} at {first}") }
    }

    #[test]
    fn a_buffer_reuses_the_memory_of_a_dead_one() {
        let plan = MemoryPlan::solve(&[buffer(512, 0, 1), buffer(256, 1, 2), buffer(512, 2, 3)], &[]);
        assert_eq!((plan.placements.clone(), plan.peak_bytes), ([0, 512, 0].map(BufferPlacement::Own).to_vec(), 768));
        assert_eq!(plan.peak_buffers.iter().map(|buffer| buffer.bytes).collect::<Vec<_>>(), [512, 256]);
    }

    #[test]
    fn a_program_without_buffers_needs_no_memory() {
        assert_eq!(MemoryPlan::solve(&[], &[]).peak_bytes, 0);
    }

    #[test]
    fn an_aliased_buffer_is_dead_before_the_owner_writes_and_may_cover_two_adjacent_spans() {
        let span = |offset, bytes, until| ReusableSpan { offset, bytes, until };
        let place = |buffer: Buffer, spans: &[ReusableSpan]| MemoryPlan::solve(&[buffer], spans).placements[0];
        assert_eq!(place(buffer(512, 0, 4), &[span(0, 512, 5)]), BufferPlacement::Aliased(0));
        assert_eq!(place(buffer(512, 0, 5), &[span(0, 512, 5)]), BufferPlacement::Own(0));
        assert_eq!(place(buffer(512, 0, 4), &[span(256, 256, 5), span(512, 256, 6)]), BufferPlacement::Aliased(256));
        assert_eq!(place(buffer(512, 0, 4), &[span(256, 200, 5), span(512, 256, 6)]), BufferPlacement::Own(0));
        assert_eq!(place(buffer(512, 0, 5), &[span(256, 256, 5), span(512, 512, 6)]), BufferPlacement::Aliased(512));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn buffers_that_are_live_at_once_do_not_overlap(
            given in prop::collection::vec((1_u64..5000, 0_usize..40, 0_usize..12), 1..60),
            parts in prop::collection::vec((1_u64..12, 0_usize..50, 0_u64..2), 0..12),
        ) {
            let buffers: Vec<Buffer> = given.iter().map(|&(bytes, first, more)| buffer(bytes, first, first + more)).collect();
            let mut end = 0;
            let reusable: Vec<ReusableSpan> = parts.iter().map(|&(blocks, until, gap)| {
                let offset = end + gap * BLOCK_ALIGN;
                end = offset + blocks * BLOCK_ALIGN;
                ReusableSpan { offset, bytes: blocks * BLOCK_ALIGN, until }
            }).collect();
            let plan = MemoryPlan::solve(&buffers, &reusable);
            for (a, placement) in buffers.iter().zip(&plan.placements) {
                match *placement {
                    BufferPlacement::Own(offset) => prop_assert!(offset + a.bytes <= plan.peak_bytes && offset.is_multiple_of(BLOCK_ALIGN)),
                    BufferPlacement::Aliased(offset) => {
                        // Every byte lies in a span whose owner writes it later.
                        let still_free = |span: &&ReusableSpan| span.until > a.last;
                        let covered: u64 = reusable.iter().filter(still_free).map(|span| {
                            let (from, to) = (offset.max(span.offset), (offset + a.bytes).min(span.offset + span.bytes));
                            to.saturating_sub(from)
                        }).sum();
                        prop_assert_eq!(covered, a.bytes);
                    }
                }
            }
            for (i, a) in buffers.iter().enumerate() {
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let both_live = a.first <= b.last && b.first <= a.last;
                    let disjoint = match (plan.placements[i], plan.placements[j]) {
                        (BufferPlacement::Own(x), BufferPlacement::Own(y)) | (BufferPlacement::Aliased(x), BufferPlacement::Aliased(y)) => x + a.bytes <= y || y + b.bytes <= x,
                        _ => true,
                    };
                    prop_assert!(!both_live || disjoint);
                }
            }
            prop_assert!(plan.peak_bytes >= plan.floor_bytes);
        }
    }
}
