//! Flash attention (Dao et al. 2022; Dao 2023, FlashAttention-2): multi-head self-attention over the valid frames of each row,
//! `softmax(q·kᵀ/√head_dim)·v`.
//!
//! Scores exist only for one head and a tile of queries at a time. Saved for the backward pass is the logsumexp of each
//! query's scores (`lse`), `[frames, heads]`: the backward pass recomputes the scores and gets the probabilities from them and
//! `lse`. It also needs `delta`, the row sums of dO * O, which it computes first.

mod backward;
mod forward;
mod kernels;

use tandem_device::Element;

use self::kernels::{AttentionArgs, AttentionDeltaArgs, AttentionGradientArgs};
pub(super) use self::kernels::{DELTA, KERNELS, SIMT, SOURCE_32, SOURCE_64, SOURCE_96, SOURCE_128};
use super::frames::{check_frames, check_lengths};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};

/// Queries per tile of the host kernels: with 400 keys their scores take 100 KiB in f32 and stay in the L2 cache.
const QUERIES_PER_TILE: u32 = 64;

/// `(qkv, row starts, lengths)` to `(out, lse)`.
#[derive(Clone, Debug)]
struct Attention {
    heads: u32,
    causal: bool,
    rows: Rows,
}

/// `(qkv, row starts, lengths, out, lse, dout)` to `dqkv`.
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
        let out = TensorType { shape: qkv.shape.with_last(qkv.shape.last() / 3), ..qkv };
        let lse = TensorType { dtype: accumulator(qkv.dtype), shape: qkv.shape.with_last(self.heads) };
        Ok(vec![out, lse])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(dout) = at.first() else { return Ok(vec![None; 3]) };
        let &[qkv, starts, lengths] = at.inputs else { unreachable!("checked when the node was written") };
        let inputs = [qkv, starts, lengths, at.outputs[0], at.outputs[1], dout];
        let dqkv = at.graph.push(AttentionBackward(self.clone()), &inputs)?;
        Ok(vec![Some(dqkv), None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[qkv, starts, lengths] = at.inputs else { unreachable!("attention takes three inputs") };
        let (out, lse) = (at.outputs[0], at.outputs[1]);
        if self.rows.total() == 0 {
            return Ok(());
        }
        let (batch, heads, head_dim) = (self.rows.count(), self.heads, self.head_dim(qkv.ty));
        let blocks = kernels::forward(qkv.ty.dtype, head_dim)?;
        let causal = self.causal.into();
        let args = AttentionArgs { batch, heads, head_dim, causal, qkv, starts, lengths, out, lse };
        at.launch(blocks.kernel, blocks.grid(heads, &self.rows), args);
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
        let &[qkv, starts, lengths, out, lse, dout] = at.inputs else {
            unreachable!("attention gradient takes six inputs")
        };
        let (delta, dqkv) = (Tensor { ty: lse.ty, ..at.scratch[0] }, at.outputs[0]);
        let Attention { heads, causal, rows } = &self.0;
        let (head_dim, count) = (self.0.head_dim(qkv.ty), delta.ty.shape.elements());
        if dqkv.ty.shape.elements() == 0 {
            return Ok(());
        }
        let (kernel, grid) = kernels::delta(qkv.ty.dtype, count)?;
        at.launch(kernel, grid, AttentionDeltaArgs { count, head_dim, out, dout, delta });
        let blocks = kernels::backward(qkv.ty.dtype, head_dim)?;
        let (batch, heads, causal) = (rows.count(), *heads, u32::from(*causal));
        let args =
            AttentionGradientArgs { batch, heads, head_dim, causal, qkv, starts, lengths, lse, delta, dout, dqkv };
        at.launch(blocks.kernel, blocks.grid(heads, rows), args);
        Ok(())
    }
}

impl Attention {
    /// Columns of a head.
    fn head_dim(&self, qkv: TensorType) -> u32 {
        qkv.shape.last() / (3 * self.heads)
    }
}

/// The layout of a frame's columns, and the mask.
#[derive(Clone, Copy)]
struct Heads {
    count: usize,
    head_dim: usize,
    causal: bool,
}

impl Heads {
    fn new(count: u32, head_dim: u32, causal: u32) -> Heads {
        Heads { count: count as usize, head_dim: head_dim as usize, causal: causal != 0 }
    }

    /// Columns of q alone.
    fn width(&self) -> usize {
        self.count * self.head_dim
    }

    /// Columns of q, k and v.
    fn columns(&self) -> usize {
        3 * self.width()
    }

    /// 1/√head_dim.
    fn softmax_scale<F: Float>(&self) -> F {
        F::of(1.0 / (self.head_dim as f64).sqrt())
    }

    /// The number of keys that queries before `end` attend to, in a row with `valid` frames.
    fn visible_keys(&self, end: usize, valid: usize) -> usize {
        if self.causal { end } else { valid }
    }
}

/// `x` in the accumulator type: borrowed if it has that type already, otherwise converted into `buffer`.
fn to_acc<'a, T: Real>(x: &'a [T], buffer: &'a mut Vec<T::Acc>) -> &'a [T::Acc] {
    if T::DTYPE == <T::Acc as Element>::DTYPE {
        return bytemuck::cast_slice(x);
    }
    buffer.clear();
    buffer.extend(x.iter().map(|x| x.load()));
    buffer
}

impl Graph {
    /// Attention of `heads` heads over the valid frames of each row: `softmax(q·kᵀ/√head_dim)·v`, with `qkv`
    /// `[frames, 3·heads·head_dim]` (queries, keys, values; heads inside each) and `lengths` `I32[batch]`. With `causal` a frame
    /// attends to itself and earlier frames. The result is `[frames, heads·head_dim]`.
    ///
    /// Frames past the length are 0, are masked as keys, and take no part in gradients. The scores of a row are never in
    /// memory; saved for the backward pass are `qkv`, the result and one number per frame and head.
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
mod cuda;
#[cfg(test)]
mod fragments;
#[cfg(test)]
mod tests;
