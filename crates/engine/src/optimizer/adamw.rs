//! AdamW, the moving average and the copy in bf16: one pass over everything that is kept for a parameter.
//!
//! A pass is bound by memory: with an average it reads five numbers per parameter and writes four.

use half::bf16;
use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param};

use super::SOURCE;
use super::decide::Factors;
use crate::error::EngineError;
use crate::graph::{Graph, ParameterSpan, Value};
use crate::lower::{LaunchArg, Lower};
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;

/// Elements of a piece that one thread works on: five spans of it fit the second-level cache.
const PIECE: usize = 16 * 1024;
/// Elements that are worked on side by side.
const LANES: usize = 16;

/// Reads the factors and the gradients, changes parameters and both moments, then the average and the copy where there are such.
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
        let narrow = usize::from(self.compute);
        let (wide, copy) = spans.split_at(spans.len() - narrow);
        let alike = wide.iter().all(|span| *span == wide[0] && span.dtype == factors.dtype);
        let copies = copy.iter().all(|copy| *copy == wide[0].of(DType::BF16) && factors.dtype == DType::F32);
        let whole = matches!(factors.dtype, DType::F32 | DType::F64) && wide.len() == 4 + usize::from(self.average);
        match alike && copies && whole {
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
        let elements = at.inputs[1].ty.shape.elements();
        let wide = at.inputs[0].ty.dtype;
        let kernel = match (wide, self.average, self.compute) {
            (DType::F64, false, _) => &Passes::<f64>::PLAIN,
            (DType::F64, true, _) => &Passes::<f64>::AVERAGING,
            (_, false, false) => &Passes::<f32>::PLAIN,
            (_, true, false) => &Passes::<f32>::AVERAGING,
            (_, false, true) => &COPYING,
            (_, true, true) => &AVERAGING_COPYING,
        };
        let mut args = vec![at.inputs[0].read(), at.inputs[1].read()];
        args.extend(at.inputs[2..].iter().map(|span| span.write()));
        args.extend([LaunchArg::U64(elements), LaunchArg::U64(self.decaying_elements)]);
        at.launch(kernel, Grid::cover(elements.div_ceil(4), 256), args);
        Ok(())
    }
}

struct Passes<F>(std::marker::PhantomData<F>);

impl<F: Float> Passes<F> {
    const ACC: DType = <F as Element>::DTYPE;

    const PLAIN: Kernel = Kernel {
        name: named_for!(F, "adamw"),
        source: on_cuda::<F>(&SOURCE),
        params: &[
            Param::In(Self::ACC),
            Param::In(Self::ACC),
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::U64,
            Param::U64,
        ],
        host: &host::<F, false, false>,
    };

    const AVERAGING: Kernel = Kernel {
        name: named_for!(F, "adamw_average"),
        source: on_cuda::<F>(&SOURCE),
        params: &[
            Param::In(Self::ACC),
            Param::In(Self::ACC),
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::U64,
            Param::U64,
        ],
        host: &host::<F, true, false>,
    };
}

static COPYING: Kernel = Kernel {
    name: "adamw_compute",
    source: &SOURCE,
    params: &[
        Param::In(DType::F32),
        Param::In(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::BF16),
        Param::U64,
        Param::U64,
    ],
    host: &host::<f32, false, true>,
};

static AVERAGING_COPYING: Kernel = Kernel {
    name: "adamw_average_compute",
    source: &SOURCE,
    params: &[
        Param::In(DType::F32),
        Param::In(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::F32),
        Param::Out(DType::BF16),
        Param::U64,
        Param::U64,
    ],
    host: &host::<f32, true, true>,
};

/// What is kept for a run of parameters. What is not kept is empty.
struct Kept<'a, F> {
    gradients: &'a [F],
    parameters: &'a mut [F],
    first: &'a mut [F],
    second: &'a mut [F],
    average: &'a mut [F],
    compute: &'a mut [bf16],
}

impl<'a, F: Float> Kept<'a, F> {
    /// The first `at` of them, and the rest.
    fn split(self, at: usize) -> (Kept<'a, F>, Kept<'a, F>) {
        let (gradients, more_gradients) = self.gradients.split_at(at);
        let (parameters, more_parameters) = self.parameters.split_at_mut(at);
        let (first, more_first) = self.first.split_at_mut(at);
        let (second, more_second) = self.second.split_at_mut(at);
        let (average, more_average) = self.average.split_at_mut(at.min(self.average.len()));
        let (compute, more_compute) = self.compute.split_at_mut(at.min(self.compute.len()));
        let rest = Kept {
            gradients: more_gradients,
            parameters: more_parameters,
            first: more_first,
            second: more_second,
            average: more_average,
            compute: more_compute,
        };
        (Kept { gradients, parameters, first, second, average, compute }, rest)
    }

    /// Pieces for threads, each with the factors of its half: parameters in the second one do not decay.
    fn pieces(self, factors: Factors<F>, decaying: usize) -> Vec<(Factors<F>, Kept<'a, F>)> {
        let (decays, stays) = self.split(decaying);
        let mut pieces = Vec::new();
        for (factors, mut rest) in [(factors, decays), (Factors { decay: F::zero(), ..factors }, stays)] {
            while !rest.parameters.is_empty() {
                let (piece, more) = {
                    let at = PIECE.min(rest.parameters.len());
                    rest.split(at)
                };
                pieces.push((factors, piece));
                rest = more;
            }
        }
        pieces
    }
}

fn host<F: Float, const AVERAGE: bool, const COMPUTE: bool>(args: &mut HostArgs<'_>) {
    let behind = 5 + usize::from(AVERAGE) + usize::from(COMPUTE);
    let (elements, decaying) = (args.u64(behind) as usize, args.u64(behind + 1) as usize);
    let factors = Factors::read(args.read::<F>(0));
    let gradients = &args.read::<F>(1)[..elements];
    let [parameters, first, second] = [2, 3, 4].map(|i| &mut args.write::<F>(i)[..elements]);
    let average = if AVERAGE { &mut args.write::<F>(5)[..elements] } else { &mut [] };
    let compute = if COMPUTE { &mut args.write::<bf16>(behind - 1)[..elements] } else { &mut [] };
    let kept = Kept { gradients, parameters, first, second, average, compute };
    args.workers().each_part(kept.pieces(factors, decaying), |_, (factors, kept)| {
        if factors.proceeds {
            update::<F, AVERAGE, COMPUTE>(&factors, kept);
        }
    });
}

/// The maths, a block of lanes at a time: loaded, computed, stored. Written so because one loop over six slices was left
/// scalar by the compiler as soon as the crate was cut into several units.
fn update<F: Float, const AVERAGE: bool, const COMPUTE: bool>(factors: &Factors<F>, kept: Kept<'_, F>) {
    let (gradients, parameters) = (kept.gradients.as_chunks().0, blocks(kept.parameters));
    let (first, second) = (blocks(kept.first), blocks(kept.second));
    let (average, compute) = (blocks(kept.average), blocks(kept.compute));
    for i in 0..gradients.len() {
        let next = step(factors, gradients[i], &mut parameters[i], &mut first[i], &mut second[i]);
        if AVERAGE {
            average[i] = mixed(factors.average, average[i], next);
        }
        if COMPUTE {
            compute[i] = next.map(|x| bf16::store(narrow(x)));
        }
    }
}

/// Spans are multiples of the lanes by the layout of parameters, and so are pieces and the part that decays.
fn blocks<T>(x: &mut [T]) -> &mut [[T; LANES]] {
    let (blocks, rest) = x.as_chunks_mut();
    assert!(rest.is_empty(), "a piece of a span that is not whole blocks");
    blocks
}

/// AdamW on one block of parameters; says what they are now. Of a parameter whose gradients have stopped, the first moment
/// would be subnormal some 800 updates later, and stay so: rounding keeps what is left of it alive.
#[inline(always)]
fn step<F: Float>(
    factors: &Factors<F>,
    gradient: [F; LANES],
    parameter: &mut [F; LANES],
    first: &mut [F; LANES],
    second: &mut [F; LANES],
) -> [F; LANES] {
    let &Factors { shorten, first: [beta1, new1], second: [beta2, new2], .. } = factors;
    let &Factors { step, root_scale, epsilon, decay, .. } = factors;
    let (mut next, mut mean, mut square) = (*parameter, *first, *second);
    for lane in 0..LANES {
        let gradient = gradient[lane] * shorten;
        mean[lane] = (beta1 * mean[lane] + new1 * gradient).flushed();
        square[lane] = (beta2 * square[lane] + new2 * (gradient * gradient)).flushed();
        let size = square[lane].sqrt() * root_scale + epsilon;
        next[lane] = (next[lane] - (decay * next[lane] + step * mean[lane] / size)).flushed();
    }
    (*parameter, *first, *second) = (next, mean, square);
    next
}

/// The average with its new member.
#[inline(always)]
fn mixed<F: Float>(keep: F, average: [F; LANES], next: [F; LANES]) -> [F; LANES] {
    let (take, mut mixed) = (F::of(1.0) - keep, average);
    for lane in 0..LANES {
        mixed[lane] = (keep * mixed[lane] + take * next[lane]).flushed();
    }
    mixed
}

/// The number as f32; it is one wherever there is a copy in bf16.
#[inline(always)]
fn narrow<F: Float>(x: F) -> f32 {
    x.to_f64() as f32
}

impl Graph {
    /// One pass over the spans with the factors of this update.
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
