//! What is wrong with the variables that describe a rank.

use super::Launcher;

/// The variables of the launcher do not describe a rank. Each message names the variable and what to set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is not set, or empty.
    #[error("{variable} is not set, and {launcher} started this process as a rank: set {variable} to {expected}")]
    Missing {
        /// The launcher whose variables are set.
        launcher: Launcher,
        /// The variable.
        variable: &'static str,
        /// What to set it to.
        expected: &'static str,
    },

    /// A variable has a value that cannot be read.
    #[error("{variable} is {found:?}: set it to {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What to set it to.
        expected: &'static str,
    },

    /// A rank is not smaller than the number of ranks.
    #[error("{variable} is {rank} and {size_variable} is {size}: set {variable} to a number from 0 to {size} - 1")]
    OutOfRange {
        /// The variable with the rank.
        variable: &'static str,
        /// The rank.
        rank: u32,
        /// The variable with the number of ranks.
        size_variable: &'static str,
        /// The number of ranks.
        size: u32,
    },

    /// There is no port after that of the launcher.
    #[error("{variable} is 65535, and the ranks meet at the port after it: set TANDEM_PORT to a free port")]
    NoNextPort {
        /// The variable with the launcher's port.
        variable: &'static str,
    },

    /// The token is empty.
    #[error(
        "TANDEM_TOKEN is empty: set the same secret on every machine, e.g. export TANDEM_TOKEN=$(openssl rand -hex 16)"
    )]
    EmptyToken,

    /// The token is too long.
    #[error("TANDEM_TOKEN has {bytes} bytes: set a secret of at most {limit} bytes")]
    TokenTooLong {
        /// Its length.
        bytes: usize,
        /// The longest.
        limit: usize,
    },

    /// The ranks are on several machines and have no token.
    #[error(
        "TANDEM_TOKEN is not set, and {size} ranks meet over the network ({local_size} of them on this machine): set the \
         same secret on every machine, e.g. export TANDEM_TOKEN=$(openssl rand -hex 16)"
    )]
    NoToken {
        /// The number of ranks.
        size: u32,
        /// The ranks on this machine.
        local_size: u32,
    },
}
