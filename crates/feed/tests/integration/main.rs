//! The promises of this crate, in one test binary: linking is the slow part of a check.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod kernels_compile;
mod pack;
mod parts_of_recordings;
mod persian;
mod serving;
