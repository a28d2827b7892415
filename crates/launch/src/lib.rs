//! From a plan to a running training run.
//!
//! [`inventory`] finds the cards and resolves the plan; [`route_proof`] tries the routes between two of them.
//! [`mod@launch`] sets up a training run; [`Trainer`] is that run as a library sees it. [`samples`] synthesises validation
//! sentences after each checkpoint.
//!
//! How to use it as a library is in `docs/library.md` of the repository, whose code is a doctest of this crate.

mod sampler;
mod memory_watch;
pub mod route_proof;
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

/// The library page: its examples are tests. Outside the repository, in a packaged crate, there is no such page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryPage;
