//! The shape of a batch.

use tandem_audio::REFERENCE_FRAMES;
use tandem_engine::{Rows, Value};

/// The row offsets of a packed batch, in text and in the mel spectrogram. Constants of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Rows of tokens.
    pub text: Rows,
    /// Rows of mel frames.
    pub mel: Rows,
}

impl BatchShape {
    /// A shape. Both have one row per utterance.
    pub fn new(text: Rows, mel: Rows) -> BatchShape {
        assert_eq!(text.count(), mel.count(), "every utterance has a text and a recording");
        BatchShape { text, mel }
    }

    /// Number of utterances.
    pub fn count(&self) -> u32 {
        self.mel.count()
    }

    /// The rows of the voice references: one of [`REFERENCE_FRAMES`] for each utterance.
    pub fn references(&self) -> Rows {
        Rows::even(self.count(), REFERENCE_FRAMES)
    }
}

/// The rows of a packed tensor, and the number of valid frames (or tokens) of each.
#[derive(Clone, Copy)]
pub(crate) struct ValidFrames<'a> {
    pub(crate) rows: &'a Rows,
    /// `[rows]`, integers.
    pub(crate) lengths: Value,
}
