//! The voice: a vector per utterance, from a few seconds of another recording by the same speaker.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use crate::layers::{Conv, Linear};
use crate::preset::ModelDims;

/// Frames that each convolution sees.
const KERNEL: u32 = 3;

/// The reference encoder.
#[derive(Clone, Debug)]
pub(crate) struct VoiceEncoder {
    enter: Linear,
    look: Conv,
    leave: Linear,
}

impl VoiceEncoder {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims, mels: u32) -> Result<VoiceEncoder, EngineError> {
        let width = sizes.voice_width;
        list.scope("voice", |list| {
            Ok(VoiceEncoder {
                enter: Linear::new(list, "enter", mels, width)?,
                look: Conv::new(list, "look", width, width, KERNEL)?,
                leave: Linear::new(list, "leave", width, width)?,
            })
        })
    }

    /// `[references, mels]` to `[utterances, voice width]`.
    pub(crate) fn write(
        &self,
        g: &mut Graph,
        reference: Value,
        rows: &Rows,
        lengths: Value,
    ) -> Result<Value, EngineError> {
        g.scope("voice", |g| {
            let x = self.enter.write(g, reference)?;
            let x = g.silu(x)?;
            let x = self.look.write(g, x, rows, lengths)?;
            let x = g.silu(x)?;
            let x = g.row_mean(x, rows, lengths)?;
            let x = self.leave.write(g, x)?;
            g.tanh(x)
        })
    }
}
