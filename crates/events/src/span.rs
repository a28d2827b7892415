//! An interval of device time.

use serde::{Deserialize, Serialize};

/// An interval on the devices' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpan {
    /// Its start.
    pub began_ns: u64,
    /// Its duration.
    pub ns: u64,
}

impl TimeSpan {
    /// Its end.
    pub fn ended_ns(&self) -> u64 {
        self.began_ns.saturating_add(self.ns)
    }
}
