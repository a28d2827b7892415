//! Features computed on the device: a batch of padded rows at a time, one launch per kind of feature (two for log-mel with a
//! top range).
//!
//! Input: int16 samples in device memory, a row per clip, each with its length. Output: features in the caller's
//! device memory. Rows may differ in length: [`Starts`] holds where each begins. [`DeviceFeatures`] owns its tables
//! and no other memory. Every element of an output is written: past the frames of a row it is padding, and a row too
//! short for a frame (see [`FeatureSettings::min_samples`]) is all padding. Results do not depend on the order of
//! threads: the same batch gives the same bits.
//!
//! On the CPU and on simulated cards the host kernels run: [`LogMel`](crate::LogMel),
//! [`PitchTracker`](crate::PitchTracker) and [`Resampler`](crate::Resampler). On CUDA, resampling gives the same bits, and
//! so does log-mel in [`Arithmetic::TwoFloat`]; in f64 it is within the same error bounds of the reference. Pitch differs in
//! its last rounding.
//!
//! The default settings have kernels of their own. All others share slower kernels, which take sizes as numbers.

mod packed_settings;
mod rows;
pub(crate) mod supported;
pub(crate) mod tables;
pub(crate) mod host_kernels;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_any;

use tandem_device::{Arena, Block, Device, DeviceError, Grid, LoadedKernel, Stream, View};

use crate::kernels::{
    LogMelArgs, NORMALIZE_LOG_MEL, NormalizeArgs, PitchArgs, RESAMPLE, ResampleArgs, log_mel_for, pitch_for,
};
use crate::normalization::Normalization;
use crate::{AudioError, FeatureSettings, PitchSettings};
use rows::check_elements;
pub use rows::{SampleRows, Starts};
use supported::{MAX_PERIOD, fits_mel_1024, fits_pitch_1024};
use tables::{TableId, Tables};

/// The owner of the tables in memory reports.
const OWNER: &str = "feature tables";

/// Frames that a block of the log-mel kernel for the default settings computes: rows of features begin at multiples of this.
pub const TILE_FRAMES: u32 = 8;
const MEL_THREADS: u32 = 128;
const NORMALIZE_THREADS: u32 = 1024;
/// Samples that a block of the resampling kernel computes, one thread each: resampled rows begin at multiples of this.
pub const TILE_SAMPLES: u32 = 256;
const PITCH_THREADS: u32 = 256;

/// Computes features on one device. Holding one of these means that its kernels are loaded and its tables uploaded.
pub struct DeviceFeatures {
    resample: LoadedKernel,
    log_mel: LoadedKernel,
    /// Where the settings have a top range.
    normalize: Option<LoadedKernel>,
    pitch: LoadedKernel,
    tables: Block,
    layout: Layout,
}

/// The pitch of recordings that has been computed before.
#[derive(Clone, Copy)]
pub struct CachedPitch<'a> {
    /// u32 per row: the offset of its first frame in `memory`, which has room for all frames of its recording, or
    /// [`NOT_CACHED`]. A recording has one offset.
    pub offsets: View<'a>,
    /// f32: the cache, filled with bytes of [`NOTHING_YET`] at first.
    pub memory: View<'a>,
}

/// The offset of a row whose pitch is not cached.
pub const NOT_CACHED: u32 = u32::MAX;
/// The byte that the cache is filled with before anything has been computed.
pub const NOTHING_YET: u8 = u8::MAX;

/// Offsets and sizes of the tables, and what their numbers are.
struct Layout {
    spans: [(u64, u64); 6],
    num_filters: u32,
    n_mels: u32,
    mel: Blocks,
    pitch: Blocks,
}

/// The kernel of a feature and its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    kernel: &'static str,
    /// Frames of a block.
    frames: u32,
    threads: u32,
    shared_bytes: u32,
}

impl DeviceFeatures {
    /// Arena bytes that [`DeviceFeatures::create`] takes for these settings and rates, exactly. Cost: designs the
    /// filters, some milliseconds each.
    ///
    /// Fails like `create`, except for errors of the device.
    pub fn table_bytes(settings: &FeatureSettings, rates_hz: &[u32]) -> Result<u64, AudioError> {
        Ok(Tables::without_pitch(settings, rates_hz)?.bytes())
    }

    /// Loads the kernels and uploads the tables to `arena`. Blocks until the upload is done. `rates_hz` are the rates
    /// that can be resampled from; rows name them by index.
    ///
    /// Fails with [`AudioError::Settings`], with [`AudioError::RatePair`], and with [`AudioError::Device`]. The kernels
    /// support an even n_fft of up to 4096 without prime factors above 5, and pitch with periods of up to 1024 samples.
    /// [`Arithmetic::TwoFloat`](crate::Arithmetic::TwoFloat) supports fewer settings.
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
            log_mel: device.load(log_mel_for(settings))?,
            normalize: match Normalization::of(settings).needs_maximum() {
                true => Some(device.load(&NORMALIZE_LOG_MEL)?),
                false => None,
            },
            pitch: device.load(pitch_for(settings))?,
            tables: block,
            layout: Layout::of(&tables, settings, rates_hz),
        })
    }

    /// Resamples rows to the sample rate of the features. `out` has as many rows, which begin at multiples of
    /// [`TILE_SAMPLES`].
    ///
    /// `rates`, u32: per row an index into `rates_hz`, or `u32::MAX` for a row that has the features' rate and is
    /// copied. `out.lengths` is an input: as many samples are computed, at most what the ratio gives (rounded up), and
    /// zeros follow to the end of the row. The same bits on every device.
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
        let args = ResampleArgs {
            audio: from.samples,
            in_starts: from.starts.device,
            in_lengths: from.lengths,
            rates,
            filters: self.table(TableId::Filters),
            weights: self.table(TableId::FilterWeights),
            out: out.samples,
            out_starts: out.starts.device,
            out_lengths: out.lengths,
            num_filters: self.layout.num_filters,
            rows: rows as u32,
        };
        stream.launch(&self.resample, grid, args)
    }

    /// Log-mel frames, and optionally energies, of a batch at the sample rate of the features.
    ///
    /// `frames` holds the frames of each row in the output, padding included: multiples of [`TILE_FRAMES`]. A longer
    /// row is truncated, and `top_range` then counts from the maximum of the frames that are left. `mel` is f32
    /// `[sum of frames, n_mels]`, padded with silence: [`FeatureSettings::silence`], raised by `top_range` where the row is
    /// loud. `energy` is f32 `[sum of frames]`, padded with 0.
    pub fn log_mel(
        &self,
        stream: &Stream,
        audio: SampleRows<'_>,
        frames: Starts<'_>,
        mel: View<'_>,
        energy: Option<View<'_>>,
    ) -> Result<(), DeviceError> {
        let (kernel, rows, sum) = (self.layout.mel.kernel, frames.num_rows(), u64::from(frames.end()));
        audio.check(kernel, "the samples", rows, 1)?;
        frames.check(kernel, "the frames", rows, TILE_FRAMES)?;
        check_elements(kernel, "the mel frames", mel, 4, sum * u64::from(self.layout.n_mels))?;
        if let Some(energy) = energy {
            check_elements(kernel, "the energies", energy, 4, sum)?;
        }
        let Some(grid) = self.layout.mel.grid(frames.end())? else { return Ok(()) };
        let args = LogMelArgs {
            audio: audio.samples,
            lengths: audio.lengths,
            sample_starts: audio.starts.device,
            frame_starts: frames.device,
            settings: self.table(TableId::Settings),
            twiddles: self.table(TableId::Twiddles),
            bands: self.table(TableId::Bands),
            weights: self.table(TableId::MelWeights),
            mel,
            // The kernel does not access it if `with_energy` is 0.
            energy: energy.unwrap_or_else(|| self.tables.part(0, 0)),
            with_energy: u32::from(energy.is_some()),
            rows: rows as u32,
        };
        stream.launch(&self.log_mel, grid, args)?;
        let Some(normalize) = &self.normalize else { return Ok(()) };
        let args = NormalizeArgs {
            lengths: audio.lengths,
            sample_starts: audio.starts.device,
            frame_starts: frames.device,
            settings: self.table(TableId::Settings),
            mel,
            rows: rows as u32,
        };
        let grid = Grid { blocks: [rows as u32, 1, 1], threads: NORMALIZE_THREADS, shared_bytes: 0 };
        stream.launch(normalize, grid, args)
    }

    /// The pitch of every frame of a batch at the sample rate of the features: f32 `[sum of frames]` in Hz, 0 where
    /// unvoiced, silent or padding. Input as in [`DeviceFeatures::log_mel`]; rows may have any number of frames.
    ///
    /// It is by far the most expensive feature. Recordings in the cache are not computed again.
    pub fn pitch(
        &self,
        stream: &Stream,
        audio: SampleRows<'_>,
        frames: Starts<'_>,
        pitch: View<'_>,
        cached: Option<CachedPitch<'_>>,
    ) -> Result<(), DeviceError> {
        let (kernel, rows) = (self.layout.pitch.kernel, frames.num_rows());
        audio.check(kernel, "the samples", rows, 1)?;
        frames.check(kernel, "the frames", rows, 1)?;
        check_elements(kernel, "the pitches", pitch, 4, frames.end().into())?;
        if let Some(cached) = cached {
            check_elements(kernel, "the offsets", cached.offsets, 4, rows as u64)?;
        }
        let nothing = || self.tables.part(0, 0);
        let Some(grid) = self.layout.pitch.grid(frames.end())? else { return Ok(()) };
        let args = PitchArgs {
            audio: audio.samples,
            lengths: audio.lengths,
            sample_starts: audio.starts.device,
            frame_starts: frames.device,
            settings: self.table(TableId::Settings),
            out: pitch,
            cache_offsets: cached.map_or_else(nothing, |cached| cached.offsets),
            cache: cached.map_or_else(nothing, |cached| cached.memory),
            has_cache: u32::from(cached.is_some()),
            rows: rows as u32,
        };
        stream.launch(&self.pitch, grid, args)
    }

    fn table(&self, table: TableId) -> View<'_> {
        let (offset, bytes) = self.layout.spans[table as usize];
        self.tables.part(offset, bytes)
    }
}

impl Layout {
    fn of(tables: &Tables, settings: &FeatureSettings, rates_hz: &[u32]) -> Layout {
        use TableId::{Bands, FilterWeights, Filters, MelWeights, Settings, Twiddles};
        Layout {
            spans: [Settings, Twiddles, Bands, MelWeights, Filters, FilterWeights].map(|table| tables.span(table)),
            num_filters: rates_hz.len() as u32,
            n_mels: settings.n_mels as u32,
            mel: Blocks::of_mel(settings),
            pitch: Blocks::of_pitch(settings),
        }
    }
}

impl Blocks {
    fn of_mel(settings: &FeatureSettings) -> Blocks {
        let kernel = log_mel_for(settings).name;
        if fits_mel_1024(settings) {
            return Blocks { kernel, frames: TILE_FRAMES, threads: MEL_THREADS, shared_bytes: 0 };
        }
        // A frame a block, and about one butterfly of radix 4 a thread. Two buffers of complex f64, of 16 numbers at least.
        let half = (settings.n_fft / 2) as u32;
        let threads = (half / 4).next_multiple_of(32).clamp(64, 256);
        Blocks { kernel, frames: 1, threads, shared_bytes: 2 * 16 * half.max(16) }
    }

    fn of_pitch(settings: &FeatureSettings) -> Blocks {
        let kernel = pitch_for(settings).name;
        // Partial sums of eight lags a thread, the differences, eight numbers and eight minima of warps; then the samples of
        // a frame twice, in groups of eight that take nine words.
        let fixed = 8 * 8 * PITCH_THREADS + 8 * MAX_PERIOD as u32 + 8 * 8 + 8 * 16;
        let staged = 2 * 4 * 9 * ((settings.n_fft as u32).div_ceil(8) + 1);
        let shared_bytes = if fits_pitch_1024(settings) { 0 } else { fixed + staged };
        Blocks { kernel, frames: 1, threads: PITCH_THREADS, shared_bytes }
    }

    /// The grid for so many frames. `None` if there are none.
    fn grid(&self, frames: u32) -> Result<Option<Grid>, DeviceError> {
        let grid = grid_of(self.kernel, frames / self.frames, self.threads)?;
        Ok(grid.map(|grid| Grid { shared_bytes: self.shared_bytes, ..grid }))
    }
}

/// A grid of `blocks`. `None` if there are none.
fn grid_of(kernel: &'static str, blocks: u32, threads: u32) -> Result<Option<Grid>, DeviceError> {
    match blocks {
        0 => Ok(None),
        1..=0x7FFF_FFFF => Ok(Some(Grid { blocks: [blocks, 1, 1], threads, shared_bytes: 0 })),
        _ => {
            Err(DeviceError::Arguments { kernel, problem: format!("{blocks} blocks are more than a launch can have") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FeaturePreset;

    /// Compute capability 7.5 has the least: 64 KiB.
    #[test]
    fn blocks_fit_into_the_shared_memory_of_every_card() {
        for n_fft in [2, 16, 400, 1024, 2048, 4096] {
            let settings = FeatureSettings { n_fft, hop_samples: 2, ..FeaturePreset::Whisper.settings() };
            for blocks in [Blocks::of_mel(&settings), Blocks::of_pitch(&settings)] {
                assert!(blocks.shared_bytes <= 64 << 10, "{n_fft}: {blocks:?}");
            }
        }
        let whisper = Blocks::of_mel(&FeaturePreset::Whisper.settings());
        assert_eq!(
            (whisper.kernel, whisper.frames, whisper.threads, whisper.shared_bytes),
            ("log_mel_any", 1, 64, 6400)
        );
        let default = Blocks::of_mel(&FeatureSettings::default());
        assert_eq!((default.kernel, default.frames, default.threads, default.shared_bytes), ("log_mel", 8, 128, 0));
    }
}
