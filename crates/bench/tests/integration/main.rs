//! The crate through its public door.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod choosing;
mod gemms;
mod kernels_compile;
mod limits;
#[path = "../../../diagnosis/tests/simulator/mod.rs"]
mod simulator;
#[path = "../../../launch/tests/integration/support/mod.rs"]
mod support;
mod timed_runs;
