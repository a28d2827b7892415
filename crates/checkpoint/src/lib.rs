//! Checkpoints and run folders: everything about their files, and nothing about training or synthesis.
//!
//! Training writes checkpoints and resumes from them; synthesis opens [`ModelContract`] and [`TensorFile`]. A checkpoint
//! is complete or absent: it is written under a temporary name, synced and renamed. The modules are in the order a
//! tensor meets them.
//!
//! ```
//! use serde_json::json;
//! use tandem_checkpoint::{Dtype, NewCheckpoint, OpenMode, RunFolder, RunIdentity, TensorRef, TensorSpec, latest_intact};
//! # use tandem_checkpoint::{Architecture, ComputeDtype, MelStatistics, ModelContract, Vocoder};
//!
//! # let model = ModelContract {
//! #     architecture: Architecture::Custom { name: "mine".into() },
//! #     text: None,
//! #     features: tandem_audio::FeatureSettings::default(),
//! #     mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; 80] },
//! #     compute_dtype: ComputeDtype::F32,
//! #     vocoder: Vocoder::GriffinLim,
//! #     duration_scale: None,
//! # };
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let identity = RunIdentity::new().with("model", "nano").with("data", "6d0c2a");
//! let folder = RunFolder::open(dir, &identity, OpenMode::Resume)?;
//! let bias = TensorRef { name: "bias", dtype: Dtype::F32, shape: &[2], bytes: &[0, 0, 128, 63, 0, 0, 0, 64] };
//! folder.write(&NewCheckpoint {
//!     step: 1000,
//!     weights: &[bias],
//!     optimizer: &[],
//!     state: json!({ "epoch": 2, "cursor": 17 }),
//!     model: &model,
//!     score: Some(0.42),
//! })?;
//!
//! let newest = latest_intact(dir)?.checkpoint.ok_or("nothing to resume from")?;
//! newest.weights.expect(&[TensorSpec { name: "bias", dtype: Dtype::F32, shape: &[2] }])?;
//! assert_eq!(newest.weights.read("bias")?, bias.bytes);
//! assert_eq!((newest.step, &newest.state["cursor"]), (1000, &json!(17)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod file_names;
mod disk;

// The files of a checkpoint.
mod tensor;
mod mismatch;
mod tensor_file;
mod contract;
mod state_file;

// A checkpoint as a whole.
mod write;
mod foreign;
mod read;
mod listing;
mod rotation;
mod room;

// The folder of a run.
mod fingerprint;
mod run_identity;
mod run_folder;
mod rank_folder;

#[cfg(test)]
mod test_model;

pub use contract::{Architecture, ComputeDtype, MelStatistics, ModelContract, ModelText, Vocoder};
pub use disk::free_bytes;
pub use error::CheckpointError;
pub use file_names::{
    BAD_SAMPLES, EMA_PREFIX, MODEL_FILE, OPTIMIZER_FILE, RANKS, RECORDING_HASHES, RUN_FILE, RUN_LOG, SAMPLES,
    STATE_FILE, TENSORBOARD, WEIGHTS_FILE, checkpoint_step,
};
pub use fingerprint::Fingerprint;
pub use listing::{CheckpointSearch, SkippedCheckpoint, best_intact, latest_intact, stored_features};
pub use mismatch::Mismatch;
pub use rank_folder::RankFolder;
pub use read::Checkpoint;
pub use room::{CheckpointRoom, FolderSpace};
pub use rotation::{CHECKPOINTS_TO_KEEP, WrittenCheckpoint, folder_bytes};
pub use run_folder::{OpenMode, RunFolder, stored_identity};
pub use run_identity::{Difference, RunIdentity};
pub use tensor::{Dtype, TensorRef, TensorSpec};
pub use tensor_file::{TensorFile, tensor_file_bytes};
pub use write::{NewCheckpoint, checkpoint_bytes};
