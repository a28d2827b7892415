//! The crate through its public door.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod anything;
mod faults;
#[path = "../../src/fixture.rs"]
mod fixture;
mod kathleen;
mod resume;
mod stores;
