//! Tests of the built program as its users run it: a command line in, text, files and an exit code out.
//!
//! One test binary, because linking is slow; one file for each promise.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap fails the test")]

mod command;
mod lost_card;
mod machine;
mod speech;
mod terminal;

mod auto;
mod bad_checkpoints;
mod bad_input;
mod bench;
mod checkpoint_disk;
mod corpus;
mod corpus_faults;
mod corpus_formats;
mod data;
mod docs;
mod docs_figures;
mod doctor;
mod doctor_pair;
mod documents;
mod durability;
mod errors;
mod feature_arithmetic;
mod flags;
mod help;
mod host_limits;
mod init_from;
mod isolation_matrix;
mod languages;
mod monitor;
mod nothing_lost;
mod numa;
mod old_checkpoints;
mod output;
mod placement;
mod profile;
mod progress;
mod quiet;
mod ranks;
mod release;
mod route_proofs;
mod run_log;
mod samples;
mod sharded;
mod shells;
mod skipped_utterances;
mod smallest_limits;
mod startup;
mod suggestions;
mod synthesize;
mod train;
mod untrusted_files;
mod validate;
mod verified_transfers;
mod watching;
