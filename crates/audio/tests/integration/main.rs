//! The crate through its public door.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod common;
mod files;
mod hostile;
mod kernels_compile;
mod on_device;
mod presets;
mod reference;
mod round_trip;
