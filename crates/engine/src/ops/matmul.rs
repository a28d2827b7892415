//! Matrix multiplication (GEMM): linear layers, and batched GEMMs.

use tandem_device::{DType, Gemm, Operand};

use crate::error::EngineError;
use crate::graph::{Graph, Leaf, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::tensor::{Shape, TensorType, accumulator};

/// `op(A)·op(B)`, plus a bias on every row if there is a third input. `[m, k]·[k, n]`, or `[batch, m, k]·[batch, k, n]`.
#[derive(Clone, Copy, Debug)]
struct MatMul {
    a_transposed: bool,
    b_transposed: bool,
    /// Whether the result is in the accumulator type: gradients of parameters are.
    acc_output: bool,
}

/// Batch size, rows, columns and the reduction dimension.
struct Dims {
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
}

impl MatMul {
    fn dims(&self, a: Shape, b: Shape) -> Option<Dims> {
        let split = |shape: Shape, transposed: bool| match *shape.dims() {
            [rows, columns] if transposed => Some((1, columns, rows)),
            [rows, columns] => Some((1, rows, columns)),
            [batch, rows, columns] if transposed => Some((batch, columns, rows)),
            [batch, rows, columns] => Some((batch, rows, columns)),
            _ => None,
        };
        let (batch, m, k) = split(a, self.a_transposed)?;
        let (other_batch, other_k, n) = split(b, self.b_transposed)?;
        (a.rank() == b.rank() && batch == other_batch && k == other_k).then_some(Dims { batch, m, n, k })
    }
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (a, b) = (inputs[0], inputs[1]);
        let Some(Dims { batch, m, n, .. }) = self.dims(a.shape, b.shape) else {
            let suffix = |transposed| if transposed { " transposed" } else { "" };
            let (a, b) = (suffix(self.a_transposed), suffix(self.b_transposed));
            let problem = format!("takes [m, k]{a} and [k, n]{b}, or batches of them");
            return refuse("matmul", problem, inputs);
        };
        if a.dtype != b.dtype || !matches!(a.dtype, DType::F32 | DType::BF16 | DType::F64) {
            return refuse("matmul", "multiplies two tensors of one floating element type", inputs);
        }
        if inputs.get(2).is_some_and(|bias| bias.shape.dims() != [n] || bias.dtype != a.dtype) {
            return refuse("matmul", format!("a bias has {n} elements of the same element type"), inputs);
        }
        let dtype = if self.acc_output { accumulator(a.dtype) } else { a.dtype };
        let dims = if a.shape.rank() == 3 { vec![batch, m, n] } else { vec![m, n] };
        Ok(vec![TensorType::new(dtype, &dims)])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(dc) = at.first() else { return Ok(vec![None; at.inputs.len()]) };
        let (a, b) = (at.inputs[0], at.inputs[1]);
        let (ta, tb) = (self.a_transposed, self.b_transposed);
        let dc = at.graph.cast(dc, at.graph.ty(a).dtype)?;
        let is_parameter = |graph: &Graph, value| matches!(graph.as_leaf(value), Some(Leaf::Parameter(_)));
        let mut da = None;
        if at.wanted[0] {
            let acc_output = is_parameter(at.graph, a);
            da = Some(match ta {
                false => at.graph.gemm(dc, b, false, !tb, acc_output)?,
                true => at.graph.gemm(b, dc, tb, true, acc_output)?,
            });
        }
        let mut db = None;
        if at.wanted[1] {
            let acc_output = is_parameter(at.graph, b);
            db = Some(match tb {
                false => at.graph.gemm(a, dc, !ta, false, acc_output)?,
                true => at.graph.gemm(dc, a, true, ta, acc_output)?,
            });
        }
        let mut gradients = vec![da, db];
        if at.inputs.len() == 3 {
            gradients.push(if at.wanted[2] { Some(at.graph.sum_rows(dc)?) } else { None });
        }
        Ok(gradients)
    }

    fn can_accumulate(&self, _: usize) -> bool {
        true
    }

    fn runs_on_side_stream(&self) -> bool {
        self.acc_output
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (a, b, c) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        let Some(Dims { batch, m, n, k }) = self.dims(a.ty.shape, b.ty.shape) else {
            unreachable!("checked when the node was written")
        };
        let stored = |shape: Shape, transposed: bool| {
            let [.., rows, columns] = *shape.dims() else { unreachable!("a matrix has two dimensions") };
            Operand { transposed, stride: columns, batch_stride: u64::from(rows) * u64::from(columns) }
        };
        let gemm = Gemm {
            dtype: a.ty.dtype,
            out: c.ty.dtype,
            m,
            n,
            k,
            batch,
            a: stored(a.ty.shape, self.a_transposed),
            b: stored(b.ty.shape, self.b_transposed),
            c: Operand { transposed: false, stride: n, batch_stride: u64::from(m) * u64::from(n) },
            alpha: 1.0,
            accumulate: at.accumulates(0),
        };
        let bias = at.inputs.get(2).copied();
        at.gemm(gemm, [a, b, c], bias);
        Ok(())
    }
}

impl Graph {
    /// `a·b` of `[m, k]` and `[k, n]`, or of batches of such matrices.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value, EngineError> {
        self.gemm(a, b, false, false, false)
    }

    /// `op(a)·op(b)`, each transposed or not; in the accumulator type if `acc_output`.
    pub fn gemm(
        &mut self,
        a: Value,
        b: Value,
        a_transposed: bool,
        b_transposed: bool,
        acc_output: bool,
    ) -> Result<Value, EngineError> {
        self.push(MatMul { a_transposed, b_transposed, acc_output }, &[a, b])
    }

    /// A linear layer: `x·weightᵀ + bias` with `x` `[rows, in]` and `weight` `[out, in]`.
    pub fn linear(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Result<Value, EngineError> {
        let op = MatMul { a_transposed: false, b_transposed: true, acc_output: false };
        match bias {
            Some(bias) => self.push(op, &[x, weight, bias]),
            None => self.push(op, &[x, weight]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let a: &[u32] = if ta { &[3, 5] } else { &[5, 3] };
            let b: &[u32] = if tb { &[7, 3] } else { &[3, 7] };
            check_gradients(GradientCheck::new().input(a).input(b), |g, x| g.gemm(x[0], x[1], ta, tb, false));
        }
        check_gradients(GradientCheck::new().input(&[2, 5, 3]).input(&[2, 3, 4]), |g, x| g.matmul(x[0], x[1]));
        check_gradients(GradientCheck::new().input(&[9, 3]).input(&[4, 3]).input(&[4]), |g, x| {
            g.linear(x[0], x[1], Some(x[2]))
        });
    }

    #[test]
    fn a_linear_layer_by_hand() {
        let checks =
            GradientCheck::new().given(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).given(&[1, 2], &[10.0, 1.0]).given(&[1], &[0.5]);
        assert_eq!(run(checks, |g, x| g.linear(x[0], x[1], Some(x[2]))), [12.5, 34.5]);
    }

    #[test]
    fn shapes_that_do_not_multiply_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let a = g.input("a", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let b = g.input("b", TensorType::new(DType::F32, &[4, 5])).unwrap();
        let error = g.matmul(a, b).unwrap_err().to_string();
        assert_eq!(
            error,
            "matmul: takes [m, k] and [k, n], or batches of them; the operands are F32[4, 3] and F32[4, 5]"
        );
    }
}
