//! A feed set up for a benchmark: its own schema, its own arenas, the devices and threads of a plan.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_corpus::Shard;
use tandem_device::bytes::{BLOCK_ALIGN, POOL_GRANULE, round_up};
use tandem_device::{ArenaSpec, DType, Isolation, Machine, RoleSetup, Route};
use tandem_events::{Emitter, Role, RunEvent, Sink};
use tandem_feed::{
    Arithmetic, BatchSchema, BucketPlan, CacheSpec, Dim, FeatureSizes, Feed, FeedPlan, FeedSpec, FeedState, FieldSpec,
    NUM_BUCKETS, Recordings, TrainingSet,
};
use tandem_pipeline::CoreSet;

use super::BenchError;

/// What the peers make of a recording, and no more: log-mel and its length.
pub(crate) const MEL_ONLY: BatchSchema = BatchSchema {
    sizes: FeatureSizes::DEFAULT,
    fields: Cow::Borrowed(&[
        FieldSpec { name: "mel", dtype: DType::F32, dims: &[Dim::Frames, Dim::Mels] },
        FieldSpec { name: "mel_lengths", dtype: DType::I32, dims: &[Dim::B] },
    ]),
};

/// Where a benchmark runs: the part of a plan that it uses.
#[derive(Clone)]
pub struct BenchContext {
    /// The devices.
    pub machine: Machine,
    /// The data role's and the model role's.
    pub cards: [usize; 2],
    /// The arithmetic of the features.
    pub arithmetic: Arithmetic,
    /// How batches reach the model device.
    pub route: Route,
    /// Why this route.
    pub route_why: String,
    /// One in so many batches is verified after its transfer; none if no batch is.
    pub verify_every: Option<u64>,
    /// The cores of the feed's threads, if they are bound to some.
    pub cores: Option<CoreSet>,
    /// Batches prefetched on the data side, and slots towards the model.
    pub slots: [u64; 2],
    /// Page-locked batches that threads decode into.
    pub pinned_uploads: u64,
    /// Decode threads at the start, and at most.
    pub threads: [usize; 2],
    /// Whether the number of prefetched batches was given by hand.
    pub depth_fixed: bool,
    /// The share of an epoch's recordings that may turn out bad.
    pub max_bad_fraction: f64,
    /// Where bad ones are listed.
    pub bad_samples: Option<PathBuf>,
    /// Receives the run's events.
    pub emitter: Emitter,
}

/// The training set to serve, and how.
pub(crate) struct Served {
    pub(crate) training_set: Arc<TrainingSet>,
    pub(crate) recordings: Arc<dyn Recordings>,
    pub(crate) batch: u32,
    pub(crate) cache: CacheSpec,
}

/// A running feed with its own arenas.
pub(crate) struct RunningFeed {
    // Dropped before the arenas that own its memory.
    pub(crate) feed: Option<Feed>,
    pub(crate) plan: FeedPlan,
    pub(crate) stages: Arc<Stages>,
    pub(crate) roles: Isolation,
}

impl BenchContext {
    /// Starts the feed. `beside` says what the consumer takes from the model role's arena.
    pub(crate) fn serve(&self, served: &Served, beside: impl Fn(&FeedPlan) -> u64) -> Result<RunningFeed, BenchError> {
        let buckets = served.training_set.bucket_plan(NUM_BUCKETS, served.batch);
        let buckets = buckets.ok_or_else(|| BenchError::Clips("there is nothing to serve".to_owned()))?;
        self.serve_in(served, buckets, beside)
    }

    /// The same with shapes that are known.
    pub(crate) fn serve_in(
        &self,
        served: &Served,
        buckets: BucketPlan,
        beside: impl Fn(&FeedPlan) -> u64,
    ) -> Result<RunningFeed, BenchError> {
        let plan = self.plan(&served.training_set, &buckets);
        let sum = |lines: Vec<(&str, u64)>| lines.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let data = self.arena(Role::Data, &plan, sum(plan.data_lines()));
        let model = self.arena(Role::Model, &plan, sum(plan.model_lines()) + beside(&plan));
        let data = RoleSetup { card: self.cards[0], arena: data };
        let model = RoleSetup { card: self.cards[1], arena: model };
        let roles = Isolation::set_up(&self.machine, data, model)?;
        let stages = Arc::new(Stages { times: Mutex::default(), further: self.emitter.clone() });
        let spec = self.spec(served, buckets, &plan, Emitter::to(stages.clone()));
        Ok(RunningFeed { feed: Some(Feed::start(&roles, spec)?), plan, stages, roles })
    }

    /// An arena of whole granules that holds `bytes`, in whole blocks each, slots included.
    pub(super) fn arena(&self, role: Role, plan: &FeedPlan, bytes: u64) -> ArenaSpec {
        let is_peer = self.route.needs_peer_access() && self.cards[0] != self.cards[1];
        let slots_bytes = if is_peer { plan.slots_bytes(role) } else { 0 };
        let peer_bytes = round_up(slots_bytes, POOL_GRANULE);
        let arena_bytes = peer_bytes + round_up(round_up(bytes - slots_bytes, BLOCK_ALIGN), POOL_GRANULE);
        ArenaSpec { peer_bytes, ..ArenaSpec::new(role, arena_bytes) }
    }

    pub(super) fn plan(&self, training_set: &TrainingSet, buckets: &BucketPlan) -> FeedPlan {
        FeedPlan {
            schema: MEL_ONLY,
            buckets: buckets.buckets().to_vec(),
            route: self.route,
            data_slots: self.slots[0],
            model_slots: self.slots[1],
            rates_hz: training_set.rates_hz().to_vec(),
            uploads: 2,
            pinned_uploads: self.pinned_uploads,
            table_bytes: training_set.table_bytes(),
            cached_pitches: 0,
            verify_every: self.verify_every,
        }
    }

    fn spec(&self, served: &Served, buckets: BucketPlan, plan: &FeedPlan, emitter: Emitter) -> FeedSpec {
        FeedSpec {
            training_set: Arc::new(served.training_set.with_arithmetic(self.arithmetic)),
            buckets,
            evaluates: false,
            plan: plan.clone(),
            route_why: self.route_why.clone(),
            seed: 1234,
            shard: Shard::WHOLE,
            from: FeedState::default(),
            recordings: Arc::clone(&served.recordings),
            threads: self.threads[0],
            max_threads: self.threads[1],
            depth_fixed: self.depth_fixed,
            cache: served.cache.clone(),
            read_ahead_bytes: 0,
            max_bad_fraction: self.max_bad_fraction,
            bad_samples: self.bad_samples.clone(),
            cores: self.cores.clone(),
            emitter,
        }
    }
}

/// Collects the stage times and forwards every event.
pub(crate) struct Stages {
    times: Mutex<Vec<(String, u64, u64)>>,
    further: Emitter,
}

impl Stages {
    /// Batch and nanoseconds of every part that `stage` finished so far.
    pub(crate) fn of(&self, stage: &str) -> Vec<(u64, u64)> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.iter().filter(|(name, ..)| name == stage).map(|(_, batch, ns)| (*batch, *ns)).collect()
    }
}

impl Sink for Stages {
    fn emit(&self, event: RunEvent) {
        if let RunEvent::Stage { stage, batch, ns, .. } = &event {
            self.times.lock().unwrap_or_else(PoisonError::into_inner).push((stage.clone(), *batch, *ns));
        }
        self.further.emit(event);
    }
}
