//! What this process holds on its cards, by our counters and by the driver's, for comparing two points of a run.

use tandem_device::{DeviceError, Machine};

/// Memory of one card in use at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMemory {
    /// The card.
    pub card: usize,
    /// Memory of this process, as the driver counts it; `None` if the driver does not report it.
    pub process_bytes: Option<u64>,
    /// Free memory of the card, which a desktop and other processes change too.
    pub free_bytes: u64,
}

impl HeldMemory {
    /// Whether this process held more `later`; `None` if the driver does not report it.
    pub fn grew(&self, later: &HeldMemory) -> Option<bool> {
        Some(later.process_bytes? > self.process_bytes?)
    }
}

/// The memory of these cards now, each once.
pub(crate) fn held(machine: &Machine, cards: &[usize]) -> Result<Vec<HeldMemory>, DeviceError> {
    let mut cards = cards.to_vec();
    cards.dedup();
    let read = |card| {
        let (process_bytes, free_bytes) = (machine.process_bytes(card)?, machine.read(card)?.free_bytes);
        Ok(HeldMemory { card, process_bytes, free_bytes })
    };
    cards.into_iter().map(read).collect()
}

/// Device and pinned allocations on each of these cards so far.
pub(crate) fn counted(machine: &Machine, cards: &[usize]) -> Vec<(u64, u64)> {
    let count = |card: &usize| (machine.counters(*card).allocations, machine.counters(*card).pinned_allocations);
    cards.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_memory_of_this_process_counts_as_growth() {
        let held = |process_bytes, free_bytes| HeldMemory { card: 0, process_bytes, free_bytes };
        let before = held(Some(700), 9000);
        assert_eq!(before.grew(&held(Some(700), 100)), Some(false), "another process took memory");
        assert_eq!(before.grew(&held(Some(600), 9000)), Some(false));
        assert_eq!(before.grew(&held(Some(701), 9999)), Some(true), "another process gave memory back");
        assert_eq!(held(None, 9000).grew(&held(None, 100)), None, "nobody knows whose it is");
    }
}
