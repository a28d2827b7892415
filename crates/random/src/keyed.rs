//! Random numbers that are a function of what they are for, and the same for ever, everywhere.
//!
//! A number is `draw(key, counter)`: no state, so that any worker can have the 700th one without the 699 before. The
//! key is folded from the words that say what it is for (seed, epoch, purpose). The mixing function is the finaliser
//! of SplitMix64, applied to a Weyl sequence; two rounds separate neighbouring keys and counters. Checkpoints depend
//! on these values: the stored ones in the tests may never change.

use crate::split_mix::{GOLDEN, finalize};

/// Folds words into a key. The order of the words matters.
pub fn key(words: &[u64]) -> u64 {
    words.iter().fold(GOLDEN, |key, word| finalize(key.wrapping_add(GOLDEN) ^ finalize(word.wrapping_add(GOLDEN))))
}

/// The number that `counter` has under `key`: all of 64 bits, evenly.
pub fn draw(key: u64, counter: u64) -> u64 {
    finalize(key ^ finalize(counter.wrapping_mul(GOLDEN).wrapping_add(GOLDEN)))
}

/// A number below `bound`, which must not be 0. Uneven by at most `bound` parts in 2^64, which no corpus can see.
pub fn below(key: u64, counter: u64, bound: u64) -> u64 {
    ((u128::from(draw(key, counter)) * u128::from(bound)) >> 64) as u64
}

/// Puts `items` in an order that `key` decides.
pub fn shuffle<T>(key: u64, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(key, i as u64, i as u64 + 1) as usize);
    }
}

/// A number for a string (FNV-1a, mixed once more).
pub fn hash(key: u64, bytes: &[u8]) -> u64 {
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    draw(key, fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_never_change() {
        let k = key(&[1234, 5]);
        let drawn: Vec<u64> = (0..3).map(|counter| draw(k, counter)).collect();
        let mut order: Vec<u32> = (0..10).collect();
        shuffle(k, &mut order);
        assert_eq!(k, 0x8c0a_3edd_0cbd_ddbd);
        assert_eq!(drawn, [0x04b0_7233_86a7_e4a5, 0x43e5_d18a_71e5_0c38, 0xefd8_e6ef_a6fe_2be0]);
        assert_eq!(order, [5, 0, 7, 4, 2, 1, 3, 9, 6, 8]);
        assert_eq!(hash(k, b"LJ001-0001"), 0xcb15_42ca_f0a6_4efd);
    }

    #[test]
    fn numbers_are_spread_evenly_and_keys_apart() {
        for words in [[0, 0], [0, 1], [1, 0], [1234, 7]] {
            let k = key(&words);
            let mut counts = [0u32; 10];
            for counter in 0..10_000 {
                counts[below(k, counter, 10) as usize] += 1;
            }
            // Ten standard deviations of a fair die.
            assert!(counts.iter().all(|count| count.abs_diff(1000) < 300), "{counts:?}");
        }
        let mut keys: Vec<u64> = (0..100).flat_map(|a| (0..100).map(move |b| key(&[a, b]))).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn a_shuffle_loses_nothing_and_reaches_every_order() {
        let mut seen = std::collections::BTreeSet::new();
        for k in 0..500 {
            let mut items = [0, 1, 2, 3];
            shuffle(key(&[k]), &mut items);
            let mut sorted = items;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 24);
    }
}
