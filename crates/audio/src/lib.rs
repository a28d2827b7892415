//! Sound: a recording becomes samples, samples become features, features become sound again.
//!
//! Modules in the order data meets them:
//!
//! 1. [`decode()`] turns the bytes of a file into a [`Clip`], the pipeline's audio format; [`probe`] reads the header
//!    only. This crate never sees a path.
//! 2. [`Resampler`] brings a clip to another rate.
//! 3. [`LogMel`] makes log-mel frames and energies, [`PitchTracker`] a pitch per frame, all of one length;
//!    [`mel::reference`] does it slowly in f64, and is what fast paths and their CUDA host kernels are checked against.
//! 4. [`DeviceFeatures`] does steps 2 and 3 for whole batches in device memory, on any kind of device.
//! 5. [`GriffinLim`] makes a clip out of log-mel frames; [`wav`] and [`npy`] write what was made.
//!
//! What is slow to set up (filters, Fourier plans, scratch) lives in values that are built once and reused; results
//! go into buffers the caller brings. Nothing here starts a thread or prints.
//!
//! ```
//! use std::io::Cursor;
//! use tandem_audio::{Clip, FeatureSettings, LogMel, MelFrames, decode, wav};
//!
//! let tone = Clip { samples: (0..22_050).map(|i| ((i * 200) % 20_000) as i16 - 10_000).collect(), rate_hz: 22_050 };
//! let mut file = Vec::new();
//! wav::write(&tone, &mut file)?;
//!
//! let mut clip = Clip::default();
//! decode(Cursor::new(&file), &mut clip)?;
//! assert_eq!(clip, tone);
//!
//! let settings = FeatureSettings::default();
//! let mut mel = MelFrames::default();
//! LogMel::new(&settings)?.mel_into(&clip, &mut mel)?;
//! assert_eq!(mel.num_frames(), settings.num_frames(clip.samples.len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod errors;
mod clip;

// File to samples.
mod source;
mod decode;

// Samples to samples at another rate.
mod lowpass;
mod resample;

// Samples to features.
mod choices;
mod settings;
mod preset;
mod stft;
mod two_float;
mod transform;
mod filterbank;
mod normalization;
pub mod mel;
mod energy;
mod pitch;

// The same for whole batches, where the samples are.
mod on_device;
pub mod kernels;

// Features to samples, and out of the program.
mod griffin_lim;
pub mod wav;
pub mod npy;

pub use choices::{Arithmetic, Framing, LogBase, MelNorm, MelScale, Spectrum};
pub use clip::Clip;
pub use decode::{Header, MAX_SAMPLES, decode, probe};
pub use energy::frame_energy;
pub use errors::AudioError;
pub use filterbank::Filterbank;
pub use griffin_lim::GriffinLim;
pub use lowpass::Lowpass;
pub use mel::{LogMel, MelFrames};
pub use on_device::{
    CachedPitch, DeviceFeatures, NOT_CACHED, NOTHING_YET, SampleRows, Starts, TILE_FRAMES, TILE_SAMPLES,
};
pub use pitch::{PitchSettings, PitchTracker, Yin};
pub use preset::FeaturePreset;
pub use resample::Resampler;
pub use settings::{FeatureSettings, HOP_SAMPLES, N_MELS, RATE_HZ, REFERENCE_FRAMES};
