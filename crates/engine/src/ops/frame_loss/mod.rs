//! Losses that are a sum over the filled frames of a sequence: a [`Term`] per element, one file each.
//!
//! A loss is `weight · Σ term(found, target)`; whoever writes the model puts the mean into the weight, which is a number of
//! the host, so that micro-batches of ragged lengths add up to the loss of the whole batch.

mod l1;
mod l2;
mod bce;

use std::fmt;
use std::marker::PhantomData;

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::{frames_of_a_piece, row_parts};
use super::reduce;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};

/// The sources of the losses.
pub(super) use bce::SOURCE as BCE;
pub(super) use l1::SOURCE as L1;
pub(super) use l2::SOURCE as L2;

/// The source of the loss that the kernels call `$term`.
macro_rules! source_of {
    ($term:literal) => {
        tandem_device::Source {
            file: concat!("engine/", $term, "_loss.cu"),
            text: concat!(include_str!("../filled.cuh"), include_str!("frame_loss.cu"), "\nLOSSES(", $term, ")\n"),
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

/// What one element adds to a loss.
pub(super) trait Term: fmt::Debug + Send + Sync + 'static {
    /// What the loss is called.
    const NAME: &'static str;
    /// Its backward op.
    const BACKWARD: &'static str;
    /// Where its kernels are written.
    const SOURCE: &'static Source;
    /// Their names, forward and backward: of what was found and its target in f32, in bf16 and f32, in bf16.
    const KERNELS: [[&'static str; 2]; 3];
    /// Whether the gradient of the target is minus that of what was found; otherwise there is none.
    const SYMMETRIC: bool;
    /// The term.
    fn value<F: Float>(found: F, target: F) -> F;
    /// Its slope with respect to what was found.
    fn slope<F: Float>(found: F, target: F) -> F;
}

/// Σ term over filled frames. Inputs: found, target, row starts, lengths.
struct FrameLoss<L>(Rows, PhantomData<L>);

/// The gradient of what was found. Inputs: those of the loss, and the gradient of the sum.
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
        let (found, target) = (inputs[0], inputs[1]);
        if found.shape.rank() != 2 || found.shape != target.shape {
            return refuse(L::NAME, "takes [frames, columns] twice", &inputs[..2]);
        }
        check_rows(L::NAME, &self.0, found, inputs[3])?;
        Ok(vec![TensorType::new(accumulator(found.dtype), &[1])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let mut all = vec![None; at.inputs.len()];
        if let Some(gradient) = at.first() {
            let inputs = [at.inputs, &[gradient]].concat();
            let of_found = at.graph.push(FrameLossBackward::<L>(PhantomData), &inputs)?;
            all[0] = Some(of_found);
            if at.wanted[1] && L::SYMMETRIC {
                all[1] = Some(at.graph.scale(of_found, -1.0)?);
            }
        }
        Ok(all)
    }

    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(pieces(&inputs[0])) * outputs[0].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (found, sum) = (at.inputs[0], at.outputs[0]);
        if found.ty.shape.elements() == 0 {
            at.clear(sum);
            return Ok(());
        }
        let pieces = pieces(&found.ty);
        let partial = Tensor { ty: TensorType::new(sum.ty.dtype, &[pieces]), ..at.scratch[0] };
        let kernel = kernel_of::<L>(found.ty.dtype, at.inputs[1].ty.dtype)?.0;
        let grid = Grid { blocks: [pieces, 1, 1], threads: 512, shared_bytes: 0 };
        at.launch(kernel, grid, arguments(at.inputs, partial));
        combine(at, partial, sum)
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
        let (found, out) = (at.inputs[0], at.outputs[0]);
        let elements = found.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = kernel_of::<L>(found.ty.dtype, at.inputs[1].ty.dtype)?.1;
        let mut args = arguments(&at.inputs[..4], out);
        args.push(at.inputs[4].read());
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

/// Sums that are taken one by one before they are added in order: their number depends on the shape alone.
pub(super) fn pieces(x: &TensorType) -> u32 {
    x.shape.rows().div_ceil(frames_of_a_piece(2 * x.shape.last() as usize) as u32)
}

/// Adds the sums of the pieces in order.
pub(super) fn combine(at: &mut Lower<'_>, partial: Tensor, sum: Tensor) -> Result<(), EngineError> {
    let column = TensorType::new(partial.ty.dtype, &[partial.ty.shape.last(), 1]);
    reduce::combine(at, Tensor { ty: column, ..partial }, sum, false)
}

/// Output, found, target, row starts, lengths, rows, columns.
fn arguments(inputs: &[Tensor], out: Tensor) -> Vec<LaunchArg> {
    let (rows, columns) = (inputs[3].ty.shape.last(), inputs[0].ty.shape.last());
    let read = inputs.iter().map(Tensor::read);
    [out.write()].into_iter().chain(read).chain([LaunchArg::U32(rows), LaunchArg::U32(columns)]).collect()
}

/// The kernels of a loss for these element types: forward and backward.
fn kernel_of<L: Term>(found: DType, target: DType) -> Result<(&'static Kernel, &'static Kernel), EngineError> {
    fn pair<L: Term, T: Real, U: Real<Acc = T::Acc>>() -> (&'static Kernel, &'static Kernel) {
        (&LossKernel::<L, T, U>::FORWARD, &LossKernel::<L, T, U>::BACKWARD)
    }
    match (found, target) {
        (DType::F32, DType::F32) => Ok(pair::<L, f32, f32>()),
        (DType::F64, DType::F64) => Ok(pair::<L, f64, f64>()),
        (DType::BF16, DType::F32) => Ok(pair::<L, half::bf16, f32>()),
        (DType::BF16, DType::BF16) => Ok(pair::<L, half::bf16, half::bf16>()),
        (dtype, _) => Err(EngineError::Precision { op: L::NAME, dtype }),
    }
}

struct LossKernel<L, T, U>(PhantomData<(L, T, U)>);

impl<L: Term, T: Real, U: Real<Acc = T::Acc>> LossKernel<L, T, U> {
    const ACC: DType = <T::Acc as Element>::DTYPE;

    /// Which of [`Term::KERNELS`].
    const TYPES: usize = match (T::DTYPE, U::DTYPE) {
        (DType::BF16, DType::F32) => 1,
        (DType::BF16, _) => 2,
        _ => 0,
    };

    const FORWARD: Kernel = Kernel {
        name: L::KERNELS[Self::TYPES][0],
        source: on_cuda::<T>(L::SOURCE),
        params: &[
            Param::Out(Self::ACC),
            Param::In(T::DTYPE),
            Param::In(U::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        host: &forward::<L, T, U>,
    };

    const BACKWARD: Kernel = Kernel {
        name: L::KERNELS[Self::TYPES][1],
        source: on_cuda::<T>(L::SOURCE),
        params: &[
            Param::Out(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(U::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
            Param::In(Self::ACC),
        ],
        host: &backward::<L, T, U>,
    };
}

fn forward<L: Term, T: Real, U: Real<Acc = T::Acc>>(args: &mut HostArgs<'_>) {
    let (found, target) = (args.read::<T>(1), args.read::<U>(2));
    let (starts, lengths, columns) = (args.read::<u32>(3), args.read::<i32>(4), args.u32(6) as usize);
    let frames = found.len() / columns;
    let workers = args.workers();
    let of_a_piece = frames_of_a_piece(2 * columns);
    workers.each_chunk(args.write::<T::Acc>(0), 1, |piece, sum| {
        let first = piece * of_a_piece;
        sum[0] = T::Acc::zero();
        for part in row_parts(starts, first..frames.min(first + of_a_piece)) {
            let filled = part.filled(lengths[part.row]);
            let range = filled.start * columns..filled.end * columns;
            sum[0] += sum_of_terms::<L, T, U>(&found[range.clone()], &target[range]);
        }
    });
}

/// In eight lanes that are added in order.
fn sum_of_terms<L: Term, T: Real, U: Real<Acc = T::Acc>>(found: &[T], target: &[U]) -> T::Acc {
    let mut lanes = [T::Acc::zero(); 8];
    let (found, target) = (found.chunks_exact(8), target.chunks_exact(8));
    let rest = found.remainder().iter().zip(target.remainder());
    let rest: T::Acc = rest.map(|(a, b)| L::value(a.load(), b.load())).sum();
    for (found, target) in found.zip(target) {
        for ((lane, a), b) in lanes.iter_mut().zip(found).zip(target) {
            *lane += L::value(a.load(), b.load());
        }
    }
    lanes.into_iter().sum::<T::Acc>() + rest
}

fn backward<L: Term, T: Real, U: Real<Acc = T::Acc>>(args: &mut HostArgs<'_>) {
    let (found, target) = (args.read::<T>(1), args.read::<U>(2));
    let (starts, lengths, columns) = (args.read::<u32>(3), args.read::<i32>(4), args.u32(6) as usize);
    let gradient = args.read::<T::Acc>(7)[0];
    let workers = args.workers();
    let of_a_piece = frames_of_a_piece(2 * columns);
    workers.each_chunk(args.write::<T>(0), of_a_piece * columns, |piece, out| {
        let first = piece * of_a_piece;
        for part in row_parts(starts, first..first + out.len() / columns) {
            let filled = part.filled(lengths[part.row]);
            let range = filled.start * columns..filled.end * columns;
            let out = &mut out[(part.frames.start - first) * columns..(part.frames.end - first) * columns];
            let (out, padding) = out.split_at_mut(range.len());
            let pairs = found[range.clone()].iter().zip(&target[range]);
            for (out, (a, b)) in out.iter_mut().zip(pairs) {
                *out = T::store(gradient * L::slope(a.load(), b.load()));
            }
            padding.fill(T::store(T::Acc::zero()));
        }
    });
}

impl Graph {
    /// `weight · Σ term` over filled frames.
    fn frame_loss<L: Term>(
        &mut self,
        [found, target]: [Value; 2],
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        let (dtype, of_target) = (self.ty(found).dtype, self.ty(target).dtype);
        // The kernels read a target as what was found is stored, or wider; from anything else it is widened first.
        let known = of_target == dtype || of_target == accumulator(dtype);
        let target = if known { target } else { self.cast(target, accumulator(dtype))? };
        let starts = self.row_starts(rows);
        let sum = self.push(FrameLoss::<L>(rows.clone(), PhantomData), &[found, target, starts, lengths])?;
        self.weigh(L::NAME, sum, weight)
    }

    /// A sum times its weight.
    pub(super) fn weigh(&mut self, op: &'static str, sum: Value, weight: Value) -> Result<Value, EngineError> {
        if self.ty(weight) != self.ty(sum) {
            return refuse(op, "a weight is one number in the wide element type", &[self.ty(sum), self.ty(weight)]);
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

    /// What every loss of this kind promises: gradients, its value by a plain loop, and padding that does not matter.
    pub(super) fn check_loss(check: GradientCheck, loss: Loss, term: impl Fn(f64, f64) -> f64) {
        let rows = Rows::new(&ROWS);
        let with_lengths = |check: GradientCheck| check.whole(&[4], &LENGTHS);
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
        assert_eq!(value_of(&other).to_bits(), value.to_bits(), "padding counts");
    }

    #[test]
    fn a_target_may_be_wider_or_narrower() {
        let rows = Rows::new(&[3, 2]);
        let build = |narrow: DType| {
            move |g: &mut Graph, x: &[Value]| {
                let target = g.cast(x[1], narrow)?;
                let weight = g.number(2.0);
                g.l2_loss(x[0], target, &Rows::new(&[3, 2]), x[2], weight)
            }
        };
        for dtype in [DType::BF16, DType::F32] {
            let check = GradientCheck::new().input(&[rows.total(), 3]).data(&[rows.total(), 3]).whole(&[2], &[3, 1]);
            check_gradients(check, build(dtype));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
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
            "l1_loss: a weight is one number in the wide element type; the operands are F32[1] and F32[4, 3]"
        );
    }
}
