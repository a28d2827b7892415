//! Checkpoints: one folder each, whole or not there.
//!
//! | file | holds |
//! |---|---|
//! | `weights.safetensors` | parameters by name, and their moving averages under [`EMA_PREFIX`] |
//! | `optimizer.safetensors` | moments |
//! | `model.json` | what is needed to run the model elsewhere; the caller's |
//! | `state.json` | step, score, the caller's state; length and checksum of the three others, and of itself |
//!
//! Written under a temporary name in the run's folder, synced, renamed. The modules in the order a tensor meets them.

mod tensor;
mod tensor_file;
mod record;
mod write;
mod foreign;
mod read;
mod expect;
mod listing;
mod rotation;

use serde_json::Value;

pub(crate) use foreign::foreign_in;
pub(crate) use listing::step_of;
pub(crate) use rotation::save;
pub(crate) use write::finish;

pub use expect::Mismatch;
pub use listing::{PassedOver, Usable, best_usable, latest_usable};
pub use read::Checkpoint;
pub use rotation::{CHECKPOINTS_TO_KEEP, WrittenCheckpoint, folder_bytes};
pub use tensor::{Dtype, TensorRef, TensorSpec};
pub use tensor_file::{TensorFile, tensor_file_bytes};
pub use write::checkpoint_bytes;

/// Parameters and their moving averages.
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// Moments of the optimizer.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// What is needed to run the model elsewhere.
pub const MODEL_FILE: &str = "model.json";
/// Step, score and state; lengths and checksums. Written last.
pub const STATE_FILE: &str = "state.json";

/// Begins the name of a parameter's moving average: `ema.` and the name of the parameter.
pub const EMA_PREFIX: &str = "ema.";

/// A checkpoint to be written.
#[derive(Clone, Debug)]
pub struct NewCheckpoint<'a> {
    /// Optimizer steps done.
    pub step: u64,
    /// Parameters, and their averages under [`EMA_PREFIX`].
    pub weights: &'a [TensorRef<'a>],
    /// Moments.
    pub optimizer: &'a [TensorRef<'a>],
    /// Whatever else an exact resume needs: epoch, cursor, random numbers, schedule, replacements, plan. Floating
    /// point numbers come back to the last bit; those that are not finite have no form in JSON.
    pub state: Value,
    /// Architecture, symbols, feature settings.
    pub model: Value,
    /// How bad the model is; the lowest is the best. None, and what is not finite, is never the best.
    pub score: Option<f64>,
}
