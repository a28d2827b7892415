//! ReLU. NaNs propagate, and the derivative at 0 is 0.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn relu<F: Float>(x: F) -> F {
    if x < F::zero() { F::zero() } else { x }
}

fn relu_gradient<F: Float>(y: F, g: F) -> F {
    if y > F::zero() { g } else { F::zero() }
}

static RELU: Function = function!("relu", 1, relu, "a < 0.0f ? 0.0f : a", |at, g| {
    Ok(vec![Some(at.graph.apply(&RELU_GRADIENT, &[at.outputs[0], g])?)])
});

static RELU_GRADIENT: Function = function!("relu gradient", 2, relu_gradient, "a > 0.0f ? b : 0.0f", |_, _| {
    Err(EngineError::NoGradient { op: "relu gradient" })
});

impl Graph {
    /// x where it is positive, else 0.
    pub fn relu(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&RELU, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().off_zero(&[37, 3]), |g, x| g.relu(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[5], &[-2.0, -0.0, 0.0, 0.5, 3.0]), |g, x| g.relu(x[0]));
        let expected = [0.0, 0.0, 0.0, 0.5, 3.0];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
