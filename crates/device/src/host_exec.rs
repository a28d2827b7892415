//! Running queued work on host memory: what the CPU device does at once and simulated cards do later.
//!
//! On both, a device address is the address of host memory.

use crate::driver::{Address, CopyPath, RawArg};
use crate::kernel::{Grid, HostArg, HostArgs, Kernel};
use crate::workers::Workers;

/// Runs a kernel's Rust host kernel, which may spread its work over `workers`.
///
/// # Safety
/// Every pointer in `args` must be to live host memory of the given length, which nothing else reads while it is
/// written or writes at all until this returns. [`crate::kernel::check`] has seen to it that arguments that are
/// written overlap no others.
pub(crate) unsafe fn run_host(kernel: &'static Kernel, grid: Grid, args: &[RawArg], workers: &Workers) {
    let args = args.iter().map(|arg| match *arg {
        // SAFETY: live and not written by others, by this function's contract.
        RawArg::Read { at, bytes } => HostArg::Read(unsafe { std::slice::from_raw_parts(pointer(at), bytes as usize) }),
        RawArg::Write { at, bytes } => {
            // SAFETY: live and touched by nobody else, by this function's contract.
            HostArg::Write(unsafe { std::slice::from_raw_parts_mut(pointer(at), bytes as usize) })
        }
        RawArg::U32(n) => HostArg::U32(n),
        RawArg::U64(n) => HostArg::U64(n),
        RawArg::F32(x) => HostArg::F32(x),
    });
    (kernel.host)(&mut HostArgs { kernel, args: args.map(Some).collect(), taken: 0, grid, workers });
}

/// Moves the bytes of a copy.
///
/// # Safety
/// Both ends must be live host memory of the copy's length that nothing else writes, and nothing reads at the far
/// end, until this returns.
pub(crate) unsafe fn run_copy(path: &CopyPath) {
    let (from, to): (*const u8, *mut u8) = match *path {
        CopyPath::Up { from, to } => (from.ptr, pointer(to)),
        CopyPath::Down { from, to } => (pointer(from), to.ptr),
        CopyPath::Inside { from, to, .. } | CopyPath::Peer { from, to, .. } => (pointer(from), pointer(to)),
    };
    // SAFETY: live for the whole length by this function's contract; `copy` allows the ends to overlap.
    unsafe { std::ptr::copy(from, to, path.bytes() as usize) };
}

/// Sets every byte.
///
/// # Safety
/// The bytes must be live host memory that nothing else touches until this returns.
pub(crate) unsafe fn run_fill(at: Address, bytes: u64, value: u8) {
    // SAFETY: by this function's contract.
    unsafe { std::ptr::write_bytes(pointer(at), value, bytes as usize) };
}

pub(crate) fn pointer(at: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at.raw as usize)
}

/// The parts of device memory a piece of work touches: `(from, to, writes)`.
pub(crate) fn touched(args: &[RawArg]) -> Vec<(u64, u64, bool)> {
    let span = |arg: &RawArg| match *arg {
        RawArg::Read { at, bytes } => Some((at.raw, at.raw + bytes, false)),
        RawArg::Write { at, bytes } => Some((at.raw, at.raw + bytes, true)),
        _ => None,
    };
    args.iter().filter_map(span).collect()
}

/// The parts of device memory a copy touches.
pub(crate) fn touched_by_copy(path: &CopyPath) -> Vec<(u64, u64, bool)> {
    let span = |at: Address, writes| (at.raw, at.raw + path.bytes(), writes);
    match *path {
        CopyPath::Up { to, .. } => vec![span(to, true)],
        CopyPath::Down { from, .. } => vec![span(from, false)],
        CopyPath::Inside { from, to, .. } | CopyPath::Peer { from, to, .. } => {
            vec![span(from, false), span(to, true)]
        }
    }
}
