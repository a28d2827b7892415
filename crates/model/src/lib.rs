//! The speech model, defined as graphs. Knows no files, no threads, no corpus.
//!
//! The text encoder maps tokens to states, and one linear layer maps each state to a mean mel frame, the *prior*. Monotonic
//! alignment search aligns the prior with the recording, which gives every token its duration in frames. The length regulator
//! repeats states and prior for their durations, and the *decoder* makes the mel spectrogram from them. [`Acoustic`] is the
//! whole model. It implements [`Model`]: anything that does can be planned, trained and checkpointed.
//!
//! [`Transformer`] is not a speech model: benchmarks measure the engine with it, and tests compare it with PyTorch.

mod preset;
mod batch_shape;

// What a trainable model provides, and its inputs.
mod model;
pub mod inputs;

// The layers of models.
pub mod layers;

// The speech model, in the order text passes through it.
mod text_encoder;
mod voice;
mod voice_references;
mod durations;
mod decoder;
mod flow;
mod heads;
mod acoustic;
mod programs;

// For benchmarks and comparisons with PyTorch.
mod transformer;

pub use acoustic::{Acoustic, host};
pub use batch_shape::BatchShape;
pub use model::{Losses, Model};
pub use preset::{DecoderKind, ModelDims, Preset, Vocabulary};
pub use programs::{ProgramBucket, Programs, ProgramsSpec};
pub use tandem_audio::REFERENCE_FRAMES;
pub use text_encoder::{LANGUAGE_EMBEDDING, SYMBOL_EMBEDDING};
pub use transformer::{Transformer, TransformerSizes};
pub use voice_references::{VoiceReferences, reference_of};
