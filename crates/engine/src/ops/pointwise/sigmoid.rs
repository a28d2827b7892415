//! The logistic function.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn sigmoid<F: Float>(x: F) -> F {
    F::of(1.0) / (F::of(1.0) + (-x).exp())
}

fn sigmoid_gradient<F: Float>(y: F, g: F) -> F {
    g * y * (F::of(1.0) - y)
}

static SIGMOID: Function = function!("sigmoid", 1, sigmoid, "sigmoid(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&SIGMOID_GRADIENT, &[at.outputs[0], g])?)])
});

static SIGMOID_GRADIENT: Function = function!("sigmoid gradient", 2, sigmoid_gradient, "b * a * (1.0f - a)", |_, _| {
    Err(EngineError::NoGradient { op: "sigmoid gradient" })
});

impl Graph {
    /// 1 / (1 + e^-x).
    pub fn sigmoid(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&SIGMOID, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.sigmoid(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[5], &[-800.0, -1.0, 0.0, 2.0, 800.0]), |g, x| g.sigmoid(x[0]));
        let expected = [0.0, 0.268_941_421_369_995_1, 0.5, 0.880_797_077_977_882_4, 1.0];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
