//! The kernel behind [`crate::Stream::trap`]: it faults, as a kernel with a mistake in it would.

use crate::kernel::{Kernel, Source, TwinArgs};

pub(crate) static SOURCE: Source = Source { file: "device/trap.cu", text: include_str!("trap.cu") };

pub(crate) static KERNEL: Kernel = Kernel { name: "planted_trap", source: &SOURCE, params: &[], twin: &no_twin };

fn no_twin(_: &mut TwinArgs<'_>) {
    unreachable!("simulated cards trap by themselves, and the CPU does not");
}
