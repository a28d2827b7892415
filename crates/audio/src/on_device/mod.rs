//! Features where the samples are: a whole batch of padded rows at a time, one launch per kind of feature.
//!
//! In come int16 samples in device memory, a row per clip, each with its length; out go features in the caller's device
//! memory. Rows need not be equally long: [`Starts`] say where each begins. [`DeviceFeatures`] owns its tables and
//! nothing else. Every element of an output is written: what lies past a row's own frames is padding, and a row too
//! short for features (see [`FeatureSettings::min_samples`]) is all padding. Nothing depends on the order of threads:
//! the same batch gives the same bits again.
//!
//! On the CPU and on simulated cards the host kernels run, which are [`LogMel`](crate::LogMel),
//! [`PitchTracker`](crate::PitchTracker) and [`Resampler`](crate::Resampler) themselves. On CUDA resampling gives the
//! same bits as those; log-mel is within their bounds of the f64 reference, and pitch differs by its last rounding.

mod numbers;
mod rows;
mod tables;
pub(crate) mod host_kernels;
#[cfg(test)]
mod model;

use tandem_device::{Arena, Arg, Block, Device, DeviceError, Grid, LoadedKernel, Stream, View};

use crate::kernels::{LOG_MEL, PITCH, RESAMPLE};
use crate::{AudioError, FeatureSettings, PitchSettings};
use rows::check_elements;
pub use rows::{SampleRows, Starts};
use tables::{TableId, Tables};

/// Whom the tables are shown under.
const OWNER: &str = "feature tables";

/// Frames a block of the log-mel kernel makes: rows of features begin at multiples of this.
pub const TILE_FRAMES: u32 = 8;
const MEL_THREADS: u32 = 128;
/// Samples a block of the resampling kernel makes, one thread each: rows that are resampled begin at multiples of this.
pub const TILE_SAMPLES: u32 = 256;
const PITCH_THREADS: u32 = 256;

/// Makes features on one device. Holding one of these means its kernels are loaded and its tables are there.
pub struct DeviceFeatures {
    resample: LoadedKernel,
    log_mel: LoadedKernel,
    pitch: LoadedKernel,
    tables: Block,
    layout: Layout,
}

/// The pitch of recordings that were heard before.
#[derive(Clone, Copy)]
pub struct CachedPitch<'a> {
    /// u32 per row: the first frame of its place in `memory`, which has room for all frames of its recording, or
    /// [`NOT_CACHED`]. One recording has one place.
    pub places: View<'a>,
    /// f32: all places, filled with bytes of [`NOTHING_YET`] at first.
    pub memory: View<'a>,
}

/// The place of a row whose pitch is not kept.
pub const NOT_CACHED: u32 = u32::MAX;
/// What the memory of kept pitch is filled with before anything is known.
pub const NOTHING_YET: u8 = u8::MAX;

/// Where the tables lie.
struct Layout {
    spans: [(u64, u64); 6],
    num_filters: u32,
    n_mels: u32,
}

impl DeviceFeatures {
    /// Arena bytes that [`DeviceFeatures::create`] takes for these settings and rates, to the byte. Cost: designs the
    /// filters, some milliseconds each.
    ///
    /// Fails like `create`, but for the device.
    pub fn table_bytes(settings: &FeatureSettings, rates_hz: &[u32]) -> Result<u64, AudioError> {
        Ok(Tables::without_pitch(settings, rates_hz)?.bytes())
    }

    /// Loads the kernels and puts the tables into `arena`; they are there when it returns. `rates_hz` are the rates that
    /// can be resampled from, in the order rows name them.
    ///
    /// Fails with [`AudioError::Settings`] on a geometry there are no kernels for (n_fft and win of 1024, hop of 256,
    /// up to 128 bands are served), with [`AudioError::RatePair`], and with [`AudioError::Device`].
    pub fn create(
        device: &Device,
        arena: &Arena,
        stream: &Stream,
        settings: &FeatureSettings,
        pitch: &PitchSettings,
        rates_hz: &[u32],
    ) -> Result<DeviceFeatures, AudioError> {
        let tables = Tables::new(settings, pitch, rates_hz)?;
        let block = arena.take(OWNER, tables.bytes())?;
        let mut host = device.pinned(tables.bytes())?;
        let bytes = host.bytes_mut()?;
        bytes.fill(0);
        tables.write_to(bytes);
        stream.upload(&host, 0..tables.bytes(), block.view())?;
        stream.drain()?;
        Ok(DeviceFeatures {
            resample: device.load(&RESAMPLE)?,
            log_mel: device.load(&LOG_MEL)?,
            pitch: device.load(&PITCH)?,
            tables: block,
            layout: Layout::of(&tables, settings, rates_hz),
        })
    }

    /// Brings rows to the features' rate; `out` has as many, which begin at multiples of [`TILE_SAMPLES`].
    ///
    /// `rates`, u32: per row an index into `rates_hz`, or `u32::MAX` for a row that has the features' rate and is
    /// copied. `out.lengths` is read: as many samples are made, at most what the ratio gives (rounded up), and zeros
    /// follow to the row's end. The same bits on every device.
    pub fn resample(
        &self,
        stream: &Stream,
        from: SampleRows<'_>,
        rates: View<'_>,
        out: SampleRows<'_>,
    ) -> Result<(), DeviceError> {
        let (kernel, rows) = (RESAMPLE.name, out.starts.num_rows());
        from.check(kernel, "the samples in", rows, 1)?;
        out.check(kernel, "the samples out", rows, TILE_SAMPLES)?;
        check_elements(kernel, "the rates", rates, 4, rows as u64)?;
        let Some(grid) = grid_of(kernel, out.starts.end() / TILE_SAMPLES, TILE_SAMPLES)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(from.samples),
            Arg::read::<u32>(from.starts.device),
            Arg::read::<u32>(from.lengths),
            Arg::read::<u32>(rates),
            Arg::read::<u32>(self.table(TableId::Filters)),
            Arg::read::<f32>(self.table(TableId::FilterWeights)),
            Arg::write::<i16>(out.samples),
            Arg::read::<u32>(out.starts.device),
            Arg::read::<u32>(out.lengths),
            Arg::U32(self.layout.num_filters),
            Arg::U32(rows as u32),
        ];
        stream.launch(&self.resample, grid, &args)
    }

    /// Log-mel frames and, if asked for, energies of a batch at the features' rate, in one launch.
    ///
    /// `frames` say how many frames each row has in the output, padding included: multiples of [`TILE_FRAMES`]. A row
    /// with more of its own is cut off there. `mel` is f32 `[sum of frames, n_mels]`, padded with the logarithm of the
    /// floor, and `energy` f32 `[sum of frames]`, padded with 0.
    pub fn log_mel(
        &self,
        stream: &Stream,
        audio: SampleRows<'_>,
        frames: Starts<'_>,
        mel: View<'_>,
        energy: Option<View<'_>>,
    ) -> Result<(), DeviceError> {
        let (kernel, rows, sum) = (LOG_MEL.name, frames.num_rows(), u64::from(frames.end()));
        audio.check(kernel, "the samples", rows, 1)?;
        frames.check(kernel, "the frames", rows, TILE_FRAMES)?;
        check_elements(kernel, "the mel frames", mel, 4, sum * u64::from(self.layout.n_mels))?;
        if let Some(energy) = energy {
            check_elements(kernel, "the energies", energy, 4, sum)?;
        }
        let Some(grid) = grid_of(kernel, frames.end() / TILE_FRAMES, MEL_THREADS)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(audio.samples),
            Arg::read::<u32>(audio.lengths),
            Arg::read::<u32>(audio.starts.device),
            Arg::read::<u32>(frames.device),
            Arg::read::<u64>(self.table(TableId::Numbers)),
            Arg::read::<f64>(self.table(TableId::Transform)),
            Arg::read::<u32>(self.table(TableId::Bands)),
            Arg::read::<f32>(self.table(TableId::MelWeights)),
            Arg::write::<f32>(mel),
            // Nothing is written through a pointer to nothing.
            Arg::write::<f32>(energy.unwrap_or_else(|| self.tables.part(0, 0))),
            Arg::U32(u32::from(energy.is_some())),
            Arg::U32(rows as u32),
        ];
        stream.launch(&self.log_mel, grid, &args)
    }

    /// The pitch of every frame of a batch at the features' rate: f32 `[sum of frames]` in Hz, 0 where unvoiced, silent
    /// or padding. Input as in [`DeviceFeatures::log_mel`]; rows may have any number of frames.
    ///
    /// It is by far the dearest feature. What is `kept` of a recording is not looked for again.
    pub fn pitch(
        &self,
        stream: &Stream,
        audio: SampleRows<'_>,
        frames: Starts<'_>,
        pitch: View<'_>,
        kept: Option<CachedPitch<'_>>,
    ) -> Result<(), DeviceError> {
        let (kernel, rows) = (PITCH.name, frames.num_rows());
        audio.check(kernel, "the samples", rows, 1)?;
        frames.check(kernel, "the frames", rows, 1)?;
        check_elements(kernel, "the pitches", pitch, 4, frames.end().into())?;
        if let Some(kept) = kept {
            check_elements(kernel, "the places", kept.places, 4, rows as u64)?;
        }
        let nothing = || self.tables.part(0, 0);
        let Some(grid) = grid_of(kernel, frames.end(), PITCH_THREADS)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(audio.samples),
            Arg::read::<u32>(audio.lengths),
            Arg::read::<u32>(audio.starts.device),
            Arg::read::<u32>(frames.device),
            Arg::read::<u64>(self.table(TableId::Numbers)),
            Arg::write::<f32>(pitch),
            Arg::read::<u32>(kept.map_or_else(nothing, |kept| kept.places)),
            Arg::write::<f32>(kept.map_or_else(nothing, |kept| kept.memory)),
            Arg::U32(u32::from(kept.is_some())),
            Arg::U32(rows as u32),
        ];
        stream.launch(&self.pitch, grid, &args)
    }

    fn table(&self, table: TableId) -> View<'_> {
        let (offset, bytes) = self.layout.spans[table as usize];
        self.tables.part(offset, bytes)
    }
}

impl Layout {
    fn of(tables: &Tables, settings: &FeatureSettings, rates_hz: &[u32]) -> Layout {
        use TableId::{Bands, FilterWeights, Filters, MelWeights, Numbers, Transform};
        Layout {
            spans: [Numbers, Transform, Bands, MelWeights, Filters, FilterWeights].map(|table| tables.span(table)),
            num_filters: rates_hz.len() as u32,
            n_mels: settings.n_mels as u32,
        }
    }
}

/// So many blocks; `None` when there is nothing to do.
fn grid_of(kernel: &'static str, blocks: u32, threads: u32) -> Result<Option<Grid>, DeviceError> {
    match blocks {
        0 => Ok(None),
        1..=0x7FFF_FFFF => Ok(Some(Grid { blocks: [blocks, 1, 1], threads, shared_bytes: 0 })),
        _ => {
            Err(DeviceError::Arguments { kernel, problem: format!("{blocks} blocks are more than a launch can have") })
        }
    }
}
