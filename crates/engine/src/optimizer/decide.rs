//! The numbers of one update: whether there is one at all, how much gradients are shortened, the step, the decay.
//!
//! One small piece of work on the device, so that no step waits for the host to look at a norm. It computes in f64,
//! whatever parameters are kept in: the powers in the bias correction need it, and it is a handful of numbers.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param};

use super::{SOURCE, UpdateSpec};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower};
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::Float;
use crate::tensor::TensorType;

/// Numbers in the block that the pass over the spans reads.
const FACTORS: usize = 11;
/// The average of a run that has made `m` updates keeps at most `m / (AVERAGE_WARM_UP + m)` of what it was.
const AVERAGE_WARM_UP: f64 = 10.0;

/// What the pass over the spans reads, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<F> {
    /// Whether there is an update.
    pub(super) proceeds: bool,
    /// What every gradient is multiplied with.
    pub(super) shorten: F,
    /// Old and new shares of the first moment.
    pub(super) first: [F; 2],
    /// Old and new shares of the second moment.
    pub(super) second: [F; 2],
    /// The learning rate over the first bias correction.
    pub(super) step: F,
    /// One over the root of the second bias correction.
    pub(super) root_scale: F,
    pub(super) epsilon: F,
    /// Share of a parameter that decays.
    pub(super) decay: F,
    /// Share of the average that is kept.
    pub(super) average: F,
}

impl<F: Float> Factors<F> {
    pub(super) fn read(from: &[F]) -> Factors<F> {
        let at = |i: usize| from[i];
        Factors {
            proceeds: at(0) > F::zero(),
            shorten: at(1),
            first: [at(2), at(3)],
            second: [at(4), at(5)],
            step: at(6),
            root_scale: at(7),
            epsilon: at(8),
            decay: at(9),
            average: at(10),
        }
    }
}

/// The nodes of [`Graph::decide`].
pub(super) struct Decided {
    /// For [`Factors::read`].
    pub(super) factors: Value,
    /// Length of the gradient before it was shortened.
    pub(super) norm: Value,
}

/// Reads sums of squares, settings, learning rate, decay of the average; counts in three states.
#[derive(Debug)]
struct Decide;

impl Op for Decide {
    fn name(&self) -> &'static str {
        "decide"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let dtype = inputs[0].dtype;
        match inputs.len() == 7 && matches!(dtype, DType::F32 | DType::F64) {
            true => Ok(vec![TensorType::new(dtype, &[FACTORS as u32]), TensorType::new(dtype, &[1])]),
            false => refuse(
                "decide",
                "takes sums of squares in f32 or f64, settings, two numbers and three counters",
                inputs,
            ),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[4, 5, 6]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let kernel = match at.inputs[0].ty.dtype {
            DType::F64 => &DecideKernel::<f64>::KERNEL,
            _ => &DecideKernel::<f32>::KERNEL,
        };
        let mut args: Vec<LaunchArg> = at.inputs[..4].iter().map(|input| input.read()).collect();
        args.extend(at.inputs[4..].iter().chain(at.outputs).map(|written| written.write()));
        args.push(LaunchArg::U32(at.inputs[0].ty.shape.last()));
        at.launch(kernel, Grid { blocks: [1, 1, 1], threads: 256, shared_bytes: 0 }, args);
        Ok(())
    }
}

struct DecideKernel<F>(std::marker::PhantomData<F>);

impl<F: Float> DecideKernel<F> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(F, "decide_update"),
        source: on_cuda::<F>(&SOURCE),
        params: &[
            Param::In(<F as Element>::DTYPE),
            Param::In(DType::F64),
            Param::In(<F as Element>::DTYPE),
            Param::In(<F as Element>::DTYPE),
            Param::Out(DType::U32),
            Param::Out(DType::U32),
            Param::Out(DType::U32),
            Param::Out(<F as Element>::DTYPE),
            Param::Out(<F as Element>::DTYPE),
            Param::U32,
        ],
        host: &host::<F>,
    };
}

fn host<F: Float>(args: &mut HostArgs<'_>) {
    let pieces = args.u32(9) as usize;
    let squared: f64 = args.read::<F>(0)[..pieces].iter().map(|sum| sum.to_f64()).sum();
    let [lr, average_decay] = [2, 3].map(|i| args.read::<F>(i)[0].to_f64());
    let [updates, skipped, in_a_row] = [4, 5, 6].map(|i| &mut args.write::<u32>(i)[0]);
    let proceeds = squared.is_finite();
    *updates = updates.saturating_add(u32::from(proceeds));
    *skipped = skipped.saturating_add(u32::from(!proceeds));
    *in_a_row = if proceeds { 0 } else { in_a_row.saturating_add(1) };
    let norm = squared.sqrt();
    let factors = factors(args.read::<f64>(1), *updates, norm, lr, average_decay);
    let flag = f64::from(u8::from(proceeds));
    let block = [flag].into_iter().chain(factors);
    args.write::<F>(7).iter_mut().zip(block).for_each(|(out, factor)| *out = F::of(factor));
    args.write::<F>(8)[0] = F::of(norm);
}

/// Everything of [`Factors`] behind the flag. `updates` counts the one that is being made.
fn factors(settings: &[f64], updates: u32, norm: f64, lr: f64, average_decay: f64) -> [f64; FACTORS - 1] {
    let [beta1, beta2, epsilon, weight_decay, clip] = [0, 1, 2, 3, 4].map(|i| settings[i]);
    let before = f64::from(updates) - 1.0;
    let shorten = if norm > clip { clip / norm } else { 1.0 };
    let average = average_decay.min(before / (AVERAGE_WARM_UP + before));
    let root_scale = 1.0 / (1.0 - power(beta2, updates)).sqrt();
    let step = lr / (1.0 - power(beta1, updates));
    [shorten, beta1, 1.0 - beta1, beta2, 1.0 - beta2, step, root_scale, epsilon, lr * weight_decay, average]
}

/// `base` to the power of `n` by squaring: the same bits wherever it is compiled, which `powi` does not promise.
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
    /// Turns sums of squares into the numbers of one update, and counts it or the lack of it.
    pub(super) fn decide(
        &mut self,
        spec: &UpdateSpec,
        squares: Value,
        [lr, average_decay]: [Value; 2],
        counters: &[Value],
    ) -> Result<Decided, EngineError> {
        let clip = spec.clip.unwrap_or(f64::INFINITY);
        let settings = self.constant(&[5], &[spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay, clip]);
        let mut inputs = vec![squares, settings, lr, average_decay];
        inputs.extend(counters);
        let outputs = self.push_many(Decide, &inputs)?;
        Ok(Decided { factors: outputs[0], norm: outputs[1] })
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
    fn a_gradient_is_shortened_only_when_it_is_too_long() {
        let shorten = |norm: f64, clip: f64| factors(&[0.9, 0.98, 1e-8, 0.0, clip], 1, norm, 1e-3, 0.0)[0];
        for (norm, clip, expected) in
            [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1e30, f64::INFINITY, 1.0)]
        {
            assert_eq!(shorten(norm, clip), expected, "norm {norm}, clip {clip}");
        }
    }
}
