//! A feed that begins anywhere in the order, with fields of its own.

use std::borrow::Cow;
use std::sync::Arc;

use tandem_corpus::Shard;
use tandem_device::{DType, Isolation, RoleSetup};
use tandem_events::Role;
use tandem_feed::{
    BatchSchema, BucketPlan, CacheSpec, Dim, FeatureSizes, Feed, FeedPlan, FeedSpec, FeedState, FieldSpec, FromFiles,
    TrainingSet,
};

use super::super::BenchError;
use super::super::serve::BenchContext;

/// Samples in pinned memory, and no features: what is leased is their lengths.
pub(super) const SAMPLES_ONLY: BatchSchema = BatchSchema {
    sizes: FeatureSizes::DEFAULT,
    fields: Cow::Borrowed(&[FieldSpec { name: "mel_lengths", dtype: DType::I32, dims: &[Dim::B] }]),
};

/// A running feed with its own arenas.
pub(super) struct ShardFeed {
    // Dropped before the arenas that own its memory.
    pub(super) feed: Feed,
    pub(super) roles: Isolation,
}

impl ShardFeed {
    /// Starts the feed of `training_set` at `from`, on the devices and with the threads of `context`.
    pub(super) fn start(
        context: &BenchContext,
        training_set: &TrainingSet,
        buckets: BucketPlan,
        schema: BatchSchema,
        from: FeedState,
        seed: u64,
    ) -> Result<ShardFeed, BenchError> {
        let plan = FeedPlan { schema, ..context.plan(training_set, &buckets) };
        let sum = |lines: Vec<(&str, u64)>| lines.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let data = context.arena(Role::Data, &plan, sum(plan.data_lines()));
        let model = context.arena(Role::Model, &plan, sum(plan.model_lines()));
        let data = RoleSetup { card: context.cards[0], arena: data };
        let model = RoleSetup { card: context.cards[1], arena: model };
        let roles = Isolation::set_up(&context.machine, data, model)?;
        let spec = FeedSpec {
            training_set: Arc::new(training_set.with_arithmetic(context.arithmetic)),
            buckets,
            evaluates: false,
            plan,
            route_why: context.route_why.clone(),
            seed,
            shard: Shard::WHOLE,
            from,
            recordings: Arc::new(FromFiles),
            threads: context.threads[0],
            max_threads: context.threads[1],
            depth_fixed: context.depth_fixed,
            cache: CacheSpec::None,
            read_ahead_bytes: 0,
            max_bad_fraction: context.max_bad_fraction,
            bad_samples: context.bad_samples.clone(),
            cores: context.cores.clone(),
            emitter: context.emitter.clone(),
        };
        Ok(ShardFeed { feed: Feed::start(&roles, spec)?, roles })
    }
}
