//! Square root.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn sqrt<F: Float>(x: F) -> F {
    x.sqrt()
}

fn sqrt_gradient<F: Float>(y: F, g: F) -> F {
    g * F::of(0.5) / y
}

static SQRT: Function = function!("sqrt", 1, sqrt, "sqrtf(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&SQRT_GRADIENT, &[at.outputs[0], g])?)])
});

static SQRT_GRADIENT: Function = function!("sqrt gradient", 2, sqrt_gradient, "0.5f * b / a", |_, _| {
    Err(EngineError::NoGradient { op: "sqrt gradient" })
});

impl Graph {
    /// Square root. Its derivative at 0 is ∞: add an epsilon if x can be 0.
    pub fn sqrt(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&SQRT, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().positive(&[37, 3]), |g, x| g.sqrt(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[3], &[0.0, 2.0, 6.25]), |g, x| g.sqrt(x[0]));
        let expected = [0.0, std::f64::consts::SQRT_2, 2.5];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
