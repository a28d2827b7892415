//! What the crate promises its users.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test, a failed unwrap is a failed test")]

mod support;

mod checkpoints;
mod old_formats;
mod processes;
mod python;
