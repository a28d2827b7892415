//! The stages a batch goes through, by the names the log has for them.

use std::fmt;

/// A stage of the feed, in the order batches meet them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Read and decode, on the host's threads.
    Load,
    /// To the data device.
    Upload,
    /// Resample, features, collate, on the data device.
    Features,
    /// To the model device.
    Transfer,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 4] = [Stage::Load, Stage::Upload, Stage::Features, Stage::Transfer];

    /// The stage of that name in the log; none of a later version's.
    pub fn named(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Its name in the log.
    pub fn name(self) -> &'static str {
        ["load", "upload", "features", "transfer"][self as usize]
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a step's time is made of.
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
    fn names_lead_back_to_stages() {
        assert_eq!(Stage::ALL.map(|stage| Stage::named(stage.name())), Stage::ALL.map(Some));
        assert_eq!(Stage::named("collate"), None);
    }
}
