//! The speech models, written as graphs. Knows no files, no threads, no corpus.
//!
//! Text becomes states (`text_encoder`), states become a guess of each token's mean spectrum (the *prior*), the prior is
//! aligned with the recording, which gives every token its frames, and the *decoder* makes the frames of the spectrum.
//! [`Acoustic`] holds the parts and writes them into graphs. It is a [`Model`] like any other: whatever implements that can
//! be planned for, trained and kept.
//!
//! [`Transformer`] is no speech model: the engine is measured and held against PyTorch with it.

mod preset;
mod batch_shape;

// What anything gives that is trained, and what it is given.
mod model;
pub mod inputs;

// What models are put together from.
pub mod layers;

// The model, in the order text takes through it.
mod text_encoder;
mod voice;
mod voice_references;
mod durations;
mod decoder;
mod flow;
mod heads;
mod acoustic;
mod programs;

// What the engine is measured and checked with.
mod transformer;

pub use acoustic::{Acoustic, host};
pub use batch_shape::{BatchShape, REFERENCE_FRAMES};
pub use model::{Losses, Model};
pub use preset::{DecoderKind, ModelDims, Preset};
pub use programs::{ProgramBucket, Programs, ProgramsSpec};
pub use transformer::{Transformer, TransformerSizes};
pub use voice_references::{VoiceReferences, reference_of};
