//! The kernel of the benchmarks: a GEMM that keeps a card busy for a known time.

use half::bf16;
use tandem_device::{HostArgs, Kernel, Source, kernel_args};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&GEMM];

static GEMM: Source = Source { file: "bench/gemm.cu", text: include_str!("gemm.cu") };

/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&GEMM_BF16];

kernel_args! {
    /// Arguments of `gemm_bf16`.
    pub struct GemmArgs {
        /// `[rows, width]`.
        x: in bf16,
        /// `[width, width]`.
        weights: in bf16,
        /// `[rows, width]`.
        out: out bf16,
        /// Rows of `x` and `out`.
        rows: u32,
        /// Columns.
        width: u32,
    }
}

/// Rows times a square matrix, in bf16 with f32 accumulators.
pub static GEMM_BF16: Kernel =
    Kernel { name: "gemm_bf16", source: &GEMM, params: GemmArgs::params(), host: &gemm_host };

fn gemm_host(args: &mut HostArgs<'_>) {
    let GemmArgs { x, weights, out, rows, width } = GemmArgs::host(args);
    let (rows, width) = (rows as usize, width as usize);
    let mut sums = vec![0f32; width];
    for row in 0..rows {
        sums.fill(0.0);
        for k in 0..width {
            let x = x[row * width + k].to_f32();
            let line = &weights[k * width..(k + 1) * width];
            sums.iter_mut().zip(line).for_each(|(sum, w)| *sum += x * w.to_f32());
        }
        out[row * width..(row + 1) * width].iter_mut().zip(&sums).for_each(|(out, sum)| *out = bf16::from_f32(*sum));
    }
}
