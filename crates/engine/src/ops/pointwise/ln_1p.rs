//! ln(1 + x), accurate for small x: the scale of predicted durations.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn ln_1p<F: Float>(x: F) -> F {
    x.ln_1p()
}

fn ln_1p_gradient<F: Float>(x: F, g: F) -> F {
    g / (F::of(1.0) + x)
}

static LN_1P: Function = function!("ln_1p", 1, ln_1p, "log1pf(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&LN_1P_GRADIENT, &[at.inputs[0], g])?)])
});

static LN_1P_GRADIENT: Function = function!("ln_1p gradient", 2, ln_1p_gradient, "b / (1.0f + a)", |_, _| {
    Err(EngineError::NoGradient { op: "ln_1p gradient" })
});

impl Graph {
    /// ln(1 + x), accurate for small x.
    pub fn ln_1p(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&LN_1P, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().positive(&[37, 3]), |g, x| g.ln_1p(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[4], &[-0.5, 0.0, 1e-12, 9.0]), |g, x| g.ln_1p(x[0]));
        let expected = [-std::f64::consts::LN_2, 0.0, 1e-12, std::f64::consts::LN_10];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
