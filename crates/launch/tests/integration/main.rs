//! The crate through its public door.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod faults;
mod route_proofs;
mod custom_model;
mod support;
mod training;
