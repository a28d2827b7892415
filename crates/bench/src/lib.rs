//! Runs that measure.
//!
//! [`auto_mode`] finds the fastest mode, [`profile`] says what a run waits for, [`validate`] checks a set-up piece by piece
//! under five headings, and [`benchmarks`] measures.

pub mod kernels;
pub mod auto_mode;
pub mod profile;
pub mod validate;
pub mod benchmarks;
