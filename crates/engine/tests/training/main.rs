//! What the engine promises whoever trains with it: a small model from its graph to its updates, on the CPU and on
//! simulated cards, through the public interface only.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

mod memory;
mod accumulation;
mod guard;
mod orders;
mod fusion;
mod changes;
mod refusals;
