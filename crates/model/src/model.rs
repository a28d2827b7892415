//! The [`Model`] trait: parameters, and the losses of training and validation.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{EngineError, Graph, Parameters, Recomputed, Shape, TensorType, Value, WriteMode};

use crate::batch_shape::BatchShape;

/// A model that can be planned, trained, validated and checkpointed.
///
/// It defines the forward pass and its losses; the backward pass, the EMA of the weights and the results are added around
/// that. Both functions are called once per batch shape, and again when memory is planned: they must define the same graph
/// every time.
///
/// [`inputs`](crate::inputs) has the batch fields and host values. Losses are sums over valid frames (or tokens) times
/// [`per_element`](crate::inputs::per_element) (or [`per_token`](crate::inputs::per_token)), so that gradient accumulation over
/// micro-batches equals the full batch.
///
/// ```
/// use std::sync::Arc;
/// use tandem_engine::{EngineError, Graph, ParameterList, Parameters};
/// use tandem_model::layers::Linear;
/// use tandem_model::{BatchShape, Losses, Model, inputs};
///
/// /// An autoencoder of single mel frames.
/// struct Autoencoder {
///     parameters: Arc<Parameters>,
///     down: Linear,
///     up: Linear,
/// }
///
/// impl Autoencoder {
///     fn new() -> Result<Autoencoder, EngineError> {
///         let mut list = ParameterList::new();
///         let down = Linear::new(&mut list, "down", 80, 8)?;
///         let up = Linear::new(&mut list, "up", 8, 80)?;
///         Ok(Autoencoder { parameters: Arc::new(list.finish()), down, up })
///     }
/// }
///
/// impl Model for Autoencoder {
///     fn name(&self) -> &str {
///         "autoencoder"
///     }
///
///     fn parameters(&self) -> &Arc<Parameters> {
///         &self.parameters
///     }
///
///     fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
///         let (mel, lengths) = inputs::mel(g, shape, 80)?;
///         let code = self.down.forward(g, mel)?;
///         let decoded = self.up.forward(g, code)?;
///         let per_element = inputs::per_element(g)?;
///         Ok(Losses::new("loss", g.l2_loss(decoded, mel, &shape.mel, lengths, per_element)?))
///     }
///
///     fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
///         self.training_losses(g, shape)
///     }
/// }
/// # let _ = Autoencoder::new()?;
/// # Ok::<(), EngineError>(())
/// ```
pub trait Model: Send + Sync {
    /// Its name in plans, run folders and checkpoints.
    fn name(&self) -> &str;

    /// Its trainable parameters.
    fn parameters(&self) -> &Arc<Parameters>;

    /// Defines the losses of one training micro-batch. The first is minimised; the others are only reported.
    fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError>;

    /// Defines the losses of one validation batch. The first is the score of a checkpoint, lower is better; the others are
    /// only reported.
    fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError>;

    /// The forward and backward pass of one micro-batch; gradients are accumulated or overwritten. Results: the losses.
    fn accumulate(
        &self,
        precision: DType,
        shape: &BatchShape,
        mode: WriteMode,
        recomputed: &Recomputed,
    ) -> Result<Graph, EngineError> {
        let mut g = Graph::new(Arc::clone(self.parameters()), precision);
        let losses = self.training_losses(&mut g, shape)?;
        losses.add_results(&mut g)?;
        g.write_gradients(losses.first(), mode, recomputed)?;
        Ok(g)
    }

    /// The forward pass of one validation batch, with the EMA of the weights if `averages`. Results: the losses.
    fn validate(&self, precision: DType, shape: &BatchShape, averages: bool) -> Result<Graph, EngineError> {
        let mut g = Graph::new(Arc::clone(self.parameters()), precision);
        if averages {
            g.use_averages();
        }
        self.validation_losses(&mut g, shape)?.add_results(&mut g)?;
        Ok(g)
    }
}

/// Named scalar results, the main one first. Never empty.
#[derive(Clone, Debug)]
pub struct Losses {
    all: Vec<(&'static str, Value)>,
}

impl Losses {
    /// The main loss: minimised, or the score of a checkpoint.
    pub fn new(name: &'static str, value: Value) -> Losses {
        Losses { all: vec![(name, value)] }
    }

    /// Another loss, only reported.
    pub fn and(mut self, name: &'static str, value: Value) -> Losses {
        self.all.push((name, value));
        self
    }

    fn first(&self) -> Value {
        self.all[0].1
    }

    /// Makes them results of the program. Fails if one is not a scalar.
    fn add_results(&self, g: &mut Graph) -> Result<(), EngineError> {
        for (name, value) in &self.all {
            if g.ty(*value) != loss_type(g.acc_dtype()) {
                return Err(EngineError::NotALoss { found: g.shape(*value) });
            }
            g.result(name, *value)?;
        }
        Ok(())
    }
}

/// The type of a loss. Results of this type are reported; others are fetched by name.
pub(crate) fn loss_type(acc: DType) -> TensorType {
    TensorType { dtype: acc, shape: Shape::scalar() }
}

#[cfg(test)]
mod tests {
    use tandem_engine::{Init, ParameterId, ParameterList, Rows};

    use super::*;
    use crate::inputs;

    /// Predicts the same frame everywhere; `reports` makes its losses.
    struct ConstantModel {
        parameters: Arc<Parameters>,
        frame: ParameterId,
        reports: fn(&mut Graph, Value, Value) -> Losses,
    }

    impl ConstantModel {
        fn new(reports: fn(&mut Graph, Value, Value) -> Losses) -> ConstantModel {
            let mut list = ParameterList::new();
            let frame = list.vector("frame", &[80], Init::Constant(0.0)).unwrap();
            ConstantModel { parameters: Arc::new(list.finish()), frame, reports }
        }
    }

    impl Model for ConstantModel {
        fn name(&self) -> &str {
            "constant"
        }

        fn parameters(&self) -> &Arc<Parameters> {
            &self.parameters
        }

        fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            let (mel, lengths) = inputs::mel(g, shape, 80)?;
            let frame = g.parameter(self.frame);
            let predicted = g.broadcast_to(frame, g.shape(mel))?;
            let per_element = inputs::per_element(g)?;
            let loss = g.l1_loss(predicted, mel, &shape.mel, lengths, per_element)?;
            Ok((self.reports)(g, loss, mel))
        }

        fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            self.training_losses(g, shape)
        }
    }

    #[test]
    fn a_loss_is_a_scalar_with_a_unique_name() {
        let shape = BatchShape::new(Rows::new(&[2, 1]), Rows::new(&[3, 4]));
        let check = |reports, expected: &str| {
            let model = ConstantModel::new(reports);
            let training = model.accumulate(DType::F32, &shape, WriteMode::Accumulate, &Recomputed::new()).map(drop);
            let validation = model.validate(DType::F32, &shape, true).map(drop);
            for built in [training, validation] {
                let found = built.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
            }
        };
        check(|_, loss, _| Losses::new("loss", loss), "");
        check(|_, loss, _| Losses::new("loss", loss).and("copy", loss), "");
        check(|_, loss, _| Losses::new("loss", loss).and("loss", loss), "declared twice");
        check(|_, loss, mel| Losses::new("loss", loss).and("mel", mel), "must be a scalar");
        check(|_, _, mel| Losses::new("loss", mel), "must be a scalar");
    }
}
