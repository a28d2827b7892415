//! Cross-entropy of logits with class indices, summed over valid frames.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frame_loss::{check_rows, num_chunks};
use super::frames::{RowPart, frames_per_chunk, row_parts};
use super::reduce::combine;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/cross_entropy.cu",
    text: concat!(include_str!("valid_frames.cuh"), include_str!("cross_entropy.cu")),
};

/// Inputs: logits, targets, row starts, lengths. Outputs: the sum, and the logsumexp of every frame for the backward pass.
#[derive(Debug)]
struct CrossEntropy(Rows);

/// Inputs: those of the loss, the logsumexp, and the gradient of the sum.
#[derive(Debug)]
struct CrossEntropyBackward;

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (logits, targets) = (inputs[0], inputs[1]);
        if logits.shape.rank() != 2 || targets.dtype != DType::I32 || targets.shape.dims() != [logits.shape.rows()] {
            return refuse("cross_entropy", "takes [frames, classes] and I32[frames]", &inputs[..2]);
        }
        check_rows("cross_entropy", &self.0, logits, inputs[3])?;
        let acc = accumulator(logits.dtype);
        Ok(vec![TensorType::new(acc, &[1]), TensorType::new(acc, &[logits.shape.rows()])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let mut all = vec![None; at.inputs.len()];
        if let Some(gradient) = at.first() {
            let inputs = [at.inputs, &[at.outputs[1], gradient]].concat();
            all[0] = Some(at.graph.push(CrossEntropyBackward, &inputs)?);
        }
        Ok(all)
    }

    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(num_chunks(&inputs[0])) * outputs[0].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[logits, targets, starts, lengths], &[sum, lse]) = (at.inputs, at.outputs) else {
            unreachable!("cross_entropy has four inputs and two outputs")
        };
        if logits.ty.shape.elements() == 0 {
            at.clear(sum);
            return Ok(());
        }
        let chunks = num_chunks(&logits.ty);
        let partial = Tensor { ty: TensorType::new(sum.ty.dtype, &[chunks, 1]), ..at.scratch[0] };
        let kernel = for_real!("cross_entropy", logits.ty.dtype, T => &EntropyKernel::<T>::FORWARD);
        let (rows, classes) = (lengths.ty.shape.last(), logits.ty.shape.last());
        let grid = Grid { blocks: [chunks, 1, 1], threads: 512, shared_bytes: 0 };
        let args = CrossEntropyArgs { partial, lse, logits, targets, starts, lengths, rows, classes };
        at.launch(kernel, grid, args);
        combine(at, partial, sum, false)
    }
}

impl Op for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0]])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[logits, targets, starts, lengths, lse, gradient], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("the gradient of cross_entropy has six inputs")
        };
        if logits.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("cross_entropy", logits.ty.dtype, T => &EntropyKernel::<T>::BACKWARD);
        let (rows, classes) = (lengths.ty.shape.last(), logits.ty.shape.last());
        let args = CrossEntropyBackwardArgs { out, lse, gradient, logits, targets, starts, lengths, rows, classes };
        at.launch(kernel, Grid::cover(u64::from(logits.ty.shape.rows()) * 32, 256), args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `cross_entropy`.
    struct CrossEntropyArgs<T: Real> {
        partial: out T::Acc,
        lse: out T::Acc,
        logits: in T,
        targets: in i32,
        starts: in u32,
        lengths: in i32,
        rows: u32,
        classes: u32,
    }
}

kernel_args! {
    /// Arguments of `cross_entropy_backward`.
    struct CrossEntropyBackwardArgs<T: Real> {
        out: out T,
        lse: in T::Acc,
        gradient: in T::Acc,
        logits: in T,
        targets: in i32,
        starts: in u32,
        lengths: in i32,
        rows: u32,
        classes: u32,
    }
}

struct EntropyKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> EntropyKernel<T> {
    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "cross_entropy"),
        source: on_cuda::<T>(&SOURCE),
        params: CrossEntropyArgs::params::<T>(),
        host: &forward::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "cross_entropy_backward"),
        source: on_cuda::<T>(&SOURCE),
        params: CrossEntropyBackwardArgs::params::<T>(),
        host: &backward::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &EntropyKernel::<f32>::FORWARD,
    &EntropyKernel::<bf16>::FORWARD,
    &EntropyKernel::<f32>::BACKWARD,
    &EntropyKernel::<bf16>::BACKWARD,
];

/// The inputs of both host kernels.
struct Data<'a, T> {
    logits: &'a [T],
    targets: &'a [i32],
    lengths: &'a [i32],
    classes: usize,
}

impl<'a, T: Real> Data<'a, T> {
    fn logits_of(&self, frame: usize) -> &'a [T] {
        &self.logits[frame * self.classes..(frame + 1) * self.classes]
    }

    /// The class of a valid frame; none for padding and for targets that are no class.
    fn class_of(&self, frame: usize, part: &RowPart) -> Option<usize> {
        let is_valid = part.valid(self.lengths[part.row]).contains(&frame);
        usize::try_from(self.targets[frame]).ok().filter(|&class| is_valid && class < self.classes)
    }
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let CrossEntropyArgs { partial, lse, logits, targets, starts, lengths, classes, .. } =
        CrossEntropyArgs::host::<T>(args);
    let data = Data { logits, targets, lengths, classes: classes as usize };
    let chunk_frames = frames_per_chunk(2 * data.classes);
    args.workers().each_pair((partial, 1), (lse, chunk_frames), |chunk, sum, lse| {
        let first = chunk * chunk_frames;
        sum[0] = T::Acc::zero();
        for part in row_parts(starts, first..first + lse.len()) {
            for frame in part.frames.clone() {
                let (mut frame_lse, mut term) = (T::Acc::zero(), T::Acc::zero());
                if let Some(class) = data.class_of(frame, &part) {
                    let logits = data.logits_of(frame);
                    frame_lse = logsumexp(logits);
                    term = frame_lse - logits[class].load();
                }
                lse[frame - first] = frame_lse;
                sum[0] += term;
            }
        }
    });
}

/// ln Σ e^x, shifted by the maximum so that nothing overflows. In eight lanes that are added in order.
fn logsumexp<T: Real>(x: &[T]) -> T::Acc {
    let (blocks, max) = (x.chunks_exact(8), max_of(x));
    let mut lanes = [T::Acc::zero(); 8];
    let rest: T::Acc = blocks.remainder().iter().map(|x| (x.load() - max).exp()).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += (x.load() - max).exp());
    }
    max + (lanes.into_iter().sum::<T::Acc>() + rest).ln()
}

/// The maximum of a slice. It skips NaNs; the sum propagates them.
fn max_of<T: Real>(x: &[T]) -> T::Acc {
    let mut lanes = [T::Acc::of(f64::NEG_INFINITY); 8];
    let blocks = x.chunks_exact(8);
    blocks.remainder().iter().for_each(|x| lanes[0] = x.load().max(lanes[0]));
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane = x.load().max(*lane));
    }
    lanes.into_iter().fold(lanes[0], Float::max)
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let CrossEntropyBackwardArgs { out, lse, gradient, logits, targets, starts, lengths, classes, .. } =
        CrossEntropyBackwardArgs::host::<T>(args);
    let (classes, gradient) = (classes as usize, gradient[0]);
    let data = Data { logits, targets, lengths, classes };
    let chunk_frames = frames_per_chunk(2 * classes);
    args.workers().each_chunk(out, chunk_frames * classes, |chunk, out| {
        let first = chunk * chunk_frames;
        for part in row_parts(starts, first..first + out.len() / classes) {
            for frame in part.frames.clone() {
                let out = &mut out[(frame - first) * classes..(frame - first + 1) * classes];
                match data.class_of(frame, &part) {
                    None => out.fill(T::store(T::Acc::zero())),
                    Some(class) => softmax_minus_one_hot(data.logits_of(frame), lse[frame], class, gradient, out),
                }
            }
        }
    });
}

/// The softmax minus the one-hot `class`, times the gradient.
fn softmax_minus_one_hot<T: Real>(logits: &[T], lse: T::Acc, class: usize, gradient: T::Acc, out: &mut [T]) {
    for (out, x) in out.iter_mut().zip(logits) {
        *out = T::store(gradient * (x.load() - lse).exp());
    }
    out[class] = T::store(gradient * ((logits[class].load() - lse).exp() - T::Acc::of(1.0)));
}

impl Graph {
    /// `weight · Σ` of the cross-entropy of `logits` `[frames, classes]` with `targets` I32 `[frames]` over the valid frames,
    /// one number in the accumulator type. Frames whose target is no class are ignored.
    ///
    /// Padding adds nothing and gets no gradient, even if it holds NaNs. One number per frame is saved for the backward pass.
    pub fn cross_entropy(
        &mut self,
        logits: Value,
        targets: Value,
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        let outputs = self.push_many(CrossEntropy(rows.clone()), &[logits, targets, starts, lengths])?;
        self.weigh("cross_entropy", outputs[0], weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, check_no_subnormals, run};

    const ROWS: [u32; 4] = [3, 0, 900, 7];
    const LENGTHS: [i32; 4] = [2, 0, 899, 0];

    fn targets(classes: i32) -> Vec<i32> {
        // Some are no class: -1, and past the last.
        (0..910).map(|i| (i * 5) % (classes + 2) - 1).collect()
    }

    fn build(g: &mut Graph, x: &[Value]) -> Result<Value, EngineError> {
        let weight = g.number(0.25);
        g.cross_entropy(x[0], x[1], &Rows::new(&ROWS), x[2], weight)
    }

    #[test]
    fn gradients() {
        for classes in [1_u32, 6, 37] {
            let check = GradientCheck::new().input(&[910, classes]).integers(&[910], &targets(classes as i32));
            check_gradients(check.integers(&[4], &LENGTHS), build);
        }
    }

    #[test]
    fn the_value_is_that_of_a_plain_loop_and_padding_is_ignored() {
        let logits: Vec<f64> = (0..910 * 37).map(|i| 30.0 * f64::from(i).sin()).collect();
        let targets = targets(37);
        let mut expected = 0.0;
        for frame in (0..2).chain(3..902) {
            let row = &logits[frame * 37..(frame + 1) * 37];
            if let Some(chosen) = usize::try_from(targets[frame]).ok().and_then(|class| row.get(class)) {
                expected -= 0.25 * (chosen.exp() / row.iter().map(|x| x.exp()).sum::<f64>()).ln();
            }
        }
        let value_of = |logits: &[f64]| {
            let check = GradientCheck::new().given(&[910, 37], logits).integers(&[910], &targets);
            run(check.integers(&[4], &LENGTHS), build)[0]
        };
        let value = value_of(&logits);
        assert!((value - expected).abs() < 1e-9 * expected, "{value} {expected}");
        let mut other = logits.clone();
        other[2 * 37..3 * 37].fill(f64::NAN);
        other[902 * 37..].fill(f64::INFINITY);
        assert_eq!(value_of(&other).to_bits(), value.to_bits(), "padding is counted");
    }

    #[test]
    fn classes_of_negligible_probability_get_no_gradient() {
        let logits: Vec<f64> = (0..400).map(|i| -0.3 * f64::from(i)).collect();
        check_no_subnormals(
            GradientCheck::new().given(&[1, 400], &logits).integers(&[1], &[3]).integers(&[1], &[1]),
            |g, x| {
                let weight = g.number(0.25);
                g.cross_entropy(x[0], x[1], &Rows::new(&[1]), x[2], weight)
            },
        );
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert_eq!(logsumexp(&[1e30_f32, 0.0]), 1e30);
        assert!((logsumexp(&[-5e4_f64; 9]) - (9.0_f64.ln() - 5e4)).abs() < 1e-9);
    }

    #[test]
    fn wrong_operands_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let targets = g.input("targets", TensorType::new(DType::I32, &[5])).unwrap();
        let weight = g.number(1.0);
        let error = g.cross_entropy(x, targets, &Rows::new(&[4]), targets, weight).unwrap_err().to_string();
        assert_eq!(
            error,
            "cross_entropy: takes [frames, classes] and I32[frames]; the operands are F32[4, 3] and I32[5]"
        );
    }
}
