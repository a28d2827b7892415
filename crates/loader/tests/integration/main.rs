//! What a loader promises, through its public functions: on the CPU, and on simulated cards where cards matter.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

mod batches;
mod resume;
mod texts;
mod refusals;
mod held;
