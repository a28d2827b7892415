//! Element-wise functions, one file each, and pointwise fusion: they run fused into chains.
//!
//! A [`Function`] is a few lines: the computation on slices, its CUDA expression, and its gradient. Functions whose result
//! has a single consumer are fused with it into one [`Chain`], which reads its inputs once and writes its output once.

mod chain;
mod arithmetic;
mod cast;
mod gelu;
mod relu;
mod silu;
mod sigmoid;
mod tanh;
mod softplus;
mod exp;
mod ln;
mod ln_1p;
mod sqrt;
mod square;
mod abs;

use std::fmt;

pub(crate) use cast::identity_function;
pub use chain::Chain;
pub(crate) use chain::ChainBuilder;

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::frames::is_real;
use crate::tensor::{Shape, TensorType};

/// Writes the gradient of each input from that of the output.
pub type GradientRule = fn(&mut Backward<'_>, Value) -> Result<Vec<Option<Value>>, EngineError>;

/// An element-wise function of one to three numbers.
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// The number of arguments.
    pub arity: usize,
    /// In f32, over slices of one length.
    pub f32: fn(&[&[f32]], &mut [f32]),
    /// In f64, over slices of one length.
    pub f64: fn(&[&[f64]], &mut [f64]),
    /// The CUDA expression of the floats `a`, `b` and `c`. It may call the functions of `functions.cuh`.
    pub cuda: &'static str,
    /// The gradient of each input. Broadcast inputs are summed by the caller.
    pub gradient: GradientRule,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How the elements of an input are broadcast to those of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Indexing {
    /// One each.
    Full,
    /// Element `i mod period`: a vector along the last dimensions; one number has period 1.
    Periodic(u32),
    /// Element `i / run`: one number per row.
    Repeated(u32),
}

/// How an input of shape `input` is broadcast to `output`; none if it cannot be.
pub fn broadcast(input: Shape, output: Shape) -> Option<Indexing> {
    let (from, to) = (input.dims(), output.dims());
    if from == to {
        return Some(Indexing::Full);
    }
    if input.elements() == 1 {
        return Some(Indexing::Periodic(1));
    }
    if from.len() < to.len() && to.ends_with(from) {
        return Some(Indexing::Periodic(input.elements() as u32));
    }
    let equal = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let rest_is_one = from.len() == to.len() && from[equal..].iter().all(|&dim| dim == 1);
    rest_is_one.then(|| Indexing::Repeated(to[equal..].iter().product()))
}

/// A node that applies a [`Function`].
#[derive(Debug)]
struct Pointwise(&'static Function);

impl Op for Pointwise {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        assert_eq!(inputs.len(), self.0.arity, "{} takes {} inputs", self.0.name, self.0.arity);
        let largest = inputs.iter().max_by_key(|ty| (ty.shape.elements(), ty.shape.rank()));
        let Some(shape) = largest.map(|ty| ty.shape) else { return refuse(self.0.name, "takes an input", inputs) };
        if inputs.iter().any(|ty| broadcast(ty.shape, shape).is_none()) {
            let problem =
                "shapes must be equal, or one a vector along the last dimensions, a number per row, or one number";
            return refuse(self.0.name, problem, inputs);
        }
        if inputs.iter().any(|ty| !is_real(ty.dtype)) {
            return refuse(self.0.name, "element-wise functions take f32, bf16 or f64", inputs);
        }
        let full = inputs.iter().find(|ty| ty.shape == shape);
        Ok(vec![*full.unwrap_or(&inputs[0])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; at.inputs.len()]) };
        let found = (self.0.gradient)(at, gradient)?;
        let mut summed = Vec::with_capacity(found.len());
        for (gradient, &input) in found.into_iter().zip(at.inputs) {
            let like = at.graph.shape(input);
            summed.push(match gradient {
                Some(gradient) => Some(at.graph.sum_to(gradient, like)?),
                None => None,
            });
        }
        Ok(summed)
    }

    fn pointwise(&self) -> Option<&'static Function> {
        Some(self.0)
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        unreachable!("{} is lowered as part of a chain", self.0.name)
    }
}

impl Graph {
    /// Applies `function` to every element.
    pub fn apply(&mut self, function: &'static Function, inputs: &[Value]) -> Result<Value, EngineError> {
        self.push(Pointwise(function), inputs)
    }
}

/// A [`Function`] of one, two or three numbers from a generic Rust function.
#[macro_export]
macro_rules! function {
    ($name:literal, 1, $f:ident, $cuda:literal, $gradient:expr) => {
        $crate::ops::pointwise::Function {
            name: $name,
            arity: 1,
            f32: |x, out| out.iter_mut().zip(x[0]).for_each(|(out, &a)| *out = $f::<f32>(a)),
            f64: |x, out| out.iter_mut().zip(x[0]).for_each(|(out, &a)| *out = $f::<f64>(a)),
            cuda: $cuda,
            gradient: $gradient,
        }
    };
    ($name:literal, 2, $f:ident, $cuda:literal, $gradient:expr) => {
        $crate::ops::pointwise::Function {
            name: $name,
            arity: 2,
            f32: |x, out| {
                out.iter_mut().zip(x[0]).zip(x[1]).for_each(|((out, &a), &b)| *out = $f::<f32>(a, b));
            },
            f64: |x, out| {
                out.iter_mut().zip(x[0]).zip(x[1]).for_each(|((out, &a), &b)| *out = $f::<f64>(a, b));
            },
            cuda: $cuda,
            gradient: $gradient,
        }
    };
    ($name:literal, 3, $f:ident, $cuda:literal, $gradient:expr) => {
        $crate::ops::pointwise::Function {
            name: $name,
            arity: 3,
            f32: |x, out| {
                let each = out.iter_mut().zip(x[0]).zip(x[1]).zip(x[2]);
                each.for_each(|(((out, &a), &b), &c)| *out = $f::<f32>(a, b, c));
            },
            f64: |x, out| {
                let each = out.iter_mut().zip(x[0]).zip(x[1]).zip(x[2]);
                each.for_each(|(((out, &a), &b), &c)| *out = $f::<f64>(a, b, c));
            },
            cuda: $cuda,
            gradient: $gradient,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_no_subnormals};

    /// Units saturate: after a thousand training steps some are far in the tail of their function.
    #[test]
    fn the_tails_of_functions_and_of_their_gradients_have_no_subnormals() {
        let tails: Vec<f64> = (-400..=400).map(|i| 0.25 * f64::from(i)).collect();
        type Applied = fn(&mut Graph, Value) -> Result<Value, EngineError>;
        let functions: [Applied; 7] =
            [Graph::gelu, Graph::gelu_tanh, Graph::silu, Graph::sigmoid, Graph::tanh, Graph::softplus, Graph::exp];
        for function in functions {
            check_no_subnormals(GradientCheck::new().given(&[801], &tails), |g, x| function(g, x[0]));
        }
    }

    #[test]
    fn what_spreads_over_what() {
        let check = |input: &[u32], output: &[u32], expected| {
            assert_eq!(broadcast(Shape::new(input), Shape::new(output)), expected, "{input:?} over {output:?}");
        };
        check(&[3, 4], &[3, 4], Some(Indexing::Full));
        check(&[1], &[3, 4], Some(Indexing::Periodic(1)));
        check(&[4], &[3, 4], Some(Indexing::Periodic(4)));
        check(&[3, 4], &[2, 3, 4], Some(Indexing::Periodic(12)));
        check(&[3, 1], &[3, 4], Some(Indexing::Repeated(4)));
        check(&[2, 1, 1], &[2, 3, 4], Some(Indexing::Repeated(12)));
        check(&[3], &[3, 4], None);
        check(&[1, 4], &[3, 4], None);
        check(&[3, 4], &[4], None);
    }
}
