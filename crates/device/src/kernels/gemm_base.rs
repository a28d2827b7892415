//! What a GEMM is added to, made by a kernel of ours where cuBLASLt does not add the bias itself, and where there is
//! nothing to multiply.

use crate::kernel::{DType, Element, HostArgs, Kernel, Source};
use crate::kernel_args;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

pub(crate) static SOURCE: Source = Source { file: "device/gemm_base.cu", text: include_str!("gemm_base.cu") };

kernel_args! {
    /// Arguments of `gemm_base`: C, the strides of its rows and matrices, whether its values are kept, and the bias.
    pub(crate) struct GemmBaseArgs<T: Element> {
        c: out T,
        bias: in T,
        m: u32,
        n: u32,
        batch: u32,
        stride: u32,
        batch_stride: u64,
        keeps: u32,
        has_bias: u32,
    }
}

pub(crate) static KERNELS: [&Kernel; 2] = [&F32, &BF16];

pub(crate) static F32: Kernel =
    Kernel { name: "gemm_base_f32", source: &SOURCE, params: GemmBaseArgs::params::<f32>(), host: &no_host };
pub(crate) static BF16: Kernel =
    Kernel { name: "gemm_base_bf16", source: &SOURCE, params: GemmBaseArgs::params::<half::bf16>(), host: &no_host };

/// The one for a C of this type.
pub(crate) fn kernel(out: DType) -> &'static Kernel {
    if out == DType::BF16 { &BF16 } else { &F32 }
}

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("GEMMs on the host need no kernel");
}
