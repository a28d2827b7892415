//! The one kernel of the benchmarks: a GEMM that keeps a card busy for a known time.

use half::bf16;
use tandem_device::{DType, HostArgs, Kernel, Param, Source};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&GEMM];

static GEMM: Source = Source { file: "bench/gemm.cu", text: include_str!("gemm.cu") };

/// Rows times a square matrix, in bf16 with f32 sums.
pub static GEMM_BF16: Kernel = Kernel {
    name: "gemm_bf16",
    source: &GEMM,
    params: &[Param::In(DType::BF16), Param::In(DType::BF16), Param::Out(DType::BF16), Param::U32, Param::U32],
    host: &gemm_host,
};

fn gemm_host(args: &mut HostArgs<'_>) {
    let (input, weights) = (args.read::<bf16>(0), args.read::<bf16>(1));
    let (rows, width) = (args.u32(3) as usize, args.u32(4) as usize);
    let out = args.write::<bf16>(2);
    let mut sums = vec![0f32; width];
    for row in 0..rows {
        sums.fill(0.0);
        for k in 0..width {
            let x = input[row * width + k].to_f32();
            let line = &weights[k * width..(k + 1) * width];
            sums.iter_mut().zip(line).for_each(|(sum, w)| *sum += x * w.to_f32());
        }
        out[row * width..(row + 1) * width].iter_mut().zip(&sums).for_each(|(out, sum)| *out = bf16::from_f32(*sum));
    }
}
