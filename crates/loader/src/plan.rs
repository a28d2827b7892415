//! The memory and the threads of a loader, computed before anything is taken.

use std::ops::ControlFlow;

use serde_json::{Value, json};
use tandem_device::bytes::{BLOCK_ALIGN, MIB, POOL_GRANULE, round_up};
use tandem_device::{ArenaSpec, DeviceKind, HostReading, Route};
use tandem_events::Role;
use tandem_feed::{BatchSchema, BucketPlan, CacheSpec, FeedPlan, Padding};

use crate::fields::schema;
use crate::options::CacheChoice;
use crate::placement::LoaderDevices;
use crate::source::{self, Opened};
use crate::{LoaderError, LoaderOptions};

/// Most decode threads, unless their number is given.
const MAX_THREADS: usize = 64;

/// Everything that is known before memory is taken.
pub(crate) struct Prepared {
    pub(crate) options: LoaderOptions,
    pub(crate) placement: LoaderDevices,
    pub(crate) opened: Opened,
    pub(crate) buckets: BucketPlan,
    schema: BatchSchema,
    /// Decode threads at the start, and at most.
    pub(crate) threads: [usize; 2],
    pub(crate) cache: CacheSpec,
    padding: Padding,
}

/// The plan of a loader with these options, as a document: devices, shapes, memory line by line, threads. Opens the corpus and
/// takes no memory.
pub fn plan(options: &LoaderOptions) -> Result<Value, LoaderError> {
    let prepared = Prepared::new(options.clone(), &mut || ControlFlow::Continue(()))?;
    let route = prepared.placement.routes()?[0];
    prepared.check_limits(route)?;
    Ok(prepared.json(route))
}

impl Prepared {
    pub(crate) fn new(
        options: LoaderOptions,
        watch: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Prepared, LoaderError> {
        let schema = schema(&options.given.fields, &options.features)?;
        let placement = LoaderDevices::choose(&options)?;
        let opened = source::open(&options, &schema, watch)?;
        let given = &options.given;
        let rows = opened.rows.epoch_rows();
        let buckets = BucketPlan::padded(&rows, given.buckets, given.batch_size)
            .ok_or_else(|| LoaderError::Nothing("no utterance of the corpus can be used".to_owned()))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match given.workers {
            Some(workers) => [workers; 2],
            None => [cores.clamp(1, 8), (2 * cores).clamp(8, MAX_THREADS)],
        };
        let (cache, padding) = (cache(&options, &opened), buckets.padding(given.seed));
        Ok(Prepared { placement, opened, buckets, schema, threads, cache, padding, options })
    }

    /// The memory of the feed over `route`.
    pub(crate) fn feed_plan(&self, route: Route) -> FeedPlan {
        self.feed_plan_with(route, self.options.given.prefetch)
    }

    fn feed_plan_with(&self, route: Route, prefetch: u64) -> FeedPlan {
        let (given, rows, batch) = (&self.options.given, &self.opened.rows, u64::from(self.buckets.batch()));
        let buckets = self.buckets.buckets().to_vec();
        let recordings = if self.cache == CacheSpec::None { 0 } else { rows.dataset().samples().len() as u64 };
        FeedPlan {
            schema: self.schema.clone(),
            cached_pitches: FeedPlan::pitches_worth_caching(&buckets, recordings),
            buckets,
            route,
            data_slots: prefetch,
            model_slots: given.held,
            rates_hz: rows.rates_hz().to_vec(),
            uploads: 2,
            pinned_uploads: 2 + (self.threads[1] as u64).div_ceil(batch),
            table_bytes: rows.table_bytes(),
            verify_every: given.verify_transfers,
        }
    }

    /// Both arenas, the data role's first: exactly as large as the plan.
    pub(crate) fn arenas(&self, route: Route) -> [ArenaSpec; 2] {
        self.arenas_of(&self.feed_plan(route))
    }

    fn arenas_of(&self, plan: &FeedPlan) -> [ArenaSpec; 2] {
        let is_cuda = self.placement.machine.kind() == DeviceKind::Cuda;
        let shares_slots = plan.route.needs_peer_access() && !self.placement.is_one_device();
        let limits = &self.options.given.limits;
        let roles =
            [(Role::Data, plan.data_lines(), limits.data_mb), (Role::Model, plan.model_lines(), limits.model_mb)];
        roles.map(|(role, lines, limit_mb)| {
            let slots_bytes = if shares_slots { plan.slots_bytes(role) } else { 0 };
            let peer_bytes = round_up(slots_bytes, POOL_GRANULE);
            let own_bytes = sum(&lines) - slots_bytes;
            // A role without memory of its own still has an arena. A driver pool enforces a limit that was given.
            let capped = is_cuda && own_bytes > 0 && limit_mb.is_some();
            let own_bytes = round_up(own_bytes.max(BLOCK_ALIGN), if capped { POOL_GRANULE } else { BLOCK_ALIGN });
            let arena = ArenaSpec::new(role, peer_bytes + own_bytes);
            let limit_bytes = limit_mb.map_or(arena.limit_bytes, |limit_mb| limit_mb * MIB);
            ArenaSpec { peer_bytes, capped, limit_bytes, ..arena }
        })
    }

    /// Fails if an arena is larger than its limit, with what would fit.
    pub(crate) fn check_limits(&self, route: Route) -> Result<(), LoaderError> {
        let plan = self.feed_plan(route);
        let arenas = self.arenas_of(&plan);
        let Some(arena) = arenas.iter().find(|arena| arena.arena_bytes > arena.limit_bytes) else { return Ok(()) };
        let (name, lines) = match arena.role {
            Role::Data => ("data_mb", plan.data_lines()),
            Role::Model => ("model_mb", plan.model_lines()),
        };
        let lines: Vec<String> =
            lines.iter().map(|(line, bytes)| format!("   {line}: {:.1} MB", *bytes as f64 / MIB as f64)).collect();
        let (limit_mb, needed_mb) = (arena.limit_bytes / MIB, arena.arena_bytes.div_ceil(MIB));
        Err(LoaderError::DoesNotFit(format!(
            "limits: {name}={limit_mb} is too small, {needed_mb} MB are needed:\n{}\n   {}",
            lines.join("\n"),
            self.suggestion(route, arena, name)
        )))
    }

    /// What would fit: fewer prefetched batches, or the limit itself.
    fn suggestion(&self, route: Route, refused: &ArenaSpec, name: &str) -> String {
        let needed_mb = refused.arena_bytes.div_ceil(MIB);
        let fits = |prefetch: &u64| {
            let [data, _] = self.arenas_of(&self.feed_plan_with(route, *prefetch));
            data.arena_bytes <= data.limit_bytes
        };
        let fewer = (1..self.options.given.prefetch).rev().find(fits).filter(|_| refused.role == Role::Data);
        match fewer {
            Some(prefetch) => format!("It fits with prefetch={prefetch}, or with limits={{\"{name}\": {needed_mb}}}"),
            None => format!("It fits with limits={{\"{name}\": {needed_mb}}}; a smaller batch_size needs less"),
        }
    }

    /// Batches of an epoch, of all ranks together.
    pub(crate) fn num_batches(&self) -> u64 {
        self.padding.batches
    }

    /// Remarks for people, in the order in which they came up.
    pub(crate) fn notes(&self) -> Vec<String> {
        let asked = self.options.given.batch_size;
        let found = self.buckets.batch();
        let fewer =
            (found < asked).then(|| format!("batch_size {asked} → {found}: the corpus has {found} usable utterances"));
        let notes = self.placement.note.iter().chain(&self.opened.notes).cloned();
        notes.chain(fewer).chain(self.without_effect()).collect()
    }

    /// Options that do nothing here. No mistake: a config may serve several machines.
    fn without_effect(&self) -> Vec<String> {
        let (given, one) = (&self.options.given, self.placement.is_one_device());
        let text = &given.text;
        let front_end = text.phonemizer.is_some() || text.harakat.is_some() || text.lexicon.is_some();
        let idle = [
            (one && given.verify_transfers.is_some(), "verify_transfers", "nothing is copied between devices"),
            (one && given.limits.model_mb.is_some(), "limits: model_mb", "on one device data_mb holds for everything"),
            (self.options.encoder.is_some() && front_end, "text: phonemizer, harakat, lexicon", "there is a tokenizer"),
        ];
        let idle = idle.into_iter().filter(|(is_idle, _, _)| *is_idle);
        idle.map(|(_, option, why)| format!("{option} has no effect: {why}")).collect()
    }

    /// The plan as a document.
    pub(crate) fn json(&self, route: Route) -> Value {
        let (feed, arenas, placement) = (self.feed_plan(route), self.arenas(route), &self.placement);
        let (given, rows) = (&self.options.given, &self.opened.rows);
        let lines = |lines: Vec<(&'static str, u64)>| -> Vec<Value> {
            lines.into_iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect()
        };
        let role = |arena: &ArenaSpec, card: usize, limit_mb: Option<u64>, role_lines: Vec<(&'static str, u64)>| {
            json!({
                "device": placement.show(card),
                "limit_mb": limit_mb,
                "arena_bytes": arena.arena_bytes,
                "lines": lines(role_lines),
            })
        };
        let bucket = |bucket: &tandem_feed::Bucket| json!({ "batch": bucket.batch(), "frames": bucket.longest_frames(), "tokens": bucket.longest_tokens() });
        let limits = &given.limits;
        json!({
            "simulated": placement.machine.kind() == DeviceKind::Simulated,
            "device": placement.show(placement.consumer),
            "data_device": placement.show(placement.data),
            "transfer": route.name(),
            "batch_size": self.buckets.batch(),
            "buckets": feed.buckets.iter().map(bucket).collect::<Vec<_>>(),
            "fields": feed.schema.fields.iter().map(|field| field.name).collect::<Vec<_>>(),
            "features": serde_json::to_value(&self.options.features).unwrap_or(Value::Null),
            "memory": {
                "data": role(&arenas[0], placement.data, limits.data_mb, feed.data_lines()),
                "model": role(&arenas[1], placement.consumer, limits.model_mb, feed.model_lines()),
                "pinned": { "bytes": feed.pinned_bytes(), "lines": lines(feed.pinned_lines()) },
            },
            "threads": { "start": self.threads[0], "max": self.threads[1] },
            "prefetch": given.prefetch,
            "held": given.held,
            "cache": self.cache.kind().slug(),
            "rank": given.rank,
            "world_size": given.world_size,
            "utterances": rows.rows().len(),
            "hours": rows.audio_seconds() / 3600.0,
            "skipped": rows.left_out().json(),
            "batches_per_epoch": self.num_batches(),
            "padding": self.padding.frame_waste(),
            "notes": self.notes(),
        })
    }
}

/// The cache of decoded audio that was asked for. `auto` caches in memory if a quarter of the free memory is enough.
fn cache(options: &LoaderOptions, opened: &Opened) -> CacheSpec {
    let rates = opened.rows.rates_hz().iter().copied().chain([options.features.rate_hz]);
    let decoded_bytes = (opened.rows.audio_seconds() * f64::from(rates.max().unwrap_or(0)) * 2.0) as u64;
    let quarter = HostReading::now().available_bytes / 4;
    let memory = CacheSpec::Memory { budget_bytes: quarter };
    match (options.given.cache, &options.given.cache_dir) {
        (CacheChoice::Memory, _) => memory,
        (CacheChoice::Auto, _) if decoded_bytes <= quarter => memory,
        (CacheChoice::Disk, Some(folder)) => {
            // Half as much again: samples of rates that were not probed take more.
            CacheSpec::Disk { budget_bytes: decoded_bytes + decoded_bytes / 2, folder: folder.clone() }
        }
        _ => CacheSpec::None,
    }
}

fn sum(lines: &[(&'static str, u64)]) -> u64 {
    lines.iter().map(|(_, bytes)| bytes).sum()
}
