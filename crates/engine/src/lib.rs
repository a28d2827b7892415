//! Static graphs: define, differentiate, plan memory, compile, replay.
//!
//! Read in this order:
//!
//! 1. [`Shape`] and [`TensorType`] describe a tensor, [`Rows`] the row offsets of a packed (ragged) one; [`Parameters`] are
//!    the trainable weights.
//! 2. [`Graph`] is a program under construction: a model defines it, and [`Graph::accumulate`] appends the backward pass.
//!    The ops are in [`ops`], one file each; [`Op`] is the trait they implement.
//! 3. [`Program`] is a compiled graph: a list of [`Launch`]es with every address fixed by a [`MemoryPlan`]. [`fit()`] compiles
//!    one that stays below a memory limit. [`update_program`] is the optimizer step, [`Schedule`] its learning rate.
//! 4. [`ProgramSet`] holds all programs of a model and every byte they take; [`Session`] allocates those bytes and runs the
//!    programs on a device.

mod error;

// Defining a model.
mod tensor;
mod rows;
mod random;
mod parameters;
mod op;
mod graph;
mod real;
pub mod ops;
mod gradient;

// Compiling a graph.
mod schedule;
mod lower;
mod memory_plan;
mod program;
mod fit;

// The optimizer step.
mod optimizer;

// Running programs.
mod program_set;
mod session;

#[cfg(test)]
mod testing;

pub use error::EngineError;
pub use fit::fit;
pub use gradient::Recomputed;
pub use graph::{BlockId, Graph, Leaf, ParameterSpan, Value};
pub use lower::{Launch, LaunchArg, Location, Lower, Region, Tensor};
pub use memory_plan::{Buffer, BufferPlacement, MemoryPlan, PeakBuffer, ReusableSpan};
pub use op::{Backward, Op, WriteMode, refuse};
pub use ops::{ConvWindow, RngKeys};
pub use optimizer::{
    AfterWarmUp, KERNELS as UPDATE_KERNELS, SOURCE as UPDATE_SOURCE, Schedule, UpdateSpec, update_program,
};
pub use parameters::{Init, Parameter, ParameterId, ParameterList, Parameters};
pub use program::{Named, NamedLayout, Program};
pub use program_set::{MemoryKind, MemoryLine, ProgramId, ProgramSet, WORKSPACE_BYTES};
pub use random::{normal_pair, philox, unit};
pub use real::{Float, Real};
pub use rows::Rows;
pub use session::{Fetch, HostValue, LaunchTime, Results, Session};
pub use tensor::{MAX_RANK, Shape, TensorType, accumulator};
