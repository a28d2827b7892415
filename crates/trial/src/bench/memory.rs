//! `bench memory`: at the smallest limits a plan accepts, does everything stay inside, and does nothing grow?
//!
//! The feed is the real one, with the fields a speech model declares; the model is the stand-in, whose buffers are what
//! the plan charges for. A promise, not a speed: what is broken is said by [`MemoryReport::broken`].

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, LengthIndex, OpenOptions, demo};
use tandem_device::bytes::{MIB, mib_ceil};
use tandem_device::{Isolation, Kind, Machine};
use tandem_events::{Emitter, Role};
use tandem_feed::{CacheSpec, Feed, FeedSpec, FeedState, FromFiles, Material, NUM_BUCKETS, scan_lengths};
use tandem_plan::setting::Id;
use tandem_plan::{
    CorpusFacts, Hardware, Level, ModelChoice, Plan, Reason, Refusal, SettingError, Settings, StandIn as Shape,
    StandIns, material_options,
};

use super::BenchError;
use crate::resolve::Resolved;
use crate::sampler::{Peak, Sampler};
use crate::stand_in::StandIn;
use crate::validate::{arena_of, card_of, counted, free};

/// Memory pools are capped in steps of this many MB: a limit is too small from here on.
pub const STEP_MB: u64 = 32;
/// Steps before the counters are read: everything the driver does lazily is done by then.
const WARM_UP: usize = 20;

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
    let solve = |settings: &Settings| Plan::solve(settings, hardware, &StandIns, Some(corpus));
    let free_choice = settings.without(&[Id::DataGpuMemory, Id::ModelGpuMemory]);
    let plan = solve(&free_choice)?;
    // Spelled out, so that a smaller limit is refused and not met with a smaller batch.
    let batch = plan.batch_size.to_string();
    let limits_mb = [&plan.data, &plan.model].map(|role| mib_ceil(role.smallest_limit_bytes()));
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
    /// Free bytes of each card before and after the steps, by the driver; none on the CPU, where everybody moves it.
    pub free_bytes: Option<[Vec<u64>; 2]>,
    /// Steps that were run.
    pub steps: usize,
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
        if let Some([before, after]) = self.free_bytes.as_ref().filter(|[before, after]| before != after) {
            broken.push(format!("the driver's free memory went from {before:?} to {after:?} bytes during the steps"));
        }
        broken
    }
}

/// Runs `steps` steps inside `resolved`, serving `material`, and reads all counters.
pub fn run(
    resolved: &Resolved,
    material: &Arc<Material>,
    steps: usize,
    emitter: &Emitter,
) -> Result<MemoryReport, BenchError> {
    let (plan, machine) = (&resolved.plan, &resolved.machine);
    let cards = [card_of(&plan.data), card_of(&plan.model)];
    machine.restrict(&cards);
    let [data, model] = [&plan.data, &plan.model].map(|role| arena_of(plan, role));
    let roles = Isolation::set_up(machine, (cards[0], data), (cards[1], model))?;
    let sampler = Sampler::start(machine, &roles, emitter)?;
    let mut steps_of = Steps::create(&roles, plan, material, emitter)?;
    steps_of.run(WARM_UP, &sampler)?;
    roles.settle()?;
    let before = look(machine, &cards)?;
    steps_of.run(steps, &sampler)?;
    let after = look(machine, &cards)?;
    let peaks = sampler.finish()?;
    let role = |role: Role| {
        let (planned, memory) = (plan.role(role), roles.partition(role).arena.memory());
        let (limit_bytes, planned_bytes) = (planned.limit_bytes, planned.planned_bytes);
        RoleReport { role, limit_bytes, planned_bytes, peak_bytes: memory.peak_bytes }
    };
    let on_cpu = machine.kind() == Kind::Cpu;
    Ok(MemoryReport {
        roles: Role::BOTH.map(role).to_vec(),
        cards: if on_cpu { Vec::new() } else { peaks },
        allocations: [after.allocations[0] - before.allocations[0], after.allocations[1] - before.allocations[1]],
        free_bytes: (!on_cpu && !roles.model.arena.is_split()).then_some([before.free_bytes, after.free_bytes]),
        steps,
    })
}

/// A corpus of synthetic speech in `folder`, with texts, as long as `minutes`.
pub fn demo_material(folder: &Path, minutes: f64, settings: &Settings) -> Result<Arc<Material>, BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError::Clips(error.to_string());
    demo::write(folder, minutes, 1234, |path, samples, rate_hz| {
        let mut file = Vec::new();
        wav::write(&Clip { samples: samples.to_vec(), rate_hz }, &mut file).map_err(std::io::Error::other)?;
        std::fs::write(path, file)
    })
    .map_err(|error| failed(&error))?;
    let dataset = Dataset::open(folder, &OpenOptions::default()).map_err(|error| failed(&error))?;
    let (mut index, _) = LengthIndex::open(folder, &dataset);
    let dataset = scan_lengths(dataset, &mut index, 2, |_| ControlFlow::Continue(()))?.dataset;
    let rows: Vec<_> = dataset.samples().iter().map(|(index, _)| index).collect();
    Ok(Arc::new(Material::survey(Arc::new(dataset), &rows, &material_options(settings))?))
}

/// A feed and a model that take turns.
struct Steps {
    // Before the stand-in: its threads end first.
    feed: Feed,
    model: StandIn,
    stream: tandem_device::Stream,
    done: u64,
}

impl Steps {
    fn create(
        roles: &Isolation,
        plan: &Plan,
        material: &Arc<Material>,
        emitter: &Emitter,
    ) -> Result<Steps, BenchError> {
        let batch = u32::try_from(plan.batch_size / plan.grad_accum).unwrap_or(u32::MAX);
        let buckets = material.bucket_plan(NUM_BUCKETS, batch);
        let nothing = || BenchError::Clips("there is nothing to serve".to_owned());
        let (buckets, largest) = (buckets.ok_or_else(nothing)?, plan.largest_bucket().ok_or_else(nothing)?);
        let mut feed = Feed::start(
            roles,
            FeedSpec {
                material: Arc::clone(material),
                buckets,
                evaluates: false,
                plan: plan.feed.clone(),
                route_why: plan.transfer.why.clone(),
                seed: plan.seed,
                from: FeedState::default(),
                recordings: Arc::new(FromFiles),
                threads: plan.threads as usize,
                max_threads: plan.max_threads as usize,
                depth_fixed: false,
                // Host memory, which nobody limits here.
                cache: CacheSpec::default(),
                max_bad_fraction: plan.max_bad_fraction,
                bad_samples: None,
                emitter: emitter.clone(),
                delay_ns: 0,
            },
        )?;
        let ema = plan.level == Level::Enhanced;
        let shape = Shape::new(ModelChoice { size: plan.model_size, precision: plan.precision, ema });
        let (device, arena) = (&roles.model.device, &roles.model.arena);
        let stream = device.stream(true)?;
        let model = StandIn::create(device, arena, shape, largest, &stream)?;
        feed.wait_warm(Duration::from_secs_f64(plan.start_delay_seconds))?;
        Ok(Steps { feed, model, stream, done: 0 })
    }

    fn run(&mut self, steps: usize, sampler: &Sampler) -> Result<(), BenchError> {
        for _ in 0..steps {
            let batch = self.feed.lease(&self.stream)?;
            self.model.step(&self.stream, self.done, batch.memory())?;
            drop(batch);
            // A trainer runs ahead by a few steps; here nobody asks for speed.
            self.stream.drain()?;
            self.done += 1;
            sampler.check().map_err(tandem_device::DeviceError::from)?;
        }
        Ok(())
    }
}

/// The counters of our own, and the driver's.
struct Look {
    allocations: [u64; 2],
    free_bytes: Vec<u64>,
}

fn look(machine: &Machine, cards: &[usize; 2]) -> Result<Look, BenchError> {
    let mut cards = cards.to_vec();
    cards.dedup();
    let sums = counted(machine, &cards).into_iter().fold([0, 0], |[device, pinned], (d, p)| [device + d, pinned + p]);
    Ok(Look { allocations: sums, free_bytes: free(machine, &cards)? })
}
