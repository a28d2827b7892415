//! `bench memory`: at the smallest limits a plan accepts, does everything stay inside, and does nothing grow?
//!
//! The run is the one `train` sets up: the real feed, the real model, a validation and a checkpoint on the
//! way. A promise, not a speed: what is broken is said by [`MemoryReport::broken`].

use std::path::Path;
use std::time::Duration;

use tandem_checkpoint::{BAD_SAMPLES, OpenMode, RunFolder, WrittenCheckpoint};
use tandem_device::bytes::{MIB, mib_ceil};
use tandem_device::{DeviceKind, Machine};
use tandem_events::{Emitter, Role};
use tandem_pipeline::StopFlag;
use tandem_plan::setting::Id;
use tandem_plan::speech::SpeechModels;
use tandem_plan::{CorpusFacts, Hardware, Plan, Reason, Refusal, SettingError, Settings};
use tandem_train::{RunListener, RunSchedule, StepLoop, StepReport, ValidationReport};

use super::BenchError;
use crate::held_memory::{HeldMemory, counted, held};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, Launched, card_of, identity, launch};
use tandem_launch::{Peak, Sampler};

/// Memory pools are capped in steps of this many MB: a limit is too small from here on.
pub const STEP_MB: u64 = 32;
/// Steps before the counters are read, with the first validation and the first checkpoint behind them:
/// everything the driver does lazily is done by then.
const WARM_UP_ON_CARDS: u64 = 20;
const WARM_UP_ELSEWHERE: u64 = 2;

/// The settings with the smallest limits that are accepted, and what happens below them.
#[derive(Clone, Debug)]
pub struct Smallest {
    /// What to plan with: limits and batch size spelled out.
    pub settings: Settings,
    /// Data and model limit, in MB.
    pub limits_mb: [u64; 2],
    /// Whether [`STEP_MB`] less was refused, for each role.
    pub refused_below: [bool; 2],
}

/// Finds the smallest limits for `settings`, which ask for isolation.
pub fn smallest(settings: &Settings, hardware: &Hardware, corpus: &CorpusFacts) -> Result<Smallest, Refusal> {
    let models = SpeechModels::of(Some(corpus));
    let solve = |settings: &Settings| Plan::solve(settings, hardware, &models, Some(corpus));
    let free_choice = settings.without(&[Id::DataGpuMemory, Id::ModelGpuMemory]);
    let plan = solve(&free_choice)?;
    // Spelled out, so that a smaller limit is refused and not met with a smaller batch.
    let batch = plan.batch_size.to_string();
    let limits_mb = [&plan.data, &plan.model].map(|role| mib_ceil(role.smallest_limit_bytes));
    let with = |[data, model]: [u64; 2]| {
        let limits = [("data-gpu-memory", data), ("model-gpu-memory", model)].map(|(name, mb)| (name, mb.to_string()));
        let [data, model] = limits;
        let batch = ("batch-size", batch.clone());
        free_choice.with(&[data, model, batch]).map_err(|error| unusable(&error))
    };
    let [data, model] = limits_mb;
    let is_refused = |limits| with(limits).is_ok_and(|settings| solve(&settings).is_err());
    let below = [[data.saturating_sub(STEP_MB), model], [data, model.saturating_sub(STEP_MB)]];
    let settings = with(limits_mb)?;
    solve(&settings)?;
    Ok(Smallest { settings, limits_mb, refused_below: below.map(is_refused) })
}

fn unusable(error: &SettingError) -> Refusal {
    let message = format!("❌ {error}");
    Refusal { kind: Reason::Usage, message, demands: Vec::new(), suggestions: Vec::new() }
}

/// What was seen while the steps ran.
#[derive(Clone, Debug)]
pub struct MemoryReport {
    /// Each role, data first.
    pub roles: Vec<RoleReport>,
    /// Each card, by the driver's count of this process; none on the CPU.
    pub cards: Vec<Peak>,
    /// Device and page-locked allocations during the steps, by our count.
    pub allocations: [u64; 2],
    /// Memory of each card before and after the steps, by the driver; none on the CPU, where everybody changes it.
    pub held: Option<[Vec<HeldMemory>; 2]>,
    /// Steps that were run.
    pub steps: usize,
    /// Validations, and checkpoints, during the steps.
    pub between: [usize; 2],
}

/// A role at its limit.
#[derive(Clone, Copy, Debug)]
pub struct RoleReport {
    /// Which.
    pub role: Role,
    /// What it may hold.
    pub limit_bytes: u64,
    /// What the plan says it holds.
    pub planned_bytes: u64,
    /// The most it held, by our count, the driver's part included.
    pub peak_bytes: u64,
    /// What the plan says its arena holds: everything but the driver's part.
    pub planned_arena_bytes: u64,
    /// The most its arena held: every block that was taken.
    pub held_arena_bytes: u64,
}

impl RoleReport {
    /// Peak ÷ limit.
    pub fn share(&self) -> f64 {
        self.peak_bytes as f64 / self.limit_bytes.max(1) as f64
    }
}

impl MemoryReport {
    /// What was promised and not kept, a line each.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for role in self.roles.iter().filter(|role| role.held_arena_bytes != role.planned_arena_bytes) {
            let (held, planned) = (role.held_arena_bytes, role.planned_arena_bytes);
            broken.push(format!("the {} role took {held} bytes, {planned} were planned", role.role));
        }
        for role in self.roles.iter().filter(|role| role.peak_bytes > role.limit_bytes) {
            let (peak, limit) = (mib_ceil(role.peak_bytes), role.limit_bytes / MIB);
            broken.push(format!("the {} role held {peak} MB, over its limit of {limit} MB", role.role));
        }
        for card in self.cards.iter().filter(|card| !card.kept()) {
            let (used, limit) = (mib_ceil(card.bytes.unwrap_or(0)), card.limit_bytes / MIB);
            broken.push(format!("the process held {used} MB on GPU {}, over the limit of {limit} MB", card.card));
        }
        for (count, what) in self.allocations.iter().zip(["device", "page-locked"]).filter(|(count, _)| **count > 0) {
            broken.push(format!("{count} {what} allocations after warm-up"));
        }
        for (before, after) in self.grown() {
            let [before, after] = [before, after].map(|held| held.process_bytes.unwrap_or_default());
            broken.push(format!("the process's memory grew from {before} to {after} bytes during the steps"));
        }
        broken
    }

    /// The cards on which this process held more after the steps than before, as far as the driver tells.
    pub fn grown(&self) -> impl Iterator<Item = (&HeldMemory, &HeldMemory)> {
        let pairs = self.held.iter().flat_map(|[before, after]| before.iter().zip(after));
        pairs.filter(|(before, after)| before.grew(after) == Some(true))
    }
}

/// Trains for `steps` steps inside `resolved`, with a validation and a checkpoint in the middle and at the
/// end, and reads all counters. Checkpoints go into `folder`.
pub fn run(
    resolved: &Resolved,
    corpora: &Corpora,
    folder: &Path,
    steps: usize,
    emitter: &Emitter,
) -> Result<MemoryReport, BenchError> {
    let (plan, machine) = (&resolved.plan, &resolved.machine);
    let cards = [card_of(&plan.data), card_of(&plan.model)];
    let folder = RunFolder::open(folder, &identity(plan, corpora), OpenMode::Resume)?;
    let bad_samples = folder.path().join(BAD_SAMPLES);
    let (launched, _) = launch(resolved, corpora, None, bad_samples, emitter, &mut |_| {})?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles, model, mut trainer, .. } = launched;
    let sampler = Sampler::start(machine, &roles, emitter)?;
    let mut train = |until: u64, every: u64| -> Result<Between, BenchError> {
        let schedule = RunSchedule { total_steps: until, steps_per_epoch: every, checkpoint_every: Some(every) };
        let stop = StopFlag::new();
        let mut watch = Watch { sampler: &sampler, stop: &stop, between: Between::default() };
        tandem_train::run(&mut trainer, Some(&folder), &model, &schedule, &stop, &mut watch)?;
        sampler.check().map_err(tandem_device::DeviceError::from)?;
        Ok(watch.between)
    };
    let warm_up = if machine.kind() == DeviceKind::Cuda { WARM_UP_ON_CARDS } else { WARM_UP_ELSEWHERE };
    train(warm_up, warm_up)?;
    roles.check_driver_memory()?;
    let before = read_memory(machine, &cards)?;
    let Between { validations, checkpoints } = train(warm_up + steps as u64, (steps as u64).div_ceil(2))?;
    let after = read_memory(machine, &cards)?;
    let peaks = sampler.finish()?;
    let report = |role: Role| {
        let (planned, arena) = (plan.role(role), &roles.partition(role).arena);
        let (limit_bytes, planned_bytes) = (planned.limit_bytes, planned.planned_bytes);
        let (peak_bytes, driver_bytes) = (arena.memory().peak_bytes, planned.driver_bytes);
        let [planned_arena_bytes, held_arena_bytes] = [planned_bytes, peak_bytes].map(|bytes| bytes - driver_bytes);
        RoleReport { role, limit_bytes, planned_bytes, peak_bytes, planned_arena_bytes, held_arena_bytes }
    };
    let on_cpu = machine.kind() == DeviceKind::Cpu;
    let report = MemoryReport {
        roles: Role::BOTH.map(report).to_vec(),
        cards: if on_cpu { Vec::new() } else { peaks },
        allocations: [after.allocations[0] - before.allocations[0], after.allocations[1] - before.allocations[1]],
        held: (!on_cpu && !roles.model.arena.is_split()).then_some([before.held, after.held]),
        steps,
        between: [validations, checkpoints],
    };
    trainer.stop()?;
    Ok(report)
}

/// Ends the run once a limit was broken, and counts what happens beside steps.
struct Watch<'a> {
    sampler: &'a Sampler,
    stop: &'a StopFlag,
    between: Between,
}

#[derive(Default)]
struct Between {
    validations: usize,
    checkpoints: usize,
}

impl RunListener for Watch<'_> {
    fn step(&mut self, _: &StepReport, _: &StepLoop) {
        if self.sampler.check().is_err() {
            self.stop.raise();
        }
    }

    fn validation(&mut self, _: &ValidationReport) {
        self.between.validations += 1;
    }

    fn checkpoint(&mut self, _: u64, _: &WrittenCheckpoint, _: Duration) {
        self.between.checkpoints += 1;
    }

    fn note(&mut self, _: &str) {}
}

/// The counters of our own, and the driver's.
struct MemoryReading {
    allocations: [u64; 2],
    held: Vec<HeldMemory>,
}

fn read_memory(machine: &Machine, cards: &[usize; 2]) -> Result<MemoryReading, BenchError> {
    let mut cards = cards.to_vec();
    cards.dedup();
    let sums = counted(machine, &cards).into_iter().fold([0, 0], |[device, pinned], (d, p)| [device + d, pinned + p]);
    Ok(MemoryReading { allocations: sums, held: held(machine, &cards)? })
}
