//! The few shapes batches come in. Few, so that every one is planned and compiled before the first step.

use tandem_device::bytes::round_up;

use crate::batch::SPEECH;

/// A batch shape: recordings of up to `frames`, texts of up to `tokens`, `batch` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Longest recording, in frames.
    pub frames: u64,
    /// Longest text, in tokens.
    pub tokens: u64,
    /// Utterances of a micro-batch.
    pub batch: u64,
}

/// Without a corpus to look at, this many shapes are spaced evenly.
const NUM_BUCKETS: u64 = 8;
/// Frames come in multiples of this, so that matrix products meet whole tiles.
const FRAME_STEP: u64 = 8;

/// Shapes up to `max_frames` and `max_tokens`, shortest first; the last one is the largest in every respect.
pub fn buckets(max_frames: u64, max_tokens: u64, batch: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for i in 1..=NUM_BUCKETS {
        let frames = round_up((max_frames * i).div_ceil(NUM_BUCKETS), FRAME_STEP);
        let tokens = (max_tokens * i).div_ceil(NUM_BUCKETS);
        // Rounded to one length, two shapes are one: the one that holds the longer text.
        buckets.retain(|shorter| shorter.frames < frames);
        buckets.push(Bucket { frames, tokens, batch });
    }
    buckets
}

/// Bytes of a slot: it must take a batch of any bucket.
pub fn slot_bytes(buckets: &[Bucket]) -> u64 {
    buckets.iter().map(|bucket| SPEECH.layout(bucket).bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_few_rising_and_reach_the_longest_item() {
        for (frames, tokens) in [(1000, 200), (8, 1), (9, 200), (64, 3), (100_000, 10_000)] {
            let buckets = buckets(frames, tokens, 4);
            assert!(!buckets.is_empty() && buckets.len() <= 8);
            assert!(buckets.windows(2).all(|w| w[0].frames < w[1].frames && w[0].tokens <= w[1].tokens));
            assert!(buckets.iter().all(|b| b.frames % 8 == 0 && b.tokens > 0));
            let last = buckets.last().unwrap();
            assert!(last.frames >= frames && last.tokens == tokens);
            assert_eq!(slot_bytes(&buckets), SPEECH.layout(last).bytes);
        }
    }

    #[test]
    fn the_default_table() {
        let frames: Vec<u64> = buckets(1000, 200, 16).iter().map(|b| b.frames).collect();
        assert_eq!(frames, [128, 256, 376, 504, 632, 752, 880, 1000]);
    }
}
