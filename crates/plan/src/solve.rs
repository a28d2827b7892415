//! Settings and hardware into a plan, or the reason why not: one attempt, or a few where the batch size is a default.

use tandem_device::bytes::{POOL_GRANULE, mib_ceil, round_down, round_up};
use tandem_device::{DeviceKind, Strength};
use tandem_events::Role;
use tandem_feed::{FeedPlan, SPEECH};

use crate::cache::CachePlan;
use crate::corpus::BucketShapes;
use crate::hardware::Hardware;
use crate::limits::MemoryLimits;
use crate::memory::{DriverShare, Need, by_role, data_lines, least_model_bytes, model_lines, place};
use crate::placement::{Mode, Placement};
use crate::plan::{Level, Plan, RolePlan, Sources};
use crate::refusal::{Demand, Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::slots::SlotCounts;
use crate::training::TrainingSettings;
use crate::transfer::TransferPlan;
use crate::value::SettingValue;
use crate::workload::{ModelChoice, ModelSize, Workloads};

/// How much is found out about a plan that does not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// Everything: its refusal is shown.
    Whole,
    /// That it does not fit, as soon as that is certain: something else is tried next.
    Fit,
}

/// A plan without advice, or a refusal without the suggestions that need solving.
pub(crate) fn draft(
    settings: &Settings,
    hardware: &Hardware,
    workloads: &dyn Workloads,
    shapes: &BucketShapes<'_>,
    care: Care,
) -> Result<Plan, Refusal> {
    let settings = &shapes.settle(settings);
    let placement = Placement::choose(settings, hardware)?;
    check_sources(settings)?;
    let attempt = |batch_size, care| {
        Draft { settings, hardware, placement: &placement, shapes, batch_size, care }.solve(workloads)
    };
    let (batch_size, lower) = batch_sizes(settings, shapes)?;
    let last = lower.last().copied().unwrap_or(batch_size);
    let care_for = |size| if size == last { care } else { Care::Fit };
    let mut outcome = attempt(batch_size, care_for(batch_size));
    for lowered in lower {
        if !matches!(&outcome, Err(refusal) if refusal.kind == Reason::TooSmall) {
            break;
        }
        let note =
            format!("batch lowered from {batch_size} to {lowered} to fit; a given --batch-size is never changed");
        outcome = attempt(lowered, care_for(lowered)).map(|plan| noting(plan, note));
    }
    match default_changed(settings, batch_size, shapes) {
        Some(note) => outcome.map(|plan| noting(plan, note)),
        None => outcome,
    }
}

fn noting(mut plan: Plan, note: String) -> Plan {
    plan.notes.push(note);
    plan
}

/// The batch size to try first, and what it may be lowered to. Only a default may.
fn batch_sizes(settings: &Settings, shapes: &BucketShapes<'_>) -> Result<(u64, Vec<u64>), Refusal> {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let usable = shapes.num_rows(settings).unwrap_or(u64::MAX);
    if settings.given(Id::BatchSize).is_some() {
        return match batch.is_multiple_of(accum) {
            false => Err(not_divided(batch, accum)),
            true if batch > usable => Err(too_few(settings, shapes, usable)),
            true => Ok((batch, Vec::new())),
        };
    }
    if usable < accum {
        return Err(too_few(settings, shapes, usable));
    }
    let most_parts = (batch / accum).max(1).min(usable / accum);
    let is_usual = |n: &u64| n.is_multiple_of(4) || n.is_power_of_two() || *n == accum;
    let lower = (1..most_parts).rev().map(|parts| parts * accum).filter(is_usual).collect();
    Ok((most_parts * accum, lower))
}

fn default_changed(settings: &Settings, batch_size: u64, shapes: &BucketShapes<'_>) -> Option<String> {
    let (usual, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let moved = settings.given(Id::BatchSize).is_none() && batch_size != usual;
    let why = match shapes.num_rows(settings) {
        Some(usable) if usable < usual => format!("{usable} utterances can train"),
        _ => format!("--grad-accum {accum} must divide it"),
    };
    moved.then(|| format!("batch {batch_size} instead of {usual}: {why}"))
}

/// What belongs to training data cannot be used without it.
fn check_sources(settings: &Settings) -> Result<(), Refusal> {
    let beside = [Id::ValData, Id::ExcludeIds].into_iter().find(|id| settings.given(*id).is_some());
    match beside.filter(|_| settings.given(Id::TrainData).is_none()) {
        Some(id) => Err(Refusal::usage(format!("❌ --{} goes with --train-data", id.setting().flag))),
        None => Ok(()),
    }
}

/// One attempt: everything is decided but whether it fits.
struct Draft<'a> {
    settings: &'a Settings,
    hardware: &'a Hardware,
    placement: &'a Placement,
    shapes: &'a BucketShapes<'a>,
    batch_size: u64,
    care: Care,
}

impl Draft<'_> {
    fn solve(&self, workloads: &dyn Workloads) -> Result<Plan, Refusal> {
        let Draft { settings, hardware, placement, batch_size, .. } = *self;
        let grad_accum = settings.count(Id::GradAccum);
        let transfer = TransferPlan::choose(settings, placement, hardware)?;
        let slots = SlotCounts::choose(settings, placement.mode, batch_size, grad_accum);
        let (threads, max_threads) = self.threads();
        let feed = self.feed(&slots, &transfer, max_threads);
        let choice = self.model();
        let place = if placement.model.is_some() { hardware.kind } else { DeviceKind::Cpu };
        let workload = workloads.build(choice, place);

        let driver = DriverShare::of(placement, hardware)?;
        let data = Need { driver_bytes: driver.data, arena: data_lines(&feed) };
        let limits = MemoryLimits::resolve(settings, placement, hardware, &data)?;
        let room = limits.of(Role::Model).saturating_sub(driver.model);
        let is_over = || {
            data.smallest_limit() > limits.of(Role::Data) || least_model_bytes(&feed, workload.as_ref(), room) > room
        };
        if self.care == Care::Fit && is_over() {
            return Err(Refusal::new(Reason::TooSmall, "❌ The plan does not fit"));
        }
        let model = Need { driver_bytes: driver.model, arena: model_lines(&feed, workload.as_ref()) };
        if let Some(trouble) = workload.trouble() {
            return Err(Refusal::new(Reason::Model, format!("❌ The model cannot be written: {trouble}")));
        }
        self.check_fit(&limits, &data, &model)?;

        let (data, model) = (self.role(Role::Data, &data, &limits), self.role(Role::Model, &model, &limits));
        let corpus = self.shapes.plan(settings, batch_size / grad_accum, false);
        Ok(Plan {
            mode: placement.mode,
            isolated: placement.isolated,
            simulated: hardware.kind == DeviceKind::Simulated,
            why: placement.why.clone(),
            hints: placement.hints.clone(),
            cache: self.cache([&data, &model], &feed, corpus.as_ref().map(|corpus| corpus.decoded_bytes)),
            corpus,
            sources: self.sources(),
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
            threads,
            max_threads,
            batch_size,
            grad_accum,
            precision: choice.precision,
            model_size: choice.size,
            own_model: workload.own_name(),
            model_name: workload.name(),
            level: self.level(),
            training: TrainingSettings::choose(settings, self.level(), choice.size),
            max_text_length: settings.count(Id::MaxTextLength),
            max_mel_frames: settings.count(Id::MaxMelFrames),
            seed: settings.count(Id::Seed),
            start_delay_seconds: settings.seconds(Id::ModelStartDelay),
            static_shapes: !choice.exact_shapes,
            notes: slots.notes.into_iter().chain(exact_shapes_note(choice.exact_shapes)).collect(),
            advice: Vec::new(),
        })
    }

    /// Decode threads at start, and at most.
    fn threads(&self) -> (u64, u64) {
        let cores = self.hardware.host.cores as u64;
        match self.settings.given_count(Id::NumWorkers) {
            Some(given) => (given, given),
            None => (cores.clamp(1, 8), (2 * cores).clamp(8, MOST_THREADS)),
        }
    }

    fn feed(&self, slots: &SlotCounts, transfer: &TransferPlan, max_threads: u64) -> FeedPlan {
        let batch = self.batch_size / self.settings.count(Id::GradAccum);
        let buckets = self.shapes.buckets(self.settings, batch);
        let recordings = if self.settings.choice(Id::CachePlan) == "none" { 0 } else { self.shapes.num_recordings() };
        FeedPlan {
            schema: SPEECH,
            kept_pitches: FeedPlan::pitches_worth_keeping(&buckets, recordings),
            buckets,
            route: transfer.route,
            data_slots: slots.buffer,
            model_slots: slots.prefetch,
            rates_hz: self.shapes.rates_hz(),
            table_bytes: self.shapes.table_bytes(),
            // One is uploaded while features are made of the other.
            uploads: 2,
            // One is uploaded, one waits for that, and every thread has a row to decode into.
            pinned_uploads: 2 + max_threads.div_ceil(batch),
        }
    }

    /// On the CPU the roles live in the same memory as the cache.
    fn cache(&self, roles: [&RolePlan; 2], feed: &FeedPlan, decoded_bytes: Option<u64>) -> CachePlan {
        let on_host = roles.into_iter().filter(|role| role.card.is_none()).map(|role| role.arena_bytes);
        let taken = on_host.sum::<u64>().saturating_add(feed.pinned_bytes());
        CachePlan::choose(self.settings, self.hardware.host.available_bytes.saturating_sub(taken), decoded_bytes)
    }

    fn sources(&self) -> Sources {
        Sources {
            train_data: self.settings.text(Id::TrainData),
            val_data: self.settings.text(Id::ValData),
            exclude_ids: self.settings.text(Id::ExcludeIds),
            lang: self.settings.text(Id::Lang),
        }
    }

    fn level(&self) -> Level {
        if self.settings.choice(Id::OptimizationLevel) == "basic" { Level::Basic } else { Level::Enhanced }
    }

    fn model(&self) -> ModelChoice {
        let size = ModelSize::named(self.settings.choice(Id::ModelSize)).unwrap_or(ModelSize::Tiny);
        ModelChoice {
            size,
            precision: self.placement.precision,
            ema: self.level() == Level::Enhanced,
            adds_up: self.settings.count(Id::GradAccum) > 1,
            exact_shapes: !self.settings.switch(Id::EnableStaticShapes),
        }
    }

    fn check_fit(&self, limits: &MemoryLimits, data: &Need, model: &Need) -> Result<(), Refusal> {
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
        Err(too_small(demands.to_vec(), self.placement, self.batch_size))
    }

    fn role(&self, role: Role, need: &Need, limits: &MemoryLimits) -> RolePlan {
        let card = self.placement.card(role).and_then(|index| self.hardware.card(index)).map(|facts| &facts.card);
        let (isolated, limit_bytes) = (self.placement.isolated, limits.of(role));
        RolePlan {
            role,
            card: card.map(|card| card.index),
            uuid: card.map(|card| card.uuid.clone()),
            name: card.map_or_else(|| "CPU".to_owned(), |card| card.name.clone()),
            limit_bytes,
            planned_bytes: need.driver_bytes + need.arena_bytes(),
            lines: need.lines(),
            // A hard limit is taken whole, so that nobody else can; rounded down, for a pool's cap is rounded up.
            arena_bytes: match isolated {
                true => round_down(limit_bytes - need.driver_bytes, POOL_GRANULE),
                false => round_up(need.arena_bytes(), POOL_GRANULE),
            },
            driver_bytes: need.driver_bytes,
            strength: match (isolated, card) {
                (true, _) => Strength::DriverPoolCap,
                (false, Some(_)) => Strength::PlannedReserved,
                (false, None) => Strength::Planned,
            },
        }
    }
}

/// The refusal of a plan that needs more than it may have.
fn too_small(demands: Vec<Demand>, placement: &Placement, batch_size: u64) -> Refusal {
    let why = match (placement.isolated, placement.mode) {
        (true, _) => "the limit that was set",
        (false, Mode::Multi) => "90 % of what is free there",
        (false, _) => "90 % of what is free there, less what the data role has",
    };
    let short: Vec<String> = demands.iter().filter(|demand| !demand.is_met()).map(|d| short_line(d, why)).collect();
    let message = format!("❌ The plan does not fit at batch size {batch_size}\n   {}", short.join("\n   "));
    Refusal { demands, ..Refusal::new(Reason::TooSmall, message) }
}

fn short_line(demand: &Demand, why: &str) -> String {
    let short = mib_ceil(demand.needed_bytes.saturating_sub(demand.limit_bytes));
    format!("The {} role is {short} MB short on {} ({why})", demand.role, place(demand.card))
}

/// The refusal of a batch that the corpus does not fill.
fn too_few(settings: &Settings, shapes: &BucketShapes<'_>, usable: u64) -> Refusal {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let wanted = match settings.given(Id::BatchSize) {
        Some(_) => format!("--batch-size {batch}"),
        None => format!("--grad-accum {accum}"),
    };
    let refusal = shapes.too_few(settings, &wanted);
    let set = |text: &str, batch: u64| Suggestion::new(text).set(Id::BatchSize, SettingValue::Count(batch.max(1)));
    match usable {
        0 => refusal,
        usable if accum == 1 => refusal.suggest(set("the largest batch there is", usable)),
        // What does not work out is not kept.
        usable => refusal
            .suggest(set("the largest batch there is", usable / accum * accum))
            .suggest(set("all of them in one batch", usable).set(Id::GradAccum, SettingValue::Count(1))),
    }
}

fn exact_shapes_note(exact: bool) -> Option<String> {
    let note = "exact shapes: each is compiled when it is first seen, inside the reserved memory; what the driver itself \
                takes for that is not held to a number";
    exact.then(|| note.to_owned())
}

/// More decode threads than this are not tried: they would wait for each other.
const MOST_THREADS: u64 = 64;

/// The refusal of micro-batches that do not come out even.
fn not_divided(batch: u64, accum: u64) -> Refusal {
    let smaller = (1..=accum).rev().find(|n| batch.is_multiple_of(*n)).unwrap_or(1);
    Refusal::usage(format!("❌ --grad-accum {accum} must divide --batch-size {batch}"))
        .suggest(Suggestion::new("fewer micro-batches").set(Id::GradAccum, SettingValue::Count(smaller)))
        .suggest(
            Suggestion::new("whole micro-batches")
                .set(Id::BatchSize, SettingValue::Count((batch / accum).max(1) * accum)),
        )
}

#[cfg(test)]
mod tests;
