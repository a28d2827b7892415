//! Which recordings have their pitch cached on the data device, and of which audio it is.
//!
//! The device stores the pitch of a recording when it first computes it. A file that changes between epochs has another
//! pitch: its cached one is not used again.

use std::sync::atomic::{AtomicU64, Ordering};

use tandem_audio::{Clip, NOT_CACHED};
use tandem_corpus::SampleIndex;
use twox_hash::XxHash3_64;

use crate::batch::feed_plan::FeedPlan;

/// Offsets of recordings in the pitch cache.
pub(crate) struct CachedPitches {
    stride_frames: u64,
    /// The checksum of each recording's samples; 0 until it is first loaded.
    checksums: Box<[AtomicU64]>,
}

impl CachedPitches {
    pub(crate) fn new(plan: &FeedPlan) -> CachedPitches {
        let count = if plan.cached_pitch_bytes() == 0 { 0 } else { plan.cached_pitches };
        let checksums = (0..count).map(|_| AtomicU64::new(0)).collect();
        CachedPitches { stride_frames: plan.pitch_stride_frames(), checksums }
    }

    /// The offset of the pitch of `clip`, as the kernel knows it; [`NOT_CACHED`] if `index` had other audio before.
    pub(crate) fn offset(&self, index: SampleIndex, clip: &Clip) -> u32 {
        let Some(known) = self.checksums.get(index.at()) else { return NOT_CACHED };
        let samples = bytemuck::cast_slice(&clip.samples);
        let checksum = XxHash3_64::oneshot_with_seed(clip.rate_hz.into(), samples).max(1);
        match known.compare_exchange(0, checksum, Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != checksum => NOT_CACHED,
            _ => (index.at() as u64 * self.stride_frames) as u32,
        }
    }
}
