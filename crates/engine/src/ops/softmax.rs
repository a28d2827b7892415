//! Softmax over the last dimension: over all columns, or over a number of valid columns per row.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, Workers, kernel_args};

use super::frames::is_real;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/softmax.cu", text: concat!(include_str!("frames.cuh"), include_str!("softmax.cu")) };

/// Elements per unit of work of the host kernels: about 40 µs.
const CHUNK: usize = 16 * 1024;

/// `(x)` or `(x, valid columns)`.
#[derive(Debug)]
struct Softmax;

/// `(softmax, dout)` to `dx`.
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
        let Some(dout) = at.first() else { return Ok(vec![None; at.inputs.len()]) };
        let mut gradients = vec![None; at.inputs.len()];
        gradients[0] = Some(at.graph.push(SoftmaxBackward, &[at.outputs[0], dout])?);
        Ok(gradients)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, out) = (at.inputs[0], at.outputs[0]);
        let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        match at.inputs.get(1).copied() {
            None => {
                let kernel = for_real!("softmax", x.ty.dtype, T => &Kernels::<T>::ALL);
                at.launch(kernel, warp_per_row(rows), SoftmaxArgs { out, rows, columns, x });
            }
            Some(valid) => {
                let kernel = for_real!("softmax", x.ty.dtype, T => &Kernels::<T>::VALID);
                at.launch(kernel, warp_per_row(rows), SoftmaxValidArgs { out, rows, columns, x, valid });
            }
        }
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
        let (softmax, dout, dx) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        let (rows, columns) = (softmax.ty.shape.rows(), softmax.ty.shape.last());
        let kernel = for_real!("softmax gradient", softmax.ty.dtype, T => &Kernels::<T>::BACKWARD);
        at.launch(kernel, warp_per_row(rows), SoftmaxGradientArgs { dx, rows, columns, softmax, dout });
        Ok(())
    }
}

fn warp_per_row(rows: u32) -> Grid {
    Grid::cover(u64::from(rows) * 32, 256)
}

kernel_args! {
    /// Arguments of `softmax`.
    struct SoftmaxArgs<T: Real> { out: out T, rows: u32, columns: u32, x: in T }
}

kernel_args! {
    /// Arguments of `softmax_valid`.
    struct SoftmaxValidArgs<T: Real> { out: out T, rows: u32, columns: u32, x: in T, valid: in i32 }
}

kernel_args! {
    /// Arguments of `softmax_gradient`.
    struct SoftmaxGradientArgs<T: Real> { dx: out T, rows: u32, columns: u32, softmax: in T, dout: in T }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const ALL: Kernel = Kernel {
        name: named_for!(T, "softmax"),
        source: on_cuda::<T>(&SOURCE),
        params: SoftmaxArgs::params::<T>(),
        host: &forward::<T>,
    };

    const VALID: Kernel = Kernel {
        name: named_for!(T, "softmax_valid"),
        source: on_cuda::<T>(&SOURCE),
        params: SoftmaxValidArgs::params::<T>(),
        host: &forward_valid::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "softmax_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: SoftmaxGradientArgs::params::<T>(),
        host: &backward::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &Kernels::<f32>::ALL,
    &Kernels::<f32>::VALID,
    &Kernels::<f32>::BACKWARD,
    &Kernels::<bf16>::ALL,
    &Kernels::<bf16>::VALID,
    &Kernels::<bf16>::BACKWARD,
];

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let SoftmaxArgs { out, rows, columns, x } = SoftmaxArgs::host::<T>(args);
    softmax_rows(args.workers(), x, None, out, rows as usize, columns as usize);
}

fn forward_valid<T: Real>(args: &mut HostArgs<'_>) {
    let SoftmaxValidArgs { out, rows, columns, x, valid } = SoftmaxValidArgs::host::<T>(args);
    softmax_rows(args.workers(), x, Some(valid), out, rows as usize, columns as usize);
}

fn softmax_rows<T: Real>(
    workers: &Workers,
    x: &[T],
    valid: Option<&[i32]>,
    out: &mut [T],
    rows: usize,
    columns: usize,
) {
    let (x, out) = (&x[..rows * columns], &mut out[..rows * columns]);
    let rows_per_chunk = chunk_rows(columns);
    workers.each_chunk(out, rows_per_chunk * columns, |chunk, out| {
        let mut acc = vec![T::Acc::zero(); columns];
        for (i, out) in out.chunks_exact_mut(columns).enumerate() {
            let row = chunk * rows_per_chunk + i;
            let count = valid.map_or(columns, |valid| super::frames::clamp_length(valid[row], columns));
            let (out, rest) = out.split_at_mut(count);
            rest.fill(T::store(T::Acc::zero()));
            let acc = &mut acc[..count];
            acc.iter_mut().zip(&x[row * columns..]).for_each(|(acc, x)| *acc = x.load());
            let (_, row_sum) = exponentials(acc);
            let inverse_sum = T::Acc::of(1.0) / row_sum;
            out.iter_mut().zip(&*acc).for_each(|(out, &acc)| *out = T::store(acc * inverse_sum));
        }
    });
}

fn chunk_rows(columns: usize) -> usize {
    (CHUNK / columns.max(1)).max(1)
}

/// Replaces scores by `exp(score - row_max)`. Returns row_max and row_sum, the sum of the exponentials; zeros if there are no
/// scores.
pub(super) fn exponentials<F: Float>(scores: &mut [F]) -> (F, F) {
    let Some(&first) = scores.first() else { return (F::zero(), F::zero()) };
    let mut row_max = [first; 16];
    let (blocks, rest) = scores.as_chunks::<16>();
    for block in blocks {
        row_max.iter_mut().zip(block).for_each(|(row_max, &score)| *row_max = score.max(*row_max));
    }
    row_max.iter_mut().zip(rest).for_each(|(row_max, &score)| *row_max = score.max(*row_max));
    let row_max = row_max.into_iter().fold(first, |a, b| b.max(a));
    let mut sums = [F::zero(); 16];
    let (blocks, rest) = scores.as_chunks_mut::<16>();
    for block in blocks {
        for (score, sum) in block.iter_mut().zip(&mut sums) {
            *score = (*score - row_max).exp();
            *sum += *score;
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sums) {
        *score = (*score - row_max).exp();
        *sum += *score;
    }
    (row_max, sums.into_iter().sum())
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let SoftmaxGradientArgs { dx, rows, columns, softmax, dout } = SoftmaxGradientArgs::host::<T>(args);
    let (rows, columns) = (rows as usize, columns as usize);
    let dx = &mut dx[..rows * columns];
    let rows_per_chunk = chunk_rows(columns);
    args.workers().each_chunk(dx, rows_per_chunk * columns, |chunk, dx| {
        let mut weighted = vec![T::Acc::zero(); columns];
        for (i, dx) in dx.chunks_exact_mut(columns).enumerate() {
            let first = (chunk * rows_per_chunk + i) * columns;
            let (softmax, dout) = (&softmax[first..][..columns], &dout[first..][..columns]);
            let pairs = softmax.iter().zip(dout);
            weighted.iter_mut().zip(pairs.clone()).for_each(|(weighted, (p, dp))| *weighted = p.load() * dp.load());
            let delta = super::reduce::sum_of(&weighted);
            dx.iter_mut().zip(pairs).for_each(|(dx, (p, dp))| *dx = T::store(p.load() * (dp.load() - delta)));
        }
    });
}

impl Graph {
    /// `exp(x) / Σ exp(x)` over each row of `x` `[rows, columns]`: over all columns, or over the first `valid[r]` of row
    /// `r` (`valid` is `I32[rows]`). Other columns are 0; a row without valid columns is all 0.
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
            let check = GradientCheck::new().input(&[5, columns]).integers(&[5], &[19, 0, 7, 1, -2]);
            check_gradients(check, |g, x| g.softmax(x[0], Some(x[1])));
        }
    }

    #[test]
    fn tiny_probabilities_are_flushed_to_zero() {
        let scores: Vec<f64> = (0..400).map(|i| -0.3 * f64::from(i)).collect();
        check_no_subnormals(GradientCheck::new().given(&[1, 400], &scores), |g, x| g.softmax(x[0], None));
    }

    #[test]
    fn values_match_hand_computed_ones_and_invalid_columns_are_zero() {
        let x = [0.0, 3.0_f64.ln(), 1e6, 5.0, 5.0, 5.0, 1000.0, 1000.0, 1000.0];
        let check = GradientCheck::new().given(&[3, 3], &x).integers(&[3], &[2, 0, 3]);
        let found = run(check, |g, x| g.softmax(x[0], Some(x[1])));
        let third = 1.0 / 3.0;
        let expected = [0.25, 0.75, 0.0, 0.0, 0.0, 0.0, third, third, third];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn valid_columns_of_another_size_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let valid = g.input("valid", TensorType::new(DType::I32, &[3])).unwrap();
        let error = g.softmax(x, Some(valid)).unwrap_err().to_string();
        assert_eq!(error, "softmax: takes valid columns as I32[4]; the operands are F32[4, 3] and I32[3]");
    }
}
