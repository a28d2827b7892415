//! Planted faults that work on every kind of device: a wait taken away.
//!
//! Each wait in the pipeline has a name. A clean run collects the names; a test then takes one away at a time and
//! must see wrong bytes. Faults of the devices themselves (refused memory, failed copies, lost cards) are the
//! simulator's: [`crate::sim`].

use std::collections::BTreeSet;
use std::sync::Mutex;

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
