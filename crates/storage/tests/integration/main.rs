//! Behaviour through the public interface.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

mod faults;
mod interrupts;
mod lists;
mod ranges;
mod store;
