//! The kernel of [`crate::Stream::trap`]: an injected fault.

use crate::kernel::{HostArgs, Kernel, Source};

pub(crate) static SOURCE: Source = Source { file: "device/trap.cu", text: include_str!("trap.cu") };

pub(crate) static KERNEL: Kernel = Kernel { name: "injected_trap", source: &SOURCE, params: &[], host: &no_host };

fn no_host(_: &mut HostArgs<'_>) {
    unreachable!("simulated cards have their own trap, and the CPU has none");
}
