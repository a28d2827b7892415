//! What the crate promises its users: leaks, verdicts and reports of simulated runs whose faults are known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

// Outside this folder, because a test of the crate `bench` includes it too.
#[path = "../simulator/mod.rs"]
mod simulator;

mod leaks;
mod report;
mod verdicts;
