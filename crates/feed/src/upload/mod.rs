//! Upload.

pub(crate) mod uploader;
pub(crate) mod row_tables;
pub(crate) mod stopwatch;
