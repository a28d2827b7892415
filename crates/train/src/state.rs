//! The training state in `state.json`.

use serde::{Deserialize, Serialize};
use tandem_checkpoint::MelStatistics;
use tandem_engine::Session;
use tandem_feed::FeedState;

use crate::error::TrainError;

/// The training state of a checkpoint: everything an exact resume needs besides the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLoopState {
    /// Steps done.
    pub step: u64,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The counters of the update program.
    pub counters: UpdateCounters,
    /// The position in the data.
    pub feed: FeedState,
    /// How spectrograms are normalised. Version 1 of `state.json` called it `statistics`.
    #[serde(alias = "statistics")]
    pub mel_statistics: MelStatistics,
    /// The factor that corrects predicted durations, as the last validation measured it.
    #[serde(default)]
    pub duration_scale: Option<f64>,
}

/// The counters that the update program keeps on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredCounters")]
pub struct UpdateCounters {
    /// Updates done.
    pub updates: u32,
    /// Updates skipped because of non-finite gradients.
    pub skipped: u32,
    /// The same since the last update that was done.
    pub skipped_in_a_row: u32,
}

/// Version 1 of `state.json` has a list without names.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredCounters {
    Named { updates: u32, skipped: u32, skipped_in_a_row: u32 },
    Unnamed([u32; 3]),
}

impl From<StoredCounters> for UpdateCounters {
    fn from(stored: StoredCounters) -> UpdateCounters {
        let (StoredCounters::Named { updates, skipped, skipped_in_a_row }
        | StoredCounters::Unnamed([updates, skipped, skipped_in_a_row])) = stored;
        UpdateCounters { updates, skipped, skipped_in_a_row }
    }
}

impl UpdateCounters {
    pub(crate) fn read(session: &Session) -> Result<UpdateCounters, TrainError> {
        let count = |name: &str| session.read_state::<u32>(name).map(|values| values[0]);
        Ok(UpdateCounters {
            updates: count("updates")?,
            skipped: count("skipped")?,
            skipped_in_a_row: count(SKIPPED_IN_A_ROW)?,
        })
    }

    pub(crate) fn write(&self, session: &Session) -> Result<(), TrainError> {
        session.write_state("updates", &[self.updates])?;
        session.write_state("skipped", &[self.skipped])?;
        Ok(session.write_state(SKIPPED_IN_A_ROW, &[self.skipped_in_a_row])?)
    }
}

/// A counter of the update program that is also one of its results.
pub(crate) const SKIPPED_IN_A_ROW: &str = "skipped_in_a_row";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_version_1_is_read() {
        let legacy = serde_json::json!({
            "step": 3, "seed": 1234, "counters": [3, 1, 0],
            "feed": { "next": { "epoch": 0, "k": 3 }, "replacements": [] },
            "statistics": { "mean": -5.0, "deviation": 2.0, "bands": [-5.0] },
        });
        let state: StepLoopState = serde_json::from_value(legacy).unwrap();
        assert_eq!(state.counters, UpdateCounters { updates: 3, skipped: 1, skipped_in_a_row: 0 });
        assert_eq!(state.mel_statistics, MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0] });
        let written = serde_json::json!(state);
        assert_eq!(written["counters"], serde_json::json!({ "updates": 3, "skipped": 1, "skipped_in_a_row": 0 }));
        assert_eq!(serde_json::from_value::<StepLoopState>(written).unwrap(), state);
    }
}
