//! Training: the step loop, and the files of a run.
//!
//! [`StepLoop`] queues steps and reports them; [`run`] tells a run from its first step to its last; [`RunFolder`] and
//! [`Checkpoint`] keep it. Batches come from a [`tandem_feed::Feed`], the maths from a [`tandem_engine::Session`].
//!
//! ```
//! use serde_json::json;
//! use tandem_train::{Dtype, NewCheckpoint, Opening, RunFolder, RunIdentity, TensorRef, TensorSpec, latest_usable};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let identity = RunIdentity::new().with("model", "nano").with("data", "6d0c2a");
//! let folder = RunFolder::open(dir, &identity, Opening::Resume)?;
//! let bias = TensorRef { name: "bias", dtype: Dtype::F32, shape: &[2], bytes: &[0, 0, 128, 63, 0, 0, 0, 64] };
//! folder.write(&NewCheckpoint {
//!     step: 1000,
//!     weights: &[bias],
//!     optimizer: &[],
//!     state: json!({ "epoch": 2, "cursor": 17 }),
//!     model: json!({ "size": "nano" }),
//!     score: Some(0.42),
//! })?;
//!
//! let newest = latest_usable(dir)?.checkpoint.ok_or("nothing to resume")?;
//! newest.weights.expect(&[TensorSpec { name: "bias", dtype: Dtype::F32, shape: &[2] }])?;
//! assert_eq!(newest.weights.read("bias")?, bias.bytes);
//! assert_eq!((newest.step, &newest.state["cursor"]), (1000, &json!(17)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;

// The files of a run.
mod disk;
mod fingerprint;
mod run_identity;
mod run_folder;
mod checkpoint;

// What a run learns from, and what it is judged by.
mod mel_statistics;
mod voices;
mod held_out;

// The steps.
mod tensors;
mod step_clock;
mod cpu_time;
mod report;
mod exact_shapes;
mod step_loop;
mod run;

pub use checkpoint::{
    CHECKPOINTS_TO_KEEP, Checkpoint, Dtype, EMA_PREFIX, MODEL_FILE, Mismatch, NewCheckpoint, OPTIMIZER_FILE,
    PassedOver, STATE_FILE, TensorFile, TensorRef, TensorSpec, Usable, WEIGHTS_FILE, WrittenCheckpoint, best_usable,
    checkpoint_bytes, folder_bytes, latest_usable, tensor_file_bytes,
};
pub use disk::free_bytes;
pub use error::TrainError;
pub use exact_shapes::WriteProgram;
pub use fingerprint::Fingerprint;
pub use held_out::{HeldOut, HeldOutBatch};
pub use mel_statistics::MelStatistics;
pub use report::{AlignmentReport, Figures, StepReport, ValidationReport};
pub use run::{RunOutcome, RunSchedule, Watcher, run};
pub use run_folder::{BAD_SAMPLES, Opening, RUN_LOG, RunFolder, SAMPLES, TENSORBOARD};
pub use run_identity::{Difference, RunIdentity};
pub use step_clock::DeviceTimes;
pub use step_loop::{Recipe, StepLoop, StepLoopParts, StepLoopState};
pub use tensors::{SpanNames, TensorBytes};
pub use voices::gather as gather_voices;
