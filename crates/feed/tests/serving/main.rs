//! What a feed promises, on simulated cards and on the CPU; the same bodies on an NVIDIA card where there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

mod contents;
mod same_batches;
mod waits;
mod trouble;
mod running;
mod telling;
mod cuda;
