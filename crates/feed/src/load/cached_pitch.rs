//! Whose pitch is kept on the data device, and of what sound it is.
//!
//! The device keeps what it found for a recording. A file that is another one by the next epoch has another pitch: what
//! is kept is then of no use, and the recording has no place any more.

use std::sync::atomic::{AtomicU64, Ordering};

use tandem_audio::{Clip, NOT_CACHED};
use tandem_corpus::SampleIndex;

use crate::batch::feed_plan::FeedPlan;
use crate::load::cache::checksum;

/// The places of recordings, by their index.
pub(crate) struct KeptPitches {
    place_frames: u64,
    /// Of each: the sum of its samples, 0 while nobody has heard it.
    heard: Box<[AtomicU64]>,
}

impl KeptPitches {
    pub(crate) fn new(plan: &FeedPlan) -> KeptPitches {
        let count = if plan.cached_pitch_bytes() == 0 { 0 } else { plan.kept_pitches };
        KeptPitches { place_frames: plan.pitch_place_frames(), heard: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Where the pitch of `clip` is kept, as the kernel knows it; nowhere when `index` was heard to be another sound.
    pub(crate) fn place(&self, index: SampleIndex, clip: &Clip) -> u32 {
        let Some(heard) = self.heard.get(index.at()) else { return NOT_CACHED };
        let sum = checksum(clip.rate_hz.into(), bytemuck::cast_slice(&clip.samples)).max(1);
        match heard.compare_exchange(0, sum, Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != sum => NOT_CACHED,
            _ => (index.at() as u64 * self.place_frames) as u32,
        }
    }
}
