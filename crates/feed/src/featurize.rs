//! Samples on the data device become features in a slot.
//!
//! In comes an uploaded batch, out go log-mel, energy and pitch in the slot's own fields, padded to the bucket. Rows at
//! another rate are resampled first, into memory that only this stage uses, in the order of its stream. Which features
//! are made is the schema's to say.

use tandem_audio::{BatchShape, DeviceFeatures, PitchSettings, Rows};
use tandem_device::{Arena, Block, Device, DeviceError, Stream};

use crate::error::FeedError;
use crate::feed_plan::{FeedPlan, RESAMPLED};
use crate::input::{Input, Shape};
use crate::schema::{HOP_SAMPLES, field_in};
use crate::upload::Uploaded;

/// The kernels of the data device with their tables and scratch.
pub(crate) struct FeatureMaker {
    features: DeviceFeatures,
    resampled: Option<Block>,
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
            bytes => Some(arena.take(RESAMPLED, bytes)?),
        };
        Ok(FeatureMaker { features, resampled })
    }

    /// Queues the features of a batch; `is_resampled` when any of its rows is at another rate.
    pub(crate) fn featurize(
        &self,
        stream: &Stream,
        (uploaded, is_resampled): (&Uploaded<'_>, bool),
        shape: &Shape,
        slot: &Block,
    ) -> Result<(), DeviceError> {
        let layout = &shape.upload;
        let num_rows = shape.bucket.batch as u32;
        let lengths = uploaded.part(layout.out_lengths);
        let (audio, stride) = match &self.resampled {
            Some(resampled) if is_resampled => {
                let stride = (shape.bucket.frames + 1) * HOP_SAMPLES;
                let out = resampled.part(0, shape.bucket.batch * stride * 2);
                let from = Rows {
                    samples: uploaded.part(layout.audio),
                    stride_samples: layout.stride_samples as u32,
                    lengths: uploaded.part(layout.in_lengths),
                };
                let to = Rows { samples: out, stride_samples: stride as u32, lengths };
                self.features.resample(stream, num_rows, from, uploaded.part(layout.rates), to)?;
                (out, stride)
            }
            _ => (uploaded.part(layout.audio), layout.stride_samples),
        };
        let batch = BatchShape { rows: num_rows, stride_samples: stride as u32, frames: shape.bucket.frames as u32 };
        let field = |name| field_in(&shape.slot, slot, name);
        if let Some(mel) = field("mel") {
            self.features.log_mel(stream, batch, audio, lengths, mel, field("energy"))?;
        }
        match field("pitch") {
            Some(pitch) => self.features.pitch(stream, batch, audio, lengths, pitch),
            None => Ok(()),
        }
    }
}
