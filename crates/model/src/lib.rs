//! The speech models, written as graphs. Knows no files, no threads, no corpus.
//!
//! Text becomes states (`text_encoder`), states become a guess of each token's mean spectrum (the *prior*), the prior is
//! aligned with the recording, which gives every token its frames, and the *decoder* makes the frames of the spectrum.
//! [`Acoustic`] holds the parts and writes the programs.

mod preset;
mod batch_shape;

// What models are put together from.
pub mod layers;

// The model, in the order text takes through it.
mod text_encoder;
mod voice;
mod durations;
mod decoder;
mod acoustic;
mod programs;

pub use acoustic::{Acoustic, host};
pub use batch_shape::{BatchShape, REFERENCE_FRAMES};
pub use preset::{Preset, Sizes};
pub use programs::{Bucket, Programs, ProgramsSpec};
