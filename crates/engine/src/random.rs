//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! A number is a pure function of key and counter, so a replay, a recomputed block and a resumed run generate the same
//! numbers, and micro-batches generate those of the full batch.

/// Four random words for a counter.
#[inline]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut key, mut words) = (key, counter);
    for _ in 0..10 {
        let high = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32;
        let (m0, m1) = (0xD251_1F53_u32, 0xCD9E_8D57_u32);
        words = [
            high(m1, words[2]) ^ words[1] ^ key[0],
            m1.wrapping_mul(words[2]),
            high(m0, words[0]) ^ words[3] ^ key[1],
            m0.wrapping_mul(words[0]),
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    words
}

/// A uniform number in (0, 1) from a word: never 0, so that its logarithm is finite, and never 1. Exact in f32.
#[inline]
pub fn unit(word: u32) -> f32 {
    // 23 bits and a half: the largest is 1 - 2^-24, which f32 represents exactly.
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// Two independent standard normal numbers from two words (Box-Muller transform).
#[inline]
pub fn normal_pair(a: u32, b: u32) -> [f64; 2] {
    let radius = (-2.0 * f64::from(unit(a)).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * f64::from(unit(b))).sin_cos();
    [radius * cos, radius * sin]
}

/// A key derived from a name (FNV-1a, 64 bits).
pub(crate) fn name_key(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// The `i`-th uniform number of `key`, in (0, 1).
pub(crate) fn uniform_at(key: u64, i: u64) -> f64 {
    f64::from(unit(words_at(key, i)[0]))
}

/// The `i`-th standard normal number of `key`.
pub(crate) fn normal_at(key: u64, i: u64) -> f64 {
    let [a, b, ..] = words_at(key, i);
    normal_pair(a, b)[0]
}

fn words_at(key: u64, i: u64) -> [u32; 4] {
    philox([key as u32, (key >> 32) as u32], [i as u32, (i >> 32) as u32, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors published with the generator (Random123).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0, 0], [0; 4]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        let ones = u32::MAX;
        assert_eq!(philox([ones; 2], [ones; 4]), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
        assert_eq!(
            philox([0xA409_3822, 0x299F_31D0], [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344]),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }

    #[test]
    fn a_uniform_number_is_strictly_between_0_and_1() {
        assert!(unit(0) > 0.0 && unit(u32::MAX) < 1.0);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let samples: Vec<f64> = (0..20_000).map(|i| normal_at(7, i)).collect();
        let mean = samples.iter().sum::<f64>() / 20_000.0;
        let variance = samples.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
