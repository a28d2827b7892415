//! The reference encoder: one voice vector per utterance, from a few seconds of another recording by the same speaker.
//!
//! A linear layer, a convolution, mean pooling over frames, a linear layer, tanh. Parameter names are part of the checkpoint
//! format.

use tandem_engine::{EngineError, Graph, ParameterList, Value};

use crate::batch_shape::ValidFrames;
use crate::layers::{Conv, Linear};
use crate::preset::ModelDims;

/// Kernel size of the convolution, in frames.
const KERNEL: u32 = 3;

/// The reference encoder.
#[derive(Clone, Debug)]
pub(crate) struct VoiceEncoder {
    input: Linear,
    conv: Conv,
    output: Linear,
}

impl VoiceEncoder {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims, mels: u32) -> Result<VoiceEncoder, EngineError> {
        let width = sizes.voice_width;
        list.scope("voice", |list| {
            Ok(VoiceEncoder {
                input: Linear::new(list, "enter", mels, width)?,
                conv: Conv::new(list, "look", width, width, KERNEL)?,
                output: Linear::new(list, "leave", width, width)?,
            })
        })
    }

    /// `[reference frames, mels]` to `[utterances, voice width]`.
    pub(crate) fn forward(
        &self,
        g: &mut Graph,
        reference: Value,
        frames: ValidFrames<'_>,
    ) -> Result<Value, EngineError> {
        let ValidFrames { rows, lengths } = frames;
        g.scope("voice", |g| {
            let x = self.input.forward(g, reference)?;
            let x = g.silu(x)?;
            let x = self.conv.forward(g, x, rows, lengths)?;
            let x = g.silu(x)?;
            let x = g.row_mean(x, rows, lengths)?;
            let x = self.output.forward(g, x)?;
            g.tanh(x)
        })
    }
}
