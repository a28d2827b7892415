//! Initialises the output of a GEMM: with the bias if cuBLASLt has no epilogue for it, and for GEMMs with k = 0.

use crate::kernel::{DType, Element, HostArgs, Kernel, Source};
use crate::kernel_args;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

pub(crate) static SOURCE: Source = Source { file: "device/gemm_init.cu", text: include_str!("gemm_init.cu") };

kernel_args! {
    /// Arguments of `gemm_init`: C, the bias, the strides of rows and matrices, whether to add to C, whether there is a bias.
    pub(crate) struct GemmInitArgs<T: Element> {
        c: out T,
        bias: in T,
        m: u32,
        n: u32,
        batch: u32,
        stride: u32,
        batch_stride: u64,
        accumulate: u32,
        has_bias: u32,
    }
}

pub(crate) static KERNELS: [&Kernel; 2] = [&F32, &BF16];

pub(crate) static F32: Kernel =
    Kernel { name: "gemm_init_f32", source: &SOURCE, params: GemmInitArgs::params::<f32>(), host: &no_host };
pub(crate) static BF16: Kernel =
    Kernel { name: "gemm_init_bf16", source: &SOURCE, params: GemmInitArgs::params::<half::bf16>(), host: &no_host };

/// The kernel for a C of this type.
pub(crate) fn kernel(out: DType) -> &'static Kernel {
    if out == DType::BF16 { &BF16 } else { &F32 }
}

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("GEMMs on the host do not launch kernels");
}
