//! `--mode auto`: every mode that is possible here is run for a few steps, and the fastest one that fits is taken.
//!
//! [`candidates`] says which modes there are to try, [`Contest`] times them and picks one. Who times is a closure:
//! [`TimedRuns`] runs the real model on the real devices, tests bring pipelines in virtual time.

mod candidates;
mod contest;
mod pace;
mod timed_run;

pub use candidates::{Candidate, CandidateSet, candidates};
pub use contest::{CandidateOutcome, CandidateResult, Choice, Contest};
pub use pace::{Run, StepRate, TimingLength, pace_of};
pub use timed_run::{AHEAD, Seen, TimedRunError, TimedRuns};
