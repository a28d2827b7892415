//! Natural logarithm.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn ln<F: Float>(x: F) -> F {
    x.ln()
}

fn ln_gradient<F: Float>(x: F, g: F) -> F {
    g / x
}

static LN: Function =
    function!("ln", 1, ln, "logf(a)", |at, g| { Ok(vec![Some(at.graph.apply(&LN_GRADIENT, &[at.inputs[0], g])?)]) });

static LN_GRADIENT: Function =
    function!("ln gradient", 2, ln_gradient, "b / a", |_, _| { Err(EngineError::NoGradient { op: "ln gradient" }) });

impl Graph {
    /// Natural logarithm: -∞ at 0, NaN below 0.
    pub fn ln(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&LN, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().positive(&[37, 3]), |g, x| g.ln(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[3], &[0.5, 1.0, 10.0]), |g, x| g.ln(x[0]));
        let expected = [-std::f64::consts::LN_2, 0.0, std::f64::consts::LN_10];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
