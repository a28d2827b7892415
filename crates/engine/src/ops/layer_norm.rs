//! Layer norm (Ba et al. 2016): every frame gets mean 0 and variance 1 over its channels, then a gain and a bias per channel.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::is_real;
use super::norm::{
    FORWARD_FRAMES, FRAMES_PER_BLOCK, FrameGradient, SIZES, backward_grid, by_size, forward_grid, named_by_size,
    normalize, size, to_acc,
};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/layer_norm.cu",
    text: concat!(
        include_str!("frames.cuh"),
        include_str!("pieces.cuh"),
        include_str!("norm.cuh"),
        include_str!("layer_norm.cu")
    ),
};

/// `(x, gain, bias)` to the result, and `[frames, 2]`: mean and rstd, saved for the backward pass.
#[derive(Debug)]
struct LayerNorm;

/// `(x, gain, saved, dy)` to `(dx, dgain, dbias)`. A fifth input, the gradient of a residual connection, is added to `dx`.
#[derive(Debug)]
struct LayerNormBackward;

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let x = inputs[0];
        if x.shape.rank() != 2 || !is_real(x.dtype) {
            return refuse("layer_norm", "takes [frames, channels] of f32, bf16 or f64", inputs);
        }
        let vector = TensorType::new(x.dtype, &[x.shape.last()]);
        if inputs[1] != vector || inputs[2] != vector {
            return refuse("layer_norm", format!("takes a gain and a bias of {vector}"), inputs);
        }
        Ok(vec![x, saved(x)])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(dy) = at.first() else { return Ok(vec![None; 3]) };
        let gradients = at.graph.push_many(LayerNormBackward, &[at.inputs[0], at.inputs[1], at.outputs[1], dy])?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let [x, gain, bias] = [at.inputs[0], at.inputs[1], at.inputs[2]];
        let (frames, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        let kernels = for_real!("layer_norm", x.ty.dtype, T => &Kernels::<T>::FORWARD);
        let size = size(x.ty.dtype, columns);
        let grid = forward_grid([frames.div_ceil(FORWARD_FRAMES).max(1), 1]);
        let numbers = [LaunchArg::U32(frames), LaunchArg::U32(columns)];
        let memory = [x.read(), gain.read(), bias.read(), at.outputs[0].write(), at.outputs[1].write()];
        at.launch(&kernels[size], grid, memory.into_iter().chain(numbers).collect());
        Ok(())
    }
}

/// The type of the saved statistics: mean and rstd of each frame of `x`.
pub(super) fn saved(x: TensorType) -> TensorType {
    TensorType::new(accumulator(x.dtype), &[x.shape.rows(), 2])
}

impl Op for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[1].of(accumulator(inputs[1].dtype));
        Ok(vec![inputs[0], gradient, gradient])
    }

    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(frame_blocks(inputs[0].shape.rows())) * 2 * outputs[1].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let x = at.inputs[0];
        let (frames, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        let blocks = frame_blocks(frames);
        let partial = TensorType::new(at.outputs[1].ty.dtype, &[blocks, 2 * columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        let kernels = for_real!("layer_norm gradient", x.ty.dtype, T => &Kernels::<T>::BACKWARD);
        let size = size(x.ty.dtype, columns);
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        let has_dresidual = args.len() > 4;
        if !has_dresidual {
            // Not read.
            args.push(x.read());
        }
        args.extend([at.outputs[0].write(), partial.write()]);
        args.extend([frames, columns, has_dresidual.into()].map(LaunchArg::U32));
        at.launch(&kernels[size], backward_grid([blocks, 1], size), args);
        let kernel = for_real!("layer_norm gradient", partial.ty.dtype, T => &Kernels::<T>::SUMS);
        let accumulate = [1, 2].map(|output| u32::from(at.adds(output)));
        let memory = [partial.read(), at.outputs[1].write(), at.outputs[2].write()];
        let numbers = [blocks, columns, accumulate[0], accumulate[1]].map(LaunchArg::U32);
        let grid = Grid { blocks: [(2 * columns).div_ceil(32).max(1), 1, 1], threads: 1024, shared_bytes: 0 };
        at.launch(kernel, grid, memory.into_iter().chain(numbers).collect());
        Ok(())
    }

    fn can_add(&self, output: usize) -> bool {
        output > 0
    }

    fn can_take_one_more(&self) -> bool {
        true
    }
}

/// Blocks of the backward pass.
fn frame_blocks(frames: u32) -> u32 {
    frames.div_ceil(FRAMES_PER_BLOCK).max(1)
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const ACC: DType = <T::Acc as Element>::DTYPE;

    const FORWARD: [Kernel; SIZES] = by_size(
        named_by_size!(T, "layer_norm"),
        on_cuda::<T>(&SOURCE),
        &[
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::Out(T::DTYPE),
            Param::Out(Self::ACC),
            Param::U32,
            Param::U32,
        ],
        &forward::<T>,
    );

    const BACKWARD: [Kernel; SIZES] = by_size(
        named_by_size!(T, "layer_norm_gradient"),
        on_cuda::<T>(&SOURCE),
        &[
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(Self::ACC),
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::Out(T::DTYPE),
            Param::Out(Self::ACC),
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        &backward::<T>,
    );

    /// dgain and dbias: the sums of the partial sums of all blocks.
    const SUMS: Kernel = Kernel {
        name: named_for!(T, "layer_norm_sums"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(T::DTYPE),
            Param::Out(T::DTYPE),
            Param::Out(T::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &sums::<T>,
    };
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let (frames, columns) = (args.u32(5) as usize, args.u32(6) as usize);
    let x = &args.read::<T>(0)[..frames * columns];
    let (gain, bias) = (to_acc(args.read::<T>(1)), to_acc(args.read::<T>(2)));
    let workers = args.workers();
    let (out, kept) = (&mut args.write::<T>(3)[..x.len()], &mut args.write::<T::Acc>(4)[..frames * 2]);
    let of_a_piece = FRAMES_PER_BLOCK as usize;
    workers.each_pair((out, of_a_piece * columns), (kept, of_a_piece * 2), |piece, out, kept| {
        let x = x[piece * of_a_piece * columns..].chunks_exact(columns);
        for ((out, x), kept) in out.chunks_exact_mut(columns).zip(x).zip(kept.as_chunks_mut::<2>().0) {
            *kept = normalize(x, (&gain, &bias), out);
        }
    });
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let (frames, columns, has_more) = (args.u32(7) as usize, args.u32(8) as usize, args.u32(9) != 0);
    let (x, gradient, more) = (args.read::<T>(0), args.read::<T>(3), args.read::<T>(4));
    let gain = to_acc(args.read::<T>(1));
    let kept = args.read::<T::Acc>(2).as_chunks::<2>().0;
    let workers = args.workers();
    let (out, sums) = (&mut args.write::<T>(5)[..frames * columns], args.write::<T::Acc>(6));
    let of_a_piece = FRAMES_PER_BLOCK as usize;
    workers.each_pair((out, of_a_piece * columns), (sums, 2 * columns), |piece, out, sums| {
        let mut frame = FrameGradient::new(&gain, sums);
        let first = piece * of_a_piece;
        let (x, g) = (x[first * columns..].chunks_exact(columns), gradient[first * columns..].chunks_exact(columns));
        let more = has_more.then(|| &more[first * columns..]);
        for (i, (((out, x), g), &kept)) in out.chunks_exact_mut(columns).zip(x).zip(g).zip(&kept[first..]).enumerate() {
            frame.add(x, kept, g, more.map(|more| &more[i * columns..][..columns]), out);
        }
    });
}

/// A few thousand sums: not worth a second thread.
fn sums<T: Real>(args: &mut HostArgs<'_>) {
    let (pieces, columns) = (args.u32(3) as usize, args.u32(4) as usize);
    let partial = args.read::<T>(0);
    for (which, first) in [(1, 0), (2, columns)] {
        let adds = args.u32(4 + which) != 0;
        for (column, sum) in args.write::<T>(which)[..columns].iter_mut().enumerate() {
            let mut total = T::Acc::zero();
            for piece in 0..pieces {
                total += partial[piece * 2 * columns + first + column].load();
            }
            *sum = T::store(if adds { sum.load() + total } else { total });
        }
    }
}

impl Graph {
    /// `(x - mean) / √(variance + 1e-5) · gain + bias` of each frame of `x` `[frames, channels]`, with `gain` and `bias`
    /// `[channels]`. Every frame is normalised, padding too.
    pub fn layer_norm(&mut self, x: Value, gain: Value, bias: Value) -> Result<Value, EngineError> {
        Ok(self.push_many(LayerNorm, &[x, gain, bias])?[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    /// The backward kernel adds the gradient of the residual connection.
    #[test]
    fn gradients_with_a_residual_connection() {
        for (frames, channels) in [(3, 7), (70, 32), (5, 4100)] {
            let check = GradientCheck::new().input(&[frames, channels]).input(&[channels]).input(&[channels]);
            check_gradients(check, |g, x| {
                let h = g.scale(x[0], 1.5)?;
                let normed = g.layer_norm(h, x[1], x[2])?;
                g.add(h, normed)
            });
        }
    }

    #[test]
    fn gradients() {
        // One channel is its own mean: dx is exactly 0, the difference of `dy · gain / √1e-5` and its mean. A card that rounds
        // by half a unit in the last place stays below 1e-6 of them; one that omits the mean is off by all of it.
        for frames in [1, 3] {
            let x = GradientCheck::new().input(&[frames, 1]).cancels(1.0 / 1e-5_f64.sqrt());
            check_gradients(x.positive(&[1]).input(&[1]), |g, x| g.layer_norm(x[0], x[1], x[2]));
        }
        for (frames, channels) in [(3, 5), (130, 7), (5, 64), (65, 8), (70, 264), (3, 1032), (2, 1031)]
            .into_iter()
            // One of each size with a dedicated kernel, with all lanes in use and with idle lanes.
            .chain([(34, 256), (3, 512), (9, 520), (33, 768), (5, 776), (35, 1024)])
        {
            let check = GradientCheck::new().input(&[frames, channels]).input(&[channels]).input(&[channels]);
            check_gradients(check, |g, x| g.layer_norm(x[0], x[1], x[2]));
        }
    }

    #[test]
    fn values_match_hand_computed_ones() {
        // Mean 4, variance 5: deviations -3, -1, 1, 3 over √5.00001.
        let check = GradientCheck::new()
            .given(&[2, 4], &[1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 2.0, 2.0])
            .given(&[4], &[1.0, 1.0, 2.0, 1.0])
            .given(&[4], &[0.0, 0.5, 0.0, 0.0]);
        let found = run(check, |g, x| g.layer_norm(x[0], x[1], x[2]));
        let root = 5.000_01_f64.sqrt();
        let expected = [-3.0 / root, -1.0 / root + 0.5, 2.0 / root, 3.0 / root, 0.0, 0.5, 0.0, 0.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn a_gain_of_another_size_is_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let gain = g.input("gain", TensorType::new(DType::F32, &[4])).unwrap();
        let error = g.layer_norm(x, gain, gain).unwrap_err().to_string();
        let expected =
            "layer_norm: takes a gain and a bias of F32[3]; the operands are F32[4, 3] and F32[4] and F32[4]";
        assert_eq!(error, expected);
    }
}
