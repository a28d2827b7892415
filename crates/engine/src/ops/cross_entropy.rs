//! Cross-entropy of logits against whole-number targets, summed over filled frames.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frame_loss::{check_rows, combine, pieces};
use super::frames::{RowPart, frames_of_a_piece, row_parts};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

/// Its kernels.
pub(super) static SOURCE: Source = Source {
    file: "engine/cross_entropy.cu",
    text: concat!(include_str!("filled.cuh"), include_str!("cross_entropy.cu")),
};

/// Inputs: logits, targets, row starts, lengths. Outputs: the sum, and ln Σ e^logit of every frame for the way back.
#[derive(Debug)]
struct CrossEntropy(Rows);

/// Inputs: those of the loss, ln Σ e^logit, and the gradient of the sum.
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
        let wide = accumulator(logits.dtype);
        Ok(vec![TensorType::new(wide, &[1]), TensorType::new(wide, &[logits.shape.rows()])])
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
        vec![u64::from(pieces(&inputs[0])) * outputs[0].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (logits, sum, log_sums) = (at.inputs[0], at.outputs[0], at.outputs[1]);
        if logits.ty.shape.elements() == 0 {
            at.clear(sum);
            return Ok(());
        }
        let pieces = pieces(&logits.ty);
        let partial = Tensor { ty: TensorType::new(sum.ty.dtype, &[pieces]), ..at.scratch[0] };
        let kernel = for_real!("cross_entropy", logits.ty.dtype, T => &EntropyKernel::<T>::FORWARD);
        let grid = Grid { blocks: [pieces, 1, 1], threads: 512, shared_bytes: 0 };
        let mut args = vec![partial.write(), log_sums.write()];
        args.extend(arguments(&at.inputs[..4]));
        at.launch(kernel, grid, args);
        combine(at, partial, sum)
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
        let logits = at.inputs[0];
        if logits.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("cross_entropy", logits.ty.dtype, T => &EntropyKernel::<T>::BACKWARD);
        let mut args = vec![at.outputs[0].write(), at.inputs[4].read(), at.inputs[5].read()];
        args.extend(arguments(&at.inputs[..4]));
        at.launch(kernel, Grid::cover(u64::from(logits.ty.shape.rows()) * 32, 256), args);
        Ok(())
    }
}

/// Logits, targets, row starts, lengths, rows, classes.
fn arguments(inputs: &[Tensor]) -> impl Iterator<Item = LaunchArg> + '_ {
    let (rows, classes) = (inputs[3].ty.shape.last(), inputs[0].ty.shape.last());
    inputs.iter().map(Tensor::read).chain([LaunchArg::U32(rows), LaunchArg::U32(classes)])
}

struct EntropyKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> EntropyKernel<T> {
    const ACC: DType = <T::Acc as Element>::DTYPE;

    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "cross_entropy"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::Out(Self::ACC),
            Param::Out(Self::ACC),
            Param::In(T::DTYPE),
            Param::In(DType::I32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        host: &forward::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "cross_entropy_backward"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::Out(T::DTYPE),
            Param::In(Self::ACC),
            Param::In(Self::ACC),
            Param::In(T::DTYPE),
            Param::In(DType::I32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        host: &backward::<T>,
    };
}

/// What both ways read.
struct Data<'a, T> {
    logits: &'a [T],
    targets: &'a [i32],
    starts: &'a [u32],
    lengths: &'a [i32],
    classes: usize,
}

impl<'a, T: Real> Data<'a, T> {
    /// From argument `first` on.
    fn of(args: &HostArgs<'a>, first: usize) -> Data<'a, T> {
        Data {
            logits: args.read(first),
            targets: args.read(first + 1),
            starts: args.read(first + 2),
            lengths: args.read(first + 3),
            classes: args.u32(first + 5) as usize,
        }
    }

    fn logits_of(&self, frame: usize) -> &'a [T] {
        &self.logits[frame * self.classes..(frame + 1) * self.classes]
    }

    /// The class of a frame that counts; none for padding and for targets that are no class.
    fn class_of(&self, frame: usize, part: &RowPart) -> Option<usize> {
        let filled = part.filled(self.lengths[part.row]).contains(&frame);
        usize::try_from(self.targets[frame]).ok().filter(|&class| filled && class < self.classes)
    }
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let data = Data::<T>::of(args, 2);
    let workers = args.workers();
    let (partial, log_sums) = (args.write::<T::Acc>(0), args.write::<T::Acc>(1));
    let of_a_piece = frames_of_a_piece(2 * data.classes);
    workers.each_pair((partial, 1), (log_sums, of_a_piece), |piece, sum, log_sums| {
        let first = piece * of_a_piece;
        sum[0] = T::Acc::zero();
        for part in row_parts(data.starts, first..first + log_sums.len()) {
            for frame in part.frames.clone() {
                let (mut log_sum, mut term) = (T::Acc::zero(), T::Acc::zero());
                if let Some(class) = data.class_of(frame, &part) {
                    let logits = data.logits_of(frame);
                    log_sum = log_sum_exp(logits);
                    term = log_sum - logits[class].load();
                }
                log_sums[frame - first] = log_sum;
                sum[0] += term;
            }
        }
    });
}

/// ln Σ e^x, in eight lanes that are added in order; nothing overflows.
fn log_sum_exp<T: Real>(x: &[T]) -> T::Acc {
    let (blocks, largest) = (x.chunks_exact(8), largest_of(x));
    let mut lanes = [T::Acc::zero(); 8];
    let rest: T::Acc = blocks.remainder().iter().map(|x| (x.load() - largest).exp()).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += (x.load() - largest).exp());
    }
    largest + (lanes.into_iter().sum::<T::Acc>() + rest).ln()
}

/// The largest number of a slice. What is not a number is passed over here, and met in the sum.
fn largest_of<T: Real>(x: &[T]) -> T::Acc {
    let mut lanes = [T::Acc::of(f64::NEG_INFINITY); 8];
    let blocks = x.chunks_exact(8);
    blocks.remainder().iter().for_each(|x| lanes[0] = x.load().max(lanes[0]));
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane = x.load().max(*lane));
    }
    lanes.into_iter().fold(lanes[0], Float::max)
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let (log_sums, gradient) = (args.read::<T::Acc>(1), args.read::<T::Acc>(2)[0]);
    let data = Data::<T>::of(args, 3);
    let workers = args.workers();
    let (classes, of_a_piece) = (data.classes, frames_of_a_piece(2 * data.classes));
    workers.each_chunk(args.write::<T>(0), of_a_piece * classes, |piece, out| {
        let first = piece * of_a_piece;
        for part in row_parts(data.starts, first..first + out.len() / classes) {
            for frame in part.frames.clone() {
                let out = &mut out[(frame - first) * classes..(frame - first + 1) * classes];
                match data.class_of(frame, &part) {
                    None => out.fill(T::store(T::Acc::zero())),
                    Some(class) => softmax_less_one(data.logits_of(frame), log_sums[frame], class, gradient, out),
                }
            }
        }
    });
}

/// The probabilities, less one at `class`, times the gradient.
fn softmax_less_one<T: Real>(logits: &[T], log_sum: T::Acc, class: usize, gradient: T::Acc, out: &mut [T]) {
    for (out, x) in out.iter_mut().zip(logits) {
        *out = T::store(gradient * (x.load() - log_sum).exp());
    }
    out[class] = T::store(gradient * ((logits[class].load() - log_sum).exp() - T::Acc::of(1.0)));
}

impl Graph {
    /// `weight · Σ` of the cross-entropy of `logits` `[frames, classes]` against `targets` I32 `[frames]` over the filled
    /// frames, one number in the wide element type. A frame whose target is no class counts nothing.
    ///
    /// Padding adds nothing and gets no gradient, whatever is in it. One number per frame is kept for the way back.
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
        // Now and then one that is no class: below, and past the last.
        (0..910).map(|i| (i * 5) % (classes + 2) - 1).collect()
    }

    fn build(g: &mut Graph, x: &[Value]) -> Result<Value, EngineError> {
        let weight = g.number(0.25);
        g.cross_entropy(x[0], x[1], &Rows::new(&ROWS), x[2], weight)
    }

    #[test]
    fn gradients() {
        for classes in [1_u32, 6, 37] {
            let check = GradientCheck::new().input(&[910, classes]).whole(&[910], &targets(classes as i32));
            check_gradients(check.whole(&[4], &LENGTHS), build);
        }
    }

    #[test]
    fn the_value_is_that_of_a_plain_loop_and_padding_does_not_count() {
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
            let check = GradientCheck::new().given(&[910, 37], logits).whole(&[910], &targets);
            run(check.whole(&[4], &LENGTHS), build)[0]
        };
        let value = value_of(&logits);
        assert!((value - expected).abs() < 1e-9 * expected, "{value} {expected}");
        let mut other = logits.clone();
        other[2 * 37..3 * 37].fill(f64::NAN);
        other[902 * 37..].fill(f64::INFINITY);
        assert_eq!(value_of(&other).to_bits(), value.to_bits(), "padding counts");
    }

    #[test]
    fn classes_of_almost_no_probability_get_no_gradient() {
        let logits: Vec<f64> = (0..400).map(|i| -0.3 * f64::from(i)).collect();
        check_no_subnormals(
            GradientCheck::new().given(&[1, 400], &logits).whole(&[1], &[3]).whole(&[1], &[1]),
            |g, x| {
                let weight = g.number(0.25);
                g.cross_entropy(x[0], x[1], &Rows::new(&[1]), x[2], weight)
            },
        );
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert_eq!(log_sum_exp(&[1e30_f32, 0.0]), 1e30);
        assert!((log_sum_exp(&[-5e4_f64; 9]) - (9.0_f64.ln() - 5e4)).abs() < 1e-9);
    }

    #[test]
    fn what_is_wrong_is_named() {
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
