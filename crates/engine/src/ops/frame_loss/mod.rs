//! Element-wise losses, summed over the valid frames of a sequence: a [`Term`] per element, one file each.
//!
//! A loss is `weight · Σ term(prediction, target)`. The model puts the mean into the weight, which the host sets, so that
//! micro-batches of ragged lengths add up to the loss of the whole batch.

mod l1;
mod l2;
mod bce;

use std::fmt;
use std::marker::PhantomData;

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, row_parts};
use super::reduce::combine;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};

/// The CUDA sources of the losses.
pub(super) use bce::SOURCE as BCE;
pub(super) use l1::SOURCE as L1;
pub(super) use l2::SOURCE as L2;

/// The source of the loss `$term`.
macro_rules! source_of {
    ($term:literal) => {
        tandem_device::Source {
            file: concat!("engine/", $term, "_loss.cu"),
            text: concat!(
                include_str!("../valid_frames.cuh"),
                include_str!("frame_loss.cu"),
                "\nLOSSES(",
                $term,
                ")\n"
            ),
        }
    };
}
use source_of;

/// [`Term::KERNELS`] of the loss `$name`.
macro_rules! kernels_of {
    ($name:literal) => {
        [
            [concat!($name, "_f32_f32"), concat!($name, "_backward_f32_f32")],
            [concat!($name, "_bf16_f32"), concat!($name, "_backward_bf16_f32")],
            [concat!($name, "_bf16_bf16"), concat!($name, "_backward_bf16_bf16")],
        ]
    };
}
use kernels_of;

/// The term of one element.
pub(super) trait Term: fmt::Debug + Send + Sync + 'static {
    /// The name of the loss.
    const NAME: &'static str;
    /// The name of the backward op.
    const BACKWARD: &'static str;
    /// The source of the kernels.
    const SOURCE: &'static Source;
    /// The names of the kernels, forward and backward: for prediction and target in f32, in bf16 and f32, in bf16.
    const KERNELS: [[&'static str; 2]; 3];
    /// Whether the gradient of the target is minus that of the prediction; otherwise the target has none.
    const SYMMETRIC: bool;
    /// The term.
    fn value<F: Float>(prediction: F, target: F) -> F;
    /// Its derivative with respect to the prediction.
    fn derivative<F: Float>(prediction: F, target: F) -> F;
}

/// Σ term over valid frames. Inputs: prediction, target, row starts, lengths.
struct FrameLoss<L>(Rows, PhantomData<L>);

/// The gradient of the prediction. Inputs: those of the loss, and the gradient of the sum.
struct FrameLossBackward<L>(PhantomData<L>);

impl<L: Term> fmt::Debug for FrameLoss<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(L::NAME)
    }
}

impl<L: Term> fmt::Debug for FrameLossBackward<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(L::BACKWARD)
    }
}

impl<L: Term> Op for FrameLoss<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (prediction, target) = (inputs[0], inputs[1]);
        if prediction.shape.rank() != 2 || prediction.shape != target.shape {
            return refuse(L::NAME, "takes [frames, columns] twice", &inputs[..2]);
        }
        check_rows(L::NAME, &self.0, prediction, inputs[3])?;
        Ok(vec![TensorType::new(accumulator(prediction.dtype), &[1])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let mut all = vec![None; at.inputs.len()];
        if let Some(gradient) = at.first() {
            let inputs = [at.inputs, &[gradient]].concat();
            let of_prediction = at.graph.push(FrameLossBackward::<L>(PhantomData), &inputs)?;
            all[0] = Some(of_prediction);
            if at.wanted[1] && L::SYMMETRIC {
                all[1] = Some(at.graph.scale(of_prediction, -1.0)?);
            }
        }
        Ok(all)
    }

    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(num_chunks(&inputs[0])) * outputs[0].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[prediction, target, starts, lengths], sum) = (at.inputs, at.outputs[0]) else {
            unreachable!("a loss takes four inputs")
        };
        if prediction.ty.shape.elements() == 0 {
            at.clear(sum);
            return Ok(());
        }
        let chunks = num_chunks(&prediction.ty);
        let partial = Tensor { ty: TensorType::new(sum.ty.dtype, &[chunks, 1]), ..at.scratch[0] };
        let kernel = kernels_for::<L>(prediction.ty.dtype, target.ty.dtype)?.0;
        let (rows, columns) = (self.0.count(), prediction.ty.shape.last());
        let grid = Grid { blocks: [chunks, 1, 1], threads: 512, shared_bytes: 0 };
        at.launch(kernel, grid, LossArgs { partial, prediction, target, starts, lengths, rows, columns });
        combine(at, partial, sum, false)
    }
}

impl<L: Term> Op for FrameLossBackward<L> {
    fn name(&self) -> &'static str {
        L::BACKWARD
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0]])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[prediction, target, starts, lengths, gradient], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("the gradient of a loss takes five inputs")
        };
        let elements = prediction.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = kernels_for::<L>(prediction.ty.dtype, target.ty.dtype)?.1;
        let (rows, columns) = (lengths.ty.shape.last(), prediction.ty.shape.last());
        let args = LossBackwardArgs { out, prediction, target, starts, lengths, rows, columns, gradient };
        at.launch(kernel, Grid::cover(elements.div_ceil(4), 256), args);
        Ok(())
    }
}

/// Checks a sequence and the lengths of its rows.
pub(super) fn check_rows(op: &'static str, rows: &Rows, x: TensorType, lengths: TensorType) -> Result<(), EngineError> {
    if x.shape.rows() != rows.total() {
        return refuse(op, format!("its rows have {} frames", rows.total()), &[x]);
    }
    if lengths.dtype != DType::I32 || lengths.shape.dims() != [rows.count()] {
        return refuse(op, format!("takes I32[{}] as lengths", rows.count()), &[x, lengths]);
    }
    Ok(())
}

/// The chunks whose partial sums are added in order. Their number depends on the shape alone.
pub(super) fn num_chunks(x: &TensorType) -> u32 {
    x.shape.rows().div_ceil(frames_per_chunk(2 * x.shape.last() as usize) as u32)
}

kernel_args! {
    /// Arguments of the forward kernel of a loss.
    struct LossArgs<T: Real, U: Real> {
        partial: out T::Acc,
        prediction: in T,
        target: in U,
        starts: in u32,
        lengths: in i32,
        rows: u32,
        columns: u32,
    }
}

kernel_args! {
    /// Arguments of the backward kernel of a loss.
    struct LossBackwardArgs<T: Real, U: Real> {
        out: out T,
        prediction: in T,
        target: in U,
        starts: in u32,
        lengths: in i32,
        rows: u32,
        columns: u32,
        gradient: in T::Acc,
    }
}

/// The kernels of a loss for these element types: forward and backward.
fn kernels_for<L: Term>(prediction: DType, target: DType) -> Result<(&'static Kernel, &'static Kernel), EngineError> {
    fn pair<L: Term, T: Real, U: Real<Acc = T::Acc>>() -> (&'static Kernel, &'static Kernel) {
        (&LossKernel::<L, T, U>::FORWARD, &LossKernel::<L, T, U>::BACKWARD)
    }
    match (prediction, target) {
        (DType::F32, DType::F32) => Ok(pair::<L, f32, f32>()),
        (DType::F64, DType::F64) => Ok(pair::<L, f64, f64>()),
        (DType::BF16, DType::F32) => Ok(pair::<L, bf16, f32>()),
        (DType::BF16, DType::BF16) => Ok(pair::<L, bf16, bf16>()),
        (dtype, _) => Err(EngineError::Precision { op: L::NAME, dtype }),
    }
}

struct LossKernel<L, T, U>(PhantomData<(L, T, U)>);

impl<L: Term, T: Real, U: Real<Acc = T::Acc>> LossKernel<L, T, U> {
    /// Which of [`Term::KERNELS`].
    const TYPES: usize = match (T::DTYPE, U::DTYPE) {
        (DType::BF16, DType::F32) => 1,
        (DType::BF16, _) => 2,
        _ => 0,
    };

    const FORWARD: Kernel = Kernel {
        name: L::KERNELS[Self::TYPES][0],
        source: on_cuda::<T>(L::SOURCE),
        params: LossArgs::params::<T, U>(),
        host: &forward::<L, T, U>,
    };

    const BACKWARD: Kernel = Kernel {
        name: L::KERNELS[Self::TYPES][1],
        source: on_cuda::<T>(L::SOURCE),
        params: LossBackwardArgs::params::<T, U>(),
        host: &backward::<L, T, U>,
    };
}

macro_rules! loss_kernels {
    ($($Loss:ty),+) => {
        &[$(
            &LossKernel::<$Loss, f32, f32>::FORWARD,
            &LossKernel::<$Loss, f32, f32>::BACKWARD,
            &LossKernel::<$Loss, bf16, f32>::FORWARD,
            &LossKernel::<$Loss, bf16, f32>::BACKWARD,
            &LossKernel::<$Loss, bf16, bf16>::FORWARD,
            &LossKernel::<$Loss, bf16, bf16>::BACKWARD,
        )+]
    };
}

pub(super) static KERNELS: &[&Kernel] = loss_kernels!(l1::L1, l2::L2, bce::Bce);

fn forward<L: Term, T: Real, U: Real<Acc = T::Acc>>(args: &mut HostArgs<'_>) {
    let LossArgs { partial, prediction, target, starts, lengths, columns, .. } = LossArgs::host::<T, U>(args);
    let columns = columns as usize;
    let (frames, chunk_frames) = (prediction.len() / columns, frames_per_chunk(2 * columns));
    args.workers().each_chunk(partial, 1, |chunk, sum| {
        let first = chunk * chunk_frames;
        sum[0] = T::Acc::zero();
        for part in row_parts(starts, first..frames.min(first + chunk_frames)) {
            let valid = part.valid(lengths[part.row]);
            let range = valid.start * columns..valid.end * columns;
            sum[0] += sum_of_terms::<L, T, U>(&prediction[range.clone()], &target[range]);
        }
    });
}

/// In eight lanes that are added in order.
fn sum_of_terms<L: Term, T: Real, U: Real<Acc = T::Acc>>(prediction: &[T], target: &[U]) -> T::Acc {
    let mut lanes = [T::Acc::zero(); 8];
    let (prediction, target) = (prediction.chunks_exact(8), target.chunks_exact(8));
    let rest = prediction.remainder().iter().zip(target.remainder());
    let rest: T::Acc = rest.map(|(a, b)| L::value(a.load(), b.load())).sum();
    for (prediction, target) in prediction.zip(target) {
        for ((lane, a), b) in lanes.iter_mut().zip(prediction).zip(target) {
            *lane += L::value(a.load(), b.load());
        }
    }
    lanes.into_iter().sum::<T::Acc>() + rest
}

fn backward<L: Term, T: Real, U: Real<Acc = T::Acc>>(args: &mut HostArgs<'_>) {
    let LossBackwardArgs { out, prediction, target, starts, lengths, columns, gradient, .. } =
        LossBackwardArgs::host::<T, U>(args);
    let (columns, gradient) = (columns as usize, gradient[0]);
    let chunk_frames = frames_per_chunk(2 * columns);
    args.workers().each_chunk(out, chunk_frames * columns, |chunk, out| {
        let first = chunk * chunk_frames;
        for part in row_parts(starts, first..first + out.len() / columns) {
            let valid = part.valid(lengths[part.row]);
            let range = valid.start * columns..valid.end * columns;
            let out = &mut out[(part.frames.start - first) * columns..(part.frames.end - first) * columns];
            let (out, padding) = out.split_at_mut(range.len());
            let pairs = prediction[range.clone()].iter().zip(&target[range]);
            for (out, (a, b)) in out.iter_mut().zip(pairs) {
                *out = T::store(gradient * L::derivative(a.load(), b.load()));
            }
            padding.fill(T::store(T::Acc::zero()));
        }
    });
}

impl Graph {
    /// `weight · Σ term` over valid frames.
    fn frame_loss<L: Term>(
        &mut self,
        [prediction, target]: [Value; 2],
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        let (dtype, target_dtype) = (self.ty(prediction).dtype, self.ty(target).dtype);
        // The kernels read targets in the element type of the prediction or in its accumulator type; others are cast.
        let supported = target_dtype == dtype || target_dtype == accumulator(dtype);
        let target = if supported { target } else { self.cast(target, accumulator(dtype))? };
        let starts = self.row_starts(rows);
        let sum = self.push(FrameLoss::<L>(rows.clone(), PhantomData), &[prediction, target, starts, lengths])?;
        self.weigh(L::NAME, sum, weight)
    }

    /// A sum times its weight.
    pub(super) fn weigh(&mut self, op: &'static str, sum: Value, weight: Value) -> Result<Value, EngineError> {
        if self.ty(weight) != self.ty(sum) {
            return refuse(op, "a weight is one number in the accumulator type", &[self.ty(sum), self.ty(weight)]);
        }
        self.mul(sum, weight)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    type Loss = fn(&mut Graph, Value, Value, &Rows, Value, Value) -> Result<Value, EngineError>;

    const ROWS: [u32; 4] = [3, 0, 230, 7];
    const LENGTHS: [i32; 4] = [2, 0, 230, 0];

    /// The contract of every loss: gradients, the value of a plain loop, and padding that is ignored.
    pub(super) fn check_loss(check: GradientCheck, loss: Loss, term: impl Fn(f64, f64) -> f64) {
        let rows = Rows::new(&ROWS);
        let with_lengths = |check: GradientCheck| check.integers(&[4], &LENGTHS);
        let build = |g: &mut Graph, x: &[Value]| {
            let weight = g.number(0.25);
            loss(g, x[0], x[1], &rows, x[2], weight)
        };
        check_gradients(with_lengths(check), build);
        let draw = |i: u32, of: f64| (0..240 * 83).map(|e| (f64::from(e * 7 + i) * of).sin()).collect::<Vec<f64>>();
        let (found, target) = (draw(1, 0.37), draw(2, 0.11));
        let mut expected = 0.0;
        for (row, &length) in LENGTHS.iter().enumerate() {
            let start = rows.starts()[row] as usize;
            for e in start * 83..(start + length as usize) * 83 {
                expected += 0.25 * term(found[e], target[e]);
            }
        }
        let value_of = |found: &[f64]| {
            let check = GradientCheck::new().given(&[240, 83], found).given(&[240, 83], &target);
            run(with_lengths(check), build)[0]
        };
        let value = value_of(&found);
        assert!((value - expected).abs() < 1e-9 * expected.abs(), "{value} {expected}");
        let mut other = found.clone();
        other[2 * 83..3 * 83].fill(f64::NAN);
        other[233 * 83..].fill(f64::INFINITY);
        assert_eq!(value_of(&other).to_bits(), value.to_bits(), "padding is counted");
    }

    #[test]
    fn a_target_may_have_another_element_type() {
        let rows = Rows::new(&[3, 2]);
        let build = |target_dtype: DType| {
            move |g: &mut Graph, x: &[Value]| {
                let target = g.cast(x[1], target_dtype)?;
                let weight = g.number(2.0);
                g.l2_loss(x[0], target, &Rows::new(&[3, 2]), x[2], weight)
            }
        };
        for dtype in [DType::BF16, DType::F32] {
            let check = GradientCheck::new().input(&[rows.total(), 3]).data(&[rows.total(), 3]).integers(&[2], &[3, 1]);
            check_gradients(check, build(dtype));
        }
    }

    #[test]
    fn wrong_operands_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let [x, y] =
            [[4, 3], [4, 2]].map(|dims| g.input(&format!("{dims:?}"), TensorType::new(DType::F32, &dims)).unwrap());
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[2])).unwrap();
        let weight = g.number(1.0);
        let mut message = |found, target, rows: &[u32], lengths, weight| {
            g.l1_loss(found, target, &Rows::new(rows), lengths, weight).unwrap_err().to_string()
        };
        let two = message(x, y, &[1, 3], lengths, weight);
        assert_eq!(two, "l1_loss: takes [frames, columns] twice; the operands are F32[4, 3] and F32[4, 2]");
        let frames = message(x, x, &[1, 2], lengths, weight);
        assert_eq!(frames, "l1_loss: its rows have 3 frames; the operands are F32[4, 3]");
        let count = message(x, x, &[4], lengths, weight);
        assert_eq!(count, "l1_loss: takes I32[1] as lengths; the operands are F32[4, 3] and I32[2]");
        let scalar = message(x, x, &[1, 3], lengths, x);
        assert_eq!(
            scalar,
            "l1_loss: a weight is one number in the accumulator type; the operands are F32[1] and F32[4, 3]"
        );
    }
}
