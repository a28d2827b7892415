//! What a feed is started with, what a checkpoint saves of it, and what it reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tandem_corpus::{Cursor, Shard};
use tandem_events::Emitter;
use tandem_pipeline::{CoreSet, RingStats};

use crate::batch::feed_plan::FeedPlan;
use crate::load::bad_samples::Replacements;
use crate::load::cache::{CacheSpec, CacheStats};
use crate::load::read_ahead::ReadAheadStats;
use crate::load::recordings::Recordings;
use crate::survey::buckets::BucketPlan;
use crate::survey::training_set::TrainingSet;

/// Everything a feed is started with.
pub struct FeedSpec {
    /// The rows to serve.
    pub training_set: Arc<TrainingSet>,
    /// Their shapes: those of `plan`.
    pub buckets: BucketPlan,
    /// False for training: full batches, in another order every epoch. True for evaluation: every row that fits is served once
    /// per epoch, in `buckets` made for the rows that train; rows of a batch may then be empty.
    pub evaluates: bool,
    /// The memory of the feed.
    pub plan: FeedPlan,
    /// Why the plan's route was chosen, for messages.
    pub route_why: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Which batches of the order to serve: all of them, or those of one rank.
    pub shard: Shard,
    /// The state to start from: the default, or that of a checkpoint.
    pub from: FeedState,
    /// The source of recordings: [`crate::FromFiles`].
    pub recordings: Arc<dyn Recordings>,
    /// Decode threads at the start.
    pub threads: usize,
    /// Most decode threads; equal to `threads` if that number was given by hand.
    pub max_threads: usize,
    /// Whether the number of prefetched batches was given by hand.
    pub depth_fixed: bool,
    /// The cache of decoded audio.
    pub cache: CacheSpec,
    /// The most bytes of recordings that are fetched from object stores before they are asked for; 0 fetches none ahead.
    /// Batches do not depend on it.
    pub read_ahead_bytes: u64,
    /// The share of an epoch's samples that may be bad.
    pub max_bad_fraction: f64,
    /// The file that lists bad samples.
    pub bad_samples: Option<PathBuf>,
    /// The cores of the data card's NUMA node, if it is known: the threads of the feed run there, and its pinned memory is
    /// taken there. Batches do not depend on it.
    pub cores: Option<CoreSet>,
    /// Receives stage times and settings.
    pub emitter: Emitter,
}

/// The state of a feed in a checkpoint. A new feed started from it serves exactly the batches this one would have served.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedState {
    /// The next batch; of a run with several ranks, the first batch of their next group.
    pub next: Cursor,
    /// Replacements of bad samples in batches that are prepared and not leased yet.
    pub replacements: Replacements,
}

/// How many batches were ready when the wait for them ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Ready batches.
    pub ready: usize,
    /// Prefetch depth. With as many ready the buffer is full; with fewer, the longest wait has passed.
    pub of: usize,
    /// Duration of the wait.
    pub waited: Duration,
}

/// Counters of a running feed.
#[derive(Clone, Debug)]
pub struct FeedStats {
    /// The rings in flow order.
    pub rings: Vec<RingStats>,
    /// Total time the consumer waited for batches.
    pub stall_ns: u64,
    /// Leased batches.
    pub leased: u64,
    /// Active decode threads.
    pub threads: usize,
    /// Bad samples so far.
    pub num_bad: usize,
    /// The cache.
    pub cache: CacheStats,
    /// Recordings that are fetched ahead; all zero without read-ahead.
    pub read_ahead: ReadAheadStats,
}
