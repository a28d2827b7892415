//! What the plan must know of a model: what it holds, and for how long. Answered by whoever owns the maths.

use tandem_device::DeviceKind;
use tandem_feed::Bucket;
/// The presets models come in.
pub use tandem_model::Preset as ModelSize;

use crate::placement::Precision;

/// A named amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// What it is for.
    pub name: String,
    /// How much of it.
    pub bytes: u64,
}

impl PlanLine {
    /// `bytes` for `name`.
    pub fn new(name: impl Into<String>, bytes: u64) -> PlanLine {
        PlanLine { name: name.into(), bytes }
    }
}

/// What a model runs. They share their memory: the largest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// Forward and backward of one micro-batch, added into the gradients.
    Accumulate,
    /// Clip, optimizer, average.
    Update,
    /// Forward with losses, on held-out data.
    Validate,
    /// Forward without targets, to listen to.
    Sample,
}

impl ProgramKind {
    /// All of them.
    pub const ALL: [ProgramKind; 4] =
        [ProgramKind::Accumulate, ProgramKind::Update, ProgramKind::Validate, ProgramKind::Sample];
}

/// A model, as far as memory goes. Everything is in whole blocks, so that sums are exact.
pub trait Workload {
    /// What to call it.
    fn name(&self) -> String;
    /// Its own name, where it is none of the presets.
    fn own_name(&self) -> Option<String> {
        None
    }
    /// Why its programs cannot be written for a shape it was asked about, if there is one.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// What lives from start to end: parameters, gradients, optimizer state.
    fn lasting(&self) -> Vec<PlanLine>;
    /// Tables that programs of these buckets read and never change. They stay.
    fn tables(&self, buckets: &[Bucket]) -> u64;
    /// Activations and workspaces of one program on one bucket.
    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64;
}

/// Models to choose from, so that a plan that does not fit can try another.
pub trait Workloads {
    /// The model that was chosen, to run on devices of this kind.
    fn build(&self, choice: ModelChoice, place: DeviceKind) -> Box<dyn Workload>;
}

/// Which model, and how it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelChoice {
    /// The preset.
    pub size: ModelSize,
    /// How the step computes.
    pub precision: Precision,
    /// Whether an averaged copy of the weights is kept.
    pub ema: bool,
    /// Whether gradients of several batches are added up before a step.
    pub adds_up: bool,
    /// Whether programs of other shapes are written while it runs.
    pub exact_shapes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::{Id, SettingKind};

    #[test]
    fn the_flag_takes_exactly_the_presets() {
        let names: Vec<&str> = ModelSize::ALL.map(ModelSize::name).to_vec();
        assert_eq!(Id::ModelSize.setting().kind, SettingKind::Choice(&["nano", "tiny", "small", "normal", "big"]));
        assert_eq!(names, ["nano", "tiny", "small", "normal", "big"]);
        assert!(names.into_iter().all(|name| ModelSize::named(name).is_some_and(|size| size.name() == name)));
    }
}
