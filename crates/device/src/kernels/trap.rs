//! The kernel behind [`crate::Stream::trap`]: it faults, as a kernel with a mistake in it would.

use crate::kernel::{HostArgs, Kernel, Source};

pub(crate) static SOURCE: Source = Source { file: "device/trap.cu", text: include_str!("trap.cu") };

pub(crate) static KERNEL: Kernel = Kernel { name: "injected_trap", source: &SOURCE, params: &[], host: &no_host };

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("simulated cards trap by themselves, and the CPU does not");
}
