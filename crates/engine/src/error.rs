//! Errors of building, compiling and running programs.

use tandem_device::{DType, DeviceError};

use crate::tensor::{Shape, TensorType};

/// Why a graph cannot be built, compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The operands of an op are incompatible. Change the model.
    #[error("{op}: {problem}; the operands are {}", listed(operands))]
    Operands {
        /// The op.
        op: &'static str,
        /// What it expects.
        problem: String,
        /// Their types.
        operands: Vec<TensorType>,
    },
    /// The backward pass reached an op without a gradient rule. Detach its input.
    #[error("{op} has no gradient; detach its input, or do not differentiate through it")]
    NoGradient {
        /// The op.
        op: &'static str,
    },
    /// A loss must be a scalar.
    #[error("a loss must be a scalar, not a tensor of shape {found}")]
    NotALoss {
        /// Its shape.
        found: Shape,
    },
    /// Two parameters, inputs, host values or results share a name.
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
    /// A name that was never declared.
    #[error("there is no {what} called {name}; there are {known}")]
    Unknown {
        /// Parameter, input, …
        what: &'static str,
        /// The requested name.
        name: String,
        /// The declared names.
        known: String,
    },
    /// Values of the wrong type or size.
    #[error("{what} {name} is {expected}, given {found}")]
    Mismatch {
        /// Parameter, input, …
        what: &'static str,
        /// The name.
        name: String,
        /// The declared type.
        expected: TensorType,
        /// The given type or size.
        found: String,
    },
    /// The program does not fit its memory limit, whatever is recomputed.
    #[error(
        "{program} needs {needed} bytes and may take {limit}; the largest buffers are {largest}; lower the batch size, or raise the limit"
    )]
    TooLarge {
        /// Which program.
        program: String,
        /// Its smallest peak.
        needed: u64,
        /// The limit.
        limit: u64,
        /// The largest buffers at the peak.
        largest: String,
    },
    /// The op has no implementation for an element type.
    #[error("{op} does not support {dtype:?}")]
    Precision {
        /// The op.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// A kernel without a CUDA version was loaded on a card.
    #[error("{kernel} has no CUDA kernel; run with --mode cpu or --sim")]
    NotOnCuda {
        /// The kernel.
        kernel: &'static str,
    },
    /// The caller cancelled the run ([`crate::Session::stop_when`]).
    #[error("cancelled")]
    Stopped,
    /// A device error: out of memory, a lost card.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn listed(operands: &[TensorType]) -> String {
    operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
