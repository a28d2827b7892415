//! `--mode auto`: runs every possible mode for a few steps and picks the fastest one that fits.
//!
//! [`candidates`] lists the modes to try; [`Contest`] times them and picks one. The timing is a closure: [`TimedRuns`]
//! runs the real model on the real devices, tests use simulated pipelines in virtual time.

mod candidates;
mod contest;
mod step_rate;
mod timed_run;

pub use candidates::{Candidate, CandidateSet, candidates};
pub use contest::{CandidateOutcome, CandidateResult, Choice, Contest};
pub use step_rate::{Run, StepRate, TimingLength, measure_step_rate};
pub use timed_run::{AHEAD, Seen, TimedRunError, TimedRuns};
