//! GELU (Hendrycks and Gimpel 2016): x·Φ(x) with the error function, and the tanh form that cuBLASLt's epilogue computes.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn gelu<F: Float>(x: F) -> F {
    F::of(0.5) * x * (F::of(1.0) + (x * F::of(FRAC_1_SQRT_2)).erf())
}

/// Φ(x) + x·φ(x), times the gradient.
fn gelu_gradient<F: Float>(x: F, g: F) -> F {
    let phi = (F::of(-0.5) * x * x).exp() * F::of(1.0 / (2.0 * PI).sqrt());
    g * (F::of(0.5) * (F::of(1.0) + (x * F::of(FRAC_1_SQRT_2)).erf()) + x * phi)
}

/// √(2/π)·(x + 0.044715·x³).
fn tanh_argument<F: Float>(x: F) -> F {
    F::of((2.0 / PI).sqrt()) * (x + F::of(0.044_715) * x * x * x)
}

fn gelu_tanh<F: Float>(x: F) -> F {
    F::of(0.5) * x * (F::of(1.0) + tanh_argument(x).tanh())
}

fn gelu_tanh_gradient<F: Float>(x: F, g: F) -> F {
    let t = tanh_argument(x).tanh();
    let derivative = F::of((2.0 / PI).sqrt()) * (F::of(1.0) + F::of(3.0 * 0.044_715) * x * x);
    g * (F::of(0.5) * (F::of(1.0) + t) + F::of(0.5) * x * (F::of(1.0) - t * t) * derivative)
}

static GELU: Function = function!("gelu", 1, gelu, "gelu(a)", |at, g| {
    Ok(vec![Some(at.graph.apply(&GELU_GRADIENT, &[at.inputs[0], g])?)])
});

static GELU_GRADIENT: Function =
    function!("gelu gradient", 2, gelu_gradient, "gelu_gradient(a, b)", |_, _| Err(EngineError::NoGradient {
        op: "gelu gradient"
    }));

static GELU_TANH: Function = function!("gelu_tanh", 1, gelu_tanh, "gelu_tanh(a)", |at, g| Ok(vec![Some(
    at.graph.apply(&GELU_TANH_GRADIENT, &[at.inputs[0], g])?
)]));

static GELU_TANH_GRADIENT: Function =
    function!("gelu_tanh gradient", 2, gelu_tanh_gradient, "gelu_tanh_gradient(a, b)", |_, _| Err(
        EngineError::NoGradient { op: "gelu_tanh gradient" }
    ));

impl Graph {
    /// GELU with the error function.
    pub fn gelu(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&GELU, &[x])
    }

    /// GELU with the tanh approximation.
    pub fn gelu_tanh(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&GELU_TANH, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.gelu(x[0]));
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.gelu_tanh(x[0]));
    }

    /// Values of PyTorch 2.11's `gelu`, `approximate='none'` and `'tanh'`.
    #[test]
    fn known_values() {
        let x = [-3.0, -1.0, -0.1, 0.0, 0.5, 2.0];
        let exact = run(GradientCheck::new().given(&[6], &x), |g, x| g.gelu(x[0]));
        let expected = [-0.004_049_694, -0.158_655_254, -0.046_017_216, 0.0, 0.345_731_23, 1.954_499_7];
        assert!(exact.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7), "{exact:?}");
        let approximate = run(GradientCheck::new().given(&[6], &x), |g, x| g.gelu_tanh(x[0]));
        let expected = [-0.003_637_392, -0.158_808_01, -0.046_017_04, 0.0, 0.345_714, 1.954_597_7];
        assert!(approximate.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{approximate:?}");
    }
}
