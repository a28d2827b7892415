//! What the plan must know of a model: what it holds, and for how long. Answered by whoever owns the maths.

use crate::placement::Precision;
use tandem_feed::Bucket;

/// A named amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it is for.
    pub name: String,
    /// How much of it.
    pub bytes: u64,
}

impl Line {
    /// `bytes` for `name`.
    pub fn new(name: impl Into<String>, bytes: u64) -> Line {
        Line { name: name.into(), bytes }
    }
}

/// What a model runs. They share their memory: the largest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Forward and backward of one micro-batch, added into the gradients.
    Accumulate,
    /// Clip, optimizer, average.
    Update,
    /// Forward with losses, on held-out data.
    Validate,
    /// Forward without targets, to listen to.
    Sample,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 4] = [Program::Accumulate, Program::Update, Program::Validate, Program::Sample];
}

/// A model, as far as memory goes. Everything is in whole blocks, so that sums are exact.
pub trait Workload {
    /// What to call it.
    fn name(&self) -> String;
    /// What lives from start to end: parameters, gradients, optimizer state.
    fn lasting(&self) -> Vec<Line>;
    /// Tables that programs of these buckets read and never change. They stay.
    fn tables(&self, buckets: &[Bucket]) -> u64 {
        let _ = buckets;
        0
    }
    /// What lies beside the programs for the host to read: nothing where results are a part of what programs take.
    fn results(&self) -> u64 {
        0
    }
    /// Activations and workspaces of one program on one bucket.
    fn bytes(&self, program: Program, bucket: &Bucket) -> u64;
}

/// Models to choose from, so that a plan that does not fit can try another.
pub trait Workloads {
    /// The model that was chosen.
    fn build(&self, choice: ModelChoice) -> Box<dyn Workload>;
}

/// Which model, and how it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    /// The preset.
    pub size: ModelSize,
    /// How the step computes.
    pub precision: Precision,
    /// Whether an averaged copy of the weights is kept.
    pub ema: bool,
}

/// The presets, smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelSize {
    /// About 2 million parameters: demos on a CPU.
    Nano,
    /// About 12 million.
    Tiny,
    /// About 32 million.
    Small,
    /// About 93 million.
    Normal,
    /// About 480 million.
    Big,
}

impl ModelSize {
    /// All of them, smallest first.
    pub const ALL: [ModelSize; 5] =
        [ModelSize::Nano, ModelSize::Tiny, ModelSize::Small, ModelSize::Normal, ModelSize::Big];

    /// What it is called in flags.
    pub fn name(self) -> &'static str {
        match self {
            ModelSize::Nano => "nano",
            ModelSize::Tiny => "tiny",
            ModelSize::Small => "small",
            ModelSize::Normal => "normal",
            ModelSize::Big => "big",
        }
    }

    /// The preset called `name`.
    pub fn named(name: &str) -> Option<ModelSize> {
        ModelSize::ALL.into_iter().find(|size| size.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::{Id, Kind};

    #[test]
    fn the_flag_takes_exactly_the_presets() {
        let names: Vec<&str> = ModelSize::ALL.map(ModelSize::name).to_vec();
        assert_eq!(Id::ModelSize.setting().kind, Kind::Choice(&["nano", "tiny", "small", "normal", "big"]));
        assert_eq!(names, ["nano", "tiny", "small", "normal", "big"]);
        assert!(names.into_iter().all(|name| ModelSize::named(name).is_some_and(|size| size.name() == name)));
    }
}
