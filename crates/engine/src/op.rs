//! What an op is: a rule for shapes, a rule for gradients, and how it becomes work on a device.
//!
//! Each op lives in one file of [`crate::ops`], together with the method of [`Graph`] that writes it, its kernels and its
//! tests. `docs/adding-an-op.md` walks through one.

use std::fmt;

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::ops::pointwise::Function;
use crate::tensor::TensorType;

/// One kind of node.
pub trait Op: fmt::Debug + Send + Sync {
    /// What it is called in errors and reports.
    fn name(&self) -> &'static str;

    /// The types of its outputs, or what is wrong with its inputs: [`refuse`].
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError>;

    /// Writes the nodes that compute the gradient of each input from those of the outputs. One entry per input; none where
    /// nothing flows.
    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let _ = at;
        Err(EngineError::NoGradient { op: self.name() })
    }

    /// Bytes of each piece of memory it needs while it runs.
    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        let _ = (inputs, outputs);
        Vec::new()
    }

    /// Inputs that it changes: spans, gradients and states. A node that changes something is never left out.
    fn mutates(&self) -> &'static [usize] {
        &[]
    }

    /// Whether its only output is its first input in the same memory, seen differently.
    fn is_view(&self) -> bool {
        false
    }

    /// Inputs in whose memory the first output may be written, when nobody reads them afterwards. Lowering is told by
    /// [`Lower::taken_over`].
    fn may_overwrite(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Whether it can add this output to what is there: [`Lower::adds`]. Gradients of parameters are summed so.
    fn can_add(&self, output: usize) -> bool {
        let _ = output;
        false
    }

    /// Whether all it does is to bring its second input to its first, which lasts. It is left out where what makes the second
    /// input can write it there itself, or add it: [`Op::can_add`].
    fn brings(&self) -> Option<WriteMode> {
        None
    }

    /// Whether it is worth running beside what follows when nobody in its program reads what it makes: gradients of
    /// parameters are, for until the last of them nobody waits.
    fn runs_beside(&self) -> bool {
        false
    }

    /// Whether all it does is to add two tensors of its own type and shape.
    fn is_sum_of_two(&self) -> bool {
        false
    }

    /// Whether it can add one more input, of the type of its first output, to that output. It then comes last.
    fn can_take_one_more(&self) -> bool {
        false
    }

    /// The function it applies to every element, where it is no more than that: such nodes are fused.
    fn pointwise(&self) -> Option<&'static Function> {
        None
    }

    /// Turns it into launches and GEMMs.
    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError>;
}

/// How something is brought to what lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// It is added.
    Accumulate,
    /// It takes the place of what is there.
    Overwrite,
}

/// The error for inputs that do not go together.
pub fn refuse<T>(op: &'static str, problem: impl Into<String>, operands: &[TensorType]) -> Result<T, EngineError> {
    Err(EngineError::Operands { op, problem: problem.into(), operands: operands.to_vec() })
}

/// What an op's gradient rule is given.
pub struct Backward<'g> {
    /// Where to write nodes.
    pub graph: &'g mut Graph,
    /// The node's inputs.
    pub inputs: &'g [Value],
    /// Its outputs.
    pub outputs: &'g [Value],
    /// The gradient of each output; none where the loss does not depend on it.
    pub gradients: &'g [Option<Value>],
    /// Whether each input's gradient is wanted. Others may be left out.
    pub wanted: &'g [bool],
}

impl Backward<'_> {
    /// The gradient of the first output. The rule is not called unless some output has one.
    pub fn first(&self) -> Option<Value> {
        self.gradients[0]
    }
}
