//! Layer norm (Ba et al. 2016): every frame gets mean 0 and variance 1 over its channels, then a gain and a bias per channel.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::is_real;
use super::norm::{
    FORWARD_FRAMES, FRAMES_PER_BLOCK, FrameGradient, SIZES, backward_grid, by_size, forward_grid, kernels_of_all_sizes,
    named_by_size, normalize, size, to_acc,
};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/layer_norm.cu",
    text: concat!(
        include_str!("frames.cuh"),
        include_str!("partial_sums.cuh"),
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
        let (out, saved) = (at.outputs[0], at.outputs[1]);
        at.launch(&kernels[size], grid, LayerNormArgs { x, gain, bias, out, saved, frames, columns });
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
        let [gain, saved, dy] = [at.inputs[1], at.inputs[2], at.inputs[3]];
        // Without a residual connection the kernel does not read `dresidual`: any tensor will do.
        let (dresidual, has_dresidual) = (at.inputs.get(4).copied().unwrap_or(x), at.inputs.len() > 4);
        let [dx, dgain, dbias] = [at.outputs[0], at.outputs[1], at.outputs[2]];
        let args = LayerNormGradientArgs {
            x,
            gain,
            saved,
            dy,
            dresidual,
            dx,
            partial,
            frames,
            columns,
            has_dresidual: has_dresidual.into(),
        };
        at.launch(&kernels[size], backward_grid([blocks, 1], size), args);
        let kernel = for_real!("layer_norm gradient", partial.ty.dtype, T => &Kernels::<T>::SUMS);
        let [accumulate_dgain, accumulate_dbias] = [1, 2].map(|output| u32::from(at.accumulates(output)));
        let grid = Grid { blocks: [(2 * columns).div_ceil(32).max(1), 1, 1], threads: 1024, shared_bytes: 0 };
        let args = LayerNormSumsArgs { partial, dgain, dbias, blocks, columns, accumulate_dgain, accumulate_dbias };
        at.launch(kernel, grid, args);
        Ok(())
    }

    fn can_accumulate(&self, output: usize) -> bool {
        output > 0
    }

    fn can_fuse_addition(&self) -> bool {
        true
    }
}

/// Blocks of the backward pass.
fn frame_blocks(frames: u32) -> u32 {
    frames.div_ceil(FRAMES_PER_BLOCK).max(1)
}

kernel_args! {
    /// Arguments of `layer_norm`.
    struct LayerNormArgs<T: Real> {
        x: in T,
        gain: in T,
        bias: in T,
        out: out T,
        saved: out T::Acc,
        frames: u32,
        columns: u32,
    }
}

kernel_args! {
    /// Arguments of `layer_norm_gradient`.
    struct LayerNormGradientArgs<T: Real> {
        x: in T,
        gain: in T,
        saved: in T::Acc,
        dy: in T,
        dresidual: in T,
        dx: out T,
        partial: out T::Acc,
        frames: u32,
        columns: u32,
        has_dresidual: u32,
    }
}

kernel_args! {
    /// Arguments of `layer_norm_sums`.
    struct LayerNormSumsArgs<T: Real> {
        partial: in T,
        dgain: out T,
        dbias: out T,
        blocks: u32,
        columns: u32,
        accumulate_dgain: u32,
        accumulate_dbias: u32,
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const FORWARD: [Kernel; SIZES] =
        by_size(named_by_size!(T, "layer_norm"), on_cuda::<T>(&SOURCE), LayerNormArgs::params::<T>(), &forward::<T>);

    const BACKWARD: [Kernel; SIZES] = by_size(
        named_by_size!(T, "layer_norm_gradient"),
        on_cuda::<T>(&SOURCE),
        LayerNormGradientArgs::params::<T>(),
        &backward::<T>,
    );

    /// dgain and dbias: the sums of the partial sums of all blocks.
    const SUMS: Kernel = Kernel {
        name: named_for!(T, "layer_norm_sums"),
        source: on_cuda::<T>(&SOURCE),
        params: LayerNormSumsArgs::params::<T>(),
        host: &sums::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = kernels_of_all_sizes!(
    Kernels::<f32>::FORWARD,
    Kernels::<f32>::BACKWARD,
    Kernels::<bf16>::FORWARD,
    Kernels::<bf16>::BACKWARD;
    Kernels::<f32>::SUMS
);

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let LayerNormArgs { x, gain, bias, out, saved, frames, columns } = LayerNormArgs::host::<T>(args);
    let (frames, columns) = (frames as usize, columns as usize);
    let (gain, bias) = (to_acc(gain), to_acc(bias));
    let (x, out, saved) = (&x[..frames * columns], &mut out[..frames * columns], &mut saved[..frames * 2]);
    let block_frames = FRAMES_PER_BLOCK as usize;
    args.workers().each_pair((out, block_frames * columns), (saved, block_frames * 2), |block, out, saved| {
        let x = x[block * block_frames * columns..].chunks_exact(columns);
        for ((out, x), saved) in out.chunks_exact_mut(columns).zip(x).zip(saved.as_chunks_mut::<2>().0) {
            *saved = normalize(x, (&gain, &bias), out);
        }
    });
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let LayerNormGradientArgs { x, gain, saved, dy, dresidual, dx, partial, frames, columns, has_dresidual } =
        LayerNormGradientArgs::host::<T>(args);
    let (columns, gain) = (columns as usize, to_acc(gain));
    let (saved, dx) = (saved.as_chunks::<2>().0, &mut dx[..frames as usize * columns]);
    let block_frames = FRAMES_PER_BLOCK as usize;
    args.workers().each_pair((dx, block_frames * columns), (partial, 2 * columns), |block, dx, partial| {
        let mut gradient = FrameGradient::new(&gain, partial);
        let first = block * block_frames;
        let (x, dy) = (x[first * columns..].chunks_exact(columns), dy[first * columns..].chunks_exact(columns));
        let dresidual = (has_dresidual != 0).then(|| &dresidual[first * columns..]);
        let frames = dx.chunks_exact_mut(columns).zip(x).zip(dy).zip(&saved[first..]);
        for (i, (((dx, x), dy), &saved)) in frames.enumerate() {
            gradient.add(x, saved, dy, dresidual.map(|dresidual| &dresidual[i * columns..][..columns]), dx);
        }
    });
}

/// A few thousand sums: not worth a second thread.
fn sums<T: Real>(args: &mut HostArgs<'_>) {
    let LayerNormSumsArgs { partial, dgain, dbias, blocks, columns, accumulate_dgain, accumulate_dbias } =
        LayerNormSumsArgs::host::<T>(args);
    let (blocks, columns) = (blocks as usize, columns as usize);
    for (sums, first, accumulate) in [(dgain, 0, accumulate_dgain), (dbias, columns, accumulate_dbias)] {
        for (column, sum) in sums[..columns].iter_mut().enumerate() {
            let mut total = T::Acc::zero();
            for block in 0..blocks {
                total += partial[block * 2 * columns + first + column].load();
            }
            *sum = T::store(if accumulate != 0 { sum.load() + total } else { total });
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
    use tandem_device::DType;

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
