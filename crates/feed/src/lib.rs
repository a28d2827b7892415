//! Recordings in, batches on the model device out: the same batches with any number of threads and over any route.
//!
//! ```text
//!   load -> upload -> featurize -> collate -> transfer -> lease
//! ```
//!
//! The stages are modules, declared below in flow order:
//!
//! | stage | in | out | runs on |
//! |---|---|---|---|
//! | `load` ([`load_into`]) | the order of the corpus, recordings and texts | samples and tokens in pinned memory, row by row | decode threads |
//! | `upload` | a loaded batch | the same on the data device, in one copy | upload stream |
//! | `featurize` | int16 samples | log-mel, energy and pitch in a slot | data stream |
//! | `collate` | lengths, texts, speakers | the other fields of the slot | data stream |
//! | `transfer` | a slot of the data role | a slot of the model role | copy streams; skipped with a hand-over |
//! | `lease` | a stream of the consumer | a [`DeviceBatch`] that it may read | the consumer's stream |
//!
//! [`Feed`] connects them with rings, whose memory is taken once, and runs their threads. The survey of a corpus comes first:
//! [`scan_lengths`] measures recordings, [`TrainingSet`] selects the rows that train, [`BucketPlan`] gives their shapes,
//! [`FeedPlan`] their bytes. [`check`] decodes a whole corpus and reports problems, and [`Featurizer`] makes the features of one
//! file.
//!
//! ```
//! use tandem_device::Stream;
//! use tandem_feed::{Feed, FeedError};
//!
//! /// A consumer. It never waits for the device; the host waits only if no batch is queued.
//! fn consume(feed: &mut Feed, stream: &Stream, steps: usize) -> Result<u64, FeedError> {
//!     let mut frames = 0;
//!     for _ in 0..steps {
//!         let batch = feed.lease(stream)?; // Work queued on `stream` from here on may read it.
//!         frames += batch.info().utterances.iter().flatten().map(|row| u64::from(row.frames)).sum::<u64>();
//!     } // Dropped: the slot is free once the queued work is done.
//!     Ok(frames)
//! }
//! ```
//!
//! The example `own_consumer` is complete, starting from a folder of recordings. Shapes alone:
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

// A corpus before a run: lengths, tokens, shapes, problems.
mod survey;

// The stages, in flow order.
mod load;
mod upload;
mod featurize;
mod collate;
pub mod kernels;
mod transfer;
mod transfer_checks;
mod lease;
mod shared_lease;

// The running feed: its threads, the waits between its streams, its thread count.
mod feed;
pub mod waits;
mod tune;

#[cfg(test)]
mod fixture;

pub use batch::exact::CopyRegion;
pub use batch::feed_plan::{ByteSpan, FeedPlan, UploadLayout, plain_table_bytes};
pub use batch::info::{BatchInfo, Utterance};
pub use batch::schema::{
    BatchSchema, Dim, FeatureSizes, FieldSpec, HOP_SAMPLES, Layout, MELS, Placed, REFERENCE_FRAMES, SPEECH,
};
pub use batch::shape::{Bucket, FRAME_STEP, RowShape};
pub use error::FeedError;
pub use featurize::on_host::{Features, Featurizer};
pub use feed::Feed;
pub use feed::spec::{FeedSpec, FeedState, FeedStats, Warm};
pub use lease::{BatchField, DeviceBatch};
pub use load::bad_samples::{BadSample, BadSamples, Replacement, Replacements, TooManyBad};
pub use load::cache::{Cache, CacheKind, CacheSpec, CacheStats};
pub use load::decode::load_into;
pub use load::read_ahead::ReadAheadStats;
pub use load::recording_hashes::RecordingHashes;
pub use load::recordings::{FromFiles, RecordingFetch, Recordings};
pub use shared_lease::SharedBatch;
pub use survey::buckets::{BucketPlan, MAX_BUCKETS, NUM_BUCKETS, Padding, even_buckets};
pub use survey::check::{CheckOptions, Checked, check};
pub use survey::custom_text::{CustomText, CustomTokenizer, TextMap};
pub use survey::languages::language_hints;
pub use survey::left_out::{LeftOut, show_hours, show_usage, show_utterances};
pub use survey::open::{OpenedCorpus, ShardProgress, open_corpus};
pub use survey::pack::{PackFormat, PackOptions, PackReport, pack};
pub use survey::report::{BucketUse, CorpusReport, OtherPadding, ShapeReport, UsageReport, UtteranceGroup};
pub use survey::scan::{Scanned, measure, scan_lengths};
pub use survey::show::{report_json, show_report};
pub use survey::tokenizer::{DEFAULT_LANG, TextSettings, Tokenizer, read_lexicon};
pub use survey::training_set::{
    COUNTED_ROWS, EXACT_ROWS, FRAME_LIMITS, INCLUDED_PERCENT, TOKEN_LIMITS, TrainingSet, TrainingSetOptions,
};
pub use tandem_audio::{Arithmetic, RATE_HZ};
pub use tandem_corpus::Extent;
pub use tune::tuner::{Tuner, TuningChange, TuningLimits, TuningState, TuningWindow};
