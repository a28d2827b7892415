//! Element-wise addition, subtraction, multiplication and division.

use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::real::Float;

use super::Function;

fn plus<F: Float>(a: F, b: F) -> F {
    a + b
}

fn minus<F: Float>(a: F, b: F) -> F {
    a - b
}

fn times<F: Float>(a: F, b: F) -> F {
    a * b
}

fn over<F: Float>(a: F, b: F) -> F {
    a / b
}

static ADD: Function = function!("add", 2, plus, "a + b", |_, g| Ok(vec![Some(g), Some(g)]));

static SUB: Function = function!("sub", 2, minus, "a - b", |at, g| {
    let second = if at.wanted[1] { Some(at.graph.scale(g, -1.0)?) } else { None };
    Ok(vec![Some(g), second])
});

static MUL: Function = function!("mul", 2, times, "a * b", |at, g| {
    let (a, b) = (at.inputs[0], at.inputs[1]);
    let first = if at.wanted[0] { Some(at.graph.mul(g, b)?) } else { None };
    let second = if at.wanted[1] { Some(at.graph.mul(g, a)?) } else { None };
    Ok(vec![first, second])
});

static DIV: Function = function!("div", 2, over, "a / b", |at, g| {
    let (b, quotient) = (at.inputs[1], at.outputs[0]);
    let first = at.graph.div(g, b)?;
    let second = if at.wanted[1] {
        let scaled = at.graph.mul(first, quotient)?;
        Some(at.graph.scale(scaled, -1.0)?)
    } else {
        None
    };
    Ok(vec![Some(first), second])
});

/// Whether a function is [`Graph::add`].
pub(super) fn is_add(function: &'static Function) -> bool {
    std::ptr::eq(function, &raw const ADD)
}

impl Graph {
    /// a + b.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, EngineError> {
        self.apply(&ADD, &[a, b])
    }

    /// a - b.
    pub fn sub(&mut self, a: Value, b: Value) -> Result<Value, EngineError> {
        self.apply(&SUB, &[a, b])
    }

    /// a · b, element by element.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value, EngineError> {
        self.apply(&MUL, &[a, b])
    }

    /// a ÷ b, element by element.
    pub fn div(&mut self, a: Value, b: Value) -> Result<Value, EngineError> {
        self.apply(&DIV, &[a, b])
    }

    /// x · factor.
    pub fn scale(&mut self, x: Value, factor: f64) -> Result<Value, EngineError> {
        let factor = self.number(factor);
        self.mul(x, factor)
    }

    /// x + term.
    pub fn shift(&mut self, x: Value, term: f64) -> Result<Value, EngineError> {
        let term = self.number(term);
        self.add(x, term)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients};

    #[test]
    fn gradients() {
        for (a, b) in [(&[7_u32, 5][..], &[7_u32, 5][..]), (&[7, 5], &[5]), (&[7, 5], &[7, 1]), (&[1], &[7, 5])] {
            check_gradients(GradientCheck::new().input(a).input(b), |g, x| g.add(x[0], x[1]));
            check_gradients(GradientCheck::new().input(a).input(b), |g, x| g.sub(x[0], x[1]));
            check_gradients(GradientCheck::new().input(a).input(b), |g, x| g.mul(x[0], x[1]));
            check_gradients(GradientCheck::new().input(a).positive(b), |g, x| g.div(x[0], x[1]));
        }
        check_gradients(GradientCheck::new().input(&[3, 2]), |g, x| g.mul(x[0], x[0]));
        check_gradients(GradientCheck::new().input(&[3, 2]), |g, x| {
            let y = g.scale(x[0], 3.0)?;
            let y = g.shift(y, -1.0)?;
            g.mul(y, x[0])
        });
    }
}
