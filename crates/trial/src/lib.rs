//! Whole-system runs that measure: what `validate` does, and later `profile`, `bench` and auto mode.
//!
//! [`resolve`] finds the machine and makes the plan. [`rehearsal`] runs the pipeline with a [`stand_in`] for the
//! model, [`validate`] puts both under five headings. [`launch`] sets a training run up.

pub mod kernels;
pub mod stand_in;
pub mod rehearsal;
mod sampler;
pub mod resolve;
pub mod validate;
pub mod launch;
pub mod bench;

pub use sampler::{Peak, Sampler, SamplerError};
