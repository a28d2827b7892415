//! Solves a plan from settings and hardware, or refuses. A default batch size that does not fit is lowered and tried again.

use tandem_device::bytes::{MIB, POOL_GRANULE, mib_ceil, round_down, show};
use tandem_device::{DeviceKind, Route, Strength};
use tandem_events::Role;
use tandem_feed::{FeedPlan, SPEECH};
use tandem_model::Preset;
use tandem_ranks::World;

use crate::arithmetic::ArithmeticPlan;
use crate::cache::CachePlan;
use crate::corpus::BucketShapes;
use crate::disk::{check_disk, checkpoint_room, disk_note};
use crate::free_memory::{FreeMemory, OwnBytes, process_bytes};
use crate::hardware::Hardware;
use crate::limits::{MemoryLimits, limit_setting};
use crate::memory::{DriverShare, Need, by_role, data_lines, device_name, min_model_bytes, model_lines};
use crate::model_memory::{ModelCatalog, ModelChoice};
use crate::numa;
use crate::placement::{Mode, Placement};
use crate::plan::{Level, Plan, RolePlan, Sources};
use crate::rank_share::with_micro_batches;
use crate::refusal::{Demand, Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::slots::SlotCounts;
use crate::source_names::shown_source;
use crate::training::TrainingSettings;
use crate::transfer::TransferPlan;
use crate::value::SettingValue;

/// How much of a plan that does not fit is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Everything: the refusal is shown to the user.
    Full,
    /// Only that it does not fit: the caller tries other settings next.
    FitOnly,
}

/// A plan without advice, or a refusal without the suggestions that have to be solved.
pub(crate) fn draft(
    settings: &Settings,
    hardware: &Hardware,
    models: &dyn ModelCatalog,
    shapes: &BucketShapes<'_>,
    detail: Detail,
) -> Result<Plan, Refusal> {
    let settings = &shapes.with_corpus_lengths(settings);
    let (settings, raised) = with_micro_batches(settings, hardware)?;
    let settings = &settings;
    let placement = Placement::choose(settings, hardware)?;
    check_sources(settings)?;
    let attempt = |batch_size, detail| {
        Draft { settings, hardware, placement: &placement, shapes, batch_size, detail }.solve(models)
    };
    let BatchSizes { first, lower } = batch_sizes(settings, shapes)?;
    let last = lower.last().copied().unwrap_or(first);
    let detail_for = |size| if size == last { detail } else { Detail::FitOnly };
    let mut outcome = attempt(first, detail_for(first));
    for lowered in lower {
        if !matches!(&outcome, Err(refusal) if refusal.kind == Reason::TooSmall) {
            break;
        }
        let note =
            format!("batch size lowered from {first} to {lowered} to fit; a --batch-size you give is never changed");
        outcome = attempt(lowered, detail_for(lowered)).map(|plan| with_note(plan, note));
    }
    let notes = default_changed(settings, first, shapes).into_iter().chain(raised);
    notes.fold(outcome, |outcome, note| outcome.map(|plan| with_note(plan, note)))
}

fn with_note(mut plan: Plan, note: String) -> Plan {
    plan.notes.push(note);
    plan
}

/// Batch sizes to try.
struct BatchSizes {
    first: u64,
    /// Smaller ones, largest first; empty for a batch size that the user gave.
    lower: Vec<u64>,
}

fn batch_sizes(settings: &Settings, shapes: &BucketShapes<'_>) -> Result<BatchSizes, Refusal> {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let usable = shapes.num_rows(settings).unwrap_or(u64::MAX);
    if settings.given(Id::BatchSize).is_some() {
        return match batch.is_multiple_of(accum) {
            false => Err(not_divided(batch, accum)),
            true if batch > usable => Err(too_few_rows(settings, shapes, usable)),
            true => Ok(BatchSizes { first: batch, lower: Vec::new() }),
        };
    }
    if usable < accum {
        return Err(too_few_rows(settings, shapes, usable));
    }
    let micro_batch = (batch / accum).max(1).min(usable / accum);
    let is_common = |n: &u64| n.is_multiple_of(4) || n.is_power_of_two() || *n == accum;
    let lower = (1..micro_batch).rev().map(|micro_batch| micro_batch * accum).filter(is_common).collect();
    Ok(BatchSizes { first: micro_batch * accum, lower })
}

fn default_changed(settings: &Settings, batch_size: u64, shapes: &BucketShapes<'_>) -> Option<String> {
    let (default, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let is_changed = settings.given(Id::BatchSize).is_none() && batch_size != default;
    let why = match shapes.num_rows(settings) {
        Some(usable) if usable < default => format!("the corpus has {usable} usable utterances"),
        _ => format!("--grad-accum {accum} must divide it"),
    };
    is_changed.then(|| format!("batch size {batch_size} instead of {default}: {why}"))
}

/// Ranks compile programs of exact shapes at different steps, and would wait for each other's compiler.
fn exact_shapes_of_ranks(world: World) -> Refusal {
    Refusal::usage(format!(
        "❌ --disable-static-shapes is for one process, and this is {world}: every rank would compile programs while the others wait"
    ))
    .suggest(Suggestion::new("static shapes").set(Id::EnableStaticShapes, SettingValue::Switch(true)))
}

/// Refuses flags that need `--train-data` without it.
fn check_sources(settings: &Settings) -> Result<(), Refusal> {
    let dependent = [Id::ValData, Id::ExcludeIds, Id::SpeakerIdPattern, Id::Columns];
    let dependent = dependent.into_iter().find(|id| settings.given(*id).is_some());
    match dependent.filter(|_| settings.given(Id::TrainData).is_none()) {
        Some(id) => Err(Refusal::usage(format!("❌ --{} requires --train-data", id.setting().flag))),
        None => Ok(()),
    }
}

/// Numbers of decode threads.
struct ThreadCounts {
    start: u64,
    max: u64,
}

/// One attempt with a fixed batch size.
struct Draft<'a> {
    settings: &'a Settings,
    hardware: &'a Hardware,
    placement: &'a Placement,
    shapes: &'a BucketShapes<'a>,
    batch_size: u64,
    detail: Detail,
}

impl Draft<'_> {
    fn solve(&self, models: &dyn ModelCatalog) -> Result<Plan, Refusal> {
        let Draft { settings, hardware, placement, batch_size, .. } = *self;
        let grad_accum = settings.count(Id::GradAccum);
        let transfer = TransferPlan::choose(settings, placement, hardware)?;
        let arithmetic = ArithmeticPlan::choose(settings, placement, hardware)?;
        let world = hardware.world;
        let slots = SlotCounts::choose(settings, placement.mode, batch_size, grad_accum / u64::from(world.size));
        let threads = self.threads();
        let feed = self.feed(&slots, &transfer, threads.max);
        let unverified = nothing_to_verify(settings, transfer.route);
        let choice = self.model();
        if choice.exact_shapes && world.size > 1 {
            return Err(exact_shapes_of_ranks(world));
        }
        let device = if placement.model.is_some() { hardware.kind } else { DeviceKind::Cpu };
        let memory = models.memory_of(choice, device);

        let driver = DriverShare::of(placement, hardware)?;
        let slots_bytes = |role| if transfer.needs_peer_access() { feed.slots_bytes(role) } else { 0 };
        let (data_slots, model_slots) = (slots_bytes(Role::Data), slots_bytes(Role::Model));
        let data = Need { driver_bytes: driver.data, arena: data_lines(&feed), slots_bytes: data_slots };
        let read_ahead_bytes = self.read_ahead_bytes();
        let process = process_bytes(memory.as_ref(), threads.max, &hardware.host);
        let free = FreeMemory::new(hardware, OwnBytes { process, read_ahead: read_ahead_bytes });
        self.check_host(&free, &feed)?;
        let limits = MemoryLimits::resolve(settings, placement, &free, &data)?;
        let model_arena = limits.of(Role::Model).saturating_sub(driver.model);
        let is_over = || {
            data.smallest_limit() > limits.of(Role::Data)
                || min_model_bytes(&feed, memory.as_ref(), model_arena) > model_arena
        };
        if self.detail == Detail::FitOnly && is_over() {
            return Err(Refusal::new(Reason::TooSmall, "❌ The plan does not fit"));
        }
        let arena = model_lines(&feed, memory.as_ref());
        let model = Need { driver_bytes: driver.model, arena, slots_bytes: model_slots };
        if let Some(error) = memory.build_error() {
            return Err(Refusal::new(Reason::Model, format!("❌ The model cannot be built: {error}")));
        }
        self.check_fit(&limits, &free, &data, &model)?;
        let checkpoints = checkpoint_room(settings, hardware, memory.as_ref(), self.shapes.num_speakers());
        check_disk(&checkpoints, settings, hardware)?;

        let (data, model) = (self.role(Role::Data, &data, &limits), self.role(Role::Model, &model, &limits));
        let corpus = self.shapes.plan(settings, batch_size / grad_accum, false);
        let between_nodes = numa::between_nodes_note(transfer.route, &data, &model);
        Ok(Plan {
            mode: placement.mode,
            isolated: placement.isolated,
            simulated: hardware.kind == DeviceKind::Simulated,
            why: placement.why.clone(),
            hints: placement.hints.clone(),
            cache: self.cache(&free, [&data, &model], &feed, corpus.as_ref().map(|corpus| corpus.decoded_bytes)),
            corpus,
            sources: self.sources(),
            read_ahead_bytes,
            read_ahead_asked_mb: settings.given_count(Id::ReadAheadMb),
            checkpoints,
            max_bad_fraction: settings.share(Id::MaxBadFraction),
            data,
            model,
            feed,
            buffer_size_asked: slots.buffer_asked,
            buffer_size_given: settings.given(Id::BufferSize).is_some(),
            driver_source: placement
                .model
                .and_then(|index| hardware.card(index)?.driver.as_ref())
                .map(|d| d.source.clone()),
            transfer,
            threads: threads.start,
            max_threads: threads.max,
            batch_size,
            grad_accum,
            world,
            gpus: settings.given_gpus(Id::Gpus).cloned(),
            rank_timeout_s: settings.count(Id::RankTimeout),
            precision: choice.precision,
            model_size: choice.preset,
            custom_model: memory.custom_name(),
            model_name: memory.describe(),
            level: self.level(),
            training: TrainingSettings::choose(settings, self.level(), choice.preset),
            max_text_length: settings.count(Id::MaxTextLength),
            max_mel_frames: settings.count(Id::MaxMelFrames),
            seed: settings.count(Id::Seed),
            start_delay_seconds: settings.seconds(Id::ModelStartDelay),
            static_shapes: !choice.exact_shapes,
            notes: limits
                .notes
                .iter()
                .cloned()
                .chain(slots.notes)
                .chain(unverified)
                .chain(self.nothing_to_read_ahead())
                .chain(between_nodes)
                .chain(exact_shapes_note(choice.exact_shapes))
                .chain(disk_note(&checkpoints, settings))
                .chain(arithmetic.note())
                .collect(),
            arithmetic,
            advice: Vec::new(),
        })
    }

    fn threads(&self) -> ThreadCounts {
        let cores = self.feed_cores() as u64;
        match self.settings.given_count(Id::NumWorkers) {
            Some(given) => ThreadCounts { start: given, max: given },
            None => ThreadCounts { start: cores.clamp(1, 8), max: (2 * cores).clamp(8, MAX_THREADS) },
        }
    }

    /// Cores that decode threads may use: those of the data card's NUMA node, if it has any.
    fn feed_cores(&self) -> usize {
        let facts = self.placement.data.and_then(|index| self.hardware.card(index));
        let node = facts.and_then(|facts| facts.numa.as_ref()).filter(|node| !node.cores.is_empty());
        node.map_or(self.hardware.host.cores, |node| node.cores.len().min(self.hardware.host.cores))
    }

    fn feed(&self, slots: &SlotCounts, transfer: &TransferPlan, max_threads: u64) -> FeedPlan {
        let batch = self.batch_size / self.settings.count(Id::GradAccum);
        let buckets = self.shapes.buckets(self.settings, batch);
        let recordings = if self.settings.choice(Id::Cache) == "none" { 0 } else { self.shapes.num_recordings() };
        FeedPlan {
            schema: SPEECH,
            cached_pitches: FeedPlan::pitches_worth_caching(&buckets, recordings),
            buckets,
            route: transfer.route,
            data_slots: slots.buffer,
            model_slots: slots.prefetch,
            rates_hz: self.shapes.rates_hz(),
            table_bytes: self.shapes.table_bytes(),
            verify_every: self.settings.given_count(Id::VerifyTransfers),
            // One is uploaded while features are computed from the other.
            uploads: 2,
            // One is uploaded, one is ready for upload, and every thread has a row to decode into.
            pinned_uploads: 2 + max_threads.div_ceil(batch),
        }
    }

    /// The cache may use the RAM that the pinned buffers leave free. On the CPU both roles use RAM too.
    fn cache(
        &self,
        free: &FreeMemory<'_>,
        roles: [&RolePlan; 2],
        feed: &FeedPlan,
        decoded_bytes: Option<u64>,
    ) -> CachePlan {
        let on_host = roles.into_iter().filter(|role| role.card.is_none()).map(|role| role.arena_bytes);
        let used = on_host.sum::<u64>().saturating_add(most_pinned_bytes(feed));
        CachePlan::choose(self.settings, free.of(None).saturating_sub(used), decoded_bytes)
    }

    /// Recordings on this machine are not read ahead.
    fn read_ahead_bytes(&self) -> u64 {
        if self.shapes.is_remote() { self.settings.count(Id::ReadAheadMb) * MIB } else { 0 }
    }

    /// No mistake: a config may serve several corpora.
    fn nothing_to_read_ahead(&self) -> Option<String> {
        let is_idle = self.settings.given_count(Id::ReadAheadMb).is_some_and(|mb| mb > 0) && !self.shapes.is_remote();
        is_idle.then(|| "--read-ahead-mb has no effect: no recording is in an object store".to_owned())
    }

    fn sources(&self) -> Sources {
        let shown = |id| self.settings.texts(id).iter().map(|name| shown_source(name)).collect();
        Sources {
            train_data: shown(Id::TrainData),
            val_data: shown(Id::ValData),
            exclude_ids: self.settings.text(Id::ExcludeIds),
            speaker_id_pattern: self.settings.text(Id::SpeakerIdPattern),
            columns: self.settings.text(Id::Columns),
            lang: self.settings.text(Id::Lang),
            phonemizer: self.settings.choice(Id::Phonemizer),
            lexicon: self.settings.text(Id::Lexicon),
            harakat: self.settings.choice(Id::Harakat),
        }
    }

    fn level(&self) -> Level {
        if self.settings.choice(Id::OptimizationLevel) == "basic" { Level::Basic } else { Level::Enhanced }
    }

    fn model(&self) -> ModelChoice {
        ModelChoice {
            preset: Preset::named(self.settings.choice(Id::ModelSize)).unwrap_or(Preset::Tiny),
            precision: self.placement.precision,
            ema: self.level() == Level::Enhanced,
            accumulates: self.settings.count(Id::GradAccum) > 1,
            exact_shapes: !self.settings.switch(Id::EnableStaticShapes),
        }
    }

    /// With the arenas on cards, the host must still hold the process itself and the pinned buffers.
    fn check_host(&self, free: &FreeMemory<'_>, feed: &FeedPlan) -> Result<(), Refusal> {
        let pinned = most_pinned_bytes(feed);
        if self.placement.mode == Mode::Cpu || pinned <= free.of(None) {
            return Ok(());
        }
        let message = format!(
            "❌ The host has too little memory\n   {}\n   The pinned buffers for uploads and transfers need {} more",
            free.describe(None),
            show(pinned),
        );
        Err(with_less_read_ahead(Refusal::new(Reason::TooSmall, message), free, pinned))
    }

    fn check_fit(
        &self,
        limits: &MemoryLimits,
        free: &FreeMemory<'_>,
        data: &Need,
        model: &Need,
    ) -> Result<(), Refusal> {
        let demand = |role: Role| {
            let need = by_role(role, data, model);
            let mut lines = need.lines();
            lines.sort_by_key(|line| std::cmp::Reverse(line.bytes));
            let (card, limit_bytes) = (self.placement.card(role), limits.of(role));
            Demand { role, card, limit_bytes, needed_bytes: need.smallest_limit(), lines }
        };
        let demands = Role::BOTH.map(demand);
        if demands.iter().all(Demand::is_met) {
            return Ok(());
        }
        Err(too_small(demands.to_vec(), self.settings, self.placement, self.batch_size, free))
    }

    fn role(&self, role: Role, need: &Need, limits: &MemoryLimits) -> RolePlan {
        let facts = self.placement.card(role).and_then(|index| self.hardware.card(index));
        let card = facts.map(|facts| &facts.card);
        let (isolated, limit_bytes) = (self.placement.isolated, limits.of(role));
        RolePlan {
            role,
            card: card.map(|card| card.index),
            uuid: card.map(|card| card.uuid.clone()),
            name: card.map_or_else(|| "CPU".to_owned(), |card| card.name.clone()),
            numa: facts.and_then(|facts| facts.numa.clone()),
            limit_bytes,
            planned_bytes: need.driver_bytes + need.arena_bytes(),
            lines: need.lines(),
            // With isolation the arena reserves the whole limit, so that no other process can take it. Rounded down, because
            // the cap of a driver pool is rounded up.
            arena_bytes: match isolated {
                true => round_down(limit_bytes - need.driver_bytes, POOL_GRANULE),
                false => need.smallest_arena(),
            },
            peer_bytes: need.peer_bytes(),
            driver_bytes: need.driver_bytes,
            smallest_limit_bytes: need.smallest_limit(),
            strength: match (isolated, card) {
                (true, _) => Strength::DriverPoolCap,
                (false, Some(_)) => Strength::PlannedReserved,
                (false, None) => Strength::Planned,
            },
        }
    }
}

/// The refusal of a plan that exceeds a limit.
fn too_small(
    demands: Vec<Demand>,
    settings: &Settings,
    placement: &Placement,
    batch_size: u64,
    free: &FreeMemory<'_>,
) -> Refusal {
    let why = |role: Role| match (placement.isolated, placement.mode) {
        (true, _) if settings.given(limit_setting(role)).is_some() => "the given limit",
        (true, _) => "the default limit",
        (false, Mode::Multi) => "90 % of the free memory",
        (false, _) => "90 % of the free memory, minus the data role",
    };
    let unmet = demands.iter().filter(|demand| !demand.is_met());
    let mut lines: Vec<String> = unmet.map(|demand| short_line(demand, why(demand.role))).collect();
    if placement.mode == Mode::Cpu {
        lines.push(free.describe(None));
        lines.extend(needed_on_host(&demands, free).filter(|_| !placement.isolated));
    }
    let message = format!("❌ The plan does not fit at batch size {batch_size}\n   {}", lines.join("\n   "));
    let refusal = Refusal { demands, ..Refusal::new(Reason::TooSmall, message) };
    match placement.mode {
        Mode::Cpu => {
            let needed = arenas_on_host(&refusal.demands);
            with_less_read_ahead(refusal, free, needed)
        }
        _ => refusal,
    }
}

/// `refusal` with the read-ahead that leaves `needed_bytes` of host memory, if there is a read-ahead. Suggestions that do not fit
/// are removed later.
fn with_less_read_ahead(refusal: Refusal, free: &FreeMemory<'_>, needed_bytes: u64) -> Refusal {
    let OwnBytes { process, read_ahead } = free.own_bytes();
    if read_ahead == 0 {
        return refusal;
    }
    let left = free.hardware().host.available_bytes.saturating_sub(process).saturating_sub(needed_bytes);
    let less = Suggestion::new("fewer recordings read ahead");
    refusal.suggest(less.set(Id::ReadAheadMb, SettingValue::Count(left / MIB)))
}

/// Host memory for arenas on the host: they get 90 % of what the process leaves.
fn arenas_on_host(demands: &[Demand]) -> u64 {
    let arenas: u64 = demands.iter().map(|demand| demand.needed_bytes).sum();
    (mib_ceil(arenas / 9 * 10) + 1) * MIB
}

/// The memory limit of the process from which the plan fits, if there is such a limit.
fn needed_on_host(demands: &[Demand], free: &FreeMemory<'_>) -> Option<String> {
    let host = free.hardware().host;
    let limit = host.limited_by?;
    let used = limit.bytes().saturating_sub(host.available_bytes);
    let needed = used.saturating_add(free.own_bytes().total()).saturating_add(arenas_on_host(demands));
    Some(format!("It fits from a limit of {} MB", mib_ceil(needed)))
}

fn short_line(demand: &Demand, why: &str) -> String {
    let short = mib_ceil(demand.needed_bytes.saturating_sub(demand.limit_bytes));
    format!("The {} role is {short} MB short on {} ({why})", demand.role, device_name(demand.card))
}

/// The refusal of a batch larger than the corpus.
fn too_few_rows(settings: &Settings, shapes: &BucketShapes<'_>, usable: u64) -> Refusal {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let wanted = match settings.given(Id::BatchSize) {
        Some(_) => format!("--batch-size {batch}"),
        None => format!("--grad-accum {accum}"),
    };
    let refusal = shapes.too_few_rows(settings, &wanted);
    let set = |text: &str, batch: u64| Suggestion::new(text).set(Id::BatchSize, SettingValue::Count(batch.max(1)));
    match usable {
        0 => refusal,
        usable if accum == 1 => refusal.suggest(set("the largest batch of this corpus", usable)),
        // Suggestions that do not fit are removed later.
        usable => refusal
            .suggest(set("the largest batch of this corpus", usable / accum * accum))
            .suggest(set("all utterances in one batch", usable).set(Id::GradAccum, SettingValue::Count(1))),
    }
}

/// The pinned memory of a feed, if its transfer falls back to copies through the host.
fn most_pinned_bytes(feed: &FeedPlan) -> u64 {
    match feed.route {
        Route::Handover => feed.pinned_bytes(),
        Route::Peer | Route::PeerCopy | Route::Staged | Route::Bounce => feed.pinned_bytes_over(Route::Bounce),
    }
}

/// The flag has no effect where nothing is copied, which is no mistake: a config may serve several machines.
fn nothing_to_verify(settings: &Settings, route: Route) -> Option<String> {
    let is_idle = settings.given(Id::VerifyTransfers).is_some() && route == Route::Handover;
    is_idle.then(|| "--verify-transfers has no effect: both roles are on one device, so no batch is copied".to_owned())
}

fn exact_shapes_note(exact: bool) -> Option<String> {
    let note = "exact shapes: each is compiled when first seen, inside the reserved memory; the driver's own memory for the \
                compiled kernels is not limited";
    exact.then(|| note.to_owned())
}

/// Maximum number of decode threads: more would contend with each other.
const MAX_THREADS: u64 = 64;

/// The refusal of a batch that `--grad-accum` does not divide.
fn not_divided(batch: u64, accum: u64) -> Refusal {
    let smaller = (1..=accum).rev().find(|n| batch.is_multiple_of(*n)).unwrap_or(1);
    Refusal::usage(format!("❌ --grad-accum {accum} must divide --batch-size {batch}"))
        .suggest(Suggestion::new("fewer micro-batches").set(Id::GradAccum, SettingValue::Count(smaller)))
        .suggest(
            Suggestion::new("a batch size that --grad-accum divides")
                .set(Id::BatchSize, SettingValue::Count((batch / accum).max(1) * accum)),
        )
}

#[cfg(test)]
mod tests;
