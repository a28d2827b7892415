//! Static graphs: define, differentiate, plan memory, replay.
//!
//! Read in this order:
//!
//! 1. [`Shape`] and [`TensorType`] say what a tensor is, [`Rows`] where utterances begin in one that holds many;
//!    [`Parameters`] are what a model learns.
//! 2. [`Graph`] is a program under construction: a model writes it, [`Graph::accumulate`] writes the backward pass behind it.
//!    The ops are in [`ops`], one file each; [`Op`] is what each of them answers.
//! 3. [`Program`] is a graph with every address settled ([`MemoryPlan`]): a list of [`Launch`]s. [`fit`] makes one that keeps to
//!    a limit. [`update_program`] is the one that every training ends a step with, [`Schedule`] its learning rate.
//! 4. [`ProgramSet`] holds the programs of one model and knows every byte they will take; [`Session`] takes the bytes and runs
//!    them on a device.

mod error;

// What a model is written in.
mod tensor;
mod rows;
mod random;
mod parameters;
mod op;
mod graph;
mod real;
pub mod ops;
mod gradient;

// From a graph to work.
mod schedule;
mod lower;
mod memory_plan;
mod program;
mod fit;

// What every model's training has.
mod optimizer;

// Running it.
mod program_set;
mod session;

#[cfg(test)]
mod testing;

pub use error::EngineError;
pub use fit::fit;
pub use gradient::{Earlier, Recomputed};
pub use graph::{BlockId, Graph, Leaf, ParameterSpan, Value};
pub use lower::{Launch, LaunchArg, Location, Lower, Region, Tensor};
pub use memory_plan::{Buffer, BufferPlacement, MemoryPlan, PeakBuffer, ReusableSpan};
pub use op::{Backward, Op, WriteMode, refuse};
pub use ops::{ConvWindow, RngKeys};
pub use optimizer::{AfterWarmUp, SOURCE as UPDATE_SOURCE, Schedule, UpdateSpec, update_program};
pub use parameters::{Init, Parameter, ParameterId, ParameterList, Parameters};
pub use program::{Named, NamedLayout, Program};
pub use program_set::{MemoryKind, MemoryLine, ProgramId, ProgramSet, WORKSPACE_BYTES};
pub use random::{normal_pair, philox, unit};
pub use real::{Float, Real};
pub use rows::Rows;
pub use session::{Fetch, HostValue, Results, Session, StepTime};
pub use tensor::{MAX_RANK, Shape, TensorType, accumulator};
