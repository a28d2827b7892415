//! `profile`: a short run of the real pipeline, each stage alone, the step alone, and the diagnosis of it.
//!
//! The run is the one that `train` sets up. Its events stay in memory, and `tandem_diagnosis` judges them like a run log.
//! No weights and no files are written.

mod alone;
mod change;

use std::time::{Duration, Instant};

use tandem_device::{DeviceKind, Isolation};
use tandem_diagnosis::{Diagnosis, DiagnosisError};
use tandem_events::Emitter;
use tandem_feed::CacheSpec;
use tandem_plan::Plan;
use tandem_train::{StepLoop, StepReport};

use crate::benchmarks::BenchError;
use tandem_launch::EventBuffer;
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, Launched, Setup};
use tandem_launch::step_events;

pub use alone::StandaloneTimes;
pub use change::applied;

/// Warm-up steps before the timed ones. The diagnosis leaves out as many.
pub const WARM_UP_STEPS: usize = 5;
/// Before that, the prefetched batches must be consumed, or they would hide a slow stage. They are once this many steps in
/// a row have waited; otherwise after this many times as many steps as there are such batches, or after this time.
const WAITS_IN_A_ROW: usize = 3;
const TIMES_THE_STOCK: usize = 3;
const SETTLING: Duration = Duration::from_secs(10);
/// The profile starts once the cache in memory has everything, unless that takes longer than this.
const FILLING: Duration = Duration::from_secs(60);
/// A step that waits for more than this share of its time waits for the feed; less is the latency of the host.
const WAITS: f64 = 0.05;
/// Model-only steps of each shape.
const MODEL_ONLY_ON_CARDS: usize = 50;
const MODEL_ONLY_ELSEWHERE: usize = 3;

/// The profile of a run.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The diagnosis of its events.
    pub diagnosis: Diagnosis,
    /// Each stage alone and the step alone, in flow order.
    pub alone: Vec<StandaloneTimes>,
    /// Utilisation of each card as NVML reports it, all processes included; `None` if NVML does not report it.
    pub cards: Vec<(usize, Option<u32>)>,
    /// A cache was requested and was not full when the timed steps began.
    pub is_cache_filling: bool,
    /// Batches that were verified after their transfer; `None` if none is.
    pub verified: Option<u64>,
}

/// The run could not be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// `--num-steps 0`.
    #[error("no timing was collected: --num-steps 0 times nothing; for example --num-steps 100")]
    NoSteps,
    /// Nothing was timed.
    #[error(transparent)]
    NoTiming(#[from] DiagnosisError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] BenchError),
}

/// Runs `steps` timed steps, then the step alone, then the feed alone.
pub fn run(resolved: &Resolved, corpora: &Corpora, steps: usize, emitter: &Emitter) -> Result<Profile, ProfileError> {
    if steps == 0 {
        return Err(ProfileError::NoSteps);
    }
    let events = EventBuffer::new(emitter.clone());
    let emitter = events.emitter();
    let setup = Setup::new(resolved, corpora, None, None, &emitter).map_err(BenchError::from)?;
    let (launched, _) = setup.launch(&mut |_| {}).map_err(BenchError::from)?;
    // The step loop is bound last, so that it drops before the arenas that own its memory.
    let Launched { roles, mut trainer, .. } = launched;
    let kind = resolved.machine.kind();
    let is_cache_filling = fills_cache(&resolved.plan, kind) && !fill_cache(&mut trainer)?;
    let (shapes, cards) = fed(&mut trainer, &roles, steps, &emitter, resolved)?;
    let model_only = model_only(&mut trainer, &shapes, kind)?;
    step_events::model_only(&model_only, &emitter);
    let records = events.take();
    let plan = &resolved.plan;
    let alone = alone::measure(&mut trainer, &roles, plan, kind, &events, &model_only)?;
    let verified = trainer.feed().verified();
    trainer.stop().map_err(BenchError::from)?;
    Ok(Profile { diagnosis: Diagnosis::of(&records)?, alone, cards, is_cache_filling, verified })
}

/// The whole pipeline. Returns the shapes of the steps, and how busy the cards were.
#[expect(clippy::type_complexity, reason = "two lists")]
fn fed(
    trainer: &mut StepLoop,
    roles: &Isolation,
    steps: usize,
    emitter: &Emitter,
    resolved: &Resolved,
) -> Result<(Vec<Vec<usize>>, Vec<(usize, Option<u32>)>), BenchError> {
    take_prefetched(trainer, stock(&resolved.plan))?;
    trainer.start_clock();
    let mut reports = Vec::with_capacity(steps + WARM_UP_STEPS);
    for _ in 0..steps + WARM_UP_STEPS {
        take(trainer.advance()?, emitter, &mut reports);
    }
    let cards = busy_cards(roles, resolved);
    for report in trainer.drain()? {
        take(Some(report), emitter, &mut reports);
    }
    Ok((reports.into_iter().map(|report| report.buckets).collect(), cards))
}

fn take(report: Option<StepReport>, emitter: &Emitter, reports: &mut Vec<StepReport>) {
    report.iter().for_each(|report| step_events::step(report, emitter));
    reports.extend(report);
}

/// Whether to step through the first epoch before anything is timed. Without a card its steps take long, and hardly wait for
/// decoding: only if `--cache memory` says so.
fn fills_cache(plan: &Plan, kind: DeviceKind) -> bool {
    let is_in_memory = matches!(plan.cache.spec, CacheSpec::Memory { .. });
    is_in_memory && (kind == DeviceKind::Cuda || plan.cache.asked == "memory")
}

/// Steps through the first epoch without events. Returns whether it ended in time.
fn fill_cache(trainer: &mut StepLoop) -> Result<bool, BenchError> {
    let (begun, mut epoch) = (Instant::now(), 0);
    while epoch == 0 && begun.elapsed() < FILLING {
        epoch = trainer.advance()?.map_or(0, |report| report.epoch);
    }
    trainer.drain()?;
    Ok(epoch > 0)
}

/// Steps until the prefetched batches are consumed, without events.
fn take_prefetched(trainer: &mut StepLoop, stock: usize) -> Result<(), BenchError> {
    let begun = Instant::now();
    let (mut taken, mut waited) = (0, 0);
    while taken < TIMES_THE_STOCK * stock && waited < WAITS_IN_A_ROW && begun.elapsed() < SETTLING {
        let report = trainer.advance()?;
        let waits = |report: &StepReport| report.wait_ns as f64 > WAITS * report.wall_ns as f64;
        (taken, waited) = (taken + 1, if report.as_ref().is_some_and(waits) { waited + 1 } else { 0 });
    }
    trainer.drain()?;
    Ok(())
}

/// Batches that can be ready before the first step: self-tuning starts with fewer and can use all that memory allows.
fn stock(plan: &Plan) -> usize {
    (plan.feed.data_slots + plan.feed.model_slots + plan.feed.pinned_uploads) as usize
}

fn busy_cards(roles: &Isolation, resolved: &Resolved) -> Vec<(usize, Option<u32>)> {
    if resolved.machine.kind() == DeviceKind::Cpu {
        return Vec::new();
    }
    let mut cards = vec![roles.data.device.index(), roles.model.device.index()];
    cards.dedup();
    // NVML's figure, shown beside ours; `None` if the card does not answer.
    let busy = |card: usize| resolved.machine.read(card).ok().and_then(|reading| reading.busy_percent);
    cards.into_iter().map(|card| (card, busy(card))).collect()
}

/// Steps of the same shapes with batches already there.
fn model_only(trainer: &mut StepLoop, shapes: &[Vec<usize>], kind: DeviceKind) -> Result<Vec<StepReport>, BenchError> {
    let each = if kind == DeviceKind::Cuda { MODEL_ONLY_ON_CARDS } else { MODEL_ONLY_ELSEWHERE };
    let mut distinct: Vec<&Vec<usize>> = shapes.iter().collect();
    distinct.sort();
    distinct.dedup();
    // With full rings the data side is idle, so the step really runs alone. On the CPU, decoding would take its cores.
    match kind {
        DeviceKind::Cpu => trainer.feed_mut().wait_full(FILLING)?,
        _ => trainer.feed_mut().wait_warm(SETTLING)?,
    };
    // Interleaved, so that a drifting clock affects all shapes.
    let steps: Vec<Vec<usize>> = (0..each).flat_map(|_| distinct.iter().map(|shapes| (*shapes).clone())).collect();
    Ok(trainer.model_only(&steps)?)
}
