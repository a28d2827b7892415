//! Pitch and energy predictors in the style of FastSpeech 2 (Ren et al. 2020): of every frame, from the expanded states. They
//! are auxiliary losses only and are not fed back: the text encoder learns early what the mel loss would teach it late.

use tandem_engine::{EngineError, Graph, ParameterList, TensorType, Value};

use crate::batch_shape::BatchShape;
use crate::layers::Linear;
use crate::preset::ModelDims;

/// Units of pitch and energy in the targets ln(1 + x / unit): both targets are between 0 and about 2.
const PITCH_HZ: f64 = 100.0;
const ENERGY: f64 = 10.0;
/// Weight of this loss relative to the mel loss.
const LOSS_WEIGHT: f64 = 0.1;

/// The pitch and energy predictors, as one linear layer.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    linear: Linear,
}

impl Heads {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims) -> Result<Heads, EngineError> {
        Ok(Heads { linear: Linear::new(list, "pitch_and_energy", sizes.text_width, 2)? })
    }

    /// The weighted loss of pitch and energy. `per_frame` is one over the number of frames in the optimizer step.
    pub(crate) fn loss(
        &self,
        g: &mut Graph,
        states: Value,
        shape: &BatchShape,
        lengths: Value,
        per_frame: Value,
    ) -> Result<Value, EngineError> {
        let frames = shape.mel.total();
        let mut target = |name: &str, unit: f64| {
            let target = g.input(name, TensorType::new(tandem_device::DType::F32, &[frames]))?;
            let target = g.reshape(target, &[frames, 1])?;
            let target = g.scale(target, 1.0 / unit)?;
            let target = g.ln_1p(target)?;
            g.cast(target, g.precision())
        };
        let targets = [target("pitch", PITCH_HZ)?, target("energy", ENERGY)?];
        let targets = g.concat(&targets)?;
        let predicted = self.linear.forward(g, states)?;
        let weight = g.scale(per_frame, LOSS_WEIGHT)?;
        g.l2_loss(predicted, targets, &shape.mel, lengths, weight)
    }
}
