//! Concatenation and slicing along the last dimension.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, is_real};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/columns.cu", text: concat!(include_str!("frames.cuh"), include_str!("columns.cu")) };

/// Tensors concatenated along the last dimension.
#[derive(Debug)]
struct Concat;

/// A slice of the last dimension.
#[derive(Debug)]
struct Columns {
    first: u32,
    count: u32,
}

/// The adjoint of [`Columns`]: the columns at their offset, zeros elsewhere.
#[derive(Debug)]
struct PlaceColumns {
    first: u32,
    width: u32,
}

/// Source and target of a copy of columns.
struct ColumnMove {
    from: u32,
    to: u32,
    count: u32,
    /// Whether the other columns become zero.
    alone: bool,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let Some(&first) = inputs.first() else { return refuse("concat", "takes at least one tensor", inputs) };
        let alike = |ty: &TensorType| ty.of(first.dtype) == *ty && ty.shape.with_last(0) == first.shape.with_last(0);
        if !is_real(first.dtype) || !inputs.iter().all(alike) {
            return refuse(
                "concat",
                "takes tensors of one element type that differ in their last dimension only",
                inputs,
            );
        }
        let width = inputs.iter().map(|ty| ty.shape.last()).sum();
        Ok(vec![TensorType { shape: first.shape.with_last(width), ..first }])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; at.inputs.len()]) };
        let mut first = 0;
        let mut found = Vec::with_capacity(at.inputs.len());
        for (&input, wanted) in at.inputs.iter().zip(at.wanted) {
            let count = at.graph.shape(input).last();
            found.push(if *wanted { Some(at.graph.columns(gradient, first, count)?) } else { None });
            first += count;
        }
        Ok(found)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let mut to = 0;
        for &input in at.inputs {
            let count = input.ty.shape.last();
            launch_move(at, input, at.outputs[0], ColumnMove { from: 0, to, count, alone: false })?;
            to += count;
        }
        Ok(())
    }
}

impl Op for Columns {
    fn name(&self) -> &'static str {
        "columns"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (x, Columns { first, count }) = (inputs[0], self);
        let in_bounds = first.checked_add(*count).is_some_and(|end| end <= x.shape.last());
        if !in_bounds || !is_real(x.dtype) {
            return refuse("columns", format!("has no {count} columns of real numbers from {first} on"), inputs);
        }
        Ok(vec![TensorType { shape: x.shape.with_last(*count), ..x }])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let width = at.graph.shape(at.inputs[0]).last();
        Ok(vec![Some(at.graph.push(PlaceColumns { first: self.first, width }, &[gradient])?)])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        launch_move(
            at,
            at.inputs[0],
            at.outputs[0],
            ColumnMove { from: self.first, to: 0, count: self.count, alone: true },
        )
    }
}

impl Op for PlaceColumns {
    fn name(&self) -> &'static str {
        "columns gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![TensorType { shape: inputs[0].shape.with_last(self.width), ..inputs[0] }])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let count = at.graph.shape(at.inputs[0]).last();
        Ok(vec![Some(at.graph.columns(gradient, self.first, count)?)])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let count = at.inputs[0].ty.shape.last();
        launch_move(at, at.inputs[0], at.outputs[0], ColumnMove { from: 0, to: self.first, count, alone: true })
    }
}

fn launch_move(at: &mut Lower<'_>, x: Tensor, out: Tensor, columns: ColumnMove) -> Result<(), EngineError> {
    let (width, out_width) = (x.ty.shape.last(), out.ty.shape.last());
    let elements = out.ty.shape.elements();
    if elements == 0 || (columns.count == 0 && !columns.alone) {
        return Ok(());
    }
    let kernel = for_real!("columns", x.ty.dtype, T => &Moves::<T>::MOVE);
    let ColumnMove { from, to, count, alone } = columns;
    let (alone, rows) = (u32::from(alone), out.ty.shape.rows());
    let args = MoveColumnsArgs { x, out, width, out_width, from, to, count, alone, rows };
    at.launch(kernel, Grid::cover(elements.div_ceil(8), 256), args);
    Ok(())
}

kernel_args! {
    /// Arguments of `move_columns`.
    struct MoveColumnsArgs<T: Real> {
        x: in T,
        out: out T,
        width: u32,
        out_width: u32,
        from: u32,
        to: u32,
        count: u32,
        alone: u32,
        rows: u32,
    }
}

struct Moves<T>(std::marker::PhantomData<T>);

impl<T: Real> Moves<T> {
    const MOVE: Kernel = Kernel {
        name: named_for!(T, "move_columns"),
        source: on_cuda::<T>(&SOURCE),
        params: MoveColumnsArgs::params::<T>(),
        host: &move_columns::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&Moves::<f32>::MOVE, &Moves::<bf16>::MOVE];

fn move_columns<T: Real>(args: &mut HostArgs<'_>) {
    let MoveColumnsArgs { x, out, width, out_width, from, to, count, alone, .. } = MoveColumnsArgs::host::<T>(args);
    let [width, out_width, from, to, count] = [width, out_width, from, to, count].map(|n| n as usize);
    let zero = T::store(T::Acc::zero());
    let rows_per_chunk = frames_per_chunk(out_width);
    args.workers().each_chunk(out, rows_per_chunk * out_width, |chunk, out| {
        for (row, out) in (chunk * rows_per_chunk..).zip(out.chunks_exact_mut(out_width)) {
            let (before, rest) = out.split_at_mut(to);
            let (moved, after) = rest.split_at_mut(count);
            moved.copy_from_slice(&x[row * width + from..][..count]);
            if alone != 0 {
                before.fill(zero);
                after.fill(zero);
            }
        }
    });
}

impl Graph {
    /// Concatenates tensors along the last dimension; they are equal in all others.
    pub fn concat(&mut self, parts: &[Value]) -> Result<Value, EngineError> {
        match parts {
            [only] => Ok(*only),
            _ => self.push(Concat, parts),
        }
    }

    /// `count` columns of `x` from `first` on: `[rows, columns]` to `[rows, count]`, or any tensor by its last dimension.
    pub fn columns(&mut self, x: Value, first: u32, count: u32) -> Result<Value, EngineError> {
        if (first, count) == (0, self.shape(x).last()) { Ok(x) } else { self.push(Columns { first, count }, &[x]) }
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        check_gradients(GradientCheck::new().input(&[7, 3]).input(&[7, 1]).input(&[7, 4]), |g, x| g.concat(x));
        check_gradients(GradientCheck::new().input(&[2, 3, 2]).input(&[2, 3, 5]), |g, x| g.concat(x));
        check_gradients(GradientCheck::new().input(&[7, 5]), |g, x| g.concat(&[x[0], x[0]]));
        for (first, count) in [(0, 2), (2, 3), (4, 1), (0, 5)] {
            check_gradients(GradientCheck::new().input(&[7, 5]), |g, x| g.columns(x[0], first, count));
        }
        check_gradients(GradientCheck::new().input(&[5, 24]).input(&[5, 8]), |g, x| g.concat(x));
        check_gradients(GradientCheck::new().input(&[5, 40]), |g, x| g.columns(x[0], 16, 8));
        // More than one chunk, and both ways.
        check_gradients(GradientCheck::new().input(&[4500, 9]), |g, x| {
            let (left, right) = (g.columns(x[0], 0, 4)?, g.columns(x[0], 4, 5)?);
            g.concat(&[right, left])
        });
    }

    #[test]
    fn columns_by_hand() {
        let x = GradientCheck::new().given(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).given(&[2, 1], &[5.0, 6.0]);
        let both = run(x, |g, x| g.concat(&[x[1], x[0]]));
        assert_eq!(both, [5.0, 1.0, 2.0, 6.0, 3.0, 4.0]);
        let x = GradientCheck::new().given(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(run(x, |g, x| g.columns(x[0], 1, 2)), [2.0, 3.0, 5.0, 6.0]);
    }

    #[test]
    fn tensors_that_cannot_be_concatenated_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let a = g.input("a", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let b = g.input("b", TensorType::new(DType::F32, &[5, 3])).unwrap();
        let error = g.concat(&[a, b]).unwrap_err().to_string();
        assert_eq!(
            error,
            "concat: takes tensors of one element type that differ in their last dimension only; the operands are F32[4, \
             3] and F32[5, 3]"
        );
        let error = g.columns(a, 2, 2).unwrap_err().to_string();
        assert_eq!(error, "columns: has no 2 columns of real numbers from 2 on; the operands are F32[4, 3]");
        assert!(g.columns(a, 1, u32::MAX).is_err());
        assert!(g.concat(&[]).is_err());
    }
}
