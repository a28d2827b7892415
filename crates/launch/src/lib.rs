//! From a plan to a running training run.
//!
//! [`inventory`] finds the cards and resolves the plan. [`mod@launch`] sets up a training run; [`Trainer`] is that run as a
//! library sees it. [`samples`] synthesises validation sentences after each checkpoint.
//!
//! As a library:
#![doc = include_str!("../../../docs/library.md")]

mod sampler;
mod memory_watch;
pub mod inventory;
pub mod launch;
pub mod step_events;
mod trainer;
pub mod demo;
pub mod samples;
mod event_buffer;

pub use event_buffer::EventBuffer;
pub use memory_watch::MemoryWatch;
pub use sampler::{Peak, Sampler, SamplerError};
pub use trainer::{EachStep, Trainer, TrainerBuilder};
