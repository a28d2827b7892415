//! Speech synthesis: a checkpoint, a text and a voice to a waveform.
//!
//! Modules in the order a text meets them:
//!
//! 1. `speech_model` and `weights` read a checkpoint: the model contract, the parameters, the voices.
//! 2. `split` cuts a long text into chunks; [`TokenizedText`] has them as tokens.
//! 3. [`Voice`] is the voice, [`SpeechOptions`] the speaking rate and the seed.
//! 4. `runner` runs the model on a device: tokens to durations, and durations to a spectrogram.
//! 5. [`Synthesizer`] does all of it. The vocoder is [`tandem_audio::GriffinLim`].
//! 6. [`SpectrogramImage`] draws the spectrogram and the alignment.
//!
//! ```no_run
//! use tandem_device::Machine;
//! use tandem_synth::{SpeechOptions, Synthesizer};
//!
//! let mut synthesizer = Synthesizer::open("checkpoints/checkpoint-00000300", Machine::cpu().open(0)?)?;
//! let voice = synthesizer.voice(None)?;
//! let text = synthesizer.tokenize("Good morning.", None)?;
//! let spoken = synthesizer.synthesize(&text, &voice, &SpeechOptions::default())?;
//! tandem_audio::wav::write(&spoken.clip, std::fs::File::create("morning.wav")?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;

// The checkpoint.
mod speech_model;
mod weights;

// The text.
mod split;
mod tokenized_text;

// The voice, and how to speak.
mod voice;
mod speech_options;

// The waveform.
mod runner;
mod synthesizer;

// The image.
mod colormap;
mod spectrogram_image;

pub use error::SynthError;
pub use spectrogram_image::SpectrogramImage;
pub use speech_options::SpeechOptions;
pub use synthesizer::{AlignedRecording, ChunkReport, Speech, Synthesizer};
pub use tokenized_text::TokenizedText;
pub use voice::{Voice, VoiceSource};
