//! Number of batch slots on each side.

use crate::placement::Mode;
use crate::setting::Id;
use crate::settings::Settings;

/// Number of slots on the data side and on the model side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotCounts {
    /// The value of `--buffer-size`.
    pub(crate) buffer_asked: u64,
    /// Batches prefetched on the data side.
    pub(crate) buffer: u64,
    /// Batch slots on the model side.
    pub(crate) prefetch: u64,
    /// Values that were raised, and why.
    pub(crate) notes: Vec<String>,
}

impl SlotCounts {
    /// The numbers for `mode` and steps of `batch_size` utterances in `grad_accum` micro-batches. A step holds all its
    /// micro-batches at once, because its losses divide by the valid frames of all of them.
    pub(crate) fn choose(settings: &Settings, mode: Mode, batch_size: u64, grad_accum: u64) -> SlotCounts {
        let asked = settings.count(Id::BufferSize);
        // On a separate card the data role is faster than the model and needs fewer batches in reserve.
        let buffer = if mode == Mode::Multi { (asked / 2).max(6) } else { asked };
        let given = settings.given_count(Id::PrefetchBufferSize);
        let min = min_prefetch(mode, grad_accum);
        let chosen = given.unwrap_or_else(|| default_prefetch(mode, batch_size));
        let mut notes = Vec::new();
        if chosen < min {
            let why = match (mode, grad_accum) {
                (Mode::Cpu, 1) => "one slot is filled while the other is read".to_owned(),
                (_, 1) => WHY_THREE.to_owned(),
                _ => format!(
                    "a step holds all {grad_accum} micro-batches of --grad-accum at once, and more are in transfer"
                ),
            };
            notes.push(format!("--prefetch-buffer-size {chosen} raised to {min}: {why}"));
        }
        let prefetch = chosen.max(min);
        SlotCounts { buffer_asked: asked, buffer, prefetch, notes }
    }
}

const WHY_THREE: &str = "one slot is filled, one in transfer, one read by the step";

/// The fewest slots with which no stage waits for a free slot. With fewer slots than a step holds at once, it would
/// deadlock.
fn min_prefetch(mode: Mode, grad_accum: u64) -> u64 {
    grad_accum.saturating_add(if mode == Mode::Cpu { 1 } else { 2 })
}

fn default_prefetch(mode: Mode, batch_size: u64) -> u64 {
    if mode == Mode::Cpu { min_prefetch(mode, 1) } else { (64 / batch_size.max(1)).clamp(3, 8) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::settings;

    #[test]
    fn slots_by_mode_and_batch() {
        let check = |line: &str, mode: Mode, batch: u64, expected: (u64, u64), notes: usize| {
            let accum = settings(line).count(Id::GradAccum);
            let slots = SlotCounts::choose(&settings(line), mode, batch, accum);
            assert_eq!(
                ((slots.buffer, slots.prefetch), slots.notes.len()),
                (expected, notes),
                "{line} {mode:?} {batch}"
            );
        };
        check("", Mode::Single, 16, (50, 4), 0);
        check("", Mode::Multi, 16, (25, 4), 0);
        check("", Mode::SharedGpu, 8, (50, 8), 0);
        check("", Mode::Multi, 1, (25, 8), 0);
        check("", Mode::Multi, 64, (25, 3), 0);
        check("", Mode::Cpu, 16, (50, 2), 0);
        check("--buffer-size 7", Mode::Multi, 16, (6, 4), 0);
        check("--buffer-size 1", Mode::Single, 16, (1, 4), 0);
        check("--prefetch-buffer-size 2", Mode::Single, 16, (50, 3), 1);
        check("--prefetch-buffer-size 2", Mode::Cpu, 16, (50, 2), 0);
        check("--prefetch-buffer-size 1", Mode::Cpu, 16, (50, 2), 1);
        check("--prefetch-buffer-size 20", Mode::Multi, 16, (25, 20), 0);
        // A step holds all its micro-batches at once: with fewer slots it would deadlock.
        check("--grad-accum 2", Mode::Multi, 16, (25, 4), 0);
        check("--grad-accum 8", Mode::Multi, 16, (25, 10), 1);
        check("--grad-accum 4 --prefetch-buffer-size 3", Mode::Single, 16, (50, 6), 1);
        check("--grad-accum 16", Mode::Cpu, 16, (50, 17), 1);
    }
}
