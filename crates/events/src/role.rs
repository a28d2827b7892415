//! The two roles of a run.

use serde::{Deserialize, Serialize};

/// The owner of device memory, a stream or a metric. Everything on a device belongs to exactly one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prepares batches: upload, features, collate.
    Data,
    /// Trains: parameters, activations, the step.
    Model,
}

impl Role {
    /// Both roles, data first: the order in which they are set up and shown.
    pub const BOTH: [Role; 2] = [Role::Data, Role::Model];
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Data => "data",
            Role::Model => "model",
        })
    }
}
