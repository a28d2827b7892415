//! What is not made of samples finds its place in the slot: texts, lengths, speakers, and the reference voice.
//!
//! In comes an uploaded batch whose features are queued, out goes a whole slot. The reference of a row is a piece of
//! another recording by the same speaker in the same batch, so that it costs no decoding; a row whose speaker has no
//! other is its own reference.

use tandem_corpus::Cursor;
use tandem_device::{Block, Device, DeviceError, Grid, LoadedKernel, Stream};

use crate::batch::schema::{MELS, REFERENCE_FRAMES, field_in};
use crate::kernels::{GATHER_REFERENCE, GatherReferenceArgs};
use crate::load::input::BatchLayout;
use crate::load::row_queue::LoadedRow;
use crate::upload::row_tables::RowTables;
use crate::upload::uploader::Uploaded;

/// Fills the rest of a slot.
pub(crate) struct Collator {
    gather: LoadedKernel,
    /// What stands in a reference behind its end.
    silence: f32,
}

impl Collator {
    pub(crate) fn create(device: &Device, floor: f64) -> Result<Collator, DeviceError> {
        Ok(Collator { gather: device.load(&GATHER_REFERENCE)?, silence: (floor as f32).ln() })
    }

    /// Queues the copies and the gathering.
    pub(crate) fn collate(
        &self,
        stream: &Stream,
        uploaded: &Uploaded<'_>,
        (shape, tables): (&BatchLayout, &RowTables),
        slot: &Block,
    ) -> Result<(), DeviceError> {
        let layout = &shape.upload;
        let small = [
            ("text", layout.text),
            ("text_lengths", layout.text_lengths),
            ("mel_lengths", layout.mel_lengths),
            ("speaker", layout.speaker),
        ];
        for (name, span) in small {
            if let (Some(span), Some(field)) = (span, field_in(&shape.slot, slot, name)) {
                stream.copy(uploaded.part(span), field)?;
            }
        }
        let field = |name| field_in(&shape.slot, slot, name);
        let (Some(picks), Some(mel), Some(reference)) = (layout.picks, field("mel"), field("reference")) else {
            return Ok(());
        };
        let [_, _, frames] = tables.starts(shape);
        let args = GatherReferenceArgs {
            mel,
            lengths: uploaded.part(layout.out_lengths),
            frame_starts: frames.device,
            picks: uploaded.part(picks),
            reference,
            reference_frames: REFERENCE_FRAMES as u32,
            bands: MELS as u32,
            silence: self.silence,
        };
        let blocks = [REFERENCE_FRAMES as u32, shape.bucket.batch() as u32, 1];
        stream.launch(&self.gather, Grid { blocks, threads: 96, shared_bytes: 0 }, args)
    }
}

/// Which row the reference of row `position` is taken from, and at which of its frames it begins. A pure function of
/// seed, place in the order and the batch's rows. Empty rows are nobody's reference but their own.
pub(crate) fn reference_pick(seed: u64, cursor: Cursor, rows: &[LoadedRow], position: usize) -> [u32; 2] {
    let heard = |row: usize| rows[row].frames > 0;
    let same = |other: &usize| *other != position && rows[*other].speaker == rows[position].speaker && heard(*other);
    let others: Vec<usize> = (0..rows.len()).filter(same).filter(|_| heard(position)).collect();
    let draw = |salt: u64| mix(seed ^ mix(cursor.epoch ^ mix(cursor.k ^ mix(((position as u64) << 8) | salt))));
    let row = match others.len() as u64 {
        0 => position,
        count => others[(draw(1) % count) as usize],
    };
    let spare = u64::from(rows[row].frames).saturating_sub(REFERENCE_FRAMES);
    [row as u32, (draw(2) % (spare + 1)) as u32]
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_corpus::SampleIndex;

    fn row(speaker: u32, frames: u32) -> LoadedRow {
        let sample = Some(SampleIndex(0));
        let (in_samples, out_samples, rate) = (frames * 256, frames * 256, u32::MAX);
        let (tokens, replacement, busy_ns) = (Vec::new(), None, 0);
        let pitch_place = tandem_audio::NOT_CACHED;
        LoadedRow { sample, in_samples, out_samples, rate, frames, pitch_place, tokens, speaker, replacement, busy_ns }
    }

    #[test]
    fn a_reference_is_another_recording_of_the_same_voice_where_there_is_one() {
        let rows = [row(0, 900), row(1, 300), row(0, 500), row(2, 450), row(0, 100), row(0, 0)];
        let mut starts = std::collections::BTreeSet::new();
        for k in 0..200 {
            let pick = |position| reference_pick(7, Cursor { epoch: 1, k }, &rows, position);
            for position in 0..rows.len() {
                let [other, start] = pick(position);
                assert!(other != 5 || position == 5, "an empty row is nobody's reference");
                let other = &rows[other as usize];
                assert_eq!(other.speaker, rows[position].speaker);
                assert!(start == 0 || u64::from(start) + REFERENCE_FRAMES <= u64::from(other.frames));
                assert_eq!(pick(position), pick(position));
            }
            assert!(![0, 2, 4].iter().any(|&own| pick(own)[0] == own as u32));
            assert_eq!((pick(1), pick(3)[0], pick(5)), ([1, 0], 3, [5, 0]));
            starts.insert(pick(2));
        }
        assert!(starts.len() > 50, "{} different references", starts.len());
    }
}
