//! Casts between floating-point types.

use tandem_device::DType;

use super::Function;
use crate::error::EngineError;
use crate::function;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::frames::is_real;
use crate::real::Float;
use crate::tensor::TensorType;

fn identity<F: Float>(x: F) -> F {
    x
}

static IDENTITY: Function = function!("cast", 1, identity, "a", |_, g| Ok(vec![Some(g)]));

#[derive(Debug)]
struct Cast(DType);

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if is_real(ty.dtype) => Ok(vec![ty.of(self.0)]),
            _ => refuse("cast", "casts one f32, bf16 or f64 tensor", inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let dtype = at.graph.ty(at.inputs[0]).dtype;
        Ok(vec![Some(at.graph.cast(gradient, dtype)?)])
    }

    fn pointwise(&self) -> Option<&'static Function> {
        Some(&IDENTITY)
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        unreachable!("a cast is lowered as part of a chain")
    }
}

impl Graph {
    /// `x` as `dtype`; `x` itself if it has that type.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Result<Value, EngineError> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.push(Cast(dtype), &[x]) }
    }
}

/// The identity function.
pub(crate) fn identity_function() -> &'static Function {
    &IDENTITY
}
