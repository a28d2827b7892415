//! The crate's integration tests, in one binary: linking takes most of the time of a test build.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

mod collectives;
mod endings;
mod joining;
mod processes;
