//! The crate's integration tests, in one binary: linking takes most of the time of a test build.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod ring_model;
