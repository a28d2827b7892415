//! How long each token lasts, guessed from the text: needed when there is no recording to align with.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use crate::layers::{Conv, Dropout, LayerNorm, Linear};
use crate::preset::ModelDims;

/// Convolutions, and the tokens each sees.
const LAYERS: u32 = 2;
const KERNEL: u32 = 3;

/// The duration predictor.
#[derive(Clone, Debug)]
pub(crate) struct DurationPredictor {
    layers: Vec<(Conv, LayerNorm)>,
    leave: Linear,
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
            Ok(DurationPredictor { layers, leave: Linear::new(list, "leave", width, 1)? })
        })
    }

    /// `[tokens, 1]`: ln(1 + frames). The states are not trained through it.
    pub(crate) fn write(
        &self,
        g: &mut Graph,
        states: Value,
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        g.scope("durations", |g| {
            let mut x = g.detach(states)?;
            for (conv, norm) in &self.layers {
                x = conv.write(g, x, rows, lengths)?;
                x = g.relu(x)?;
                x = norm.write(g, x)?;
                x = dropout.write(g, x)?;
            }
            self.leave.write(g, x)
        })
    }
}
