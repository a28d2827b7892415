//! AdamW (Loshchilov and Hutter 2019), the moving average of the parameters and their bf16 copy: one pass over the optimizer
//! state.
//!
//! The pass is memory bound: with a moving average it reads five numbers per parameter and writes four.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Workers, kernel_args};

use super::SOURCE;
use super::update_factors::Factors;
use crate::error::EngineError;
use crate::graph::{Graph, ParameterSpan, Value};
use crate::lower::Lower;
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;

/// Parameters of a chunk: five spans of it fit in the L2 cache.
const CHUNK: usize = 16 * 1024;
/// Parameters that are updated together, so that loops vectorise.
const LANES: usize = 16;

/// Reads the factors and the gradients. Updates the parameters, both moments, and the moving average and the bf16 copy if
/// there are any.
#[derive(Debug)]
struct AdamW {
    average: bool,
    compute: bool,
    decaying_elements: u64,
}

impl Op for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (factors, spans) = (inputs[0], &inputs[1..]);
        let (state, copy) = spans.split_at(spans.len() - usize::from(self.compute));
        let alike = state.iter().all(|span| *span == state[0] && span.dtype == factors.dtype);
        let copies = copy.iter().all(|copy| *copy == state[0].of(DType::BF16) && factors.dtype == DType::F32);
        let complete = matches!(factors.dtype, DType::F32 | DType::F64) && state.len() == 4 + usize::from(self.average);
        match alike && copies && complete {
            true => Ok(Vec::new()),
            false => refuse("adamw", "takes factors, and spans of one length in their element type", inputs),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        match (self.average, self.compute) {
            (false, false) => &[2, 3, 4],
            (true, true) => &[2, 3, 4, 5, 6],
            _ => &[2, 3, 4, 5],
        }
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[factors, gradients, parameters, exp_avg, exp_avg_sq, ref more @ ..] = at.inputs else {
            unreachable!("adamw takes factors and at least four spans")
        };
        let (n, decaying) = (gradients.ty.shape.elements(), self.decaying_elements);
        let (in_f64, grid) = (factors.ty.dtype == DType::F64, Grid::cover(n.div_ceil(4), 256));
        match (self.average, self.compute) {
            (false, false) => {
                let kernel = if in_f64 { &Kernels::<f64>::PLAIN } else { &Kernels::<f32>::PLAIN };
                let args = AdamWArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, n, decaying };
                at.launch(kernel, grid, args);
            }
            (true, false) => {
                let kernel = if in_f64 { &Kernels::<f64>::AVERAGE } else { &Kernels::<f32>::AVERAGE };
                let average = more[0];
                let args =
                    AdamWAverageArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, average, n, decaying };
                at.launch(kernel, grid, args);
            }
            (false, true) => {
                let copy = more[0];
                let args = AdamWComputeArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, copy, n, decaying };
                at.launch(&COMPUTE, grid, args);
            }
            (true, true) => {
                let (average, copy) = (more[0], more[1]);
                let args = AdamWAverageComputeArgs {
                    factors,
                    gradients,
                    parameters,
                    exp_avg,
                    exp_avg_sq,
                    average,
                    copy,
                    n,
                    decaying,
                };
                at.launch(&AVERAGE_COMPUTE, grid, args);
            }
        }
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `adamw`. The first `decaying` parameters have weight decay.
    struct AdamWArgs<F: Float> {
        factors: in F,
        gradients: in F,
        parameters: out F,
        exp_avg: out F,
        exp_avg_sq: out F,
        n: u64,
        decaying: u64,
    }
}

kernel_args! {
    /// Arguments of `adamw_average`.
    struct AdamWAverageArgs<F: Float> {
        factors: in F,
        gradients: in F,
        parameters: out F,
        exp_avg: out F,
        exp_avg_sq: out F,
        average: out F,
        n: u64,
        decaying: u64,
    }
}

kernel_args! {
    /// Arguments of `adamw_compute`.
    struct AdamWComputeArgs {
        factors: in f32,
        gradients: in f32,
        parameters: out f32,
        exp_avg: out f32,
        exp_avg_sq: out f32,
        copy: out bf16,
        n: u64,
        decaying: u64,
    }
}

kernel_args! {
    /// Arguments of `adamw_average_compute`.
    struct AdamWAverageComputeArgs {
        factors: in f32,
        gradients: in f32,
        parameters: out f32,
        exp_avg: out f32,
        exp_avg_sq: out f32,
        average: out f32,
        copy: out bf16,
        n: u64,
        decaying: u64,
    }
}

struct Kernels<F>(std::marker::PhantomData<F>);

impl<F: Float> Kernels<F> {
    const PLAIN: Kernel = Kernel {
        name: named_for!(F, "adamw"),
        source: on_cuda::<F>(&SOURCE),
        params: AdamWArgs::params::<F>(),
        host: &|args: &mut HostArgs<'_>| {
            let AdamWArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, n, decaying } =
                AdamWArgs::host::<F>(args);
            let (average, copy) = (&mut [][..], &mut [][..]);
            let state = State { gradients, parameters, exp_avg, exp_avg_sq, average, copy }.split(n as usize).0;
            host::<F, false, false>(args.workers(), Factors::read(factors), state, decaying as usize);
        },
    };

    const AVERAGE: Kernel = Kernel {
        name: named_for!(F, "adamw_average"),
        source: on_cuda::<F>(&SOURCE),
        params: AdamWAverageArgs::params::<F>(),
        host: &|args: &mut HostArgs<'_>| {
            let AdamWAverageArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, average, n, decaying } =
                AdamWAverageArgs::host::<F>(args);
            let copy = &mut [][..];
            let state = State { gradients, parameters, exp_avg, exp_avg_sq, average, copy }.split(n as usize).0;
            host::<F, true, false>(args.workers(), Factors::read(factors), state, decaying as usize);
        },
    };
}

static COMPUTE: Kernel = Kernel {
    name: "adamw_compute",
    source: &SOURCE,
    params: AdamWComputeArgs::params(),
    host: &|args: &mut HostArgs<'_>| {
        let AdamWComputeArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, copy, n, decaying } =
            AdamWComputeArgs::host(args);
        let average = &mut [][..];
        let state = State { gradients, parameters, exp_avg, exp_avg_sq, average, copy }.split(n as usize).0;
        host::<f32, false, true>(args.workers(), Factors::read(factors), state, decaying as usize);
    },
};

static AVERAGE_COMPUTE: Kernel = Kernel {
    name: "adamw_average_compute",
    source: &SOURCE,
    params: AdamWAverageComputeArgs::params(),
    host: &|args: &mut HostArgs<'_>| {
        let AdamWAverageComputeArgs { factors, gradients, parameters, exp_avg, exp_avg_sq, average, copy, n, decaying } =
            AdamWAverageComputeArgs::host(args);
        let state = State { gradients, parameters, exp_avg, exp_avg_sq, average, copy }.split(n as usize).0;
        host::<f32, true, true>(args.workers(), Factors::read(factors), state, decaying as usize);
    },
};

pub(super) static KERNELS: &[&Kernel] = &[&Kernels::<f32>::PLAIN, &Kernels::<f32>::AVERAGE, &COMPUTE, &AVERAGE_COMPUTE];

/// The optimizer state of a range of parameters. `average` and `copy` are empty if there are none.
struct State<'a, F> {
    gradients: &'a [F],
    parameters: &'a mut [F],
    exp_avg: &'a mut [F],
    exp_avg_sq: &'a mut [F],
    average: &'a mut [F],
    copy: &'a mut [bf16],
}

impl<'a, F: Float> State<'a, F> {
    /// The first `at` parameters, and the rest.
    fn split(self, at: usize) -> (State<'a, F>, State<'a, F>) {
        let (gradients, more_gradients) = self.gradients.split_at(at);
        let (parameters, more_parameters) = self.parameters.split_at_mut(at);
        let (exp_avg, more_exp_avg) = self.exp_avg.split_at_mut(at);
        let (exp_avg_sq, more_exp_avg_sq) = self.exp_avg_sq.split_at_mut(at);
        let (average, more_average) = self.average.split_at_mut(at.min(self.average.len()));
        let (copy, more_copy) = self.copy.split_at_mut(at.min(self.copy.len()));
        let rest = State {
            gradients: more_gradients,
            parameters: more_parameters,
            exp_avg: more_exp_avg,
            exp_avg_sq: more_exp_avg_sq,
            average: more_average,
            copy: more_copy,
        };
        (State { gradients, parameters, exp_avg, exp_avg_sq, average, copy }, rest)
    }

    /// Chunks for the worker threads. Those after the first `decaying` parameters have factors without weight decay.
    fn chunks(self, factors: Factors<F>, decaying: usize) -> Vec<(Factors<F>, State<'a, F>)> {
        let (decayed, others) = self.split(decaying);
        let mut chunks = Vec::new();
        for (factors, mut rest) in [(factors, decayed), (Factors { decay: F::zero(), ..factors }, others)] {
            while !rest.parameters.is_empty() {
                let at = CHUNK.min(rest.parameters.len());
                let (chunk, more) = rest.split(at);
                chunks.push((factors, chunk));
                rest = more;
            }
        }
        chunks
    }
}

fn host<F: Float, const AVERAGE: bool, const COMPUTE: bool>(
    workers: &Workers,
    factors: Factors<F>,
    state: State<'_, F>,
    decaying: usize,
) {
    workers.each_part(state.chunks(factors, decaying), |_, (factors, state)| {
        if factors.proceeds {
            update::<F, AVERAGE, COMPUTE>(&factors, state);
        }
    });
}

/// Updates one chunk, [`LANES`] parameters at a time: load, compute, store. One loop over six slices was not vectorised once
/// the crate was compiled in several codegen units.
fn update<F: Float, const AVERAGE: bool, const COMPUTE: bool>(factors: &Factors<F>, state: State<'_, F>) {
    let (gradients, parameters) = (state.gradients.as_chunks().0, blocks(state.parameters));
    let (exp_avg, exp_avg_sq) = (blocks(state.exp_avg), blocks(state.exp_avg_sq));
    let (average, copy) = (blocks(state.average), blocks(state.copy));
    for i in 0..gradients.len() {
        let next = step(factors, gradients[i], &mut parameters[i], &mut exp_avg[i], &mut exp_avg_sq[i]);
        if AVERAGE {
            average[i] = moving_average(factors.ema_decay, average[i], next);
        }
        if COMPUTE {
            copy[i] = next.map(|x| bf16::store(to_f32(x)));
        }
    }
}

/// The layout of parameters makes spans, the part that decays and chunks multiples of [`LANES`].
fn blocks<T>(x: &mut [T]) -> &mut [[T; LANES]] {
    let (blocks, rest) = x.as_chunks_mut();
    assert!(rest.is_empty(), "a chunk of parameters that is not a multiple of {LANES}");
    blocks
}

/// One AdamW step of [`LANES`] parameters. Returns the new parameters.
///
/// Subnormals are flushed: after the gradients of a parameter become zero, its first moment would be subnormal about 800
/// updates later, and rounding would keep it so.
#[inline(always)]
fn step<F: Float>(
    factors: &Factors<F>,
    gradient: [F; LANES],
    parameter: &mut [F; LANES],
    exp_avg: &mut [F; LANES],
    exp_avg_sq: &mut [F; LANES],
) -> [F; LANES] {
    let &Factors { clip_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, .. } = factors;
    let &Factors { step_size, inv_sqrt_bias2, epsilon, decay, .. } = factors;
    let (mut theta, mut m, mut v) = (*parameter, *exp_avg, *exp_avg_sq);
    for lane in 0..LANES {
        let gradient = gradient[lane] * clip_scale;
        m[lane] = (beta1 * m[lane] + one_minus_beta1 * gradient).flushed();
        v[lane] = (beta2 * v[lane] + one_minus_beta2 * (gradient * gradient)).flushed();
        let denom = v[lane].sqrt() * inv_sqrt_bias2 + epsilon;
        theta[lane] = (theta[lane] - (decay * theta[lane] + step_size * m[lane] / denom)).flushed();
    }
    (*parameter, *exp_avg, *exp_avg_sq) = (theta, m, v);
    theta
}

/// One step of the exponential moving average.
#[inline(always)]
fn moving_average<F: Float>(decay: F, average: [F; LANES], next: [F; LANES]) -> [F; LANES] {
    let (one_minus_decay, mut average) = (F::of(1.0) - decay, average);
    for lane in 0..LANES {
        average[lane] = (decay * average[lane] + one_minus_decay * next[lane]).flushed();
    }
    average
}

/// The number as f32. It is one already if there is a bf16 copy.
#[inline(always)]
fn to_f32<F: Float>(x: F) -> f32 {
    x.to_f64() as f32
}

impl Graph {
    /// One AdamW step over all parameters, with the factors of this update.
    pub(super) fn adamw(&mut self, factors: Value, average: bool) -> Result<(), EngineError> {
        let compute = self.precision() == DType::BF16;
        let mut spans = vec![
            ParameterSpan::Gradients,
            ParameterSpan::Parameters,
            ParameterSpan::FirstMoment,
            ParameterSpan::SecondMoment,
        ];
        spans.extend(average.then_some(ParameterSpan::Average));
        spans.extend(compute.then_some(ParameterSpan::Compute));
        let mut inputs = vec![factors];
        inputs.extend(spans.into_iter().map(|span| self.span(span)));
        let op = AdamW { average, compute, decaying_elements: self.parameters().decaying_elements() };
        self.push_many(op, &inputs).map(drop)
    }
}
