//! Which bytes of a reservation are free: first fit, neighbours merged.

use std::collections::BTreeMap;

/// Free pieces by offset. No two touch.
#[derive(Debug)]
pub(crate) struct FreeList {
    pieces: BTreeMap<u64, u64>,
}

impl FreeList {
    pub(crate) fn new(bytes: u64) -> FreeList {
        FreeList { pieces: (bytes > 0).then_some((0, bytes)).into_iter().collect() }
    }

    /// The lowest piece that is long enough, cut to `bytes`.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.pieces.iter().find(|(_, length)| **length >= bytes)?;
        self.pieces.remove(&offset);
        if length > bytes {
            self.pieces.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    /// Gives a piece back that `take` handed out.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        let (mut from, mut to) = (offset, offset + bytes);
        if let Some((&before, &length)) = self.pieces.range(..offset).next_back() {
            assert!(before + length <= offset, "bytes {offset}+{bytes} were given back twice");
            if before + length == offset {
                self.pieces.remove(&before);
                from = before;
            }
        }
        if let Some((&after, &length)) = self.pieces.range(offset..).next() {
            assert!(after >= to, "bytes {offset}+{bytes} were given back twice");
            if after == to {
                self.pieces.remove(&after);
                to = after + length;
            }
        }
        self.pieces.insert(from, to - from);
    }

    pub(crate) fn longest(&self) -> u64 {
        self.pieces.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_in_any_order_of_return() {
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
    #[should_panic(expected = "given back twice")]
    fn a_second_return_is_our_mistake() {
        let mut list = FreeList::new(100);
        list.take(100);
        list.give(0, 100);
        list.give(0, 100);
    }
}
