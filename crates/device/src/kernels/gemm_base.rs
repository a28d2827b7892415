//! What a GEMM is added to, made by a kernel of ours where cuBLASLt does not add the bias itself, and where there is
//! nothing to multiply.

use crate::kernel::{DType, HostArgs, Kernel, Param, Source};

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

pub(crate) static SOURCE: Source = Source { file: "device/gemm_base.cu", text: include_str!("gemm_base.cu") };

pub(crate) static KERNELS: [&Kernel; 2] = [&F32, &BF16];

static F32: Kernel = Kernel { name: "gemm_base_f32", source: &SOURCE, params: &params(DType::F32), host: &no_host };
static BF16: Kernel = Kernel { name: "gemm_base_bf16", source: &SOURCE, params: &params(DType::BF16), host: &no_host };

/// The one for a C of this type.
pub(crate) fn kernel(out: DType) -> &'static Kernel {
    if out == DType::BF16 { &BF16 } else { &F32 }
}

/// C, the bias, `m`, `n`, the batch, the strides of C's rows and matrices, whether C is kept, whether there is a bias.
const fn params(out: DType) -> [Param; 9] {
    let (c, bias) = (Param::Out(out), Param::In(out));
    [c, bias, Param::U32, Param::U32, Param::U32, Param::U32, Param::U64, Param::U32, Param::U32]
}

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("GEMMs on the host need no kernel");
}
