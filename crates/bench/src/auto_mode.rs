//! `--mode auto`: every mode that is possible here is run for a few steps, and the fastest one that fits is taken.
//!
//! [`candidates`] says which modes there are to try, [`Contest`] times them and picks one. Who times is a closure:
//! [`Trials`] runs the real model on the real devices, tests bring pipelines in virtual time.

mod candidates;
mod contest;
mod pace;
mod trial;

pub use candidates::{Candidate, Field, candidates};
pub use contest::{Choice, Contest, Entry, Found};
pub use pace::{Length, Pace, Run, pace_of};
pub use trial::{AHEAD, Seen, TrialError, Trials};
