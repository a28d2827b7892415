//! The crate's promises to its users, through the public interface only.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod kernels_compile;
mod rng_keys;
mod training;
