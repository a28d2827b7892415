//! Corpora whose recordings are in shards: tar archives, Parquet and Arrow files.
//!
//! ```text
//! names ─> ShardSource, one per shard ─> scan ─> ScannedShard ─> index file
//!                                                   └─────────> rows of the dataset
//! ```
//!
//! A shard is scanned once, by one thread, from front to back: each utterance becomes a row with the place of its recording.
//! What a scan found is stored in an index, and read from there as long as the shard is the same.

pub(crate) mod source;
pub(crate) mod scan;
pub(crate) mod webdataset;
pub(crate) mod nemo;
pub(crate) mod cuts;
pub(crate) mod shar;
pub(crate) mod tables;
pub(crate) mod segment;
pub(crate) mod index_file;
