//! The kernel of [`crate::Stream::upload_small`] and [`crate::Stream::download_small`]: it accesses page-locked host memory
//! directly.

use crate::kernel::{Grid, HostArgs, Kernel, Source};
use crate::kernel_args;

pub(crate) static SOURCE: Source = Source { file: "device/copy_small.cu", text: include_str!("copy_small.cu") };

kernel_args! {
    /// Arguments of `copy_small`.
    pub(crate) struct CopySmallArgs { from: in u32, to: out u32, words: u32 }
}

pub(crate) static KERNEL: Kernel =
    Kernel { name: "copy_small", source: &SOURCE, params: CopySmallArgs::params(), host: &no_host };

/// A thread per word of a typical step.
pub(crate) const GRID: Grid = Grid { blocks: [1, 1, 1], threads: 512, shared_bytes: 0 };
/// Larger copies are faster on a copy engine.
pub(crate) const MOST_BYTES: u64 = 64 << 10;

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("on the host and on simulated cards a small copy is a plain copy");
}
