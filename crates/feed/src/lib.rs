//! Recordings to batches on the model device: the same batches with any number of threads and over any route.
//!
//! ```text
//!   order -> load -> upload -> featurize -> collate -> transfer -> lease
//! ```
//!
//! The stages are modules, declared below in the order data meets them:
//!
//! | stage | in | out | where it runs |
//! |---|---|---|---|
//! | `order` | the order of the corpus | rows to load, with the page-locked memory they belong into | decode threads |
//! | `load` ([`load_into`], `row_loader`) | a recording and a text | samples and tokens of one row | decode threads |
//! | `upload` | a loaded batch | the same on the data device, by one copy | upload stream |
//! | `featurize` | int16 samples | log-mel, energy and pitch in a slot | data stream |
//! | `collate` | lengths, texts, speakers | the rest of the slot | data stream |
//! | `transfer` | a slot of the data role | a slot of the model role | copy streams; not with a hand-over |
//! | `lease` | a stream of the consumer's | a [`DeviceBatch`] that it may read | the consumer's stream |
//!
//! [`Feed`] connects them with rings of memory that is taken once, and runs their threads. What it needs is found out
//! before it starts: [`scan_lengths`] measures what no list gives, [`TrainingSet`] says which rows train, [`BucketPlan`] in
//! which shapes, [`FeedPlan`] in how many bytes. Beside the feed: [`check`] reads a whole corpus and reports what is
//! wrong with it, and [`Featurizer`] makes one file's features.
//!
//! ```
//! use tandem_device::Stream;
//! use tandem_feed::{Feed, FeedError};
//!
//! /// A consumer of one's own. It never waits for the device; the host waits only when no batch is queued.
//! fn consume(feed: &mut Feed, stream: &Stream, steps: usize) -> Result<u64, FeedError> {
//!     let mut frames = 0;
//!     for _ in 0..steps {
//!         let batch = feed.lease(stream)?; // Work queued on `stream` from here on may read it.
//!         frames += batch.info().utterances.iter().flatten().map(|row| u64::from(row.frames)).sum::<u64>();
//!     } // Dropped: the slot goes back behind what was queued.
//!     Ok(frames)
//! }
//! ```
//!
//! The example `own_consumer` is the whole of it, from a folder of recordings on. The shapes alone:
//!
//! ```
//! use tandem_corpus::SampleIndex;
//! use tandem_feed::{BucketPlan, Extent};
//!
//! // A thousand recordings of 100 to 599 frames, in batches of ten: a row for every tenth of them by length.
//! let rows: Vec<_> = (0..1000).map(|i| (SampleIndex(i), Extent { frames: 100 + i / 2, tokens: 10 })).collect();
//! let plan = BucketPlan::solve(&rows, 2, 10).expect("there are rows");
//! assert_eq!(plan.buckets().len(), 2);
//! assert_eq!(plan.buckets()[0].longest_frames(), 600);
//! assert!(plan.padding(1234).frame_waste() < 0.05);
//! ```

mod error;

// A batch: its shapes, its fields, its bytes.
mod batch;

// A corpus before a run: lengths, shapes, tokens, problems.
mod survey;

// The stages, in flow order.
mod load;
mod upload;
mod featurize;
mod collate;
pub mod kernels;
mod transfer;
mod lease;

// Running the stages: thread counts, waits between streams, the threads.
mod tune;
pub mod waits;
mod feed;

#[cfg(test)]
mod fixture;

pub use batch::exact::CopyPiece;
pub use batch::feed_plan::{ByteSpan, FeedPlan, RATE_HZ, UploadLayout, plain_table_bytes};
pub use batch::schema::{BatchSchema, Dim, FieldSpec, HOP_SAMPLES, Layout, MELS, Placed, REFERENCE_FRAMES, SPEECH};
pub use batch::shape::{Bucket, RowShape, even_buckets};
pub use error::FeedError;
pub use featurize::on_host::{Features, Featurizer};
pub use feed::data_thread::{BatchInfo, Utterance};
pub use feed::{Feed, FeedSpec, FeedState, FeedStats, Warm};
pub use lease::{BatchField, DeviceBatch};
pub use load::bad_samples::{BadSamples, Replacement, Replacements, TooManyBad};
pub use load::cache::{Cache, CacheKind, CacheSpec, CacheStats};
pub use load::decode::load_into;
pub use load::input::{FromFiles, Recordings};
pub use survey::buckets::{BucketPlan, FRAME_STEP, MAX_BUCKETS, NUM_BUCKETS, Padding};
pub use survey::check::{CheckOptions, Checked, check};
pub use survey::report::{BucketUse, CorpusReport, ShapeReport, UtteranceGroup};
pub use survey::scan::{Scanned, measure, scan_lengths};
pub use survey::show::{report_json, show_report};
pub use survey::tokenizer::Tokenizer;
pub use survey::training_set::{COUNTED_ROWS, EXACT_ROWS, INCLUDED_PERCENT, LeftOut, TrainingSet, TrainingSetOptions};
pub use tandem_corpus::Extent;
pub use tune::tuner::{Tuner, TuningChange, TuningLimits, TuningState, TuningWindow};
