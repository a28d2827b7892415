//! Execution of copies, fills and kernels on host memory. The CPU device executes at once, simulated cards later.
//!
//! On both, a device address is the address of host memory.

use crate::driver::{Address, CopyPath, RawArg};
use crate::kernel::{HostArg, HostArgs, Kernel};
use crate::workers::Workers;

/// Runs a kernel's host kernel, which may use `workers`.
///
/// # Safety
/// Every pointer in `args` must point to live host memory of the given length. Until this returns, nothing else may write
/// that memory, or read the written arguments. [`crate::kernel::check`] ensures that written arguments overlap no others.
pub(crate) unsafe fn run_host(kernel: &'static Kernel, args: &[RawArg], workers: &Workers) {
    let args = args.iter().map(|arg| match *arg {
        // SAFETY: live and not written by others, by this function's contract.
        RawArg::Read { at, bytes } => HostArg::Read(unsafe { std::slice::from_raw_parts(pointer(at), bytes as usize) }),
        RawArg::Write { at, bytes } => {
            // SAFETY: live and not accessed by others, by this function's contract.
            HostArg::Write(unsafe { std::slice::from_raw_parts_mut(pointer(at), bytes as usize) })
        }
        RawArg::U32(n) => HostArg::U32(n),
        RawArg::U64(n) => HostArg::U64(n),
        RawArg::F32(x) => HostArg::F32(x),
    });
    let args = args.collect::<Vec<HostArg<'_>>>().into_iter();
    (kernel.host)(&mut HostArgs { kernel, args, workers });
}

/// Moves the bytes of a copy.
///
/// # Safety
/// Source and destination must be live host memory of the copy's length. Until this returns, nothing else may write them
/// or read the destination.
pub(crate) unsafe fn run_copy(path: &CopyPath) {
    let (from, to): (*const u8, *mut u8) = match *path {
        CopyPath::HostToDevice { from, to } => (from.ptr, pointer(to)),
        CopyPath::DeviceToHost { from, to } => (pointer(from), to.ptr),
        CopyPath::WithinDevice { from, to, .. } | CopyPath::Peer { from, to, .. } => (pointer(from), pointer(to)),
    };
    // SAFETY: live for the whole length by this function's contract; `copy` allows overlap.
    unsafe { std::ptr::copy(from, to, path.bytes() as usize) };
}

/// Sets every byte.
///
/// # Safety
/// The bytes must be live host memory that nothing else accesses until this returns.
pub(crate) unsafe fn run_fill(at: Address, bytes: u64, value: u8) {
    // SAFETY: by this function's contract.
    unsafe { std::ptr::write_bytes(pointer(at), value, bytes as usize) };
}

/// Flips the lowest bit of one byte.
///
/// # Safety
/// As for [`run_fill`].
pub(crate) unsafe fn run_flip(at: Address) {
    // SAFETY: by this function's contract.
    unsafe { *pointer(at) ^= 1 };
}

pub(crate) fn pointer(at: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at.raw as usize)
}

/// A range of device memory that an operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) writes: bool,
}

impl AccessRange {
    pub(crate) fn new(at: Address, bytes: u64, writes: bool) -> AccessRange {
        AccessRange { from: at.raw, to: at.raw + bytes, writes }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.to - self.from
    }

    /// Whether running both at once would be a data race.
    pub(crate) fn races_with(&self, other: &AccessRange) -> bool {
        self.from < other.to && other.from < self.to && (self.writes || other.writes)
    }
}

/// The device memory that a kernel or GEMM accesses.
pub(crate) fn accessed(args: &[RawArg]) -> Vec<AccessRange> {
    let range = |arg: &RawArg| match *arg {
        RawArg::Read { at, bytes } => Some(AccessRange::new(at, bytes, false)),
        RawArg::Write { at, bytes } => Some(AccessRange::new(at, bytes, true)),
        _ => None,
    };
    args.iter().filter_map(range).collect()
}

/// The device memory that a copy accesses.
pub(crate) fn accessed_by_copy(path: &CopyPath) -> Vec<AccessRange> {
    let span = |at: Address, writes| AccessRange::new(at, path.bytes(), writes);
    match *path {
        CopyPath::HostToDevice { to, .. } => vec![span(to, true)],
        CopyPath::DeviceToHost { from, .. } => vec![span(from, false)],
        CopyPath::WithinDevice { from, to, .. } | CopyPath::Peer { from, to, .. } => {
            vec![span(from, false), span(to, true)]
        }
    }
}
