//! The shapes batches come in. Few, so that every one is planned and compiled before the first step.

use tandem_device::bytes::round_up;

use crate::buckets::{FRAME_STEP, NUM_BUCKETS};

/// A shape: recordings of up to `frames`, texts of up to `tokens`, `batch` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// What recordings are padded to.
    pub frames: u64,
    /// What texts are padded to: the longest that can come into this bucket.
    pub tokens: u64,
    /// Utterances of a (micro-)batch.
    pub batch: u64,
}

/// Shapes up to `max_frames` and `max_tokens`, evenly spaced, shortest first; the last one is the largest in every
/// respect. For plans without a corpus to look at.
pub fn even_buckets(max_frames: u64, max_tokens: u64, batch: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for i in 1..=NUM_BUCKETS as u64 {
        let frames = round_up((max_frames * i).div_ceil(NUM_BUCKETS as u64), u64::from(FRAME_STEP));
        let tokens = (max_tokens * i).div_ceil(NUM_BUCKETS as u64);
        // Rounded to one length, two shapes are one: the one that holds the longer text.
        buckets.retain(|shorter| shorter.frames < frames);
        buckets.push(Bucket { frames, tokens, batch });
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::SPEECH;

    #[test]
    fn shapes_are_few_rising_and_reach_the_longest_item() {
        for (frames, tokens) in [(1000, 200), (8, 1), (9, 200), (64, 3), (100_000, 10_000)] {
            let buckets = even_buckets(frames, tokens, 4);
            assert!(!buckets.is_empty() && buckets.len() <= 8);
            assert!(buckets.windows(2).all(|w| w[0].frames < w[1].frames && w[0].tokens <= w[1].tokens));
            assert!(buckets.iter().all(|b| b.frames % 8 == 0 && b.tokens > 0));
            let last = buckets.last().unwrap();
            assert!(last.frames >= frames && last.tokens == tokens);
            assert_eq!(SPEECH.slot_bytes(&buckets), SPEECH.layout(last).bytes);
        }
    }

    #[test]
    fn the_default_table() {
        let frames: Vec<u64> = even_buckets(1000, 200, 16).iter().map(|b| b.frames).collect();
        assert_eq!(frames, [128, 256, 376, 504, 632, 752, 880, 1000]);
    }
}
