//! A stretch of a device's time.

use serde::{Deserialize, Serialize};

/// When a device was at something, on the devices' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpan {
    /// Its beginning.
    pub began_ns: u64,
    /// Its length.
    pub ns: u64,
}

impl TimeSpan {
    /// Its end.
    pub fn ended_ns(&self) -> u64 {
        self.began_ns.saturating_add(self.ns)
    }
}
