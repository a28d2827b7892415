//! Softmax over the last dimension, whole or up to a number of columns that each row brings.

use tandem_device::{DType, Grid, HostArgs, Kernel, Param, Source};

use super::frames::is_real;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/softmax.cu", text: concat!(include_str!("frames.cuh"), include_str!("softmax.cu")) };

/// Elements that one thread works on: about 40 µs.
const PIECE: usize = 16 * 1024;

/// `(x)` or `(x, valid columns)`.
#[derive(Debug)]
struct Softmax;

/// `(softmax, its gradient)` to the gradient of x.
#[derive(Debug)]
struct SoftmaxBackward;

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let x = inputs[0];
        if x.shape.rank() != 2 || !is_real(x.dtype) {
            return refuse("softmax", "takes [rows, columns] of f32, bf16 or f64", inputs);
        }
        let counts = TensorType::new(DType::I32, &[x.shape.rows()]);
        if inputs.get(1).is_some_and(|valid| *valid != counts) {
            return refuse("softmax", format!("takes valid columns as {counts}"), inputs);
        }
        Ok(vec![x])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(g) = at.first() else { return Ok(vec![None; at.inputs.len()]) };
        let mut found = vec![None; at.inputs.len()];
        found[0] = Some(at.graph.push(SoftmaxBackward, &[at.outputs[0], g])?);
        Ok(found)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let x = at.inputs[0].ty;
        let kernel = for_real!("softmax", x.dtype, T => match at.inputs.len() {
            1 => &Kernels::<T>::WHOLE,
            _ => &Kernels::<T>::VALID,
        });
        launch(at, kernel, x);
        Ok(())
    }
}

impl Op for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0]])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let x = at.inputs[0].ty;
        let kernel = for_real!("softmax gradient", x.dtype, T => &Kernels::<T>::BACKWARD);
        launch(at, kernel, x);
        Ok(())
    }
}

/// One warp per row.
fn launch(at: &mut Lower<'_>, kernel: &'static Kernel, x: TensorType) {
    let (rows, columns) = (x.shape.rows(), x.shape.last());
    let mut args = vec![at.outputs[0].write(), LaunchArg::U32(rows), LaunchArg::U32(columns)];
    args.extend(at.inputs.iter().map(Tensor::read));
    at.launch(kernel, Grid::cover(u64::from(rows) * 32, 256), args);
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const WHOLE: Kernel = Kernel {
        name: named_for!(T, "softmax"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::Out(T::DTYPE), Param::U32, Param::U32, Param::In(T::DTYPE)],
        host: &|args| forward::<T>(args, None),
    };

    const VALID: Kernel = Kernel {
        name: named_for!(T, "softmax_valid"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::Out(T::DTYPE), Param::U32, Param::U32, Param::In(T::DTYPE), Param::In(DType::I32)],
        host: &|args| forward::<T>(args, Some(4)),
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "softmax_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::Out(T::DTYPE), Param::U32, Param::U32, Param::In(T::DTYPE), Param::In(T::DTYPE)],
        host: &backward::<T>,
    };
}

fn forward<T: Real>(args: &mut HostArgs<'_>, valid: Option<usize>) {
    let (rows, columns) = (args.u32(1) as usize, args.u32(2) as usize);
    let x = &args.read::<T>(3)[..rows * columns];
    let valid = valid.map(|i| &args.read::<i32>(i)[..rows]);
    let workers = args.workers();
    let out = &mut args.write::<T>(0)[..rows * columns];
    let of_a_piece = rows_of_a_piece(columns);
    workers.each_chunk(out, of_a_piece * columns, |piece, out| {
        let mut wide = vec![T::Acc::zero(); columns];
        for (i, out) in out.chunks_exact_mut(columns).enumerate() {
            let row = piece * of_a_piece + i;
            let count = valid.map_or(columns, |valid| super::frames::filled(valid[row], columns));
            let (out, rest) = out.split_at_mut(count);
            rest.fill(T::store(T::Acc::zero()));
            let wide = &mut wide[..count];
            wide.iter_mut().zip(&x[row * columns..]).for_each(|(wide, x)| *wide = x.load());
            let (_, sum) = exponentials(wide);
            let share = T::Acc::of(1.0) / sum;
            out.iter_mut().zip(&*wide).for_each(|(out, &wide)| *out = T::store(wide * share));
        }
    });
}

fn rows_of_a_piece(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

/// Turns scores into `exp(score - highest)`; gives the highest, and the sum of what they became. Of no scores: zeros.
pub(super) fn exponentials<F: Float>(scores: &mut [F]) -> (F, F) {
    let Some(&first) = scores.first() else { return (F::zero(), F::zero()) };
    let mut highest = [first; 16];
    let (blocks, rest) = scores.as_chunks::<16>();
    for block in blocks {
        highest.iter_mut().zip(block).for_each(|(highest, &score)| *highest = score.max(*highest));
    }
    highest.iter_mut().zip(rest).for_each(|(highest, &score)| *highest = score.max(*highest));
    let highest = highest.into_iter().fold(first, |a, b| b.max(a));
    let mut sums = [F::zero(); 16];
    let (blocks, rest) = scores.as_chunks_mut::<16>();
    for block in blocks {
        for (score, sum) in block.iter_mut().zip(&mut sums) {
            *score = (*score - highest).exp();
            *sum += *score;
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sums) {
        *score = (*score - highest).exp();
        *sum += *score;
    }
    (highest, sums.into_iter().sum())
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let (rows, columns) = (args.u32(1) as usize, args.u32(2) as usize);
    let (softmax, gradient) = (args.read::<T>(3), args.read::<T>(4));
    let workers = args.workers();
    let out = &mut args.write::<T>(0)[..rows * columns];
    let of_a_piece = rows_of_a_piece(columns);
    workers.each_chunk(out, of_a_piece * columns, |piece, out| {
        let mut gemms = vec![T::Acc::zero(); columns];
        for (i, out) in out.chunks_exact_mut(columns).enumerate() {
            let first = (piece * of_a_piece + i) * columns;
            let (softmax, gradient) = (&softmax[first..][..columns], &gradient[first..][..columns]);
            let pairs = softmax.iter().zip(gradient);
            gemms.iter_mut().zip(pairs.clone()).for_each(|(gemm, (p, g))| *gemm = p.load() * g.load());
            let level = super::reduce::sum_of(&gemms);
            out.iter_mut().zip(pairs).for_each(|(out, (p, g))| *out = T::store(p.load() * (g.load() - level)));
        }
    });
}

impl Graph {
    /// `exp(x) / Σ exp(x)` over each row of `x` `[rows, columns]`: over all columns, or over the first `valid[r]` of row
    /// `r` (`valid` is `I32[rows]`). The columns behind are 0; a row without a valid column is 0 throughout.
    pub fn softmax(&mut self, x: Value, valid: Option<Value>) -> Result<Value, EngineError> {
        match valid {
            Some(valid) => self.push(Softmax, &[x, valid]),
            None => self.push(Softmax, &[x]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, check_no_subnormals, run};

    #[test]
    fn gradients() {
        for (rows, columns) in [(1, 1), (3, 5), (7, 33), (40, 1000)] {
            check_gradients(GradientCheck::new().input(&[rows, columns]), |g, x| g.softmax(x[0], None));
        }
        for columns in [19, 24] {
            let check = GradientCheck::new().input(&[5, columns]).whole(&[5], &[19, 0, 7, 1, -2]);
            check_gradients(check, |g, x| g.softmax(x[0], Some(x[1])));
        }
    }

    #[test]
    fn shares_of_almost_nothing_are_nothing() {
        let scores: Vec<f64> = (0..400).map(|i| -0.3 * f64::from(i)).collect();
        check_no_subnormals(GradientCheck::new().given(&[1, 400], &scores), |g, x| g.softmax(x[0], None));
    }

    #[test]
    fn values_by_hand_and_columns_that_do_not_count() {
        let x = [0.0, 3.0_f64.ln(), 1e6, 5.0, 5.0, 5.0, 1000.0, 1000.0, 1000.0];
        let check = GradientCheck::new().given(&[3, 3], &x).whole(&[3], &[2, 0, 3]);
        let found = run(check, |g, x| g.softmax(x[0], Some(x[1])));
        let third = 1.0 / 3.0;
        let expected = [0.25, 0.75, 0.0, 0.0, 0.0, 0.0, third, third, third];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn valid_columns_of_another_size_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let valid = g.input("valid", TensorType::new(DType::I32, &[3])).unwrap();
        let error = g.softmax(x, Some(valid)).unwrap_err().to_string();
        assert_eq!(error, "softmax: takes valid columns as I32[4]; the operands are F32[4, 3] and I32[3]");
    }
}
