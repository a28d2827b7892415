//! Devices: memory with limits and owners, and work in stream order.
//!
//! One set of types covers three kinds of devices (NVIDIA cards, the CPU, simulated cards), so that one code path serves
//! every mode. Read in this order:
//!
//! 1. [`Machine`] finds cards; [`Device`] is an open one.
//! 2. [`Arena`] holds all memory of a role and enforces its limit; [`Block`] is an allocation in it; [`Pinned`] is pinned
//!    (page-locked) host memory.
//! 3. [`Stream`] orders work; [`Event`] synchronises streams with each other and with the host; [`Kernel`] and [`Gemm`]
//!    are the work; on the host they run on the worker pool, [`Workers`]. A [`CapturedGraph`] is launched as one.
//! 4. [`Transfer`] moves batches between roles; [`Isolation`] sets both roles up.
//! 5. [`Communicator`] sums gradients over the cards of several processes.
//!
//! Besides `espeak`, which calls one C library, this is the only crate with `unsafe` in it.
#![expect(unsafe_code, reason = "drivers are called here, and nowhere else")]

mod error;

// Cards and readings of them.
mod card;
mod numa;
mod machine;
mod device;
pub mod library;
mod cost;

// Memory.
pub mod bytes;
pub mod limits;
mod free_list;
mod arena;
mod pinned;
mod isolation;
pub mod leak;

// Work.
mod stream;
mod capture;
mod kernel;
mod gemm;
pub mod kernels;
pub mod transfer;
mod communicator;
mod fault;
mod foreign;
mod injected_leak;

// The three kinds of devices.
mod driver;
mod workers;
pub mod host;
mod host_exec;
mod host_limits;
mod host_memory;
mod host_gemm;
mod host_graph;
mod cpu;
pub mod sim;
mod cuda;

/// Compiling kernels, also without a card.
pub mod compile {
    pub use crate::cuda::nvrtc::{
        ARCHITECTURES, Compiled, Compiler, Resources, compiler_or_skip, kernel_problems, kernel_problems_on,
    };
    pub use crate::kernel::signature::signature_problems;
}

pub use arena::{Arena, ArenaError, ArenaSpec, Block, DRIVER, RoleMemory, Strength, View};
pub use capture::{Capture, CapturedGraph};
pub use card::{Card, CardProcess, CardReading, PeerAttributes, Visibility};
pub use communicator::{Communicator, CommunicatorId};
pub use cost::{Beside, DriverCost, probe, probe_pair};
pub use cpu::resident_bytes;
pub use cuda::KernelCache;
pub use device::{Device, LoadedKernel};
pub use error::DeviceError;
pub use fault::{Fault, Faults, LeakRate, Pool, Slow};
pub use foreign::ForeignThread;
pub use gemm::{Gemm, Operand};
pub use host_limits::{HostLimit, HostReading};
pub use injected_leak::InjectedLeak;
pub use isolation::{CardUse, HostUse, Isolation, IsolationError, Partition, RoleSetup};
pub use kernel::{
    Arg, ArgValue, DType, Element, Grid, HostArgs, HostKernel, Kernel, KernelArgs, Param, ParamKind, Source,
};
pub use machine::{CardCounters, DeviceKind, Machine};
pub use numa::{NumaNode, pci_folder};
pub use pinned::{Pinned, PinnedPart};
pub use sim::SimSpec;
pub use stream::{Event, Stream};
pub use transfer::{Route, Transfer};
pub use workers::Workers;
