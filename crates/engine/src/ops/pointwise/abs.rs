//! Absolute value. The derivative at 0 is 0.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn abs<F: Float>(x: F) -> F {
    x.abs()
}

fn abs_gradient<F: Float>(x: F, g: F) -> F {
    let falling = if x < F::zero() { -g } else { F::zero() };
    if x > F::zero() { g } else { falling }
}

static ABS: Function = function!("abs", 1, abs, "fabsf(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&ABS_GRADIENT, &[at.inputs[0], g])?)])
});

static ABS_GRADIENT: Function =
    function!("abs gradient", 2, abs_gradient, "a > 0.0f ? b : a < 0.0f ? -b : 0.0f", |_, _| {
        Err(EngineError::NoGradient { op: "abs gradient" })
    });

impl Graph {
    /// |x|.
    pub fn abs(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&ABS, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().off_zero(&[37, 3]), |g, x| g.abs(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[3], &[-3.0, -0.0, 0.5]), |g, x| g.abs(x[0]));
        let expected = [3.0, 0.0, 0.5];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
