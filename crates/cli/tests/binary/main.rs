//! Tests of the built program, as its users meet it: a command line in, text, files and an exit code out.
//!
//! One binary, so that the program is linked once; one file for each thing that is promised.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test may end it")]

mod call;
mod machine;
mod speech;
mod terminal;

mod auto;
mod bad_checkpoints;
mod bad_input;
mod bench;
mod corpus;
mod corpus_faults;
mod data;
mod doctor;
mod errors;
mod flags;
mod isolation_matrix;
mod monitor;
mod output;
mod placement;
mod profile;
mod run_log;
mod samples;
mod smallest_limits;
mod startup;
mod suggestions;
mod synthesize;
mod train;
mod validate;
mod watching;
