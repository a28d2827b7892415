//! A candidate on the real devices: the run that `train` sets up, for a few steps. It leaves nothing behind.
//!
//! A timed run prefetches two batches. With the whole buffer it would time the buffer: its steps would consume batches
//! made before the first one.
//!
//! On simulated cards the wall clock means nothing: the CPU does their maths. There the step rate comes from the simulated
//! clock. Its streams run in parallel at full speed, even those of one card, so the stage times are combined as on real
//! cards: features and step take turns on one card, and on two the slower stage sets the rate.

use std::path::Path;
use std::time::Instant;

use tandem_device::library::{LibraryError, Search, find_nccl};
use tandem_device::{DeviceError, DeviceKind};
use tandem_diagnosis::{Busy, Diagnosis, Flow, ServiceTime, Summary};
use tandem_events::{Emitter, Record, Role, RunEvent};
use tandem_plan::{CorpusFacts, PLACEMENT, Refusal, Settings};
use tandem_ranks::World;
use tandem_train::{StepLoop, TrainError};

use super::candidates::{Candidate, first_line, of_setting};
use super::step_rate::{Run, StepRate, TimingLength, measure_step_rate};
use crate::all_reduce::GradientSum;
use crate::benchmarks::BenchError;
use tandem_launch::EventBuffer;
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::{Corpora, Launched, Setup};
use tandem_launch::step_events;

/// Batches that a timed run prefetches.
pub const AHEAD: u64 = 2;
/// A step on the CPU is long; this many suffice.
const MOST_ON_THE_CPU: usize = 8;
/// On simulated cards, steps with the feed and as many without: their clock varies by a few percent per operation, and a
/// step has hundreds.
const SIMULATED_STEPS: usize = 3;

/// A candidate could not be timed.
#[derive(Debug, thiserror::Error)]
pub enum TimedRunError {
    /// No plan fits: the refusal, shown by its first line.
    #[error("{}", first_line(.0))]
    Refused(Box<Refusal>),
    /// The inventory or the proof of the transfer failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It did not run.
    #[error(transparent)]
    Run(#[from] BenchError),
    /// Nothing sums gradients on these cards.
    #[error(transparent)]
    Nccl(#[from] LibraryError),
}

/// The result of a timed run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Its step rate.
    pub rate: StepRate,
    /// What the roles held, data first.
    pub used_bytes: [u64; 2],
    /// How busy the devices were; `None` if too few steps were timed.
    pub busy: Option<Busy>,
    /// Parameters of the model.
    pub num_parameters: u64,
}

/// Timed runs on one corpus.
pub struct TimedRuns<'a> {
    /// Takes the inventory, again for each candidate: a machine that was restricted to some cards stays so.
    take_inventory: &'a dyn Fn() -> Result<Inventory, DeviceError>,
    facts: &'a CorpusFacts,
    corpora: &'a Corpora,
    /// For files that the runs leave; removed by the caller.
    folder: &'a Path,
    emitter: Emitter,
    /// Steps to time, if given.
    steps: Option<usize>,
    /// Plans of earlier rounds.
    resolved: Vec<(Candidate, Resolved)>,
}

impl<'a> TimedRuns<'a> {
    /// None yet.
    pub fn new(
        take_inventory: &'a dyn Fn() -> Result<Inventory, DeviceError>,
        facts: &'a CorpusFacts,
        corpora: &'a Corpora,
        folder: &'a Path,
        emitter: Emitter,
    ) -> TimedRuns<'a> {
        TimedRuns { take_inventory, facts, corpora, folder, emitter, steps: None, resolved: Vec::new() }
    }

    /// Times `steps` steps on cards, however long that takes; on the CPU at most a few.
    pub fn of_steps(mut self, steps: Option<usize>) -> TimedRuns<'a> {
        self.steps = steps;
        self
    }

    /// Whether there is a plan for `candidate`.
    pub fn check(&mut self, candidate: &Candidate) -> Result<(), TimedRunError> {
        self.plan(candidate).map(drop)
    }

    /// Runs `candidate` for a few steps. Of several ranks, one runs its share of a step, and the time to sum the gradients is
    /// predicted from the measured bandwidth between two of the cards.
    pub fn run(&mut self, candidate: &Candidate) -> Result<Seen, TimedRunError> {
        if candidate.ranks.len() < 2 {
            return self.run_alone(candidate);
        }
        let gb_per_s = self.link_gb_per_s(&candidate.settings, [candidate.ranks[0], candidate.ranks[1]])?;
        let mut seen = self.run_alone(candidate)?;
        let sum = GradientSum { num_parameters: seen.num_parameters, ranks: candidate.ranks.len(), gb_per_s };
        for rate in [&mut seen.rate.steps_per_s, &mut seen.rate.low, &mut seen.rate.high] {
            *rate = sum.with_sum(*rate);
        }
        Ok(seen)
    }

    /// The measured bandwidth between two cards on which ranks of `settings` would run.
    pub fn link_gb_per_s(&self, settings: &Settings, cards: [usize; 2]) -> Result<f64, TimedRunError> {
        let inventory = (self.take_inventory)()?;
        if inventory.hardware.kind == DeviceKind::Cuda {
            find_nccl(&Search::from_env())?;
        }
        let [one, other] = cards.map(|card| card.to_string());
        let pair = settings.without(&PLACEMENT).with(&[("data-gpu", one), ("model-gpu", other)]);
        let pair = pair.map_err(|error| TimedRunError::Refused(Box::new(of_setting(error))))?;
        let resolved = inventory.resolve(&pair, Some(self.facts));
        let mut resolved = resolved.map_err(|refusal| TimedRunError::Refused(Box::new(refusal)))?;
        resolved.try_transfer()?;
        Ok(resolved.plan.transfer.mb_per_s.unwrap_or(0) as f64 / 1000.0)
    }

    fn run_alone(&mut self, candidate: &Candidate) -> Result<Seen, TimedRunError> {
        let (corpora, emitter, steps) = (self.corpora, self.emitter.clone(), self.steps);
        let resolved = self.plan(candidate)?;
        Ok(match resolved.machine.kind() {
            DeviceKind::Simulated => simulated(resolved, corpora, emitter)?,
            DeviceKind::Cuda => on_devices(resolved, corpora, emitter, with_steps(TimingLength::ON_CARDS, steps))?,
            DeviceKind::Cpu => on_devices(
                resolved,
                corpora,
                emitter,
                with_steps(TimingLength::ON_THE_CPU, steps.map(|steps| steps.min(MOST_ON_THE_CPU))),
            )?,
        })
    }

    fn plan(&mut self, candidate: &Candidate) -> Result<&Resolved, TimedRunError> {
        let at = match self.resolved.iter().position(|(known, _)| known == candidate) {
            Some(at) => at,
            None => {
                let inventory = (self.take_inventory)()?;
                let size = candidate.ranks.len().max(1) as u32;
                let inventory = inventory.with_world(World { rank: 0, size, local_rank: 0, local_size: size });
                let resolved = inventory.resolve(&candidate.settings, Some(self.facts));
                let mut resolved = resolved.map_err(|refusal| TimedRunError::Refused(Box::new(refusal)))?;
                resolved.try_transfer()?;
                resolved.plan.feed.data_slots = resolved.plan.feed.data_slots.min(AHEAD);
                // Fixed: self-tuning must not change it.
                resolved.plan.buffer_size_given = true;
                resolved.plan.cache.move_into(self.folder);
                self.resolved.push((candidate.clone(), resolved));
                self.resolved.len() - 1
            }
        };
        Ok(&self.resolved[at].1)
    }
}

fn with_steps(length: TimingLength, steps: Option<usize>) -> TimingLength {
    let Some(steps) = steps else { return length };
    let chunk = length.chunk.min(steps.max(1));
    TimingLength { chunk, least_chunks: steps.div_ceil(chunk), enough_ns: 0, ..length }
}

/// A run timed by the wall clock.
struct Stepping {
    trainer: StepLoop,
    emitter: Emitter,
    begun: Instant,
}

impl Run for Stepping {
    type Error = TrainError;

    fn step(&mut self) -> Result<(), TrainError> {
        let report = self.trainer.advance()?;
        report.iter().for_each(|report| step_events::step(report, &self.emitter));
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

fn on_devices(
    resolved: &Resolved,
    corpora: &Corpora,
    emitter: Emitter,
    length: TimingLength,
) -> Result<Seen, BenchError> {
    let events = EventBuffer::new(emitter);
    let emitter = events.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    // The step loop is bound last, so that it drops before the arenas that own its memory.
    let Launched { roles, mut trainer, num_parameters, .. } = launched;
    trainer.start_clock();
    let mut run = Stepping { trainer, emitter: emitter.clone(), begun: Instant::now() };
    let rate = measure_step_rate(&mut run, length)?;
    let used_bytes = Role::BOTH.map(|role| roles.partition(role).arena.memory().used_bytes);
    run.trainer.drain()?;
    run.trainer.stop()?;
    let busy = Diagnosis::of(&events.take()).ok().map(|diagnosis| diagnosis.busy);
    Ok(Seen { rate, used_bytes, busy, num_parameters })
}

fn simulated(resolved: &Resolved, corpora: &Corpora, emitter: Emitter) -> Result<Seen, BenchError> {
    let events = EventBuffer::new(emitter);
    let emitter = events.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    let Launched { roles, mut trainer, num_parameters, .. } = launched;
    let mut shapes = Vec::new();
    for _ in 0..SIMULATED_STEPS {
        shapes.extend(trainer.advance()?.map(|report| report.buckets));
    }
    shapes.extend(trainer.drain()?.into_iter().map(|report| report.buckets));
    let alone = trainer.model_only(&shapes)?;
    let step_ns = alone.iter().map(|step| step.on_device.busy_ns as f64).sum::<f64>() / alone.len().max(1) as f64;
    let used_bytes = Role::BOTH.map(|role| roles.partition(role).arena.memory().used_bytes);
    trainer.stop()?;
    let flow = flow(resolved, &events.take(), step_ns);
    let steps_per_s = flow.steps_per_s();
    let share = |time: ServiceTime| (time.mean_ns * steps_per_s / 1e9).min(1.0);
    let (data, model) = (share(flow.features).max(share(flow.upload)), share(flow.train));
    Ok(Seen {
        rate: StepRate { steps_per_s, low: steps_per_s, high: steps_per_s, steps: shapes.len() },
        used_bytes,
        busy: Some(Busy { data, model, train: model }),
        num_parameters,
    })
}

/// The pipeline by the simulated clock. Decoding time of that host is unknown.
fn flow(resolved: &Resolved, records: &[Record], step_ns: f64) -> Flow {
    let plan = &resolved.plan;
    let batches = plan.local_micro_batches() as f64;
    let time = |mean_ns: f64| ServiceTime { mean_ns, std_ns: 0.0 };
    let stage = |name: &str| {
        let times: Vec<f64> = records
            .iter()
            .filter_map(|record| match &record.event {
                RunEvent::Stage { stage, ns, .. } if stage == name => Some(*ns as f64),
                _ => None,
            })
            .collect();
        // The first ones include first-touch of memory and loading of kernels.
        time(batches * Summary::of(&times).p50)
    };
    Flow {
        load_work: ServiceTime::NONE,
        threads: 1.0,
        upload: stage("upload"),
        features: stage("features"),
        // Zero with a hand-over.
        transfer: stage("transfer"),
        train: time(step_ns),
        ahead: AHEAD as usize,
        slots: plan.feed.model_slots as usize,
        is_one_card: plan.mode.is_one_device(),
        host_work_ns: 0.0,
        cores: f64::INFINITY,
    }
}
