//! A value that belongs to one process.
//!
//! A forked child has a copy of every object and none of the threads. What it inherits it neither uses nor frees: a lock may
//! be held by a thread that does not exist there.

use std::{mem, process};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// A value of the process that made it. Dropped in another one, it is forgotten.
#[derive(Clone)]
pub(crate) struct OfProcess<T> {
    /// None while it is dropped.
    value: Option<T>,
    process_id: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process_id: process::id() }
    }

    /// The value; in a forked child the error that says what to do instead.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.get_here().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this process was forked from the one that opened the feed, and has none of its threads; \
                 open a feed in each process, and start processes with multiprocessing.get_context(\"spawn\")",
            )
        })
    }

    /// The value, in the process that made it.
    pub(crate) fn get_here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| process::id() == self.process_id)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if process::id() != self.process_id {
            mem::forget(value);
        }
    }
}
