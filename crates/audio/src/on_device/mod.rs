//! Features where the samples are: a whole padded batch at a time, one launch per kind of feature.
//!
//! In come int16 samples in device memory, a row per clip, each with its length; out go features in the caller's
//! device memory. [`DeviceFeatures`] owns its tables and nothing else. Every element of an output is written: what lies
//! past a row's own frames is padding, and a row too short for features (see [`FeatureSettings::min_samples`]) is all
//! padding. Nothing depends on the order of threads: the same batch gives the same bits again.
//!
//! On the CPU and on simulated cards the twins run, which are [`LogMel`](crate::LogMel),
//! [`PitchTracker`](crate::PitchTracker) and [`Resampler`](crate::Resampler) themselves. On CUDA resampling gives the
//! same bits as those; log-mel is within their bounds of the f64 reference, and pitch differs by its last rounding.

mod numbers;
mod tables;
pub(crate) mod twins;
#[cfg(test)]
mod model;

use tandem_device::{Arena, Arg, Block, Device, DeviceError, Grid, Loaded, Stream, View};

use crate::kernels::{LOG_MEL, PITCH, RESAMPLE};
use crate::{AudioError, FeatureSettings, PitchSettings};
use tables::{Table, Tables};

/// Whom the tables are shown under.
const OWNER: &str = "feature tables";

/// Frames a block of the log-mel kernel makes.
const TILE_FRAMES: u32 = 8;
const MEL_THREADS: u32 = 128;
/// Samples a block of the resampling kernel makes; one thread each.
const TILE_SAMPLES: u32 = 256;
const PITCH_THREADS: u32 = 256;

/// Makes features on one device. Holding one of these means its kernels are loaded and its tables are there.
pub struct DeviceFeatures {
    resample: Loaded,
    log_mel: Loaded,
    pitch: Loaded,
    tables: Block,
    layout: Layout,
}

/// Where the tables lie.
struct Layout {
    spans: [(u64, u64); 6],
    num_filters: u32,
    n_mels: u32,
}

/// The shape of a padded batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Clips.
    pub rows: u32,
    /// Samples from the start of one row to the start of the next.
    pub stride_samples: u32,
    /// Frames every row has in the output, padding included. A row with more of its own is cut off there.
    pub frames: u32,
}

/// Rows of samples: where, and how far apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The samples, i16.
    pub samples: View<'a>,
    /// Samples from the start of one row to the start of the next.
    pub stride_samples: u32,
    /// Samples each row has, u32.
    pub lengths: View<'a>,
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

    /// Brings `rows` rows to the features' rate.
    ///
    /// `rates`, u32: per row an index into `rates_hz`, or `u32::MAX` for a row that has the features' rate and is
    /// copied. `out.lengths` is read: as many samples are made, at most what the ratio gives (rounded up), and zeros
    /// follow to the row's end. The same bits on every device.
    pub fn resample(
        &self,
        stream: &Stream,
        rows: u32,
        from: Rows<'_>,
        rates: View<'_>,
        out: Rows<'_>,
    ) -> Result<(), DeviceError> {
        let kernel = RESAMPLE.name;
        check_samples(kernel, "the samples in", from.samples, rows, from.stride_samples)?;
        check_samples(kernel, "the samples out", out.samples, rows, out.stride_samples)?;
        for (name, view) in [("the lengths in", from.lengths), ("the rates", rates), ("the lengths out", out.lengths)] {
            check_elements(kernel, name, view, 4, u64::from(rows))?;
        }
        let tiles = out.stride_samples.div_ceil(TILE_SAMPLES);
        let Some(grid) = grid_of(kernel, rows, tiles, TILE_SAMPLES)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(from.samples),
            Arg::read::<u32>(from.lengths),
            Arg::read::<u32>(rates),
            Arg::read::<u32>(self.table(Table::Filters)),
            Arg::read::<f32>(self.table(Table::FilterWeights)),
            Arg::write::<i16>(out.samples),
            Arg::read::<u32>(out.lengths),
            Arg::U32(self.layout.num_filters),
            Arg::U32(from.stride_samples),
            Arg::U32(out.stride_samples),
            Arg::U32(tiles),
        ];
        stream.launch(&self.resample, grid, &args)
    }

    /// Log-mel frames and, if asked for, energies of a batch at the features' rate, in one launch.
    ///
    /// `audio` is i16 `[rows, stride_samples]`, `lengths` u32 `[rows]`; `mel` is f32 `[rows, frames, n_mels]`, padded
    /// with the logarithm of the floor, and `energy` f32 `[rows, frames]`, padded with 0.
    pub fn log_mel(
        &self,
        stream: &Stream,
        shape: BatchShape,
        audio: View<'_>,
        lengths: View<'_>,
        mel: View<'_>,
        energy: Option<View<'_>>,
    ) -> Result<(), DeviceError> {
        let kernel = LOG_MEL.name;
        shape.check_input(kernel, audio, lengths)?;
        check_elements(kernel, "the mel frames", mel, 4, shape.num_frames() * u64::from(self.layout.n_mels))?;
        if let Some(energy) = energy {
            check_elements(kernel, "the energies", energy, 4, shape.num_frames())?;
        }
        let tiles = shape.frames.div_ceil(TILE_FRAMES);
        let Some(grid) = grid_of(kernel, shape.rows, tiles, MEL_THREADS)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(audio),
            Arg::read::<u32>(lengths),
            Arg::read::<u64>(self.table(Table::Numbers)),
            Arg::read::<u64>(self.table(Table::Transform)),
            Arg::read::<u32>(self.table(Table::Bands)),
            Arg::read::<f32>(self.table(Table::MelWeights)),
            Arg::write::<f32>(mel),
            // Nothing is written through a pointer to nothing.
            Arg::write::<f32>(energy.unwrap_or_else(|| self.tables.part(0, 0))),
            Arg::U32(u32::from(energy.is_some())),
            Arg::U32(shape.stride_samples),
            Arg::U32(shape.frames),
            Arg::U32(tiles),
        ];
        stream.launch(&self.log_mel, grid, &args)
    }

    /// The pitch of every frame of a batch at the features' rate: f32 `[rows, frames]` in Hz, 0 where unvoiced, silent
    /// or padding. Input as in [`DeviceFeatures::log_mel`].
    pub fn pitch(
        &self,
        stream: &Stream,
        shape: BatchShape,
        audio: View<'_>,
        lengths: View<'_>,
        pitch: View<'_>,
    ) -> Result<(), DeviceError> {
        let kernel = PITCH.name;
        shape.check_input(kernel, audio, lengths)?;
        check_elements(kernel, "the pitches", pitch, 4, shape.num_frames())?;
        let Some(grid) = grid_of(kernel, shape.rows, shape.frames, PITCH_THREADS)? else { return Ok(()) };
        let args = [
            Arg::read::<i16>(audio),
            Arg::read::<u32>(lengths),
            Arg::read::<u64>(self.table(Table::Numbers)),
            Arg::write::<f32>(pitch),
            Arg::U32(shape.stride_samples),
            Arg::U32(shape.frames),
        ];
        stream.launch(&self.pitch, grid, &args)
    }

    fn table(&self, table: Table) -> View<'_> {
        let (offset, bytes) = self.layout.spans[table as usize];
        self.tables.part(offset, bytes)
    }
}

impl Layout {
    fn of(tables: &Tables, settings: &FeatureSettings, rates_hz: &[u32]) -> Layout {
        use Table::{Bands, FilterWeights, Filters, MelWeights, Numbers, Transform};
        Layout {
            spans: [Numbers, Transform, Bands, MelWeights, Filters, FilterWeights].map(|table| tables.span(table)),
            num_filters: rates_hz.len() as u32,
            n_mels: settings.n_mels as u32,
        }
    }
}

impl BatchShape {
    fn num_frames(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.frames)
    }

    fn check_input(&self, kernel: &'static str, audio: View<'_>, lengths: View<'_>) -> Result<(), DeviceError> {
        check_samples(kernel, "the samples", audio, self.rows, self.stride_samples)?;
        check_elements(kernel, "the lengths", lengths, 4, u64::from(self.rows))
    }
}

fn check_samples(
    kernel: &'static str,
    name: &str,
    view: View<'_>,
    rows: u32,
    stride_samples: u32,
) -> Result<(), DeviceError> {
    // Kernels count a row's samples, and the few that are mirrored beyond its ends, in 31 bits.
    if stride_samples > 1 << 30 {
        let problem = format!("rows of {stride_samples} samples are longer than {}", 1 << 30);
        return Err(DeviceError::Arguments { kernel, problem });
    }
    check_elements(kernel, name, view, 2, u64::from(rows) * u64::from(stride_samples))
}

/// Kernels trust what they are told about sizes, so it is compared with the memory here.
fn check_elements(
    kernel: &'static str,
    name: &str,
    view: View<'_>,
    element_bytes: u64,
    elements: u64,
) -> Result<(), DeviceError> {
    match elements.checked_mul(element_bytes) {
        Some(needed) if needed <= view.bytes() => Ok(()),
        _ => {
            let problem =
                format!("{name} need {elements} elements of {element_bytes} bytes, given {} bytes", view.bytes());
            Err(DeviceError::Arguments { kernel, problem })
        }
    }
}

/// `tiles` blocks for each row; `None` when there is nothing to do.
fn grid_of(kernel: &'static str, rows: u32, tiles: u32, threads: u32) -> Result<Option<Grid>, DeviceError> {
    let blocks = u64::from(rows) * u64::from(tiles);
    match blocks {
        0 => Ok(None),
        1..=0x7FFF_FFFF => Ok(Some(Grid { blocks: [blocks as u32, 1, 1], threads, shared_bytes: 0 })),
        _ => {
            Err(DeviceError::Arguments { kernel, problem: format!("{blocks} blocks are more than a launch can have") })
        }
    }
}
