//! SiLU (swish): x·sigmoid(x).

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn silu<F: Float>(x: F) -> F {
    x / (F::of(1.0) + (-x).exp())
}

fn silu_gradient<F: Float>(x: F, g: F) -> F {
    let s = F::of(1.0) / (F::of(1.0) + (-x).exp());
    g * s * (F::of(1.0) + x * (F::of(1.0) - s))
}

static SILU: Function = function!("silu", 1, silu, "a * sigmoid(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&SILU_GRADIENT, &[at.inputs[0], g])?)])
});

static SILU_GRADIENT: Function = function!("silu gradient", 2, silu_gradient, "silu_gradient(a, b)", |_, _| {
    Err(EngineError::NoGradient { op: "silu gradient" })
});

impl Graph {
    /// x·sigmoid(x).
    pub fn silu(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&SILU, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.silu(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[4], &[-3.0, -0.5, 0.0, 2.0]), |g, x| g.silu(x[0]));
        let expected = [-0.142_277_619_532_700_52, -0.188_770_334_399_072_72, 0.0, 1.761_594_155_955_764_9];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
