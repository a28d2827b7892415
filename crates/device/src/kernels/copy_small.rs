//! The kernel behind [`crate::Stream::upload_small`] and [`crate::Stream::download_small`]: a card reads and writes page-locked
//! memory by itself.

use crate::kernel::{Grid, HostArgs, Kernel, Source};
use crate::kernel_args;

pub(crate) static SOURCE: Source = Source { file: "device/copy_small.cu", text: include_str!("copy_small.cu") };

kernel_args! {
    /// Arguments of `copy_small`.
    pub(crate) struct CopySmallArgs { from: in u32, to: out u32, words: u32 }
}

pub(crate) static KERNEL: Kernel =
    Kernel { name: "copy_small", source: &SOURCE, params: CopySmallArgs::params(), host: &no_host };

/// As many threads as there are words of a usual step.
pub(crate) const GRID: Grid = Grid { blocks: [1, 1, 1], threads: 512, shared_bytes: 0 };
/// More than this is quicker on the card's own way for copies.
pub(crate) const MOST_BYTES: u64 = 64 << 10;

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("on the host and on simulated cards few bytes are copied like many");
}
