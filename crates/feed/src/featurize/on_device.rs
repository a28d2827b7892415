//! Samples on the data device become features in a slot.
//!
//! In comes an uploaded batch, out go log-mel, energy and pitch in the slot's own fields, each row padded to its room.
//! Rows at another rate are resampled first, into memory that only this stage uses, in the order of its stream. Which
//! features are made is the schema's to say. Pitch, the dearest of them, is kept from epoch to epoch.

use tandem_audio::{CachedPitch, DeviceFeatures, NOTHING_YET, PitchSettings, SampleRows};
use tandem_device::{Arena, Block, Device, DeviceError, Stream};

use crate::batch::feed_plan::{FeedPlan, KEPT_PITCH, RESAMPLED};
use crate::batch::schema::field_in;
use crate::error::FeedError;
use crate::load::input::{BatchLayout, Input};
use crate::upload::row_tables::RowTables;
use crate::upload::uploader::Uploaded;

/// The kernels of the data device with their tables and scratch.
pub(crate) struct FeatureMaker {
    features: DeviceFeatures,
    resampled: Option<Block>,
    cached_pitch: Option<Block>,
}

impl FeatureMaker {
    pub(crate) fn create(
        device: &Device,
        arena: &Arena,
        stream: &Stream,
        input: &Input,
    ) -> Result<FeatureMaker, FeedError> {
        let plan: &FeedPlan = &input.plan;
        let pitch = PitchSettings::default();
        let features = DeviceFeatures::create(device, arena, stream, input.features(), &pitch, &plan.rates_hz)?;
        let resampled = match plan.resampled_bytes() {
            0 => None,
            bytes => {
                let resampled = arena.take(RESAMPLED, bytes)?;
                // Where it lies in the host's memory it is all there from now on: see `Uploader::create`.
                stream.fill(resampled.view(), 0)?;
                Some(resampled)
            }
        };
        let cached_pitch = match plan.cached_pitch_bytes() {
            0 => None,
            bytes => Some(arena.take(KEPT_PITCH, bytes)?),
        };
        if let Some(kept) = &cached_pitch {
            stream.fill(kept.view(), NOTHING_YET)?;
        }
        Ok(FeatureMaker { features, resampled, cached_pitch })
    }

    /// Queues the features of a batch; `is_resampled` when any of its rows is at another rate.
    pub(crate) fn featurize(
        &self,
        stream: &Stream,
        (uploaded, is_resampled): (&Uploaded<'_>, bool),
        (shape, tables): (&BatchLayout, &RowTables),
        slot: &Block,
    ) -> Result<(), DeviceError> {
        let layout = &shape.upload;
        let [starts, resampled_starts, frames] = tables.starts(shape);
        let lengths = uploaded.part(layout.out_lengths);
        let uploaded_rows = |lengths| SampleRows { samples: uploaded.part(layout.audio), starts, lengths };
        let audio = match &self.resampled {
            Some(resampled) if is_resampled => {
                let from = uploaded_rows(uploaded.part(layout.in_lengths));
                let to = SampleRows { samples: resampled.view(), starts: resampled_starts, lengths };
                self.features.resample(stream, from, uploaded.part(layout.rates), to)?;
                to
            }
            _ => uploaded_rows(lengths),
        };
        let field = |name| field_in(&shape.slot, slot, name);
        if let Some(mel) = field("mel") {
            self.features.log_mel(stream, audio, frames, mel, field("energy"))?;
        }
        match field("pitch") {
            Some(pitch) => {
                let kept = self.cached_pitch.as_ref().zip(layout.pitch_places);
                let kept =
                    kept.map(|(kept, places)| CachedPitch { places: uploaded.part(places), memory: kept.view() });
                self.features.pitch(stream, audio, frames, pitch, kept)
            }
            None => Ok(()),
        }
    }
}
