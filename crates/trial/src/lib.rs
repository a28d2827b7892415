//! Whole systems: from a plan to a run, and runs that measure.
//!
//! [`resolve`] finds the machine and makes the plan. [`launch`] sets a training run up, [`Trainer`] is such a run in a
//! program of one's own. [`choose`] finds the fastest mode, [`profile`] what a run waits for. [`validate`] looks at it piece by piece under five headings, and [`mod@bench`] measures.
//! [`listening`] lets a run be heard while it learns.
//!
//! As a library:
#![doc = include_str!("../../../docs/library.md")]

pub mod kernels;
mod sampler;
mod memory_watch;
pub mod resolve;
pub mod launch;
pub mod tell;
mod trainer;
pub mod demo;
pub mod listening;
mod heard;
pub mod choose;
pub mod profile;
pub mod validate;
pub mod bench;

pub use heard::Heard;
pub use memory_watch::MemoryWatch;
pub use sampler::{Peak, Sampler, SamplerError};
pub use trainer::{EachStep, Trainer, TrainerBuilder};
