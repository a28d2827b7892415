//! Errors of devices. Each variant asks for a different reaction.

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
        /// The index asked for.
        index: usize,
        /// The number of cards.
        found: usize,
    },

    /// The card exists, but this process may not use it.
    #[error("GPU {index} ({uuid}) is hidden by {by}")]
    Hidden {
        /// The index asked for.
        index: usize,
        /// The card's UUID.
        uuid: String,
        /// What hides it.
        by: String,
    },

    /// The card exists, but this run is restricted to other cards.
    #[error("GPU {index} is outside this run: only {allowed:?} may be opened")]
    OutsideRun {
        /// The index asked for.
        index: usize,
        /// The cards the run is restricted to.
        allowed: Vec<usize>,
    },

    /// The card does not have the memory: free some, or ask for less.
    #[error("GPU {card} is out of memory: {} asked for, {} of {} free", show(*asked), show(*free), show(*total))]
    OutOfMemory {
        /// The card.
        card: usize,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free at that time.
        free: u64,
        /// Bytes of the card.
        total: u64,
    },

    /// The driver has no memory pools on this card, as under some virtual GPUs: without them no limit is enforced by the
    /// driver, and no other card gets access.
    #[error(
        "the driver offers no memory pools on GPU {card} ({what}), and hard limits need them: remove --enable-memory-isolation"
    )]
    NoPools {
        /// The card.
        card: usize,
        /// The driver's name and number of the error.
        what: String,
    },

    /// The host could not allocate pinned memory.
    #[error("the host has no {} of pinned (page-locked) memory left", show(*asked))]
    OutOfPinned {
        /// Bytes asked for.
        asked: u64,
    },

    /// A role's limit refuses the allocation. The card may have more memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),

    /// The card stopped responding, or a kernel on it faulted. This process cannot use the card any more, and every later
    /// call returns the same error. A new process can resume from the last checkpoint.
    #[error(
        "GPU {card} was lost: {what}, reported while {during}; this process cannot use it any more: start again, and resume from the last checkpoint if there is one"
    )]
    Lost {
        /// The card.
        card: usize,
        /// The call that reported it. The fault may come from earlier work.
        during: &'static str,
        /// The driver's name and number of the error.
        what: String,
    },

    /// The driver refused a call.
    #[error("{during} failed on GPU {card}: {what}")]
    Failed {
        /// The card.
        card: usize,
        /// The call.
        during: &'static str,
        /// The driver's name and number of the error.
        what: String,
    },

    /// The host accessed pinned memory while the device still uses it: a wait for an event is missing.
    #[error("pinned memory is still in use by the device: {what}")]
    StillInUse {
        /// The use.
        what: &'static str,
    },

    /// A kernel was called with arguments that do not match its parameters.
    #[error("kernel {kernel}: {problem}")]
    Arguments {
        /// The kernel.
        kernel: &'static str,
        /// What does not match.
        problem: String,
    },

    /// A GEMM's types, strides or memory are not supported.
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
        /// The compiler's log.
        log: String,
    },

    /// Two operations of the CPU device used the same bytes at once: a wait for an event is missing.
    #[error("two operations used the same memory of the CPU device at once: {what}")]
    Race {
        /// The second operation.
        what: &'static str,
    },

    /// Bytes did not arrive as they were sent.
    #[error("{route}: the copy from GPU {from} to GPU {to} changed {wrong} of {bytes} bytes")]
    Corrupt {
        /// The route.
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

    /// Work did not end in time. It may still run: its memory must not be used again by this process.
    #[error("GPU {card} did not finish within {seconds} s: {during}")]
    TimedOut {
        /// The card.
        card: usize,
        /// The work.
        during: &'static str,
        /// The time it had.
        seconds: u64,
    },

    /// The transfer asked for is not possible between these two cards.
    #[error("{route} transfer is not possible from GPU {from} to GPU {to}: {why}")]
    NoRoute {
        /// The route asked for.
        route: &'static str,
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The reason.
        why: String,
    },

    /// A collective, or joining the ranks that take part in it, failed. Often another rank has ended, and its log says why.
    #[error(
        "{who}: {call} failed: {status}{}; if another rank has ended, its log says why: start all ranks again, and resume from the last checkpoint if there is one (NCCL_DEBUG=INFO shows more)",
        if detail.is_empty() { String::new() } else { format!(" ({detail})") }
    )]
    Communicator {
        /// The rank, and its card.
        who: String,
        /// The function of NCCL.
        call: &'static str,
        /// What happened: NCCL's text and number of the error, or the deadline that passed.
        status: String,
        /// NCCL's last message; empty if there is none.
        detail: String,
    },

    /// A variable of the environment would change the results of collectives: set it for every rank, before it starts.
    #[error(
        "{variable} must be {expected} in the environment of every rank, and it is {}: without it, sums over ranks differ from run to run; start the ranks with {variable}={expected}",
        found.as_deref().unwrap_or("not set")
    )]
    CommunicatorEnvironment {
        /// The variable.
        variable: &'static str,
        /// The value it must have.
        expected: &'static str,
        /// Its value.
        found: Option<String>,
    },

    /// These devices have no communicator: reduce on the host.
    #[error("NCCL connects NVIDIA cards, and this is a {kind} device: reduce on the host")]
    NoCommunicator {
        /// The kind of the device.
        kind: &'static str,
    },

    /// `TANDEM_FAULT` names an unknown fault: correct or unset it.
    #[error(
        "TANDEM_FAULT={given}: expected trap@step:N, trap-data@step:N, drift@step:N, leak:POOL:MiB/STEPS (data, model, pinned or host) or slow:WORK:TIMES (decode, upload, features, transfer or step), e.g. trap@step:37, leak:data:1MiB/100 or slow:decode:8"
    )]
    Fault {
        /// Its value.
        given: String,
    },

    /// Isolation cannot be set up, or a limit does not hold.
    #[error(transparent)]
    Isolation(#[from] crate::isolation::IsolationError),
}

impl DeviceError {
    /// Whether a route between two cards does not work, and not one of the cards: another route may.
    pub fn is_about_route(&self) -> bool {
        match self {
            DeviceError::Corrupt { .. } | DeviceError::NoRoute { .. } => true,
            DeviceError::Failed { during, .. } => ["peer copy", "copying", "enabling peer access"].contains(during),
            _ => false,
        }
    }

    /// The card whose work failed, if one did. Others are not affected.
    pub fn failed_card(&self) -> Option<usize> {
        match self {
            DeviceError::Lost { card, .. } | DeviceError::Failed { card, .. } => Some(*card),
            _ => None,
        }
    }
}
