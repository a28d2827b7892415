//! Layer norm of one frame and its gradient (Ba et al. 2016), shared by layer norm and adaptive norm; and the sums of partial
//! sums, shared by all norms. Symbols as in norm.cuh.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, HostKernel, Kernel, Param, Source, kernel_args};

use super::frames::vector_length;
use super::reduce::sum_of;
use crate::error::EngineError;
use crate::lower::{Lower, Tensor};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/norm.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("partial_sums.cuh"), include_str!("norm.cu")),
};

/// ε in rstd = 1/√(variance + ε), as in PyTorch.
pub(super) const EPSILON: f64 = 1e-5;

/// Frames per block of the backward pass, whose partial sums of dgain and dbias a second kernel adds. For one CPU thread 32
/// frames of 256 channels are about 10 µs. On a card 8192 frames are 256 thread blocks, two per multiprocessor. With 16, the
/// gradient of 4096 frames is faster, and the sum of the partial sums slower by as much (H200).
pub(super) const FRAMES_PER_BLOCK: u32 = 32;

/// Kernels that one norm has for one element type and one direction; [`size`] chooses among them.
pub(super) const SIZES: usize = 5;

/// The index of the CUDA kernel for a frame: 0 to 3 for up to 256, 512, 768 and 1024 channels, whose elements stay in
/// registers, and 4 for all others. There is one host kernel for all.
pub(super) fn size(dtype: DType, columns: u32) -> usize {
    let in_registers = vector_length(dtype, columns) > 1 && columns <= 1024;
    if in_registers { columns.div_ceil(256).max(1) as usize - 1 } else { SIZES - 1 }
}

/// Frames that a thread block of the forward pass processes at once, one per warp, as in norm.cuh.
pub(super) const FORWARD_FRAMES: u32 = 8;

/// The grid of the forward pass.
pub(super) fn forward_grid(blocks: [u32; 2]) -> Grid {
    Grid { blocks: [blocks[0], blocks[1], 1], threads: 32 * FORWARD_FRAMES, shared_bytes: 0 }
}

/// Warps per frame of the backward pass, and frames that a thread block processes at once, by [`size`], as in norm.cuh.
const BACKWARD_WARPS_AND_FRAMES: [(u32, u32); SIZES] = [(1, 8), (2, 8), (3, 4), (4, 8), (1, 8)];

/// The grid of the backward pass.
pub(super) fn backward_grid(blocks: [u32; 2], size: usize) -> Grid {
    let (warps, frames) = BACKWARD_WARPS_AND_FRAMES[size];
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

/// All kernels of these arrays by [`size`], and these single kernels.
macro_rules! kernels_of_all_sizes {
    ($($kernels:expr),+; $($kernel:expr),*) => {
        &[$(&$kernels[0], &$kernels[1], &$kernels[2], &$kernels[3], &$kernels[4],)+ $(&$kernel),*]
    };
}
pub(super) use kernels_of_all_sizes;

/// Kernels with these names that are otherwise the same.
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

/// A vector in the accumulator type.
pub(super) fn to_acc<T: Real>(x: &[T]) -> Vec<T::Acc> {
    x.iter().map(|x| x.load()).collect()
}

/// `(x - mean) · rstd · gain + bias` of one frame. Returns mean and rstd.
pub(super) fn normalize<T: Real>(x: &[T], (gain, bias): (&[T::Acc], &[T::Acc]), out: &mut [T]) -> [T::Acc; 2] {
    let [mean, rstd] = statistics(x);
    let each = out.iter_mut().zip(x).zip(gain).zip(bias);
    each.for_each(|(((out, x), &gain), &bias)| *out = T::store((x.load() - mean) * rstd * gain + bias));
    [mean, rstd]
}

/// Mean and rstd, in two passes: the frame is in the L1 cache, and the sum of squared deviations does not cancel as
/// E[x²] - E[x]² does.
fn statistics<T: Real>(x: &[T]) -> [T::Acc; 2] {
    let count = T::Acc::of(x.len().max(1) as f64);
    let mean = sum_of(x) / count;
    let (blocks, rest) = x.as_chunks::<8>();
    let mut lanes = [T::Acc::zero(); 8];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            let deviation = x.load() - mean;
            *lane += deviation * deviation;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        let deviation = x.load() - mean;
        *lane += deviation * deviation;
    }
    [mean, rstd_of(lanes.into_iter().sum::<T::Acc>() / count)]
}

/// 1/√(variance + ε).
pub(super) fn rstd_of<F: Float>(variance: F) -> F {
    F::of(1.0) / (variance + F::of(EPSILON)).sqrt()
}

/// The dot product, in eight lanes that are added in order.
pub(super) fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [F::zero(); 8];
    for (a, b) in a.iter().zip(b) {
        lanes.iter_mut().zip(a).zip(b).for_each(|((lane, &a), &b)| *lane += a * b);
    }
    lanes.iter_mut().zip(a_rest).zip(b_rest).for_each(|((lane, &a), &b)| *lane += a * b);
    lanes.into_iter().sum()
}

/// The gradient of [`normalize`], frame by frame: dx, and the sums dgain and dbias.
pub(super) struct FrameGradient<'a, F> {
    gain: &'a [F],
    dgain: &'a mut [F],
    dbias: &'a mut [F],
}

impl<'a, F: Float> FrameGradient<'a, F> {
    /// `sums` gets dgain, then dbias. They start at zero.
    pub(super) fn new(gain: &'a [F], sums: &'a mut [F]) -> FrameGradient<'a, F> {
        sums.fill(F::zero());
        let (dgain, dbias) = sums.split_at_mut(gain.len());
        FrameGradient { gain, dgain, dbias }
    }

    /// Adds one frame. `saved` is what [`normalize`] returned for it, `dy` the gradient of its result. `dresidual` is added to
    /// `dx`.
    pub(super) fn add<T: Real<Acc = F>>(
        &mut self,
        x: &[T],
        saved: [F; 2],
        dy: &[T],
        dresidual: Option<&[T]>,
        dx: &mut [T],
    ) {
        let inverse_columns = F::of(1.0 / x.len().max(1) as f64);
        let [dnorm_mean, dnorm_norm_mean] = self.sums(x, saved, dy).map(|sum| sum * inverse_columns);
        let [mean, rstd] = saved;
        let dx_of = |x: &T, dy: &T, gain: F| {
            (dy.load() * gain - dnorm_mean - (x.load() - mean) * rstd * dnorm_norm_mean) * rstd
        };
        let each = x.iter().zip(dy).zip(self.gain);
        match dresidual {
            None => dx.iter_mut().zip(each).for_each(|(dx, ((x, dy), &gain))| *dx = T::store(dx_of(x, dy, gain))),
            Some(dresidual) => {
                let each = dx.iter_mut().zip(each.zip(dresidual));
                each.for_each(|(dx, (((x, dy), &gain), dresidual))| {
                    *dx = T::store(dx_of(x, dy, gain) + dresidual.load());
                });
            }
        }
    }

    /// Adds to dgain and dbias. Returns Σ dnorm and Σ dnorm·norm with dnorm = dy·gain, in eight lanes each.
    fn sums<T: Real<Acc = F>>(&mut self, x: &[T], saved: [F; 2], dy: &[T]) -> [F; 2] {
        let mut lanes = [[F::zero(); 8]; 2];
        let ((x, x_rest), (dy, dy_rest)) = (x.as_chunks::<8>(), dy.as_chunks::<8>());
        let (gain, gain_rest) = self.gain.as_chunks::<8>();
        let (dgain, dgain_rest) = self.dgain.as_chunks_mut::<8>();
        let (dbias, dbias_rest) = self.dbias.as_chunks_mut::<8>();
        for ((((x, dy), gain), dgain), dbias) in x.iter().zip(dy).zip(gain).zip(dgain).zip(dbias) {
            add_block([x, dy], gain, saved, [dgain, dbias], &mut lanes);
        }
        add_block([x_rest, dy_rest], gain_rest, saved, [dgain_rest, dbias_rest], &mut lanes);
        lanes.map(|lanes| lanes.into_iter().sum())
    }
}

/// At most eight channels of [`FrameGradient::sums`]. Inlined, so that full blocks become vector instructions.
#[inline(always)]
fn add_block<T: Real>(
    [x, dy]: [&[T]; 2],
    gain: &[T::Acc],
    [mean, rstd]: [T::Acc; 2],
    [dgain, dbias]: [&mut [T::Acc]; 2],
    [dnorm_sums, dnorm_norm_sums]: &mut [[T::Acc; 8]; 2],
) {
    for i in 0..x.len().min(8) {
        let (norm, dy) = ((x[i].load() - mean) * rstd, dy[i].load());
        let dnorm = dy * gain[i];
        dgain[i] += dy * norm;
        dbias[i] += dy;
        dnorm_sums[i] += dnorm;
        dnorm_norm_sums[i] += dnorm * norm;
    }
}

/// Which partial sums to add: columns `first..` of a tensor `[rows, chunks, stride]`.
#[derive(Clone, Copy)]
pub(super) struct PartialSums {
    pub(super) partial: Tensor,
    pub(super) chunks: u32,
    pub(super) stride: u32,
    pub(super) first: u32,
}

/// Adds the partial sums of each row over its chunks, into the same row of `out`.
pub(super) fn combine(at: &mut Lower<'_>, sums: PartialSums, out: Tensor) -> Result<(), EngineError> {
    let PartialSums { partial, chunks, stride, first } = sums;
    let (rows, columns) = (out.ty.shape.rows(), out.ty.shape.last());
    let kernel = for_real!("combine", out.ty.dtype, T => &Combine::<T>::KERNEL);
    let args = NormCombineArgs { partial, out, rows, columns, chunks, stride, first };
    at.launch(kernel, Grid { blocks: [columns.div_ceil(32).max(1), rows, 1], threads: 512, shared_bytes: 0 }, args);
    Ok(())
}

kernel_args! {
    /// Arguments of `norm_combine`.
    struct NormCombineArgs<T: Real> {
        partial: in T::Acc,
        out: out T,
        rows: u32,
        columns: u32,
        chunks: u32,
        stride: u32,
        first: u32,
    }
}

struct Combine<T>(std::marker::PhantomData<T>);

impl<T: Real> Combine<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "norm_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: NormCombineArgs::params::<T>(),
        host: &combine_host::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&Combine::<f32>::KERNEL, &Combine::<bf16>::KERNEL];

/// A few thousand sums: not worth a second thread.
fn combine_host<T: Real>(args: &mut HostArgs<'_>) {
    let NormCombineArgs { partial, out, rows, columns, chunks, stride, first } = NormCombineArgs::host::<T>(args);
    let [rows, columns, chunks, stride, first] = [rows, columns, chunks, stride, first].map(|n| n as usize);
    let out = &mut out[..rows * columns];
    let mut sums = vec![T::Acc::zero(); columns];
    for (row, out) in out.chunks_exact_mut(columns.max(1)).enumerate() {
        sums.fill(T::Acc::zero());
        for chunk in 0..chunks {
            let partial = &partial[(row * chunks + chunk) * stride + first..][..columns];
            sums.iter_mut().zip(partial).for_each(|(sum, &partial)| *sum += partial);
        }
        out.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = T::store(sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_fit_in_registers_have_kernels_by_size() {
        let found = |dtype| [0, 1, 7, 8, 256, 260, 264, 512, 768, 1020, 1024, 1032].map(|columns| size(dtype, columns));
        assert_eq!(found(DType::BF16), [0, 4, 4, 0, 0, 4, 1, 1, 2, 4, 3, 4]);
        assert_eq!(found(DType::F32), [0, 4, 4, 0, 0, 1, 1, 1, 2, 3, 3, 4]);
        let names: [&str; SIZES] = named_by_size!(half::bf16, "norm");
        assert_eq!(names, ["norm_256_bf16", "norm_512_bf16", "norm_768_bf16", "norm_1024_bf16", "norm_other_bf16"]);
    }
}
