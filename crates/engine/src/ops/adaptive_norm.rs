//! Adaptive layer norm (AdaLN, Peebles & Xie 2023): layer norm with a scale and a shift per row of the batch.

use half::bf16;
use tandem_device::{HostArgs, Kernel, Source, kernel_args};

use super::frames::{RowTile, check_frames, row_tiles, split_by_lengths, tiles_per_row};
use super::layer_norm::saved;
use super::norm::{
    FORWARD_FRAMES, FRAMES_PER_BLOCK, FrameGradient, PartialSums, SIZES, backward_grid, by_size, combine, forward_grid,
    kernels_of_all_sizes, named_by_size, normalize, size, to_acc,
};
use crate::error::EngineError;
use crate::for_real;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};

pub(super) static SOURCE: Source = Source {
    file: "engine/adaptive_norm.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("norm.cuh"), include_str!("adaptive_norm.cu")),
};

/// `(x, scale_shift, row starts)` to the result, and mean and rstd of each frame, saved for the backward pass.
#[derive(Debug)]
struct AdaptiveNorm(Rows);

/// `(x, scale_shift, row starts, saved, dy)` to the gradients of the first two.
#[derive(Debug)]
struct AdaptiveNormBackward(Rows);

impl Op for AdaptiveNorm {
    fn name(&self) -> &'static str {
        "adaptive_norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let x = inputs[0];
        check_frames("adaptive_norm", &self.0, &inputs[..2])?;
        let wanted = TensorType::new(x.dtype, &[self.0.count(), 2 * x.shape.last()]);
        if inputs[1] != wanted {
            return refuse("adaptive_norm", format!("takes scales and shifts as {wanted}"), &inputs[..2]);
        }
        Ok(vec![x, saved(x)])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(dy) = at.first() else { return Ok(vec![None; 3]) };
        let inputs = [at.inputs[0], at.inputs[1], at.inputs[2], at.outputs[1], dy];
        let gradients = at.graph.push_many(AdaptiveNormBackward(self.0.clone()), &inputs)?;
        Ok(vec![Some(gradients[0]), Some(gradients[1]), None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[x, scale_shift, starts] = at.inputs else { unreachable!("adaptive_norm takes three inputs") };
        let (rows, columns) = (self.0.count(), x.ty.shape.last());
        let kernels = for_real!("adaptive_norm", x.ty.dtype, T => &Kernels::<T>::FORWARD);
        let size = size(x.ty.dtype, columns);
        let grid = forward_grid([tiles_per_row(self.0.longest(), FORWARD_FRAMES), self.0.count()]);
        let (out, saved) = (at.outputs[0], at.outputs[1]);
        let args = AdaptiveNormArgs { x, scale_shift, starts, out, saved, rows, columns };
        at.launch(&kernels[size], grid, args);
        Ok(())
    }
}

/// Blocks of the backward pass per row.
fn blocks_per_row(rows: &Rows) -> u32 {
    tiles_per_row(rows.longest(), FRAMES_PER_BLOCK)
}

impl Op for AdaptiveNormBackward {
    fn name(&self) -> &'static str {
        "adaptive_norm gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0], inputs[1]])
    }

    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        let sums = inputs[1].of(accumulator(inputs[1].dtype));
        vec![u64::from(blocks_per_row(&self.0)) * sums.bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[x, scale_shift, starts, saved, dy] = at.inputs else {
            unreachable!("adaptive_norm gradient takes five inputs")
        };
        let (rows, columns, blocks) = (self.0.count(), x.ty.shape.last(), blocks_per_row(&self.0));
        let partial = TensorType::new(accumulator(x.ty.dtype), &[rows, blocks, 2 * columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        let kernels = for_real!("adaptive_norm gradient", x.ty.dtype, T => &Kernels::<T>::BACKWARD);
        let size = size(x.ty.dtype, columns);
        let (dx, dscale_shift) = (at.outputs[0], at.outputs[1]);
        let args = AdaptiveNormGradientArgs { x, scale_shift, starts, saved, dy, dx, partial, rows, columns };
        at.launch(&kernels[size], backward_grid([blocks, rows], size), args);
        combine(at, PartialSums { partial, chunks: blocks, stride: 2 * columns, first: 0 }, dscale_shift)
    }
}

kernel_args! {
    /// Arguments of `adaptive_norm`.
    struct AdaptiveNormArgs<T: Real> {
        x: in T,
        scale_shift: in T,
        starts: in u32,
        out: out T,
        saved: out T::Acc,
        rows: u32,
        columns: u32,
    }
}

kernel_args! {
    /// Arguments of `adaptive_norm_gradient`.
    struct AdaptiveNormGradientArgs<T: Real> {
        x: in T,
        scale_shift: in T,
        starts: in u32,
        saved: in T::Acc,
        dy: in T,
        dx: out T,
        partial: out T::Acc,
        rows: u32,
        columns: u32,
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const FORWARD: [Kernel; SIZES] = by_size(
        named_by_size!(T, "adaptive_norm"),
        on_cuda::<T>(&SOURCE),
        AdaptiveNormArgs::params::<T>(),
        &forward::<T>,
    );

    const BACKWARD: [Kernel; SIZES] = by_size(
        named_by_size!(T, "adaptive_norm_gradient"),
        on_cuda::<T>(&SOURCE),
        AdaptiveNormGradientArgs::params::<T>(),
        &backward::<T>,
    );
}

pub(super) static KERNELS: &[&Kernel] = kernels_of_all_sizes!(
    Kernels::<f32>::FORWARD,
    Kernels::<f32>::BACKWARD,
    Kernels::<bf16>::FORWARD,
    Kernels::<bf16>::BACKWARD;
);

/// The gain `1 + scale` of a row, and its shift.
fn gain_and_shift<T: Real>(scale_shift: &[T], row: usize, columns: usize) -> (Vec<T::Acc>, Vec<T::Acc>) {
    let (scale, shift) = scale_shift[row * 2 * columns..][..2 * columns].split_at(columns);
    let one = T::Acc::of(1.0);
    (scale.iter().map(|scale| one + scale.load()).collect(), to_acc(shift))
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let AdaptiveNormArgs { x, scale_shift, starts, out, saved, rows, columns } = AdaptiveNormArgs::host::<T>(args);
    let columns = columns as usize;
    let tiles = row_tiles(&starts[..=rows as usize], FRAMES_PER_BLOCK);
    let out = split_by_lengths(out, tiles.iter().map(|tile| tile.count * columns));
    let saved = split_by_lengths(saved, tiles.iter().map(|tile| tile.count * 2));
    args.workers().each_part(out.into_iter().zip(saved).collect(), |block, (out, saved)| {
        let tile: &RowTile = &tiles[block];
        if tile.count == 0 {
            return;
        }
        let (gain, shift) = gain_and_shift(scale_shift, tile.row, columns);
        let x = tile.of(x, columns).chunks_exact(columns);
        for ((out, x), saved) in out.chunks_exact_mut(columns).zip(x).zip(saved.as_chunks_mut::<2>().0) {
            *saved = normalize(x, (&gain, &shift), out);
        }
    });
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let AdaptiveNormGradientArgs { x, scale_shift, starts, saved, dy, dx, partial, rows, columns } =
        AdaptiveNormGradientArgs::host::<T>(args);
    let columns = columns as usize;
    let tiles = row_tiles(&starts[..=rows as usize], FRAMES_PER_BLOCK);
    let dx = split_by_lengths(dx, tiles.iter().map(|tile| tile.count * columns));
    let partial = split_by_lengths(partial, tiles.iter().map(|_| 2 * columns));
    args.workers().each_part(dx.into_iter().zip(partial).collect(), |block, (dx, partial)| {
        let tile: &RowTile = &tiles[block];
        let (gain, _) = gain_and_shift(scale_shift, tile.row, columns);
        let mut gradient = FrameGradient::new(&gain, partial);
        let (x, dy) = (tile.of(x, columns).chunks_exact(columns), tile.of(dy, columns).chunks_exact(columns));
        let saved = tile.of(saved, 2).as_chunks::<2>().0;
        for (((dx, x), dy), &saved) in dx.chunks_exact_mut(columns).zip(x).zip(dy).zip(saved) {
            gradient.add(x, saved, dy, None, dx);
        }
    });
}

impl Graph {
    /// `(x - mean) / √(variance + 1e-5) · (1 + scale) + shift` of each frame of `x` `[frames, channels]`; row `b` of
    /// `scale_shift` `[batch, 2·channels]` has the scales of row `b`, then its shifts.
    ///
    /// Every frame is normalised, padding too, and the gradient of padding counts towards its row's scale and shift.
    pub fn adaptive_norm(&mut self, x: Value, scale_shift: Value, rows: &Rows) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        Ok(self.push_many(AdaptiveNorm(rows.clone()), &[x, scale_shift, starts])?[0])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        let lengths_and_channels = [(&[3, 0, 5][..], 7), (&[1], 3), (&[130, 3, 64], 5), (&[33, 0, 70], 32)];
        // One of each size with a dedicated kernel, and one without.
        let sizes = [(&[33, 0, 4][..], 256), (&[9, 5], 264), (&[0, 34], 520), (&[6, 3], 1016), (&[2, 0, 1], 1032)];
        for (lengths, channels) in lengths_and_channels.into_iter().chain(sizes) {
            let rows = Rows::new(lengths);
            let check = GradientCheck::new().input(&[rows.total(), channels]).input(&[rows.count(), 2 * channels]);
            check_gradients(check, |g, x| g.adaptive_norm(x[0], x[1], &rows));
        }
    }

    #[test]
    fn each_row_has_a_scale_and_a_shift() {
        // Deviations -1 and 1 over √1.00001; the second row doubles them and adds 10 and 20.
        let rows = Rows::new(&[1, 0, 2]);
        let check = GradientCheck::new()
            .given(&[3, 2], &[1.0, 3.0, 5.0, 7.0, 0.0, 2.0])
            .given(&[3, 4], &[0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 10.0, 20.0]);
        let found = run(check, |g, x| g.adaptive_norm(x[0], x[1], &rows));
        let one = 1.0 / 1.000_01_f64.sqrt();
        let two = [10.0 - 2.0 * one, 20.0 + 2.0 * one];
        let expected = [-one, one, two[0], two[1], two[0], two[1]];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn scales_for_another_batch_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let scale = g.input("scale", TensorType::new(DType::F32, &[3, 6])).unwrap();
        let error = g.adaptive_norm(x, scale, &Rows::even(2, 2)).unwrap_err().to_string();
        let expected = "adaptive_norm: takes scales and shifts as F32[2, 6]; the operands are F32[4, 3] and F32[3, 6]";
        assert_eq!(error, expected);
        let error = g.adaptive_norm(x, scale, &Rows::even(2, 3)).unwrap_err().to_string();
        assert!(error.starts_with("adaptive_norm: takes [6, channels]"), "{error}");
    }
}
