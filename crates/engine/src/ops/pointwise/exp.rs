//! The exponential function.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn exp<F: Float>(x: F) -> F {
    x.exp()
}

fn exp_gradient<F: Float>(y: F, g: F) -> F {
    g * y
}

static EXP: Function = function!("exp", 1, exp, "exp_of(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&EXP_GRADIENT, &[at.outputs[0], g])?)])
});

static EXP_GRADIENT: Function =
    function!("exp gradient", 2, exp_gradient, "b * a", |_, _| { Err(EngineError::NoGradient { op: "exp gradient" }) });

impl Graph {
    /// e to the power of x.
    pub fn exp(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&EXP, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.exp(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[3], &[-1.0, 0.0, 1.0]), |g, x| g.exp(x[0]));
        let expected = [0.367_879_441_171_442_33, 1.0, std::f64::consts::E];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
