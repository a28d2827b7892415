//! Which commands take a setting as a flag, and the heading that `--help` lists it under. The compiler names a setting
//! that has no row. A config file may hold every setting, whichever command reads it.

use tandem_plan::setting::Id;

/// The headings of `--help`, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagGroup {
    Data,
    Model,
    Devices,
    Pipeline,
    Output,
}

impl FlagGroup {
    pub(crate) const ALL: [FlagGroup; 5] =
        [FlagGroup::Data, FlagGroup::Model, FlagGroup::Devices, FlagGroup::Pipeline, FlagGroup::Output];

    pub(crate) fn heading(self) -> &'static str {
        match self {
            FlagGroup::Data => "Data",
            FlagGroup::Model => "Model",
            FlagGroup::Devices => "Devices and memory",
            FlagGroup::Pipeline => "Pipeline",
            FlagGroup::Output => "Output",
        }
    }
}

/// What a command does with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagUse {
    /// It is a flag of the command.
    Used,
    /// Without an effect there, but a command line of `train` works unchanged.
    Accepted,
    /// It is not a flag of the command.
    Refused,
}

/// Which commands use a setting.
#[derive(Clone, Copy)]
enum Scope {
    /// It shapes the plan: every command that makes one.
    Plans,
    /// It matters to a whole training run. `plan` prints it.
    Runs,
}

/// The heading of a setting.
pub(crate) fn group(id: Id) -> FlagGroup {
    row(id).0
}

/// What `command` does with a setting. All these commands resolve a plan.
pub(crate) fn use_of(id: Id, command: &str) -> FlagUse {
    match (row(id).1, command) {
        (Scope::Plans, _) | (Scope::Runs, "train" | "plan") => FlagUse::Used,
        (Scope::Runs, "validate" | "profile") => FlagUse::Accepted,
        (Scope::Runs, _) => FlagUse::Refused,
    }
}

fn row(id: Id) -> (FlagGroup, Scope) {
    use FlagGroup::{Data, Devices, Model, Output, Pipeline};
    use Scope::{Plans, Runs};
    match id {
        Id::TrainData | Id::ValData | Id::ExcludeIds | Id::SpeakerIdPattern | Id::Columns => (Data, Plans),
        Id::Lang | Id::Phonemizer | Id::Lexicon | Id::Harakat => (Data, Plans),
        Id::MaxTextLength | Id::MaxMelFrames | Id::MaxBadFraction | Id::FeatureArithmetic => (Data, Plans),
        Id::ModelSize | Id::BatchSize | Id::GradAccum | Id::OptimizationLevel | Id::MixedPrecision => (Model, Plans),
        // The split of the corpus depends on it.
        Id::Seed => (Model, Plans),
        Id::Epochs | Id::MaxSteps | Id::Lr | Id::Resume | Id::ResetTraining => (Model, Runs),
        Id::InitFrom | Id::InitMelStatistics => (Model, Runs),
        Id::Gpus => (Devices, Plans),
        Id::RankTimeout => (Devices, Runs),
        Id::Mode | Id::Gpu | Id::DataGpu | Id::ModelGpu | Id::ShareGpu => (Devices, Plans),
        Id::EnableMemoryIsolation | Id::DataGpuMemory | Id::ModelGpuMemory => (Devices, Plans),
        Id::NumWorkers | Id::BufferSize | Id::PrefetchBufferSize | Id::Cache | Id::ReadAheadMb => (Pipeline, Plans),
        Id::Transfer | Id::VerifyTransfers | Id::ModelStartDelay | Id::EnableStaticShapes => (Pipeline, Plans),
        // Measured lengths are in the run folder, and `doctor` reports its last run.
        Id::CheckpointDir => (Output, Plans),
        Id::CheckpointEvery | Id::TensorboardDir | Id::Prometheus | Id::Trace => (Output, Runs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn train_takes_every_setting_and_doctor_none_of_the_schedule() {
        for setting in tandem_plan::setting::SETTINGS {
            assert_eq!(use_of(setting.id, "train"), FlagUse::Used, "{}", setting.flag);
        }
        assert_eq!(use_of(Id::Lr, "doctor"), FlagUse::Refused);
        assert_eq!(use_of(Id::Lr, "validate"), FlagUse::Accepted);
        assert_eq!(use_of(Id::BatchSize, "doctor"), FlagUse::Used);
    }
}
