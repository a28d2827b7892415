//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

/// The increment of the sequence: 2^64 divided by the golden ratio.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function: a bijection of 64 bits in which every input bit changes about half of the output bits.
pub(crate) fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The first number of the sequence from `seed`: a hash of one word.
pub fn split_mix(seed: u64) -> u64 {
    finalize(seed.wrapping_add(GOLDEN))
}

/// A sequence of random numbers from a seed.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The sequence of `seed` without its first `count` numbers.
    pub fn skip(seed: u64, count: u64) -> SplitMix {
        SplitMix(seed.wrapping_add(count.wrapping_mul(GOLDEN)))
    }

    /// The next number: all of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let number = split_mix(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        number
    }

    /// A number below `limit`, which must not be 0. Uneven by at most `limit` parts in 2^64.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// A number in [0, 1): 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in [0, 1): 24 bits, exact in f32.
    pub fn unit_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567 as the published reference implementation prints them.
    #[test]
    fn known_answers() {
        let mut numbers = SplitMix::new(1_234_567);
        let found: Vec<u64> = (0..5).map(|_| numbers.next_u64()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(found, published);
        assert_eq!(SplitMix::skip(1_234_567, 3).next_u64(), published[3]);
    }

    #[test]
    fn fractions_are_below_1() {
        let mut numbers = SplitMix::new(9);
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&numbers.unit()) && (0.0..1.0).contains(&numbers.unit_f32()));
        }
    }
}
