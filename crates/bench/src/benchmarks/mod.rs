//! The benchmarks of `tandem bench`. They measure and never decide a test: speed depends on the machine, so what is
//! compared is compared inside one run.

pub mod clips;
mod consumer;
pub mod handoff;
pub mod mel;
pub mod memory;
pub mod modes;
pub mod pipeline;
pub mod ranks;
mod serve;
pub mod shards;
pub mod spread;
pub mod start;
pub mod step;
pub mod training;

pub use serve::BenchContext;
pub use spread::Spread;

use tandem_checkpoint::CheckpointError;
use tandem_device::DeviceError;
use tandem_engine::EngineError;
use tandem_feed::FeedError;
use tandem_train::TrainError;

use tandem_launch::SamplerError;
use tandem_launch::launch::LaunchError;

/// A benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The device said no.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model could not be built or run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The feed ended.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The run could not be set up, or ended.
    #[error(transparent)]
    Run(Box<LaunchError>),
    /// The process could not be watched.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The corpus it makes for itself could not be written or read back.
    #[error("the synthetic speech could not be made: {0}")]
    Clips(String),
}

impl From<LaunchError> for BenchError {
    fn from(error: LaunchError) -> BenchError {
        BenchError::Run(Box::new(error))
    }
}

impl From<TrainError> for BenchError {
    fn from(error: TrainError) -> BenchError {
        LaunchError::from(error).into()
    }
}

impl From<CheckpointError> for BenchError {
    fn from(error: CheckpointError) -> BenchError {
        LaunchError::from(error).into()
    }
}
