//! What the norms share: one frame normalised, its gradient, and sums of the parts of a gradient.

use tandem_device::{DType, Element, Grid, HostArgs, HostKernel, Kernel, Param, Source};

use super::frames::moved_at_once;
use super::reduce::sum_of;
use crate::error::EngineError;
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/norm.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("pieces.cuh"), include_str!("norm.cu")),
};

/// What is added to a variance before its root is taken, as PyTorch does.
pub(super) const EPSILON: f64 = 1e-5;

/// Frames whose gradients are summed before the sums are, by one thread: 32 frames of 256 channels take about 10 µs. On a
/// card they are a block's: 8192 frames are 256 blocks, two for each multiprocessor. Half as many make the gradient faster
/// where there are 4096 frames, and the sums of the pieces slower by as much (H200).
pub(super) const FRAMES_OF_A_PIECE: u32 = 32;

/// Kernels that one norm has for one element type and one direction; [`size`] says which of them a frame takes.
pub(super) const SIZES: usize = 5;

/// Which kernel takes a frame on a card: one for frames of up to 256 channels, of up to 512, 768 and 1024, whose elements
/// stay in registers, and one for all others. Twins do not care.
pub(super) fn size(dtype: DType, columns: u32) -> usize {
    let held = moved_at_once(dtype, columns) > 1 && columns <= 1024;
    if held { columns.div_ceil(256).max(1) as usize - 1 } else { SIZES - 1 }
}

/// Frames that a block of a norm has in hand at once, as norm.cuh has it: one for each of its warps.
pub(super) const NORMALIZED: u32 = 8;

/// Blocks of a norm.
pub(super) fn normal_grid(blocks: [u32; 2]) -> Grid {
    Grid { blocks: [blocks[0], blocks[1], 1], threads: 32 * NORMALIZED, shared_bytes: 0 }
}

/// Warps of a frame in a norm's gradient, and frames that a block has in hand at once, by [`size`], as norm.cuh has them.
const GRADIENTS: [(u32, u32); SIZES] = [(1, 8), (2, 8), (3, 4), (4, 8), (1, 8)];

/// Blocks of a norm's gradient.
pub(super) fn gradient_grid(blocks: [u32; 2], size: usize) -> Grid {
    let (warps, frames) = GRADIENTS[size];
    Grid { blocks: [blocks[0], blocks[1], 1], threads: 32 * warps * frames, shared_bytes: 0 }
}

/// The names of the kernels `$name` for the element type `$t`, by [`size`].
macro_rules! named_by_size {
    ($t:ty, $name:literal) => {
        match <$t as tandem_device::Element>::DTYPE {
            tandem_device::DType::BF16 => $crate::ops::norm::named_by_size!(@ $name, "_bf16"),
            tandem_device::DType::F64 => $crate::ops::norm::named_by_size!(@ $name, "_f64"),
            _ => $crate::ops::norm::named_by_size!(@ $name, "_f32"),
        }
    };
    (@ $name:literal, $of:literal) => {
        [
            concat!($name, "_256", $of),
            concat!($name, "_512", $of),
            concat!($name, "_768", $of),
            concat!($name, "_1024", $of),
            concat!($name, "_other", $of),
        ]
    };
}
pub(super) use named_by_size;

/// The kernels of these names, alike in all else.
pub(super) const fn by_size(
    [up_to_256, up_to_512, up_to_768, up_to_1024, others]: [&'static str; SIZES],
    source: &'static Source,
    params: &'static [Param],
    host: HostKernel,
) -> [Kernel; SIZES] {
    [
        Kernel { name: up_to_256, source, params, host },
        Kernel { name: up_to_512, source, params, host },
        Kernel { name: up_to_768, source, params, host },
        Kernel { name: up_to_1024, source, params, host },
        Kernel { name: others, source, params, host },
    ]
}

/// A vector in the type it is computed with.
pub(super) fn widened<T: Real>(x: &[T]) -> Vec<T::Acc> {
    x.iter().map(|x| x.load()).collect()
}

/// `(x - mean) · scale · gain + bias` of one frame; gives mean and scale, which is 1/√(variance + ε).
pub(super) fn normalize<T: Real>(x: &[T], (gain, bias): (&[T::Acc], &[T::Acc]), out: &mut [T]) -> [T::Acc; 2] {
    let [mean, scale] = statistics(x);
    let each = out.iter_mut().zip(x).zip(gain).zip(bias);
    each.for_each(|(((out, x), &gain), &bias)| *out = T::store((x.load() - mean) * scale * gain + bias));
    [mean, scale]
}

/// Two passes: the frame is in the first-level cache, and deviations do not cancel as squares do.
fn statistics<T: Real>(x: &[T]) -> [T::Acc; 2] {
    let count = T::Acc::of(x.len().max(1) as f64);
    let mean = sum_of(x) / count;
    let (blocks, rest) = x.as_chunks::<8>();
    let mut lanes = [T::Acc::zero(); 8];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            let apart = x.load() - mean;
            *lane += apart * apart;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        let apart = x.load() - mean;
        *lane += apart * apart;
    }
    [mean, inverse_root(lanes.into_iter().sum::<T::Acc>() / count)]
}

/// 1/√(variance + ε).
pub(super) fn inverse_root<F: Float>(variance: F) -> F {
    F::of(1.0) / (variance + F::of(EPSILON)).sqrt()
}

/// The sum of GEMMs, in eight lanes that are added in order.
pub(super) fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [F::zero(); 8];
    for (a, b) in a.iter().zip(b) {
        lanes.iter_mut().zip(a).zip(b).for_each(|((lane, &a), &b)| *lane += a * b);
    }
    lanes.iter_mut().zip(a_rest).zip(b_rest).for_each(|((lane, &a), &b)| *lane += a * b);
    lanes.into_iter().sum()
}

/// The gradient of [`normalize`], frame by frame: that of `x`, and the sums for gain and bias.
pub(super) struct FrameGradient<'a, F> {
    gain: &'a [F],
    of_gain: &'a mut [F],
    of_bias: &'a mut [F],
}

impl<'a, F: Float> FrameGradient<'a, F> {
    /// Sums go to `sums`: gain, then bias. They start at zero.
    pub(super) fn new(gain: &'a [F], sums: &'a mut [F]) -> FrameGradient<'a, F> {
        sums.fill(F::zero());
        let (of_gain, of_bias) = sums.split_at_mut(gain.len());
        FrameGradient { gain, of_gain, of_bias }
    }

    /// One frame, from what [`normalize`] gave for it and the gradient of its result; `more` is added to what comes out.
    pub(super) fn add<T: Real<Acc = F>>(
        &mut self,
        x: &[T],
        kept: [F; 2],
        gradient: &[T],
        more: Option<&[T]>,
        out: &mut [T],
    ) {
        let share = F::of(1.0 / x.len().max(1) as f64);
        let [level, tilt] = self.sums(x, kept, gradient).map(|sum| sum * share);
        let [mean, scale] = kept;
        let of_x = |x: &T, g: &T, gain: F| (g.load() * gain - level - (x.load() - mean) * scale * tilt) * scale;
        let each = x.iter().zip(gradient).zip(self.gain);
        match more {
            None => out.iter_mut().zip(each).for_each(|(out, ((x, g), &gain))| *out = T::store(of_x(x, g, gain))),
            Some(more) => {
                let each = each.zip(more);
                let each = out.iter_mut().zip(each);
                each.for_each(|(out, (((x, g), &gain), more))| *out = T::store(of_x(x, g, gain) + more.load()));
            }
        }
    }

    /// Adds to the sums of gain and bias; gives Σ gradient·gain, and Σ gradient·gain·normal, in eight lanes each.
    fn sums<T: Real<Acc = F>>(&mut self, x: &[T], kept: [F; 2], gradient: &[T]) -> [F; 2] {
        let mut lanes = [[F::zero(); 8]; 2];
        let ((x, x_rest), (g, g_rest)) = (x.as_chunks::<8>(), gradient.as_chunks::<8>());
        let (gain, gain_rest) = self.gain.as_chunks::<8>();
        let (of_gain, of_gain_rest) = self.of_gain.as_chunks_mut::<8>();
        let (of_bias, of_bias_rest) = self.of_bias.as_chunks_mut::<8>();
        for ((((x, g), gain), of_gain), of_bias) in x.iter().zip(g).zip(gain).zip(of_gain).zip(of_bias) {
            add_block((x, g, gain), kept, (of_gain, of_bias), &mut lanes);
        }
        add_block((x_rest, g_rest, gain_rest), kept, (of_gain_rest, of_bias_rest), &mut lanes);
        lanes.map(|lanes| lanes.into_iter().sum())
    }
}

/// At most eight channels of [`FrameGradient::sums`]. Inlined, so that whole blocks are vectors.
#[inline(always)]
fn add_block<T: Real>(
    (x, gradient, gain): (&[T], &[T], &[T::Acc]),
    [mean, scale]: [T::Acc; 2],
    (of_gain, of_bias): (&mut [T::Acc], &mut [T::Acc]),
    [levels, tilts]: &mut [[T::Acc; 8]; 2],
) {
    for i in 0..x.len().min(8) {
        let (normal, g) = ((x[i].load() - mean) * scale, gradient[i].load());
        let slope = g * gain[i];
        of_gain[i] += g * normal;
        of_bias[i] += g;
        levels[i] += slope;
        tilts[i] += slope * normal;
    }
}

/// Columns `first..` of `partial`, summed over the pieces of each row of `out`: `partial` is `[rows, pieces, stride]`.
pub(super) fn combine(
    at: &mut Lower<'_>,
    partial: Tensor,
    out: Tensor,
    [pieces, stride, first]: [u32; 3],
) -> Result<(), EngineError> {
    let (rows, columns) = (out.ty.shape.rows(), out.ty.shape.last());
    let kernel = for_real!("combine", out.ty.dtype, T => &Combine::<T>::KERNEL);
    let numbers = [rows, columns, pieces, stride, first].map(LaunchArg::U32);
    let args = [partial.read(), out.write()].into_iter().chain(numbers).collect();
    at.launch(kernel, Grid { blocks: [columns.div_ceil(32).max(1), rows, 1], threads: 512, shared_bytes: 0 }, args);
    Ok(())
}

struct Combine<T>(std::marker::PhantomData<T>);

impl<T: Real> Combine<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "norm_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(<T::Acc as Element>::DTYPE),
            Param::Out(T::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &combine_host::<T>,
    };
}

/// A few thousand sums: not worth a second thread.
fn combine_host<T: Real>(args: &mut HostArgs<'_>) {
    let [rows, columns, pieces, stride, first] = [2, 3, 4, 5, 6].map(|i| args.u32(i) as usize);
    let partial = args.read::<T::Acc>(0);
    let out = &mut args.write::<T>(1)[..rows * columns];
    let mut sums = vec![T::Acc::zero(); columns];
    for (row, out) in out.chunks_exact_mut(columns.max(1)).enumerate() {
        sums.fill(T::Acc::zero());
        for piece in 0..pieces {
            let part = &partial[(row * pieces + piece) * stride + first..][..columns];
            sums.iter_mut().zip(part).for_each(|(sum, &part)| *sum += part);
        }
        out.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = T::store(sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_registers_hold_have_kernels_by_their_size() {
        let found = |dtype| [0, 1, 7, 8, 256, 260, 264, 512, 768, 1020, 1024, 1032].map(|columns| size(dtype, columns));
        assert_eq!(found(DType::BF16), [0, 4, 4, 0, 0, 4, 1, 1, 2, 4, 3, 4]);
        assert_eq!(found(DType::F32), [0, 4, 4, 0, 0, 1, 1, 1, 2, 3, 3, 4]);
        let names: [&str; SIZES] = named_by_size!(half::bf16, "norm");
        assert_eq!(names, ["norm_256_bf16", "norm_512_bf16", "norm_768_bf16", "norm_1024_bf16", "norm_other_bf16"]);
    }
}
