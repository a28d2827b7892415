//! Training: the step loop and the run around it.
//!
//! [`StepLoop`] queues steps and reports them; [`run`] trains from the first step to the last, with validations and
//! checkpoints. Batches come from a [`tandem_feed::Feed`], the maths from a [`tandem_engine::Session`], the files from
//! [`tandem_checkpoint`]. Library users train through `tandem_launch::Trainer`, which sets all of that up.

mod error;

// What a run is trained and validated on.
mod mel_statistics;
mod voices;
mod validation_set;

// The weights of step 0.
mod initial_weights;

// The steps.
mod tensors;
mod step_clock;
mod cpu_time;
mod report;
mod exact_shapes;
mod state;
mod step_inputs;
mod ranks;
mod step_loop;
mod run;

pub use error::{SavedStep, TrainError};
pub use exact_shapes::CompileProgram;
pub use initial_weights::{InitReport, InitSource, random_weights, weights_from};
pub use mel_statistics::measure_mel_statistics;
pub use ranks::{Ranks, StepWishes};
pub use report::{AlignmentReport, ReportedMetrics, StepReport, ValidationReport};
pub use run::{RunListener, RunOutcome, RunSchedule, run};
pub use state::{StepLoopState, UpdateCounters};
pub use step_clock::DeviceTimes;
pub use step_loop::{Recipe, StepLoop, StepLoopParts};
pub use tensors::{CheckpointTensors, TensorNames};
pub use validation_set::{ValidationBatch, ValidationRows, ValidationSet};
pub use voices::gather_voices;
