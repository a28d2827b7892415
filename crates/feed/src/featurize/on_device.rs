//! Features of a batch, on the data device.
//!
//! Writes log-mel, energy, pitch and waveform of an uploaded batch to the fields of its slot, each row padded to its length. The schema
//! decides which of them are made. Rows at another sample rate are resampled first, into scratch memory of this stage. Pitch
//! costs the most and is cached between epochs.

use tandem_audio::{CachedPitch, DeviceFeatures, NOTHING_YET, PitchSettings, SampleRows};
use tandem_device::{Arena, Block, Device, DeviceError, Grid, LoadedKernel, Stream};

use crate::batch::feed_plan::{CACHED_PITCH, RESAMPLED};
use crate::batch::schema::field_in;
use crate::error::FeedError;
use crate::kernels::{WAVEFORM, WaveformArgs};
use crate::load::input::Input;
use crate::upload::uploader::Uploaded;

/// The feature kernels with their tables and scratch memory.
pub(crate) struct FeatureMaker {
    features: DeviceFeatures,
    /// Loaded if batches have waveforms.
    waveform: Option<LoadedKernel>,
    resampled: Option<Block>,
    cached_pitch: Option<Block>,
}

/// Blocks that convert the samples of a row: enough for 16 rows to fill a card.
const WAVEFORM_BLOCKS: u32 = 32;

impl FeatureMaker {
    pub(crate) fn create(
        device: &Device,
        arena: &Arena,
        stream: &Stream,
        input: &Input,
    ) -> Result<FeatureMaker, FeedError> {
        let (plan, pitch) = (&input.plan, PitchSettings::default());
        let features = DeviceFeatures::create(device, arena, stream, input.features(), &pitch, &plan.rates_hz)?;
        let filled = |owner, bytes, value| match bytes {
            0 => Ok::<_, DeviceError>(None),
            bytes => {
                let block = arena.take(owner, bytes)?;
                // For scratch memory, this faults all pages in: see `Uploader::create`.
                stream.fill(block.view(), value)?;
                Ok(Some(block))
            }
        };
        let resampled = filled(RESAMPLED, plan.resampled_bytes(), 0)?;
        let cached_pitch = filled(CACHED_PITCH, plan.cached_pitch_bytes(), NOTHING_YET)?;
        let waveform = plan.schema.has("waveform").then(|| device.load(&WAVEFORM)).transpose()?;
        Ok(FeatureMaker { features, waveform, resampled, cached_pitch })
    }

    /// Queues the features of a batch.
    pub(crate) fn featurize(&self, stream: &Stream, uploaded: &Uploaded<'_>, slot: &Block) -> Result<(), DeviceError> {
        let (layout, starts) = (&uploaded.layout.upload, uploaded.starts);
        let lengths = uploaded.part(layout.out_lengths);
        let uploaded_rows =
            |lengths| SampleRows { samples: uploaded.part(layout.audio), starts: starts.audio, lengths };
        let audio = match &self.resampled {
            Some(resampled) if uploaded.is_resampled => {
                let from = uploaded_rows(uploaded.part(layout.in_lengths));
                let to = SampleRows { samples: resampled.view(), starts: starts.resampled, lengths };
                self.features.resample(stream, from, uploaded.part(layout.rates), to)?;
                to
            }
            _ => uploaded_rows(lengths),
        };
        let field = |name| field_in(&uploaded.layout.slot, slot, name);
        if let Some(mel) = field("mel") {
            self.features.log_mel(stream, audio, starts.frames, mel, field("energy"))?;
        }
        if let (Some(kernel), Some(out), Some(lengths)) = (&self.waveform, field("waveform"), layout.waveform_lengths) {
            let frames = starts.frames;
            let args = WaveformArgs {
                audio: audio.samples,
                sample_starts: audio.starts.device,
                lengths: uploaded.part(lengths),
                frame_starts: frames.device,
                out,
                hop: uploaded.layout.slot.sizes.hop_samples as u32,
            };
            let rows = uploaded.layout.bucket.batch() as u32;
            stream.launch(kernel, Grid { blocks: [WAVEFORM_BLOCKS, rows, 1], threads: 256, shared_bytes: 0 }, args)?;
        }
        match field("pitch") {
            Some(pitch) => {
                let cached = self
                    .cached_pitch
                    .as_ref()
                    .zip(layout.pitch_offsets)
                    .map(|(memory, offsets)| CachedPitch { offsets: uploaded.part(offsets), memory: memory.view() });
                self.features.pitch(stream, audio, starts.frames, pitch, cached)
            }
            None => Ok(()),
        }
    }
}
