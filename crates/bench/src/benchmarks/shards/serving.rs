//! A feed that begins anywhere in the order, with fields of its own.

use std::sync::Arc;

use tandem_corpus::Shard;
use tandem_device::bytes::{BLOCK_ALIGN, POOL_GRANULE, round_up};
use tandem_device::{ArenaSpec, DType, Isolation, RoleSetup};
use tandem_events::Role;
use tandem_feed::{
    BatchSchema, BucketPlan, CacheSpec, Dim, Feed, FeedPlan, FeedSpec, FeedState, FieldSpec, FromFiles, TrainingSet,
};

use super::super::BenchError;
use super::super::serve::BenchContext;

/// Samples in pinned memory, and no features: what is leased is their lengths.
pub(super) const SAMPLES_ONLY: BatchSchema =
    BatchSchema { fields: &[FieldSpec { name: "mel_lengths", dtype: DType::I32, dims: &[Dim::B] }] };

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
        let plan = FeedPlan {
            schema,
            buckets: buckets.buckets().to_vec(),
            route: context.route,
            data_slots: context.slots[0],
            model_slots: context.slots[1],
            rates_hz: training_set.rates_hz().to_vec(),
            uploads: 2,
            pinned_uploads: context.pinned_uploads,
            table_bytes: training_set.table_bytes(),
            cached_pitches: 0,
            verify_every: context.verify_every,
        };
        let data = RoleSetup { card: context.cards[0], arena: arena(context, Role::Data, &plan, plan.data_lines()) };
        let model = RoleSetup { card: context.cards[1], arena: arena(context, Role::Model, &plan, plan.model_lines()) };
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

/// An arena of whole granules that holds `lines`, slots included.
fn arena(context: &BenchContext, role: Role, plan: &FeedPlan, lines: Vec<(&str, u64)>) -> ArenaSpec {
    let is_peer = context.route.needs_peer_access() && context.cards[0] != context.cards[1];
    let slots_bytes = if is_peer { plan.slots_bytes(role) } else { 0 };
    let num_bytes: u64 = lines.iter().map(|(_, bytes)| bytes).sum();
    let peer_bytes = round_up(slots_bytes, POOL_GRANULE);
    let rest_bytes = round_up(round_up(num_bytes - slots_bytes, BLOCK_ALIGN), POOL_GRANULE);
    ArenaSpec { peer_bytes, ..ArenaSpec::new(role, peer_bytes + rest_bytes) }
}
