//! The [`Op`] trait: shape inference, a gradient rule, and lowering to launches.
//!
//! Each op lives in one file of [`crate::ops`], together with the method of [`Graph`] that adds it, its kernels and its
//! tests. `docs/adding-an-op.md` walks through one.

use std::fmt;

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::ops::pointwise::Function;
use crate::tensor::TensorType;

/// An operation: the kind of a graph node.
pub trait Op: fmt::Debug + Send + Sync {
    /// Its name in errors and reports.
    fn name(&self) -> &'static str;

    /// Shape inference: the types of its outputs, or an error about its inputs ([`refuse`]).
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError>;

    /// Adds the nodes that compute the gradient of each input from the gradients of the outputs. One entry per input; `None`
    /// where no gradient flows.
    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let _ = at;
        Err(EngineError::NoGradient { op: self.name() })
    }

    /// Bytes of each scratch buffer it needs while it runs.
    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        let _ = (inputs, outputs);
        Vec::new()
    }

    /// Inputs that it mutates: parameter spans, gradients and states. Dead code elimination never removes such a node.
    fn mutates(&self) -> &'static [usize] {
        &[]
    }

    /// Whether its only output is a view of its first input: the same memory under another type.
    fn is_view(&self) -> bool {
        false
    }

    /// Inputs that the first output may overwrite in place if no later op reads them. [`Lower::in_place_input`] says whether it does.
    fn may_overwrite(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Whether it can accumulate this output in place ([`Lower::accumulates`]). Parameter gradients are summed this way.
    fn can_accumulate(&self, output: usize) -> bool {
        let _ = output;
        false
    }

    /// For an op that only stores its second input into its first, a persistent leaf: how it stores. Scheduling removes it where
    /// the producer of the second input can write there itself, or accumulate ([`Op::can_accumulate`]).
    fn write_mode(&self) -> Option<WriteMode> {
        None
    }

    /// Whether it runs on the side stream when no op of its program reads its outputs. Parameter gradients do: only the end of
    /// the program waits for them.
    fn runs_on_side_stream(&self) -> bool {
        false
    }

    /// Whether it only adds two tensors of its own type and shape.
    fn is_addition(&self) -> bool {
        false
    }

    /// Whether it can fuse the addition of one more input, of the type of its first output, to that output. The extra input
    /// comes last.
    fn can_fuse_addition(&self) -> bool {
        false
    }

    /// The function it applies to every element, for a pointwise op: chains of these are fused into one kernel.
    fn pointwise(&self) -> Option<&'static Function> {
        None
    }

    /// Emits its launches and GEMMs.
    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError>;
}

/// How a value is written to persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Added to the old contents.
    Accumulate,
    /// Replaces the old contents.
    Overwrite,
}

/// The error for incompatible inputs.
pub fn refuse<T>(op: &'static str, problem: impl Into<String>, operands: &[TensorType]) -> Result<T, EngineError> {
    Err(EngineError::Operands { op, problem: problem.into(), operands: operands.to_vec() })
}

/// The context of an op's gradient rule.
pub struct Backward<'g> {
    /// Where to add nodes.
    pub graph: &'g mut Graph,
    /// The node's inputs.
    pub inputs: &'g [Value],
    /// Its outputs.
    pub outputs: &'g [Value],
    /// The gradient of each output; `None` where the loss does not depend on it.
    pub gradients: &'g [Option<Value>],
    /// Whether each input's gradient is needed. The rule may skip the others.
    pub wanted: &'g [bool],
}

impl Backward<'_> {
    /// The gradient of the first output. A rule is only called if at least one output has a gradient.
    pub fn first(&self) -> Option<Value> {
        self.gradients[0]
    }
}
