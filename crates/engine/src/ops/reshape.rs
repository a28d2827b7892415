//! Reshape: the same memory with other dimensions. Detach: the same value without a gradient.

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::tensor::{Shape, TensorType};

#[derive(Debug)]
struct Reshape(Shape);

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if ty.shape.elements() == self.0.elements() => Ok(vec![TensorType { shape: self.0, ..*ty }]),
            _ => refuse("reshape", format!("{} must have as many elements", self.0), inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let shape = at.graph.shape(at.inputs[0]);
        Ok(vec![Some(at.graph.reshape(gradient, shape.dims())?)])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

#[derive(Debug)]
struct Detach;

impl Op for Detach {
    fn name(&self) -> &'static str {
        "detach"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(inputs.to_vec())
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Graph {
    /// The same elements with other dimensions. Costs nothing.
    pub fn reshape(&mut self, x: Value, dims: &[u32]) -> Result<Value, EngineError> {
        if self.shape(x).dims() == dims { Ok(x) } else { self.push(Reshape(Shape::new(dims)), &[x]) }
    }

    /// The same value, without a gradient.
    pub fn detach(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(Detach, &[x])
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{GradientCheck, check_gradients};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[3, 4]), |g, x| {
            let flat = g.reshape(x[0], &[2, 6])?;
            g.mul(flat, flat)
        });
        check_gradients(GradientCheck::new().input(&[3, 4]), |g, x| {
            let detached = g.detach(x[0])?;
            let square = g.mul(x[0], x[0])?;
            // A detached value contributes no gradient.
            let zero = g.sub(detached, detached)?;
            g.add(square, zero)
        });
    }

    #[test]
    fn a_reshape_keeps_the_number_of_elements() {
        use crate::{Graph, TensorType};
        let mut g = Graph::new(Default::default(), tandem_device::DType::F32);
        let x = g.input("x", TensorType::new(tandem_device::DType::F32, &[3, 4])).unwrap();
        let error = g.reshape(x, &[5]).unwrap_err().to_string();
        assert_eq!(error, "reshape: [5] must have as many elements; the operands are F32[3, 4]");
    }
}
