//! Whole systems: from a plan to a run, and runs that measure.
//!
//! [`resolve`] finds the machine and makes the plan. [`launch`] sets a training run up, [`validate`] looks at it piece by
//! piece under five headings, and [`mod@bench`] measures.

pub mod kernels;
mod sampler;
pub mod resolve;
pub mod launch;
pub mod demo;
pub mod validate;
pub mod bench;

pub use sampler::{Peak, Sampler, SamplerError};
