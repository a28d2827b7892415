//! The duration predictor (FastSpeech, Ren et al. 2019): frames per token from the states, for synthesis, where there is no
//! recording to align with.

use tandem_engine::{EngineError, Graph, ParameterList, Value};

use crate::batch_shape::ValidFrames;
use crate::layers::{Conv, Dropout, LayerNorm, Linear};
use crate::preset::ModelDims;

/// Convolutions, and their kernel size in tokens.
const LAYERS: u32 = 2;
const KERNEL: u32 = 3;

/// The duration predictor.
#[derive(Clone, Debug)]
pub(crate) struct DurationPredictor {
    layers: Vec<(Conv, LayerNorm)>,
    output: Linear,
}

impl DurationPredictor {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims) -> Result<DurationPredictor, EngineError> {
        let (width, mut inputs) = (sizes.duration_width, sizes.text_width);
        list.scope("durations", |list| {
            let mut layers = Vec::new();
            for layer in 0..LAYERS {
                let conv = Conv::new(list, &format!("{layer}.conv"), inputs, width, KERNEL)?;
                layers.push((conv, LayerNorm::new(list, &format!("{layer}.norm"), width)?));
                inputs = width;
            }
            Ok(DurationPredictor { layers, output: Linear::new(list, "leave", width, 1)? })
        })
    }

    /// `[tokens, 1]`: ln(1 + frames). The states are detached: its loss does not train the text encoder.
    pub(crate) fn forward(
        &self,
        g: &mut Graph,
        states: Value,
        tokens: ValidFrames<'_>,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        let ValidFrames { rows, lengths } = tokens;
        g.scope("durations", |g| {
            let mut x = g.detach(states)?;
            for (conv, norm) in &self.layers {
                x = conv.forward(g, x, rows, lengths)?;
                x = g.relu(x)?;
                x = norm.forward(g, x)?;
                x = dropout.forward(g, x)?;
            }
            self.output.forward(g, x)
        })
    }
}
