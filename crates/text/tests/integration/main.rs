//! The crate through its public door.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod detect;
mod dictionary_sample;
mod numbers;
mod persian;
mod properties;
mod voice;
