//! The crate through its public door.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod choosing;
mod gemms;
mod kernels_compile;
mod limits;
#[path = "../../../diagnosis/tests/simulator/mod.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
mod simulator;
#[path = "../../../launch/tests/integration/support/mod.rs"]
mod support;
mod timed_runs;
