//! Settings and hardware into a plan, or the reason why not: one attempt, or a few where the batch size is a default.

use tandem_device::bytes::{POOL_GRANULE, mib_ceil, round_down, round_up};
use tandem_device::{Kind, Strength};
use tandem_events::Role;
use tandem_feed::{SPEECH, even_buckets};

use crate::hardware::Hardware;
use crate::limits::Limits;
use crate::memory::{DriverShare, Need, by_role, data_lines, model_lines, place};
use crate::placement::{Mode, Placement};
use crate::plan::{Level, Plan, RolePlan};
use crate::refusal::{Demand, Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::transfer::Transfer;
use crate::value::Value;
use crate::workload::{ModelChoice, ModelSize, Workloads};

/// A plan without advice, or a refusal without the suggestions that need solving.
pub(crate) fn draft(settings: &Settings, hardware: &Hardware, workloads: &dyn Workloads) -> Result<Plan, Refusal> {
    let placement = Placement::choose(settings, hardware)?;
    let attempt = |batch_size| Draft { settings, hardware, placement: &placement, batch_size }.solve(workloads);
    let (batch_size, lower) = batch_sizes(settings)?;
    let mut outcome = attempt(batch_size);
    for lowered in lower {
        if !matches!(&outcome, Err(refusal) if refusal.kind == Reason::TooSmall) {
            break;
        }
        let note =
            format!("batch lowered from {batch_size} to {lowered} to fit; a given --batch-size is never changed");
        outcome = attempt(lowered).map(|plan| noting(plan, note));
    }
    match default_not_divided(settings, batch_size) {
        Some(note) => outcome.map(|plan| noting(plan, note)),
        None => outcome,
    }
}

fn noting(mut plan: Plan, note: String) -> Plan {
    plan.notes.push(note);
    plan
}

/// The batch size to try first, and what it may be lowered to. Only a default may.
fn batch_sizes(settings: &Settings) -> Result<(u64, Vec<u64>), Refusal> {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    if settings.given(Id::BatchSize).is_some() {
        return if batch.is_multiple_of(accum) { Ok((batch, Vec::new())) } else { Err(not_divided(batch, accum)) };
    }
    let most_parts = (batch / accum).max(1);
    let is_usual = |n: &u64| n.is_multiple_of(4) || n.is_power_of_two() || *n == accum;
    let lower = (1..most_parts).rev().map(|parts| parts * accum).filter(is_usual).collect();
    Ok((most_parts * accum, lower))
}

fn default_not_divided(settings: &Settings, batch_size: u64) -> Option<String> {
    let (usual, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    let moved = settings.given(Id::BatchSize).is_none() && batch_size != usual;
    moved.then(|| format!("batch {batch_size} instead of {usual}: --grad-accum {accum} must divide it"))
}

/// One attempt: everything is decided but whether it fits.
struct Draft<'a> {
    settings: &'a Settings,
    hardware: &'a Hardware,
    placement: &'a Placement,
    batch_size: u64,
}

impl Draft<'_> {
    fn solve(&self, workloads: &dyn Workloads) -> Result<Plan, Refusal> {
        let Draft { settings, hardware, placement, batch_size } = *self;
        let grad_accum = settings.count(Id::GradAccum);
        let (max_mel_frames, max_text_length) = (settings.count(Id::MaxMelFrames), settings.count(Id::MaxTextLength));
        let buckets = even_buckets(max_mel_frames, max_text_length, batch_size / grad_accum);
        let transfer = Transfer::choose(settings, placement, hardware)?;
        let slots = Slots::choose(settings, placement.mode, batch_size);
        let choice = self.model();
        let workload = workloads.build(choice);

        let driver = DriverShare::of(placement, hardware)?;
        let data = Need { driver_bytes: driver.data, arena: data_lines(&buckets, &slots, &transfer) };
        let model_arena = model_lines(&buckets, &slots, &transfer, workload.as_ref());
        let model = Need { driver_bytes: driver.model, arena: model_arena };
        let limits = Limits::resolve(settings, placement, hardware, &data)?;
        self.check_fit(&limits, &data, &model)?;

        Ok(Plan {
            mode: placement.mode,
            isolated: placement.isolated,
            simulated: hardware.kind == Kind::Simulated,
            why: placement.why.clone(),
            hints: placement.hints.clone(),
            data: self.role(Role::Data, &data, &limits),
            model: self.role(Role::Model, &model, &limits),
            slot_bytes: SPEECH.slot_bytes(&buckets),
            buckets,
            buffer_size_asked: slots.buffer_asked,
            buffer_size: slots.buffer,
            prefetch: slots.prefetch,
            driver_source: placement
                .model
                .and_then(|index| hardware.card(index)?.driver.as_ref())
                .map(|d| d.source.clone()),
            transfer,
            threads: settings.given_count(Id::NumWorkers).unwrap_or((hardware.host.cores as u64).clamp(1, 8)),
            batch_size,
            grad_accum,
            precision: choice.precision,
            model_size: choice.size,
            model_name: workload.name(),
            level: self.level(),
            max_text_length,
            max_mel_frames,
            seed: settings.count(Id::Seed),
            start_delay_seconds: settings.seconds(Id::ModelStartDelay),
            notes: slots.notes,
            advice: Vec::new(),
        })
    }

    fn level(&self) -> Level {
        if self.settings.choice(Id::OptimizationLevel) == "basic" { Level::Basic } else { Level::Enhanced }
    }

    fn model(&self) -> ModelChoice {
        let size = ModelSize::named(self.settings.choice(Id::ModelSize)).unwrap_or(ModelSize::Tiny);
        ModelChoice { size, precision: self.placement.precision, ema: self.level() == Level::Enhanced }
    }

    fn check_fit(&self, limits: &Limits, data: &Need, model: &Need) -> Result<(), Refusal> {
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

    fn role(&self, role: Role, need: &Need, limits: &Limits) -> RolePlan {
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

/// The refusal of micro-batches that do not come out even.
fn not_divided(batch: u64, accum: u64) -> Refusal {
    let smaller = (1..=accum).rev().find(|n| batch.is_multiple_of(*n)).unwrap_or(1);
    Refusal::usage(format!("❌ --grad-accum {accum} must divide --batch-size {batch}"))
        .suggest(Suggestion::new("fewer micro-batches").set(Id::GradAccum, Value::Count(smaller)))
        .suggest(
            Suggestion::new("whole micro-batches").set(Id::BatchSize, Value::Count((batch / accum).max(1) * accum)),
        )
}

#[cfg(test)]
mod tests;
