//! The benchmarks of `tandem bench`. They measure and never decide a test: speed depends on the machine, so what is
//! compared is compared inside one run.

pub mod clips;
mod consumer;
pub mod handoff;
pub mod mel;
pub mod memory;
pub mod pipeline;
mod serve;
mod spread;
pub mod start;

pub use serve::BenchSite;
pub use spread::Spread;

use tandem_device::DeviceError;
use tandem_feed::FeedError;

use crate::sampler::SamplerError;

/// A benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The device said no.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The feed ended.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The process could not be watched.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The corpus it makes for itself could not be written or read back.
    #[error("the recordings for the benchmark could not be made: {0}")]
    Clips(String),
}
