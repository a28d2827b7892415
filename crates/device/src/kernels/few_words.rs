//! The kernel behind [`crate::Stream::upload_few`] and [`crate::Stream::download_few`]: a card reads and writes page-locked
//! memory by itself.

use crate::kernel::{DType, Grid, Kernel, Param, Source, TwinArgs};

pub(crate) static SOURCE: Source = Source { file: "device/few_words.cu", text: include_str!("few_words.cu") };

pub(crate) static KERNEL: Kernel = Kernel {
    name: "carry_few_words",
    source: &SOURCE,
    params: &[Param::In(DType::U32), Param::Out(DType::U32), Param::U32],
    twin: &no_twin,
};

/// As many threads as there are words of a usual step.
pub(crate) const GRID: Grid = Grid { blocks: [1, 1, 1], threads: 512, shared_bytes: 0 };
/// More than this is quicker on the card's own way for copies.
pub(crate) const MOST_BYTES: u64 = 64 << 10;

fn no_twin(_: &mut TwinArgs<'_>) {
    unreachable!("on the host and on simulated cards few bytes are copied like many");
}
