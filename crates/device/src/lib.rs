//! Devices: where the bytes are, whose they are, and when they may be touched.
//!
//! One set of types over three kinds of devices (NVIDIA cards, the CPU, simulated cards), so that one code path
//! serves every mode. Read in this order:
//!
//! 1. [`Machine`] finds cards; [`Device`] is one that was opened.
//! 2. [`Arena`] holds all memory of a role and refuses a byte too many; [`Block`] is a piece of it, [`Pinned`] is
//!    page-locked host memory.
//! 3. [`Stream`] orders work, [`Event`] is the only way streams and the host meet, [`Kernel`] is a piece of work,
//!    [`Gemm`] another; on the host they run on [`Workers`]. What was [`CapturedGraph`] once is replayed as one.
//! 4. [`Transfer`] moves batches between roles; [`Isolation`] sets both roles up.
//!
//! This is the only crate with `unsafe` in it.
#![expect(unsafe_code, reason = "drivers are called here, and nowhere else")]

mod error;

// Cards and what they say.
mod card;
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
mod fault;
mod injected_leak;

// The three kinds of devices.
mod driver;
mod workers;
pub mod host;
mod host_exec;
mod host_memory;
mod host_gemm;
mod host_graph;
mod cpu;
pub mod sim;
mod cuda;

/// Compiling kernels, also without a card.
pub mod compile {
    pub use crate::cuda::nvrtc::{ARCHITECTURES, Compiled, Compiler, Resources, complaints};
    pub use crate::kernel::signature::signature_complaints;
}

pub use arena::{Arena, ArenaError, ArenaSpec, Block, DRIVER, RoleMemory, Strength, View};
pub use capture::{Capture, CapturedGraph};
pub use card::{Card, CardProcess, CardReading};
pub use cost::{DriverCost, probe};
pub use cpu::{host_memory, resident_bytes};
pub use device::{Device, LoadedKernel};
pub use error::DeviceError;
pub use fault::{Fault, Faults, LeakRate, Pool, Slow};
pub use gemm::{Gemm, Operand};
pub use injected_leak::InjectedLeak;
pub use isolation::{CardUse, HostUse, Isolation, IsolationError, Partition};
pub use kernel::{
    Arg, ArgValue, DType, Element, Grid, HostArgs, HostKernel, Kernel, KernelArgs, Param, ParamKind, Source,
};
pub use machine::{CardCounters, DeviceKind, Machine};
pub use pinned::{Pinned, PinnedPart};
pub use sim::SimSpec;
pub use stream::{Event, Stream};
pub use transfer::{Route, Transfer};
pub use workers::{Workers, pieces};
