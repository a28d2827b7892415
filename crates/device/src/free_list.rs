//! The free bytes of a reservation: first fit, neighbours coalesced.

use std::collections::BTreeMap;

/// Length of each free range by its offset. No two ranges are adjacent.
#[derive(Debug)]
pub(crate) struct FreeList {
    ranges: BTreeMap<u64, u64>,
}

impl FreeList {
    pub(crate) fn new(bytes: u64) -> FreeList {
        FreeList { ranges: (bytes > 0).then_some((0, bytes)).into_iter().collect() }
    }

    /// Takes `bytes` from the lowest range that is long enough.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.ranges.iter().find(|(_, length)| **length >= bytes)?;
        self.ranges.remove(&offset);
        if length > bytes {
            self.ranges.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    /// Returns a range that came from `take`.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        let (mut from, mut to) = (offset, offset + bytes);
        if let Some((&before, &length)) = self.ranges.range(..offset).next_back() {
            assert!(before + length <= offset, "bytes {offset}+{bytes} were freed twice");
            if before + length == offset {
                self.ranges.remove(&before);
                from = before;
            }
        }
        if let Some((&after, &length)) = self.ranges.range(offset..).next() {
            assert!(after >= to, "bytes {offset}+{bytes} were freed twice");
            if after == to {
                self.ranges.remove(&after);
                to = after + length;
            }
        }
        self.ranges.insert(from, to - from);
    }

    /// All free bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.values().sum()
    }

    /// The longest range.
    pub(crate) fn longest(&self) -> u64 {
        self.ranges.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_coalesce_in_any_order_of_return() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut list = FreeList::new(300);
            let offsets: Vec<u64> = (0..3).filter_map(|_| list.take(100)).collect();
            assert_eq!(offsets, [0, 100, 200]);
            assert_eq!(list.take(1), None);
            for i in order {
                list.give(offsets[i], 100);
            }
            assert_eq!(list.longest(), 300, "returned in order {order:?}");
        }
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_panics() {
        let mut list = FreeList::new(100);
        list.take(100);
        list.give(0, 100);
        list.give(0, 100);
    }
}
