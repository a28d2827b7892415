//! Links and rings under every order of threads. Built with `--cfg loom` only; `./check` runs it as its model checks.
//!
//! loom runs each model once for every order in which the threads can meet. It reports a thread that nobody will ever
//! wake, and two touches of memory that nothing orders.

#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

#[path = "loom/device.rs"]
mod device;
#[path = "loom/links.rs"]
mod links;
#[path = "loom/rings.rs"]
mod rings;
#[path = "loom/fences.rs"]
mod fences;

/// No bound on the orders: all of them.
const ALL: Option<usize> = None;

/// Runs `model` in every order that takes the processor away from a thread at most `preemptions` times at a point where
/// it could have gone on. Models of three threads, or of several rounds, have a bound: without it the orders are too
/// many to try in a minute.
fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}
