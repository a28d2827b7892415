//! Attention: every valid frame of a row becomes a mixture of the values of the row's valid frames, weighted by
//! `softmax(q·kᵀ/√size)`.
//!
//! Scores exist only for one head and a tile of queries at a time. What is kept for the backward pass is the logarithm of
//! each query's sum of exponentials, `[frames, heads]`: from it and the scores, made again, come the weights. What all weights
//! of a query lose of their gradient, its level, is the GEMM of the query's mixture and the mixture's gradient.

mod backward;
mod forward;
mod kernels;

use tandem_device::{Element, HostArgs};

use self::kernels::Blocks;
pub(super) use self::kernels::{LEVELS, PLAIN, SOURCE_32, SOURCE_64, SOURCE_96, SOURCE_128};
use super::frames::{check_frames, check_lengths};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};

/// Queries whose scores a host kernel makes at once: with 400 keys they take 100 KiB in f32 and stay in the second-level cache.
const QUERIES_OF_A_TILE: u32 = 64;

/// `(queries, keys and values; row starts; lengths)` to the mixtures and the logarithms of sums.
#[derive(Clone, Debug)]
struct Attention {
    heads: u32,
    causal: bool,
    rows: Rows,
}

/// `(queries, keys and values; row starts; lengths; mixtures; logarithms of sums; gradient)` to the gradient of the first.
#[derive(Debug)]
struct AttentionBackward(Attention);

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        check_frames("attention", &self.rows, inputs)?;
        check_lengths("attention", &self.rows, inputs, 2)?;
        let qkv = inputs[0];
        if self.heads == 0 || !qkv.shape.last().is_multiple_of(3 * self.heads) {
            let problem = format!("takes queries, keys and values of {} heads", self.heads);
            return refuse("attention", problem, inputs);
        }
        let mixtures = TensorType { shape: qkv.shape.with_last(qkv.shape.last() / 3), ..qkv };
        let sums = TensorType { dtype: accumulator(qkv.dtype), shape: qkv.shape.with_last(self.heads) };
        Ok(vec![mixtures, sums])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(g) = at.first() else { return Ok(vec![None; 3]) };
        let &[qkv, starts, lengths] = at.inputs else { unreachable!("checked when the node was written") };
        let inputs = [qkv, starts, lengths, at.outputs[0], at.outputs[1], g];
        let found = at.graph.push(AttentionBackward(self.clone()), &inputs)?;
        Ok(vec![Some(found), None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (inputs, outputs) = (at.inputs, at.outputs);
        let args = inputs.iter().map(Tensor::read).chain(outputs.iter().map(Tensor::write));
        let qkv = inputs[0].ty;
        self.launch(at, kernels::forward(qkv.dtype, self.size(qkv))?, args);
        Ok(())
    }
}

impl Op for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0]])
    }

    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        vec![inputs[4].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[qkv, starts, lengths, mixtures, sums, gradient] = at.inputs else {
            unreachable!("attention gradient takes six inputs")
        };
        let (levels, out) = (Tensor { ty: sums.ty, ..at.scratch[0] }, at.outputs[0]);
        let (size, count) = (self.0.size(qkv.ty), levels.ty.shape.elements());
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let (kernel, grid) = kernels::levels(qkv.ty.dtype, count)?;
        let numbers = [LaunchArg::U64(count), LaunchArg::U32(size)];
        let tensors = [mixtures.read(), gradient.read(), levels.write()];
        at.launch(kernel, grid, numbers.into_iter().chain(tensors).collect());
        let args = [qkv, starts, lengths, sums, levels, gradient].map(|tensor| tensor.read());
        self.0.launch(at, kernels::backward(qkv.ty.dtype, size)?, args.into_iter().chain([out.write()]));
        Ok(())
    }
}

impl Attention {
    /// Columns of a head.
    fn size(&self, qkv: TensorType) -> u32 {
        qkv.shape.last() / (3 * self.heads)
    }

    fn launch(&self, at: &mut Lower<'_>, blocks: Blocks, tensors: impl Iterator<Item = LaunchArg>) {
        if self.rows.total() == 0 {
            return;
        }
        let numbers = [self.rows.count(), self.heads, self.size(at.inputs[0].ty), u32::from(self.causal)];
        let args = numbers.into_iter().map(LaunchArg::U32).chain(tensors).collect();
        at.launch(blocks.kernel, blocks.grid(self.heads, &self.rows), args);
    }
}

/// How the columns of a frame are divided, and who sees whom.
#[derive(Clone, Copy)]
struct Heads {
    count: usize,
    size: usize,
    causal: bool,
}

impl Heads {
    fn of(args: &HostArgs<'_>) -> Heads {
        Heads { count: args.u32(1) as usize, size: args.u32(2) as usize, causal: args.u32(3) != 0 }
    }

    /// Columns of the queries alone.
    fn width(&self) -> usize {
        self.count * self.size
    }

    /// Columns of queries, keys and values.
    fn columns(&self) -> usize {
        3 * self.width()
    }

    /// 1/√size.
    fn scale<F: Float>(&self) -> F {
        F::of(1.0 / (self.size as f64).sqrt())
    }

    /// Keys that queries before `end` see, of a row with `valid` frames.
    fn keys_before(&self, end: usize, valid: usize) -> usize {
        if self.causal { end } else { valid }
    }
}

/// `x` in the type it is computed with: where it lies if that is its own, otherwise in `buffer`.
fn widened<'a, T: Real>(x: &'a [T], buffer: &'a mut Vec<T::Acc>) -> &'a [T::Acc] {
    if T::DTYPE == <T::Acc as Element>::DTYPE {
        return bytemuck::cast_slice(x);
    }
    buffer.clear();
    buffer.extend(x.iter().map(|x| x.load()));
    buffer
}

impl Graph {
    /// Attention of `heads` heads over the valid frames of each row: `softmax(q·kᵀ/√size)·v`, with `qkv`
    /// `[frames, 3·heads·size]` (queries, keys, values; heads inside each) and `lengths` `I32[batch]`. With `causal` a frame
    /// sees itself and what came before. The result is `[frames, heads·size]`.
    ///
    /// Frames past the length are 0, are seen by nobody, and get and give no gradient. The scores of a row are never in
    /// memory; kept are `qkv`, the result and one number per frame and head.
    pub fn attention(
        &mut self,
        qkv: Value,
        heads: u32,
        causal: bool,
        rows: &Rows,
        lengths: Value,
    ) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        Ok(self.push_many(Attention { heads, causal, rows: rows.clone() }, &[qkv, starts, lengths])?[0])
    }
}

#[cfg(test)]
mod fragments;
#[cfg(test)]
mod on_card;
#[cfg(test)]
mod tests;
