//! Softplus: ln(1 + e^x), written so that a large x does not overflow.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn softplus<F: Float>(x: F) -> F {
    let positive = if x < F::zero() { F::zero() } else { x };
    positive + (-x.abs()).exp().ln_1p()
}

fn softplus_gradient<F: Float>(x: F, g: F) -> F {
    g / (F::of(1.0) + (-x).exp())
}

static SOFTPLUS: Function =
    function!("softplus", 1, softplus, "fmaxf(a, 0.0f) + log1pf(exp_of(-fabsf(a)))", |at, g| {
        Ok(vec![Some(at.graph.apply(&SOFTPLUS_GRADIENT, &[at.inputs[0], g])?)])
    });

static SOFTPLUS_GRADIENT: Function = function!("softplus gradient", 2, softplus_gradient, "b * sigmoid(a)", |_, _| {
    Err(EngineError::NoGradient { op: "softplus gradient" })
});

impl Graph {
    /// ln(1 + e^x), for every x.
    pub fn softplus(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&SOFTPLUS, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.softplus(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[5], &[-40.0, -1.0, 0.0, 2.0, 800.0]), |g, x| g.softplus(x[0]));
        let expected = [0.0, 0.313_261_687_518_222_86, std::f64::consts::LN_2, 2.126_928_011_042_972_6, 800.0];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
