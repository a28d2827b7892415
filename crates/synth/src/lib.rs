//! Speech: a checkpoint, a text and a voice become sound.
//!
//! Modules in the order a text meets them:
//!
//! 1. `model_file` and `weights` read a checkpoint: what the model is, its parameters, the voices it keeps.
//! 2. `split` cuts a long text where one breathes; [`Script`] is the text as the model reads it, pieces of tokens.
//! 3. [`Voice`] is whose voice it is, [`SpeechOptions`] how it is said.
//! 4. `voice_box` runs the model on a device: tokens to durations, and those to a spectrum.
//! 5. [`Synthesizer`] does all of it; phases are found by [`tandem_audio::GriffinLim`].
//! 6. [`Picture`] shows what was said: its spectrum, and which symbol was spoken when.
//!
//! ```no_run
//! use tandem_device::Machine;
//! use tandem_synth::{Manner, Synthesizer};
//!
//! let mut synthesizer = Synthesizer::open("checkpoints/checkpoint-00000300", Machine::cpu().open(0)?)?;
//! let voice = synthesizer.voice(None)?;
//! let spoken = synthesizer.speak("Good morning.", &voice, &Manner::default())?;
//! tandem_audio::wav::write(&spoken.clip, std::fs::File::create("morning.wav")?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;

// A checkpoint.
mod model_file;
mod weights;

// A text.
mod split;
mod script;

// Whose voice, and how.
mod voice;
mod speech_options;

// Sound.
mod voice_box;
mod synthesizer;

// What it looks like.
mod colours;
mod picture;

pub use error::SynthError;
pub use model_file::MODEL_FILE;
pub use picture::Picture;
pub use script::Script;
pub use speech_options::SpeechOptions;
pub use synthesizer::{Aligned, PieceReport, Speech, Synthesizer};
pub use voice::{Voice, VoiceSource};
pub use weights::WEIGHTS_FILE;
