//! What can go wrong on a device. A variant is a different thing to do next.

use crate::arena::ArenaError;
use crate::bytes::show;
use crate::library::LibraryError;

/// A device could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A driver library is missing, too old or broken: install or repair it, or run on the CPU.
    #[error(transparent)]
    Library(#[from] LibraryError),

    /// No card has this index.
    #[error("there is no GPU {index}: {found} found")]
    NoSuchCard {
        /// What was asked for.
        index: usize,
        /// How many there are.
        found: usize,
    },

    /// The card exists, but this process may not use it.
    #[error("GPU {index} ({uuid}) is hidden by {by}")]
    Hidden {
        /// What was asked for.
        index: usize,
        /// Its identity.
        uuid: String,
        /// What hides it.
        by: String,
    },

    /// The card exists, but the plan named others and closed the door behind them.
    #[error("GPU {index} is outside this run: only {allowed:?} may be opened")]
    OutsideRun {
        /// What was asked for.
        index: usize,
        /// What the run was restricted to.
        allowed: Vec<usize>,
    },

    /// The card does not have the memory: free some, or ask for less.
    #[error("GPU {card} has no {} free: {} of {} are", show(*asked), show(*free), show(*total))]
    OutOfMemory {
        /// The card.
        card: usize,
        /// What was asked for.
        asked: u64,
        /// What it had free at that moment.
        free: u64,
        /// What it has in all.
        total: u64,
    },

    /// The host would not give page-locked memory.
    #[error("the host gave no page-locked memory of {}", show(*asked))]
    OutOfPinned {
        /// What was asked for.
        asked: u64,
    },

    /// A role's own limit says no. The card may well have more.
    #[error(transparent)]
    Arena(#[from] ArenaError),

    /// The card stopped answering, or a kernel on it faulted. Nothing on it can be used by this process any more, and every
    /// later call answers the same; what was saved before can be gone on from, by a new process.
    #[error(
        "GPU {card} was lost: {what}, learnt while {during}; this process cannot use it any more: start again, from the last checkpoint where there is one"
    )]
    Lost {
        /// The card.
        card: usize,
        /// The call that reported it. What broke the card was queued before, by this call or another.
        during: &'static str,
        /// The driver's own name and number for it.
        what: String,
    },

    /// The driver refused a call.
    #[error("{during} failed on GPU {card}: {what}")]
    Failed {
        /// The card.
        card: usize,
        /// What was being done.
        during: &'static str,
        /// The driver's own name and number for it.
        what: String,
    },

    /// Host bytes were touched while the device still uses them: an event was not waited for.
    #[error("page-locked memory is still in use by the device: {what}")]
    StillInUse {
        /// By what.
        what: &'static str,
    },

    /// A kernel was called with arguments it does not take.
    #[error("kernel {kernel}: {problem}")]
    Arguments {
        /// The kernel.
        kernel: &'static str,
        /// What does not match.
        problem: String,
    },

    /// A GEMM was asked for that its types, strides or memory do not allow.
    #[error("GEMM {gemm}: {problem}")]
    Gemm {
        /// The GEMM, with its shapes.
        gemm: String,
        /// What does not match.
        problem: String,
    },

    /// A kernel did not compile for this card.
    #[error("kernel source {file} did not compile for {arch}:\n{log}")]
    Compile {
        /// The source file.
        file: &'static str,
        /// The architecture it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },

    /// Two operations on the CPU device met in the same bytes: an event was not waited for.
    #[error("two operations met in the same memory of the CPU device: {what}")]
    Race {
        /// Which.
        what: &'static str,
    },

    /// Bytes did not arrive as they were sent.
    #[error("{route} copy from GPU {from} to GPU {to} changed {wrong} of {bytes} bytes")]
    Corrupt {
        /// How they travelled.
        route: String,
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// How many differ.
        wrong: u64,
        /// How many were sent.
        bytes: u64,
    },

    /// The transfer asked for is not possible between these two cards.
    #[error("{route} transfer is not possible from GPU {from} to GPU {to}: {why}")]
    NoRoute {
        /// What was asked for.
        route: &'static str,
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// What stands in the way.
        why: String,
    },

    /// `TANDEM_FAULT` asks for a fault that there is not: correct it, or take it away.
    #[error(
        "TANDEM_FAULT={given}: expected trap@step:N, leak:POOL:MiB/STEPS (data, model, pinned or host) or slow:WORK:TIMES (decode, upload, features, transfer or step), e.g. trap@step:37, leak:data:1MiB/100 or slow:decode:8"
    )]
    Fault {
        /// What it says.
        given: String,
    },

    /// Isolation was set up before, or other memory was taken first.
    #[error(transparent)]
    Isolation(#[from] crate::isolation::IsolationError),
}
