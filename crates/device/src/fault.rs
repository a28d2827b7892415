//! Planted faults that are not the simulator's own: a wait taken away, and a card broken at a step.
//!
//! Each wait in the pipeline has a name. A clean run collects the names; a test then takes one away at a time and
//! must see wrong bytes. Other faults of devices (refused memory, failed copies, cards lost at a call) are the
//! simulator's: [`crate::sim`].
//!
//! A [`Plant`] comes from outside, so that a whole run of the program can be broken at a known point, also on a real card.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Mutex;

use crate::error::DeviceError;
use crate::machine::lock;

/// The waits seen so far, and the one that is skipped.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: BTreeSet<&'static str>,
    skipped: Option<&'static str>,
}

impl Faults {
    /// From now on the wait of this name is not done.
    pub fn skip_wait(&self, site: &'static str) {
        lock(&self.state).skipped = Some(site);
    }

    /// The names of all waits done so far.
    pub fn waits_seen(&self) -> Vec<&'static str> {
        lock(&self.state).seen.iter().copied().collect()
    }

    pub(crate) fn skips(&self, site: &'static str) -> bool {
        let mut state = lock(&self.state);
        state.seen.insert(site);
        state.skipped == Some(site)
    }
}

/// The fault that `TANDEM_PLANT` asks for: `trap@step:N` breaks the model's card in step `N`. For debugging only.
///
/// Whoever runs steps asks [`Plant::traps_at`] in each, and queues [`crate::Stream::trap`] there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plant {
    trap_at_step: Option<u64>,
}

impl Plant {
    /// What the environment asks for; nothing where the variable is not set. A fault that there is not is an error: a test
    /// that plants nothing would pass.
    pub fn from_env() -> Result<Plant, DeviceError> {
        match std::env::var_os("TANDEM_PLANT") {
            None => Ok(Plant::default()),
            Some(given) => given.to_string_lossy().parse(),
        }
    }

    /// Whether the card is to be broken in this step.
    pub fn traps_at(&self, step: u64) -> bool {
        self.trap_at_step == Some(step)
    }
}

impl FromStr for Plant {
    type Err = DeviceError;

    fn from_str(given: &str) -> Result<Plant, DeviceError> {
        match given.strip_prefix("trap@step:").and_then(|step| step.parse().ok()) {
            Some(step) => Ok(Plant { trap_at_step: Some(step) }),
            None => Err(DeviceError::Plant { given: given.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plant_is_read_or_refused_and_never_left_out() {
        let plant: Plant = "trap@step:37".parse().unwrap();
        assert_eq!([36, 37, 38].map(|step| plant.traps_at(step)), [false, true, false]);
        assert!(!Plant::default().traps_at(0));
        for given in ["", "trap", "trap@step:", "trap@step:-1", "trap@37", "Trap@step:1", "trap@step:1 "] {
            let error = given.parse::<Plant>().unwrap_err().to_string();
            assert_eq!(error, format!("TANDEM_PLANT={given}: expected trap@step:N, e.g. trap@step:37"));
        }
    }
}
