//! What anything must give that is trained: what it learns, and what it writes into a graph.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{Earlier, EngineError, Graph, Parameters, Recomputed, Shape, TensorType, Value};

use crate::batch_shape::BatchShape;

/// A model that can be planned for, trained, judged and kept.
///
/// It writes what it computes; gradients, the averages of its parameters and the results are written around that. Both
/// functions are called once for every shape of a corpus, and once more by whoever plans memory: they must write the
/// same every time.
///
/// What a batch brings and what the host tells is in [`inputs`](crate::inputs). Losses are sums over valid frames (or
/// tokens) times [`per_number`](crate::inputs::per_number) (or [`per_token`](crate::inputs::per_token)), so that a batch
/// in pieces trains like the whole.
///
/// ```
/// use std::sync::Arc;
/// use tandem_engine::{EngineError, Graph, ParameterList, Parameters};
/// use tandem_model::layers::Linear;
/// use tandem_model::{BatchShape, Losses, Model, inputs};
///
/// /// Squeezes every frame of a spectrum through a few numbers.
/// struct Narrow {
///     parameters: Arc<Parameters>,
///     down: Linear,
///     up: Linear,
/// }
///
/// impl Narrow {
///     fn new() -> Result<Narrow, EngineError> {
///         let mut list = ParameterList::new();
///         let down = Linear::new(&mut list, "down", 80, 8)?;
///         let up = Linear::new(&mut list, "up", 8, 80)?;
///         Ok(Narrow { parameters: Arc::new(list.finish()), down, up })
///     }
/// }
///
/// impl Model for Narrow {
///     fn name(&self) -> &str {
///         "narrow"
///     }
///
///     fn parameters(&self) -> &Arc<Parameters> {
///         &self.parameters
///     }
///
///     fn learn(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
///         let (mel, lengths) = inputs::mel(g, shape, 80)?;
///         let few = self.down.write(g, mel)?;
///         let again = self.up.write(g, few)?;
///         let per_number = inputs::per_number(g)?;
///         Ok(Losses::new("loss", g.l2_loss(again, mel, &shape.mel, lengths, per_number)?))
///     }
///
///     fn judge(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
///         self.learn(g, shape)
///     }
/// }
/// # let _ = Narrow::new()?;
/// # Ok::<(), EngineError>(())
/// ```
pub trait Model: Send + Sync {
    /// What it is called in plans, run folders and checkpoints.
    fn name(&self) -> &str;

    /// What it learns.
    fn parameters(&self) -> &Arc<Parameters>;

    /// One micro-batch in training. The first loss is minimised; the others are reported.
    fn learn(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError>;

    /// One batch of held-out data. The first number is the score of a checkpoint, the smaller the better; the others are
    /// reported.
    fn judge(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError>;

    /// One micro-batch forward and backward, added to the gradients or in their place. Results: the losses.
    fn accumulate(
        &self,
        precision: DType,
        shape: &BatchShape,
        earlier: Earlier,
        recomputed: &Recomputed,
    ) -> Result<Graph, EngineError> {
        let mut g = Graph::new(Arc::clone(self.parameters()), precision);
        let losses = self.learn(&mut g, shape)?;
        losses.write(&mut g)?;
        g.write_gradients(losses.first(), earlier, recomputed)?;
        Ok(g)
    }

    /// One batch of held-out data, with the moving averages of the parameters when `averages`. Results: what is judged.
    fn validate(&self, precision: DType, shape: &BatchShape, averages: bool) -> Result<Graph, EngineError> {
        let mut g = Graph::new(Arc::clone(self.parameters()), precision);
        if averages {
            g.use_averages();
        }
        self.judge(&mut g, shape)?.write(&mut g)?;
        Ok(g)
    }
}

/// Named numbers that a program leaves, the one that counts first. Never empty.
#[derive(Clone, Debug)]
pub struct Losses {
    all: Vec<(&'static str, Value)>,
}

impl Losses {
    /// The one that counts: what is minimised, or what a checkpoint is scored by.
    pub fn new(name: &'static str, value: Value) -> Losses {
        Losses { all: vec![(name, value)] }
    }

    /// Another one, to be reported.
    pub fn and(mut self, name: &'static str, value: Value) -> Losses {
        self.all.push((name, value));
        self
    }

    fn first(&self) -> Value {
        self.all[0].1
    }

    /// Leaves them as results. Fails where one is not one number.
    fn write(&self, g: &mut Graph) -> Result<(), EngineError> {
        for (name, value) in &self.all {
            if g.ty(*value) != one_number(g.acc_dtype()) {
                return Err(EngineError::NotALoss { found: g.shape(*value) });
            }
            g.result(name, *value)?;
        }
        Ok(())
    }
}

/// What a loss is: results of this type are reported, all others are for those who ask for them by name.
pub(crate) fn one_number(wide: DType) -> TensorType {
    TensorType { dtype: wide, shape: Shape::scalar() }
}

#[cfg(test)]
mod tests {
    use tandem_engine::{Init, ParameterId, ParameterList, Rows};

    use super::*;
    use crate::inputs;

    /// Guesses the same for every frame, and reports what it is told to.
    struct Guess {
        parameters: Arc<Parameters>,
        guess: ParameterId,
        reports: fn(&mut Graph, Value, Value) -> Losses,
    }

    impl Guess {
        fn new(reports: fn(&mut Graph, Value, Value) -> Losses) -> Guess {
            let mut list = ParameterList::new();
            let guess = list.vector("guess", &[80], Init::Constant(0.0)).unwrap();
            Guess { parameters: Arc::new(list.finish()), guess, reports }
        }
    }

    impl Model for Guess {
        fn name(&self) -> &str {
            "guess"
        }

        fn parameters(&self) -> &Arc<Parameters> {
            &self.parameters
        }

        fn learn(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            let (mel, lengths) = inputs::mel(g, shape, 80)?;
            let guess = g.parameter(self.guess);
            let guess = g.spread(guess, g.shape(mel))?;
            let per_number = inputs::per_number(g)?;
            let loss = g.l1_loss(guess, mel, &shape.mel, lengths, per_number)?;
            Ok((self.reports)(g, loss, mel))
        }

        fn judge(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            self.learn(g, shape)
        }
    }

    #[test]
    fn a_loss_is_one_number_with_a_name_of_its_own() {
        let shape = BatchShape::new(Rows::new(&[2, 1]), Rows::new(&[3, 4]));
        let check = |reports, expected: &str| {
            let model = Guess::new(reports);
            let trained = model.accumulate(DType::F32, &shape, Earlier::Kept, &Recomputed::new()).map(drop);
            let judged = model.validate(DType::F32, &shape, true).map(drop);
            for written in [trained, judged] {
                let found = written.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
            }
        };
        check(|_, loss, _| Losses::new("loss", loss), "");
        check(|_, loss, _| Losses::new("loss", loss).and("again", loss), "");
        check(|_, loss, _| Losses::new("loss", loss).and("loss", loss), "declared twice");
        check(|_, loss, mel| Losses::new("loss", loss).and("mel", mel), "one number");
        check(|_, _, mel| Losses::new("loss", mel), "one number");
    }
}
