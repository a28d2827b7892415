//! What to read: manifests, splits, order, resume cursor, demo corpus.
//!
//! This crate knows file names, transcripts and lengths. It knows no audio format and no device: a recording is a
//! [`Locator`] that somebody else opens and decodes. Read in this order:
//!
//! 1. [`Dataset::open`] finds out the [`Format`] of a corpus and reads it into [`Samples`]; what is wrong with it becomes a
//!    list of [`Problem`]s, each with file and line, and never stops the reading.
//! 2. [`LengthIndex`] finds the lengths a manifest does not give, once; [`Distribution`] sums them up.
//! 3. [`Parts`] cut the corpus by length: a part for every row of every shape. [`Order`] says which samples batch k of
//!    an epoch holds; a [`Cursor`] is the place in it to resume from.
//! 4. [`demo`] makes speech where there is none.
//!
//! ```
//! use std::sync::Arc;
//! use tandem_corpus::{Cursor, Extent, Order, Parts, SampleIndex};
//!
//! // Forty recordings of 100 to 490 frames, in batches of four, two shapes.
//! let samples = (0..40).map(|i| (SampleIndex(i), Extent { frames: 100 + 10 * i, tokens: 9 }));
//! let parts = Parts::cut(samples, 2, 4).expect("there are samples");
//! let order = Order::training(1234, Arc::new(parts));
//! assert_eq!(order.num_batches(), 10);
//!
//! // Whoever asks for batch 7, and whenever: it is the same one.
//! let straight: Vec<_> = order.batches_from(Cursor::START).take(25).collect();
//! let resumed: Vec<_> = order.batches_from(straight[7].cursor).take(18).collect();
//! assert_eq!(straight[7..], resumed);
//! ```

mod error;

// What a corpus says, and what is wrong with it.
mod problem;
mod lines;
mod json_value;
mod sample;
mod recording_reader;
mod shard;
mod locator;
mod speaker;
mod format;
mod audio_folder;
mod ljspeech;
mod common_voice;
mod text_files;
mod vctk;
mod manifest;
mod sharded;
mod exclude;
mod mixture;
mod sources;
mod dataset;
mod opening;

// How long its recordings are.
mod index;
mod stats;

// Which samples come when.
mod parts;
mod order;
mod cursor;

pub mod user_cache;

// Speech for machines that have none.
pub mod demo;

#[cfg(test)]
mod fixture;

pub use cursor::Cursor;
pub use dataset::{Dataset, OpenOptions, Split};
pub use error::CorpusError;
pub use format::Format;
pub use index::{IndexState, Length, LengthIndex, ScanProgress, ScanReport, UnmeasuredSample};
pub use lines::MAX_LINE_BYTES;
pub use ljspeech::LISTS;
pub use locator::{
    AudioRange, EXTENSIONS, Identity, Locator, ObjectFolder, PendingRecording, Piece, RecordingKey, Store,
};
pub use opening::CorpusOpening;
pub use order::{Batch, Order, Shard};
pub use parts::{Arrangement, Extent, Parts};
pub use problem::{Problem, ProblemKind};
pub use recording_reader::{PieceReader, RecordingReader};
pub use sample::{Sample, SampleIndex, Samples, Subset};
pub use shard::ShardFile;
pub use sharded::scan::{LengthProbe, ProbedLength};
pub use sharded::segment::ScannedShard;
pub use sharded::source::{ColumnNames, ShardSource};
pub use speaker::SpeakerPattern;
pub use stats::{Bin, Distribution};
