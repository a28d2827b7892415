//! Runs that measure.
//!
//! [`auto_mode`] finds the fastest mode, [`profile`] says what a run waits for, [`validate`] checks a set-up piece by piece
//! under five headings, [`pair`] measures two cards together, and [`benchmarks`] measures.

pub mod kernels;
pub mod all_reduce;
pub mod auto_mode;
pub mod profile;
pub mod held_memory;
pub mod validate;
pub mod pair;
pub mod benchmarks;
