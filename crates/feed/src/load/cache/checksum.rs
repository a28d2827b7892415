//! A checksum as fast as memory, because every cached clip is checked on every read.

/// Odd, with bits everywhere.
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;

/// 64 bits of `bytes`. Bytes that differ within one word of 8 always differ in it, others all but always.
///
/// Four words at a time, each folded into a lane of its own by steps that can be undone: what was different stays
/// different, and the four do not wait for each other. No protection against anyone who means harm.
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [seed, seed ^ PRIME, !seed, seed.rotate_left(32)];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        fold(&mut lanes, block);
    }
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    fold(&mut lanes, &last);
    lanes.iter().fold(mix(seed ^ bytes.len() as u64), |sum, lane| mix(sum ^ lane))
}

fn fold(lanes: &mut [u64; 4], block: &[u8; 32]) {
    for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
        let product = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
        // A product spreads upwards only; this brings its high half down.
        *lane = product ^ (product >> 32);
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(PRIME);
    x = (x ^ (x >> 29)).wrapping_mul(PRIME);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn files_that_lie_on_disks_depend_on_these_values() {
        let sums = [checksum(0, b""), checksum(1, b"wavs/LJ001-0001.wav"), checksum(0, &[7; 100])];
        assert_eq!(sums, [0x64a6_f5ce_e266_2984, 0xc155_b1d4_539f_2e14, 0x9b6a_2646_464a_4f7c]);
    }

    #[test]
    fn every_flipped_bit_every_length_and_every_seed_is_another_sum() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut sums = HashSet::from([checksum(0, &bytes)]);
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(sums.insert(checksum(0, &flipped)), "bit {bit}");
        }
        for num_bytes in 0..bytes.len() {
            assert!(sums.insert(checksum(0, &bytes[..num_bytes])), "{num_bytes} bytes");
            assert!(sums.insert(checksum(1, &vec![0; num_bytes])), "{num_bytes} zeros");
        }
    }
}
