//! The second stage: a loaded batch is copied to the data device, in one copy.

pub(crate) mod uploader;
pub(crate) mod tables;
pub(crate) mod row_tables;
pub(crate) mod stopwatch;
