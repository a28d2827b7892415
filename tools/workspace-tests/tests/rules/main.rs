//! Rules of the workspace that no compiler checks.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod architecture;
mod binaries;
mod files;
mod habits;
mod markdown;
mod types;
mod words;
