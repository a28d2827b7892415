//! The stages of the feed, with their names in the log.

use std::fmt;

/// A stage of the feed, in flow order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Read and decode, on host threads.
    Load,
    /// Copy to the data device.
    Upload,
    /// Resample, compute features and collate, on the data device.
    Features,
    /// Copy to the model device.
    Transfer,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 4] = [Stage::Load, Stage::Upload, Stage::Features, Stage::Transfer];

    /// The stage with this name in the log; `None` for a stage of a later version.
    pub fn named(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Name in the log.
    pub fn name(self) -> &'static str {
        ["load", "upload", "features", "transfer"][self as usize]
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of the step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepPart {
    /// Waiting for this stage.
    Waiting(Stage),
    /// The step itself.
    Train,
}

impl fmt::Display for StepPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepPart::Waiting(stage) => stage.fmt(f),
            StepPart::Train => f.write_str("train"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        assert_eq!(Stage::ALL.map(|stage| Stage::named(stage.name())), Stage::ALL.map(Some));
        assert_eq!(Stage::named("collate"), None);
    }
}
