//! Recordings to batches. Today: what is known before a run (lengths, shapes, problems) and one file's features.
//!
//! Modules in the order data meets them:
//!
//! 1. [`load`](load_into) opens a recording and decodes the part of it that is meant.
//! 2. [`Featurizer`] brings it to the features' rate and makes log-mel, energy and pitch.
//! 3. [`scan_lengths`] finds the lengths that no list gives; [`BucketPlan`] makes of all lengths the few shapes in
//!    which batches will come, and says what padding they cost.
//! 4. [`check`] reads a whole corpus once and reports everything that is wrong with it; [`show_report`] and
//!    [`report_json`] tell it.
//!
//! ```
//! use tandem_corpus::SampleIndex;
//! use tandem_feed::{BucketPlan, Extent};
//!
//! // A thousand recordings of 100 to 599 frames, in batches of ten.
//! let rows: Vec<_> = (0..1000).map(|i| (SampleIndex(i), Extent { frames: 100 + i / 2, tokens: 10 })).collect();
//! let plan = BucketPlan::solve(&rows, 8, 10).expect("there are rows");
//! assert_eq!(plan.buckets().len(), 8);
//! assert_eq!(plan.buckets()[7].frames, 600);
//! assert!(plan.padding(1234, &rows)?.frame_waste() < 0.11);
//! # Ok::<(), tandem_corpus::CorpusError>(())
//! ```

mod error;
mod pool;

// What a batch is, and what it takes to make them.
mod shape;
mod schema;
mod feed_plan;

// All recordings, before a run.
mod scan;
mod buckets;
mod texts;
mod material;
mod check;
mod report;
mod show;

// One recording.
mod load;
mod features;

// The stages, in the order data meets them.
mod input;
mod order;
mod cache;
mod bad_samples;
mod row_loader;
mod upload;
mod featurize;
pub mod kernels;
mod collate;
mod data_side;
mod transfer;
mod lease;

// Around them.
pub mod waits;
mod decode_threads;
mod tune;
mod self_tuning;
mod hold_ups;
mod notes;
mod feed;

#[cfg(test)]
mod fixture;

pub use bad_samples::{BadSamples, Replacement, Replacements, TooManyBad};
pub use buckets::{BucketPlan, Extent, FRAME_STEP, MAX_BUCKETS, NUM_BUCKETS, Padding};
pub use cache::{Cache, CacheKind, CacheSpec, CacheStats};
pub use check::{CheckOptions, Checked, check};
pub use data_side::{BatchInfo, Utterance};
pub use error::FeedError;
pub use features::{Features, Featurizer};
pub use feed::{Feed, FeedSpec, FeedState, FeedStats, Warm};
pub use feed_plan::{FeedPlan, RATE_HZ, Span, UploadLayout, plain_table_bytes};
pub use input::{FromFiles, Recordings};
pub use lease::{BatchField, DeviceBatch};
pub use load::load_into;
pub use material::{COUNTED_ROWS, EXACT_ROWS, KEPT_PERCENT, LeftOut, Material, MaterialOptions};
pub use report::{BucketUse, Group, Report, Shapes};
pub use scan::{Scanned, measure, scan_lengths};
pub use schema::{BatchSchema, Dim, Field, HOP_SAMPLES, Layout, MELS, Placed, REFERENCE_FRAMES, SPEECH};
pub use shape::{Bucket, even_buckets};
pub use show::{report_json, show_report};
pub use texts::Texts;
pub use tune::{Change, Limits, Setting, Tuner, Window};
