//! A candidate on the real devices: the run that `train` sets up, for a few steps, and nothing of it left behind.
//!
//! A trial runs with two batches made ahead. With the whole buffer it would time the buffer: its steps would find batches
//! that were there before the first one.
//!
//! On simulated cards the steps are not timed by the wall: it is the CPU that does their maths. There the pace is that of
//! the simulated clock. Its streams run beside each other at full speed, also those of one card; so the times of the
//! stages are put together as they would be on cards: features and step take turns on one, and on two the slower sets
//! the pace.

use std::time::Instant;

use tandem_device::{DeviceError, DeviceKind};
use tandem_diagnosis::{Busy, Diagnosis, Flow, Summary, Time};
use tandem_events::{Emitter, Record, Role, RunEvent};
use tandem_plan::{CorpusFacts, Refusal};
use tandem_train::{StepLoop, TrainError};

use super::candidates::{Candidate, first_line};
use super::pace::{Run, StepRate, TimingLength, pace_of};
use crate::benchmarks::BenchError;
use tandem_launch::EventBuffer;
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::{Corpora, Launched, Setup};
use tandem_launch::step_events;

/// Batches made ahead in a trial.
pub const AHEAD: u64 = 2;
/// Beside cards that take a step in milliseconds nobody waits for more.
const MOST_ON_THE_CPU: usize = 8;
/// On simulated cards, steps with the feed and as many without it: their clock varies by a few percent a piece of work,
/// and a step has hundreds.
const SIMULATED_STEPS: usize = 3;

/// A candidate could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum TimedRunError {
    /// It cannot be planned: its first line.
    #[error("{}", first_line(.0))]
    Refused(Box<Refusal>),
    /// The machine could not be looked at, or the way across not be tried.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It did not run.
    #[error(transparent)]
    Run(#[from] BenchError),
}

/// What a trial showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// How fast it is.
    pub pace: StepRate,
    /// What the roles held, data first.
    pub used_bytes: [u64; 2],
    /// How busy the devices were; none where too few steps were timed to say.
    pub busy: Option<Busy>,
}

/// TimedRuns on one corpus.
pub struct TimedRuns<'a> {
    /// Looks at the machine. Anew for each candidate: one that was narrowed to some cards stays so.
    survey: &'a dyn Fn() -> Result<Inventory, DeviceError>,
    facts: &'a CorpusFacts,
    corpora: &'a Corpora,
    emitter: Emitter,
    /// Steps that count, where that was said.
    steps: Option<usize>,
    /// Plans, for the next round.
    resolved: Vec<(Candidate, Resolved)>,
}

impl<'a> TimedRuns<'a> {
    /// None yet.
    pub fn new(
        survey: &'a dyn Fn() -> Result<Inventory, DeviceError>,
        (facts, corpora): (&'a CorpusFacts, &'a Corpora),
        emitter: Emitter,
    ) -> TimedRuns<'a> {
        TimedRuns { survey, facts, corpora, emitter, steps: None, resolved: Vec::new() }
    }

    /// The same with `steps` steps that count on cards, whatever time that takes; on the CPU with as many, or a few.
    pub fn of_steps(mut self, steps: Option<usize>) -> TimedRuns<'a> {
        self.steps = steps;
        self
    }

    /// Whether there is a plan for `candidate`.
    pub fn check(&mut self, candidate: &Candidate) -> Result<(), TimedRunError> {
        self.plan(candidate).map(drop)
    }

    /// Runs `candidate` for a few steps.
    pub fn run(&mut self, candidate: &Candidate) -> Result<Seen, TimedRunError> {
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
                let resolved = (self.survey)()?.resolve(&candidate.settings, Some(self.facts));
                let mut resolved = resolved.map_err(|refusal| TimedRunError::Refused(Box::new(refusal)))?;
                resolved.try_transfer()?;
                resolved.plan.feed.data_slots = resolved.plan.feed.data_slots.min(AHEAD);
                // Not to be tuned.
                resolved.plan.buffer_size_given = true;
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

/// A run by the wall's clock.
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
    let heard = EventBuffer::new(emitter);
    let emitter = heard.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles, mut trainer, .. } = launched;
    trainer.start_clock();
    let mut run = Stepping { trainer, emitter: emitter.clone(), begun: Instant::now() };
    let pace = pace_of(&mut run, length)?;
    let used_bytes = Role::BOTH.map(|role| roles.partition(role).arena.memory().used_bytes);
    run.trainer.settle()?;
    run.trainer.stop()?;
    let busy = Diagnosis::of(&heard.take()).ok().map(|diagnosis| diagnosis.busy);
    Ok(Seen { pace, used_bytes, busy })
}

fn simulated(resolved: &Resolved, corpora: &Corpora, emitter: Emitter) -> Result<Seen, BenchError> {
    let heard = EventBuffer::new(emitter);
    let emitter = heard.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    let Launched { roles, mut trainer, .. } = launched;
    let mut shapes = Vec::new();
    for _ in 0..SIMULATED_STEPS {
        shapes.extend(trainer.advance()?.map(|report| report.buckets));
    }
    shapes.extend(trainer.settle()?.into_iter().map(|report| report.buckets));
    let alone = trainer.model_only(&shapes)?;
    let step_ns = alone.iter().map(|step| step.on_device.busy_ns as f64).sum::<f64>() / alone.len().max(1) as f64;
    let used_bytes = Role::BOTH.map(|role| roles.partition(role).arena.memory().used_bytes);
    trainer.stop()?;
    let flow = flow(resolved, &heard.take(), step_ns);
    let steps_per_s = flow.steps_per_s();
    let share = |time: Time| (time.mean_ns * steps_per_s / 1e9).min(1.0);
    let (data, model) = (share(flow.features).max(share(flow.upload)), share(flow.train));
    Ok(Seen {
        pace: StepRate { steps_per_s, low: steps_per_s, high: steps_per_s, steps: shapes.len() },
        used_bytes,
        busy: Some(Busy { data, model, train: model }),
    })
}

/// The line by the simulated clock. Nobody knows how long that computer would take to decode.
fn flow(resolved: &Resolved, records: &[Record], step_ns: f64) -> Flow {
    let plan = &resolved.plan;
    let batches = plan.grad_accum as f64;
    let time = |mean_ns: f64| Time { mean_ns, std_ns: 0.0 };
    let stage = |name: &str| {
        let times: Vec<f64> = records
            .iter()
            .filter_map(|record| match &record.event {
                RunEvent::Stage { stage, ns, .. } if stage == name => Some(*ns as f64),
                _ => None,
            })
            .collect();
        // The first ones wait for their memory to be touched, or their kernels to be there.
        time(batches * Summary::of(&times).p50)
    };
    Flow {
        load_work: Time::NONE,
        threads: 1.0,
        upload: stage("upload"),
        features: stage("features"),
        // Nothing where batches are handed over.
        transfer: stage("transfer"),
        train: time(step_ns),
        ahead: AHEAD as usize,
        slots: plan.feed.model_slots as usize,
        is_one_card: plan.mode.is_one_device(),
        host_work_ns: 0.0,
        cores: f64::INFINITY,
    }
}
