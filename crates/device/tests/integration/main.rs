//! The crate's integration tests, in one binary: linking takes most of the time of a test build.
//!
//! Tests that need an NVIDIA card are ignored by default; `--ignored` runs them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test; some tests print what they measure"
)]

#[macro_use]
mod support;

mod captured_graphs;
mod devices;
mod gemms;
mod kernels_compile;
mod libraries;
mod overrun;
mod transfers;
mod trap;
