//! Hyperbolic tangent.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn tanh<F: Float>(x: F) -> F {
    x.tanh()
}

fn tanh_gradient<F: Float>(y: F, g: F) -> F {
    g * (F::of(1.0) - y * y)
}

static TANH: Function = function!("tanh", 1, tanh, "tanh_of(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&TANH_GRADIENT, &[at.outputs[0], g])?)])
});

static TANH_GRADIENT: Function = function!("tanh gradient", 2, tanh_gradient, "b * (1.0f - a * a)", |_, _| {
    Err(EngineError::NoGradient { op: "tanh gradient" })
});

impl Graph {
    /// Hyperbolic tangent.
    pub fn tanh(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&TANH, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.tanh(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[4], &[-30.0, -0.5, 0.0, 1.0]), |g, x| g.tanh(x[0]));
        let expected = [-1.0, -0.462_117_157_260_009_8, 0.0, 0.761_594_155_955_764_9];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
