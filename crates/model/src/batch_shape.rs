//! The shape of a batch, as a model sees it.

use tandem_engine::Rows;

/// Frames of the reference that a voice is taken from.
pub const REFERENCE_FRAMES: u32 = 400;

/// Where the utterances of a batch begin, in text and in the spectrum. A constant of the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Tokens.
    pub text: Rows,
    /// Frames.
    pub mel: Rows,
}

impl BatchShape {
    /// A shape. Both tables have one row per utterance.
    pub fn new(text: Rows, mel: Rows) -> BatchShape {
        assert_eq!(text.count(), mel.count(), "every utterance has a text and a recording");
        BatchShape { text, mel }
    }

    /// Utterances.
    pub fn count(&self) -> u32 {
        self.mel.count()
    }

    /// The references of a batch: one of the same length for each utterance.
    pub fn references(&self) -> Rows {
        Rows::even(self.count(), REFERENCE_FRAMES)
    }
}
