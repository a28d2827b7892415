//! The first stage.

pub(crate) mod input;
pub(crate) mod row_queue;
pub(crate) mod decode_threads;
pub(crate) mod row_loader;
pub(crate) mod decode;
pub(crate) mod cache;
pub(crate) mod cached_pitch;
pub(crate) mod bad_samples;
