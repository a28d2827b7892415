//! Memory plan: what must be remembered at once decides where everything lies.
//!
//! Every buffer has a first and a last moment. Buffers whose times meet get places that do not; the largest are placed
//! first, each at the lowest offset that is free for its whole life. The same in, the same out.

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

/// Where every buffer lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The offset of each buffer, in the order they were given.
    pub offsets: Vec<u64>,
    /// All of it: no buffer ends behind this.
    pub peak_bytes: u64,
    /// The most that is alive at any one moment: no plan can do with less.
    pub floor_bytes: u64,
    /// What is alive at that moment, largest first.
    pub holders: Vec<Holder>,
}

/// A buffer that is alive when most is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is.
    pub label: String,
    /// How much it holds.
    pub bytes: u64,
}

/// Holders a report names.
const NAMED: usize = 8;

impl MemoryPlan {
    /// Places `buffers`. Cost: quadratic in their number, which is some thousands.
    pub fn solve(buffers: &[Buffer]) -> MemoryPlan {
        let size = |buffer: &Buffer| round_up(buffer.bytes, BLOCK_ALIGN);
        let mut by_size: Vec<usize> = (0..buffers.len()).collect();
        by_size.sort_by_key(|&i| (std::cmp::Reverse(size(&buffers[i])), buffers[i].first, i));
        let mut offsets = vec![0; buffers.len()];
        // Buffers that have their place, lowest first.
        let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
        let mut peak_bytes = 0;
        for at in by_size {
            let buffer = &buffers[at];
            let mut offset = 0;
            for &other in &placed {
                let meets = buffers[other].first <= buffer.last && buffer.first <= buffers[other].last;
                if meets && offsets[other] < offset + size(buffer) {
                    offset = offset.max(offsets[other] + size(&buffers[other]));
                }
            }
            offsets[at] = offset;
            peak_bytes = peak_bytes.max(offset + size(buffer));
            let rank = placed.partition_point(|&other| offsets[other] <= offset);
            placed.insert(rank, at);
        }
        let (floor_bytes, holders) = fullest_moment(buffers, size);
        MemoryPlan { offsets, peak_bytes, floor_bytes, holders }
    }

    /// The largest holders in one line.
    pub fn told(&self) -> String {
        let named = self.holders.iter().take(NAMED).map(|h| format!("{} ({} bytes)", h.label, h.bytes));
        named.collect::<Vec<_>>().join(", ")
    }
}

/// The moment at which most is alive: how much, and what.
fn fullest_moment(buffers: &[Buffer], size: impl Fn(&Buffer) -> u64) -> (u64, Vec<Holder>) {
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
    let mut holders: Vec<Holder> = buffers
        .iter()
        .filter(|buffer| buffer.first <= when && when <= buffer.last)
        .map(|buffer| Holder { label: buffer.label.clone(), bytes: size(buffer) })
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
        let plan = MemoryPlan::solve(&[buffer(512, 0, 1), buffer(256, 1, 2), buffer(512, 2, 3)]);
        assert_eq!((plan.offsets.clone(), plan.peak_bytes), (vec![0, 512, 0], 768));
        assert_eq!(plan.holders.iter().map(|h| h.bytes).collect::<Vec<_>>(), [512, 256]);
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(MemoryPlan::solve(&[]).peak_bytes, 0);
    }

    proptest! {
        #[test]
        fn buffers_that_live_at_once_do_not_overlap(
            given in prop::collection::vec((1_u64..5000, 0_usize..40, 0_usize..12), 1..60)
        ) {
            let buffers: Vec<Buffer> = given.iter().map(|&(bytes, first, more)| buffer(bytes, first, first + more)).collect();
            let plan = MemoryPlan::solve(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                prop_assert!(plan.offsets[i] + a.bytes <= plan.peak_bytes && plan.offsets[i].is_multiple_of(BLOCK_ALIGN));
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let meet = a.first <= b.last && b.first <= a.last;
                    let apart = plan.offsets[i] + a.bytes <= plan.offsets[j] || plan.offsets[j] + b.bytes <= plan.offsets[i];
                    prop_assert!(!meet || apart);
                }
            }
            prop_assert!(plan.peak_bytes >= plan.floor_bytes);
        }
    }
}
