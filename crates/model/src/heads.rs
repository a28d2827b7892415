//! Pitch and energy of every frame, guessed from the states that are spread over it: what the spectrum alone teaches late,
//! the states learn early.

use tandem_engine::{EngineError, Graph, ParameterList, TensorType, Value};

use crate::batch_shape::BatchShape;
use crate::layers::Linear;
use crate::preset::ModelDims;

/// What Hz and energies are divided by before the logarithm is taken: both are then between 0 and about 2.
const PITCH_HZ: f64 = 100.0;
const ENERGY: f64 = 10.0;
/// How much these losses count beside the spectrum's.
const SHARE: f64 = 0.1;

/// The two heads.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    both: Linear,
}

impl Heads {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims) -> Result<Heads, EngineError> {
        Ok(Heads { both: Linear::new(list, "pitch_and_energy", sizes.text_width, 2)? })
    }

    /// The loss of guessing what the batch has, a share of it. `per_frame` is one over the frames of the optimizer step.
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
            let of_frames = g.input(name, TensorType::new(tandem_device::DType::F32, &[frames]))?;
            let column = g.reshape(of_frames, &[frames, 1])?;
            let column = g.scale(column, 1.0 / unit)?;
            let column = g.ln_1p(column)?;
            g.cast(column, g.precision())
        };
        let targets = [target("pitch", PITCH_HZ)?, target("energy", ENERGY)?];
        let targets = g.concat(&targets)?;
        let guess = self.both.write(g, states)?;
        let weight = g.scale(per_frame, SHARE)?;
        g.l2_loss(guess, targets, &shape.mel, lengths, weight)
    }
}
