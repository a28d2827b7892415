//! The factors of one update: whether it proceeds, the clipping scale, the step size with bias correction, the decay.
//!
//! One small kernel, so that no step waits for the host to read a norm. It computes in f64 for parameters of any type: the
//! powers in the bias correction need it, and there are few numbers.

use tandem_device::{DType, Grid, HostArgs, Kernel, kernel_args};

use super::{SOURCE, UpdateSpec};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::Float;
use crate::tensor::TensorType;

/// Numbers that the AdamW pass reads.
const FACTORS: usize = 11;
/// EMA warm-up: after `m` updates the decay is at most `m / (AVERAGE_WARM_UP + m)`.
const AVERAGE_WARM_UP: f64 = 10.0;

/// The factors that the AdamW pass reads, in the order of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<F> {
    /// Whether the gradients are finite: otherwise the update is skipped.
    pub(super) proceeds: bool,
    /// The factor that clips the gradients.
    pub(super) clip_scale: F,
    pub(super) beta1: F,
    pub(super) one_minus_beta1: F,
    pub(super) beta2: F,
    pub(super) one_minus_beta2: F,
    /// The learning rate over the first bias correction, `lr / (1 - beta1^t)`.
    pub(super) step_size: F,
    /// `1 / sqrt(1 - beta2^t)`, from the second bias correction.
    pub(super) inv_sqrt_bias2: F,
    pub(super) epsilon: F,
    /// `lr · weight_decay`.
    pub(super) decay: F,
    /// The decay of the exponential moving average.
    pub(super) ema_decay: F,
}

impl<F: Float> Factors<F> {
    pub(super) fn read(from: &[F]) -> Factors<F> {
        let at = |i: usize| from[i];
        Factors {
            proceeds: at(0) > F::zero(),
            clip_scale: at(1),
            beta1: at(2),
            one_minus_beta1: at(3),
            beta2: at(4),
            one_minus_beta2: at(5),
            step_size: at(6),
            inv_sqrt_bias2: at(7),
            epsilon: at(8),
            decay: at(9),
            ema_decay: at(10),
        }
    }
}

/// The nodes of [`Graph::update_factors`].
pub(super) struct UpdateFactors {
    /// For [`Factors::read`].
    pub(super) factors: Value,
    /// The gradient norm before clipping.
    pub(super) norm: Value,
}

/// Reads sums of squares, settings, learning rate and the decay of the moving average. Counts updates in three states.
#[derive(Debug)]
struct ComputeFactors;

impl Op for ComputeFactors {
    fn name(&self) -> &'static str {
        "update_factors"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let dtype = inputs[0].dtype;
        match inputs.len() == 7 && matches!(dtype, DType::F32 | DType::F64) {
            true => Ok(vec![TensorType::new(dtype, &[FACTORS as u32]), TensorType::new(dtype, &[1])]),
            false => refuse(
                "update_factors",
                "takes sums of squares in f32 or f64, settings, two numbers and three counters",
                inputs,
            ),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[4, 5, 6]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[squares, settings, lr, ema_decay, updates, skipped, in_a_row] = at.inputs else {
            unreachable!("update_factors takes seven inputs")
        };
        let kernel = match squares.ty.dtype {
            DType::F64 => &FactorsKernel::<f64>::KERNEL,
            _ => &FactorsKernel::<f32>::KERNEL,
        };
        let args = UpdateFactorsArgs {
            squares,
            settings,
            lr,
            ema_decay,
            updates,
            skipped,
            in_a_row,
            factors: at.outputs[0],
            norm_out: at.outputs[1],
            chunks: squares.ty.shape.last(),
        };
        at.launch(kernel, Grid { blocks: [1, 1, 1], threads: 256, shared_bytes: 0 }, args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `update_factors`. `updates`, `skipped` and `in_a_row` are counters.
    struct UpdateFactorsArgs<F: Float> {
        squares: in F,
        settings: in f64,
        lr: in F,
        ema_decay: in F,
        updates: out u32,
        skipped: out u32,
        in_a_row: out u32,
        factors: out F,
        norm_out: out F,
        chunks: u32,
    }
}

struct FactorsKernel<F>(std::marker::PhantomData<F>);

impl<F: Float> FactorsKernel<F> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(F, "update_factors"),
        source: on_cuda::<F>(&SOURCE),
        params: UpdateFactorsArgs::params::<F>(),
        host: &host::<F>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&FactorsKernel::<f32>::KERNEL];

fn host<F: Float>(args: &mut HostArgs<'_>) {
    let UpdateFactorsArgs {
        squares,
        settings,
        lr,
        ema_decay,
        updates,
        skipped,
        in_a_row,
        factors: out,
        norm_out,
        chunks,
    } = UpdateFactorsArgs::host::<F>(args);
    let squared: f64 = squares[..chunks as usize].iter().map(|sum| sum.to_f64()).sum();
    let [lr, ema_decay] = [lr, ema_decay].map(|number| number[0].to_f64());
    let [updates, skipped, in_a_row] = [updates, skipped, in_a_row].map(|counter| &mut counter[0]);
    let proceeds = squared.is_finite();
    *updates = updates.saturating_add(u32::from(proceeds));
    *skipped = skipped.saturating_add(u32::from(!proceeds));
    *in_a_row = if proceeds { 0 } else { in_a_row.saturating_add(1) };
    let norm = squared.sqrt();
    let factors = factors(settings, *updates, norm, lr, ema_decay);
    let flag = f64::from(u8::from(proceeds));
    out.iter_mut().zip([flag].into_iter().chain(factors)).for_each(|(out, factor)| *out = F::of(factor));
    norm_out[0] = F::of(norm);
}

/// All of [`Factors`] after the flag. `updates` includes the current one.
fn factors(settings: &[f64], updates: u32, norm: f64, lr: f64, ema_decay: f64) -> [f64; FACTORS - 1] {
    let [beta1, beta2, epsilon, weight_decay, clip] = [0, 1, 2, 3, 4].map(|i| settings[i]);
    let before = f64::from(updates) - 1.0;
    let clip_scale = if norm > clip { clip / norm } else { 1.0 };
    let ema_decay = ema_decay.min(before / (AVERAGE_WARM_UP + before));
    let inv_sqrt_bias2 = 1.0 / (1.0 - power(beta2, updates)).sqrt();
    let step_size = lr / (1.0 - power(beta1, updates));
    let decay = lr * weight_decay;
    [clip_scale, beta1, 1.0 - beta1, beta2, 1.0 - beta2, step_size, inv_sqrt_bias2, epsilon, decay, ema_decay]
}

/// Exponentiation by squaring: the same bits on every target, which `powi` does not guarantee.
fn power(base: f64, n: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, n);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

impl Graph {
    /// The factors of one update from the sums of squares. Counts the update, or that it is skipped.
    pub(super) fn update_factors(
        &mut self,
        spec: &UpdateSpec,
        squares: Value,
        [lr, ema_decay]: [Value; 2],
        counters: &[Value],
    ) -> Result<UpdateFactors, EngineError> {
        let clip = spec.clip.unwrap_or(f64::INFINITY);
        let settings = self.constant(&[5], &[spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay, clip]);
        let mut inputs = vec![squares, settings, lr, ema_decay];
        inputs.extend(counters);
        let outputs = self.push_many(ComputeFactors, &inputs)?;
        Ok(UpdateFactors { factors: outputs[0], norm: outputs[1] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_powers() {
        assert_eq!((power(0.9, 0), power(0.9, 1), power(2.0, 10)), (1.0, 0.9, 1024.0));
        let exact = (5000.0 * 0.9999_f64.ln()).exp();
        assert!((power(0.9999, 5000) / exact - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_gradient_is_clipped_only_when_it_is_too_long() {
        let clip_scale = |norm: f64, clip: f64| factors(&[0.9, 0.98, 1e-8, 0.0, clip], 1, norm, 1e-3, 0.0)[0];
        for (norm, clip, expected) in
            [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1e30, f64::INFINITY, 1.0)]
        {
            assert_eq!(clip_scale(norm, clip), expected, "norm {norm}, clip {clip}");
        }
    }
}
