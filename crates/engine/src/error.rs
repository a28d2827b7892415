//! What can go wrong before, while and after a program runs.

use tandem_device::{DType, DeviceError};

use crate::tensor::{Shape, TensorType};

/// Why a graph cannot be built, planned or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Two operands of an op do not go together. Change the model.
    #[error("{op}: {problem}; the operands are {}", listed(operands))]
    Operands {
        /// Which op.
        op: &'static str,
        /// What it expected.
        problem: String,
        /// What it was given.
        operands: Vec<TensorType>,
    },
    /// A gradient was asked of an op that has none. Detach the value before it.
    #[error("{op} has no gradient, and one was asked for; detach its input, or do not train through it")]
    NoGradient {
        /// Which op.
        op: &'static str,
    },
    /// A loss must be one number.
    #[error("a gradient is taken of one number, not of {found}")]
    NotALoss {
        /// What was given.
        found: Shape,
    },
    /// Two parameters, inputs, host values or results have one name.
    #[error("{what} {name} was declared twice, as {first} and as {second}")]
    DeclaredTwice {
        /// Parameter, input, …
        what: &'static str,
        /// The name.
        name: String,
        /// The first declaration.
        first: TensorType,
        /// The second.
        second: TensorType,
    },
    /// A name nobody declared.
    #[error("there is no {what} called {name}; there are {known}")]
    Unknown {
        /// Parameter, input, …
        what: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Values for something of another type or size.
    #[error("{what} {name} is {expected}, given {found}")]
    Mismatch {
        /// Parameter, input, …
        what: &'static str,
        /// The name.
        name: String,
        /// What it is.
        expected: TensorType,
        /// What was given.
        found: String,
    },
    /// No amount of recomputation makes the program fit.
    #[error(
        "{program} needs {needed} bytes and may take {limit}; the largest holders are {holders}; lower the batch, or raise the limit"
    )]
    TooLarge {
        /// Which program.
        program: String,
        /// Its smallest peak.
        needed: u64,
        /// What was allowed.
        limit: u64,
        /// What holds the most at the peak.
        holders: String,
    },
    /// An element type nobody computes in.
    #[error("{op} does not compute in {dtype:?}")]
    Precision {
        /// Which op.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// A kernel that is written for the CPU only was to run on a card.
    #[error("{kernel} has no CUDA kernel yet; --mode cpu and --sim run it")]
    NotOnCuda {
        /// Which.
        kernel: &'static str,
    },
    /// Whoever asked for it gave up on it. Nothing went wrong.
    #[error("stopped before it was done")]
    Stopped,
    /// The device refused: memory that is not there, a lost card.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn listed(operands: &[TensorType]) -> String {
    operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
