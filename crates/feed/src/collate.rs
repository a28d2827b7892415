//! The collate stage: texts, lengths, speakers, languages and voice references are written to the slot.
//!
//! Runs after the features are queued, and completes the slot. The voice reference of a row is an excerpt of another recording
//! by the same speaker in the same batch, which costs no decoding. A row whose speaker has no other recording in the batch is
//! its own reference.

use tandem_audio::FeatureSettings;
use tandem_corpus::Cursor;
use tandem_device::{Block, Device, DeviceError, Grid, LoadedKernel, Stream};
use tandem_random::split_mix;

use crate::batch::schema::{REFERENCE_FRAMES, field_in};
use crate::kernels::{GATHER_REFERENCE, GatherReferenceArgs};
use crate::load::loaded::LoadedRow;
use crate::upload::uploader::Uploaded;

/// Fills the rest of a slot.
pub(crate) struct Collator {
    gather: LoadedKernel,
    /// The padding of a reference.
    silence: f32,
}

impl Collator {
    pub(crate) fn create(device: &Device, features: &FeatureSettings) -> Result<Collator, DeviceError> {
        Ok(Collator { gather: device.load(&GATHER_REFERENCE)?, silence: features.silence() })
    }

    /// Queues the copies and the gather of the references.
    pub(crate) fn collate(&self, stream: &Stream, uploaded: &Uploaded<'_>, slot: &Block) -> Result<(), DeviceError> {
        let (shape, layout) = (uploaded.layout, &uploaded.layout.upload);
        let copied = [
            ("text", layout.text),
            ("text_lengths", layout.text_lengths),
            ("mel_lengths", layout.mel_lengths),
            ("waveform_lengths", layout.waveform_lengths),
            ("speaker", layout.speaker),
            ("language", layout.language),
        ];
        for (name, span) in copied {
            if let (Some(span), Some(field)) = (span, field_in(&shape.slot, slot, name)) {
                stream.copy(uploaded.part(span), field)?;
            }
        }
        let field = |name| field_in(&shape.slot, slot, name);
        let (Some(picks), Some(mel), Some(reference)) = (layout.picks, field("mel"), field("reference")) else {
            return Ok(());
        };
        let args = GatherReferenceArgs {
            mel,
            lengths: uploaded.part(layout.out_lengths),
            frame_starts: uploaded.starts.frames.device,
            picks: uploaded.part(picks),
            reference,
            reference_frames: REFERENCE_FRAMES as u32,
            bands: shape.slot.sizes.mels as u32,
            silence: self.silence,
        };
        let blocks = [REFERENCE_FRAMES as u32, shape.bucket.batch() as u32, 1];
        stream.launch(&self.gather, Grid { blocks, threads: 96, shared_bytes: 0 }, args)
    }
}

/// The source of a row's voice reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReferencePick {
    pub(crate) row: u32,
    /// The first frame of the excerpt.
    pub(crate) start: u32,
}

/// The voice reference of row `position`. A pure function of seed, position in the order and the batch's rows. An empty row is
/// its own reference, and no other row's.
pub(crate) fn reference_pick(seed: u64, cursor: Cursor, rows: &[LoadedRow], position: usize) -> ReferencePick {
    let has_audio = |row: usize| rows[row].frames > 0;
    let same =
        |other: &usize| *other != position && rows[*other].speaker == rows[position].speaker && has_audio(*other);
    let others: Vec<usize> = (0..rows.len()).filter(same).filter(|_| has_audio(position)).collect();
    let random = |salt: u64| {
        split_mix(seed ^ split_mix(cursor.epoch ^ split_mix(cursor.k ^ split_mix(((position as u64) << 8) | salt))))
    };
    let row = match others.len() as u64 {
        0 => position,
        count => others[(random(1) % count) as usize],
    };
    let spare = u64::from(rows[row].frames).saturating_sub(REFERENCE_FRAMES);
    ReferencePick { row: row as u32, start: (random(2) % (spare + 1)) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_corpus::SampleIndex;

    fn row(speaker: u32, frames: u32) -> LoadedRow {
        LoadedRow { sample: Some(SampleIndex(0)), speaker, frames, ..LoadedRow::empty() }
    }

    #[test]
    fn a_reference_is_another_recording_of_the_same_speaker_if_there_is_one() {
        let rows = [row(0, 900), row(1, 300), row(0, 500), row(2, 450), row(0, 100), row(0, 0)];
        let mut starts = std::collections::BTreeSet::new();
        for k in 0..200 {
            let pick = |position| reference_pick(7, Cursor { epoch: 1, k }, &rows, position);
            for position in 0..rows.len() {
                let ReferencePick { row: other, start } = pick(position);
                assert!(other != 5 || position == 5, "an empty row is no other row's reference");
                let other = &rows[other as usize];
                assert_eq!(other.speaker, rows[position].speaker);
                assert!(start == 0 || u64::from(start) + REFERENCE_FRAMES <= u64::from(other.frames));
                assert_eq!(pick(position), pick(position));
            }
            assert!(![0, 2, 4].iter().any(|&own| pick(own).row == own as u32));
            let own = |row| ReferencePick { row, start: 0 };
            assert_eq!((pick(1), pick(3).row, pick(5)), (own(1), 3, own(5)));
            starts.insert(pick(2));
        }
        assert!(starts.len() > 50, "{} different references", starts.len());
    }
}
