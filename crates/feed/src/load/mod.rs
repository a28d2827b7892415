//! The first stage: recordings and texts become the rows of a batch in pinned memory.
//!
//! ```text
//! order ─> row queue ─> decode thread: cache or decoder, tokenizer ─> row of a loaded batch
//! ```
//!
//! Decode threads take rows from the [`row_queue`] and load them with a [`row_loader`]. The thread that finishes the last row
//! of a batch publishes the batch to the upload. Recordings in object stores are fetched before that ([`read_ahead`]).

pub(crate) mod loaded;
pub(crate) mod recordings;
pub(crate) mod recording_hashes;
pub(crate) mod slow_recordings;
pub(crate) mod input;
pub(crate) mod read_ahead;
pub(crate) mod row_queue;
pub(crate) mod decode_threads;
pub(crate) mod row_loader;
pub(crate) mod context;
pub(crate) mod decode;
pub(crate) mod storage_fault;
pub(crate) mod cache;
pub(crate) mod cached_pitch;
pub(crate) mod bad_samples;
