//! Rings under every interleaving of threads. Built with `--cfg loom` only; `./check` runs it as its model checks.
//!
//! loom runs each model once for every interleaving. It reports a deadlocked thread and a data race.

#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

#[path = "loom/device.rs"]
mod device;
#[path = "loom/rings.rs"]
mod rings;
#[path = "loom/fences.rs"]
mod fences;

/// No bound on preemptions: explore every interleaving.
const ALL: Option<usize> = None;

/// Runs `model` in every interleaving with at most `preemptions` preemptions. Models of three threads, or of several
/// rounds, have a bound: without it there are too many interleavings to explore in a minute.
fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}
