//! `profile`: a short run of the real pipeline, each stage alone, the step alone, and what a diagnosis makes of it.
//!
//! The run is the one that `train` sets up. What it tells is kept in memory and judged by `tandem_diagnosis`, as a log would
//! be. Nothing is learnt for keeps, and no file is written.

mod alone;
mod change;

use std::time::{Duration, Instant};

use tandem_device::{DeviceKind, Isolation};
use tandem_diagnosis::{Diagnosis, DiagnosisError};
use tandem_events::Emitter;
use tandem_plan::Plan;
use tandem_train::{StepLoop, StepReport};

use crate::benchmarks::BenchError;
use tandem_launch::EventBuffer;
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, Launched, Setup};
use tandem_launch::step_events;

pub use alone::StandaloneTimes;
pub use change::applied;

/// Steps before those that count: SPEC §6.1. A diagnosis leaves as many out.
pub const WARM_UP_STEPS: usize = 5;
/// The batches made ahead are used up before that, or a slow stage would not be seen: so many steps in a row that wait say that
/// they are, and otherwise so many times as many steps as there are such batches, or this time.
const WAITS_IN_A_ROW: usize = 3;
const TIMES_THE_STOCK: usize = 3;
const SETTLING: Duration = Duration::from_secs(10);
/// Where `--cache memory` is asked for, the run is looked at as it is once everything was decoded, if that takes no longer.
const FILLING: Duration = Duration::from_secs(60);
/// A step that waits for this share of its time waits for the feed, not for the host to look.
const WAITS: f64 = 0.05;
/// Steps of each shape without a feed.
const HEADSPACE_ON_CARDS: usize = 50;
const HEADSPACE_ELSEWHERE: usize = 3;

/// What a run was found to be like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What its log says.
    pub diagnosis: Diagnosis,
    /// Each stage by itself, and the step by itself, in the order batches meet them.
    pub alone: Vec<StandaloneTimes>,
    /// How busy each card was as the driver's tools show it, whoever kept it so; none where they do not say.
    pub cards: Vec<(usize, Option<u32>)>,
    /// A cache was asked for, and was not full yet when the steps that count began.
    pub is_cache_filling: bool,
}

/// There is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Nothing was to be timed.
    #[error("no timing was collected: --num-steps 0 times nothing; for example --num-steps 100")]
    NoSteps,
    /// Nothing was timed.
    #[error(transparent)]
    NoTiming(#[from] DiagnosisError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] BenchError),
}

/// Runs for `steps` steps that count, then the step alone, then the feed alone.
pub fn run(resolved: &Resolved, corpora: &Corpora, steps: usize, emitter: &Emitter) -> Result<Profile, ProfileError> {
    if steps == 0 {
        return Err(ProfileError::NoSteps);
    }
    let heard = EventBuffer::new(emitter.clone());
    let emitter = heard.emitter();
    let setup = Setup::new(resolved, corpora, None, None, &emitter).map_err(BenchError::from)?;
    let (launched, _) = setup.launch(&mut |_| {}).map_err(BenchError::from)?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles, mut trainer, .. } = launched;
    let kind = resolved.machine.kind();
    let is_cache_filling = resolved.plan.cache.asked == "memory" && !fill_cache(&mut trainer)?;
    let (shapes, cards) = fed(&mut trainer, &roles, steps, &emitter, resolved)?;
    let model_only = model_only(&mut trainer, &shapes, kind)?;
    step_events::model_only(&model_only, &emitter);
    let records = heard.take();
    let plan = &resolved.plan;
    let alone = alone::measure(&mut trainer, &roles, plan, kind, (&heard, &model_only))?;
    trainer.stop().map_err(BenchError::from)?;
    Ok(Profile { diagnosis: Diagnosis::of(&records)?, alone, cards, is_cache_filling })
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
    settle(trainer, stock(&resolved.plan))?;
    trainer.start_clock();
    let mut reports = Vec::with_capacity(steps + WARM_UP_STEPS);
    for _ in 0..steps + WARM_UP_STEPS {
        take(trainer.advance()?, emitter, &mut reports);
    }
    let cards = busy_cards(roles, resolved);
    for report in trainer.settle()? {
        take(Some(report), emitter, &mut reports);
    }
    Ok((reports.into_iter().map(|report| report.buckets).collect(), cards))
}

fn take(report: Option<StepReport>, emitter: &Emitter, reports: &mut Vec<StepReport>) {
    report.iter().for_each(|report| step_events::step(report, emitter));
    reports.extend(report);
}

/// Steps through the first epoch. Whether it ended in time. Nobody is told of them.
fn fill_cache(trainer: &mut StepLoop) -> Result<bool, BenchError> {
    let (begun, mut epoch) = (Instant::now(), 0);
    while epoch == 0 && begun.elapsed() < FILLING {
        epoch = trainer.advance()?.map_or(0, |report| report.epoch);
    }
    trainer.settle()?;
    Ok(epoch > 0)
}

/// Steps until the batches that were made ahead are used up. Nobody is told of them.
fn settle(trainer: &mut StepLoop, stock: usize) -> Result<(), BenchError> {
    let begun = Instant::now();
    let (mut taken, mut waited) = (0, 0);
    while taken < TIMES_THE_STOCK * stock && waited < WAITS_IN_A_ROW && begun.elapsed() < SETTLING {
        let report = trainer.advance()?;
        let waits = |report: &StepReport| report.wait_ns as f64 > WAITS * report.wall_ns as f64;
        (taken, waited) = (taken + 1, if report.as_ref().is_some_and(waits) { waited + 1 } else { 0 });
    }
    trainer.settle()?;
    Ok(())
}

/// Batches that may be there before the first step: self-tuning uses fewer at first, and as many as there is memory for.
fn stock(plan: &Plan) -> usize {
    (plan.feed.data_slots + plan.feed.model_slots + plan.feed.pinned_uploads) as usize
}

fn busy_cards(roles: &Isolation, resolved: &Resolved) -> Vec<(usize, Option<u32>)> {
    if resolved.machine.kind() == DeviceKind::Cpu {
        return Vec::new();
    }
    let mut cards = vec![roles.data.device.index(), roles.model.device.index()];
    cards.dedup();
    // Another's figure, beside ours: a card that does not answer has none.
    let busy = |card: usize| resolved.machine.read(card).ok().and_then(|reading| reading.busy_percent);
    cards.into_iter().map(|card| (card, busy(card))).collect()
}

/// Steps of the same shapes with batches already there.
fn model_only(trainer: &mut StepLoop, shapes: &[Vec<usize>], kind: DeviceKind) -> Result<Vec<StepReport>, BenchError> {
    let each = if kind == DeviceKind::Cuda { HEADSPACE_ON_CARDS } else { HEADSPACE_ELSEWHERE };
    let mut distinct: Vec<&Vec<usize>> = shapes.iter().collect();
    distinct.sort();
    distinct.dedup();
    // Full rings: then the data side stands still, and alone means alone. On the CPU, decoding takes the step's own cores.
    match kind {
        DeviceKind::Cpu => trainer.feed_mut().wait_full(FILLING)?,
        _ => trainer.feed_mut().wait_warm(SETTLING)?,
    };
    // In turns, so that a clock that drifts does so for all.
    let steps: Vec<Vec<usize>> = (0..each).flat_map(|_| distinct.iter().map(|shapes| (*shapes).clone())).collect();
    Ok(trainer.model_only(&steps)?)
}
