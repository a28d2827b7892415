//! Square.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn square<F: Float>(x: F) -> F {
    x * x
}

fn square_gradient<F: Float>(x: F, g: F) -> F {
    F::of(2.0) * x * g
}

static SQUARE: Function = function!("square", 1, square, "a * a", |at, g| {
    Ok(vec![Some(at.graph.apply(&SQUARE_GRADIENT, &[at.inputs[0], g])?)])
});

static SQUARE_GRADIENT: Function = function!("square gradient", 2, square_gradient, "2.0f * a * b", |_, _| {
    Err(EngineError::NoGradient { op: "square gradient" })
});

impl Graph {
    /// x².
    pub fn square(&mut self, x: Value) -> Result<Value, EngineError> {
        self.apply(&SQUARE, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[37, 3]), |g, x| g.square(x[0]));
    }

    #[test]
    fn known_values() {
        let found = run(GradientCheck::new().given(&[3], &[-3.0, 0.0, 0.5]), |g, x| g.square(x[0]));
        let expected = [9.0, 0.0, 0.25];
        assert!(found.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
