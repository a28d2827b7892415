//! The records of a log, sorted into what the parts of a diagnosis need.

use std::collections::{BTreeMap, BTreeSet};

use tandem_events::{Record, RunEvent, TimeSpan};

use crate::flow::ServiceTime;
use crate::overlap::StepSpan;
use crate::role_devices::RoleDevices;
use crate::stage::Stage;
use crate::statistics::{Summary, mean_std};

/// The first steps of a log include one-time costs and are not counted.
pub(crate) const WARM_UP_STEPS: usize = 5;
/// Fewer steps than this are not a steady state.
const MIN_STEADY_STEPS: usize = 20;
/// Prefetched batches if the log does not say how many: the defaults of both buffers.
const DEFAULT_STOCK: usize = 58;
/// Decoding that the model waits for less than this share of the time is not a limit.
const MIN_LOAD_WAIT: f64 = 0.02;

/// A step that takes this many times its model-only time shares its card with other kernels.
const STRETCHED: f64 = 1.1;

/// One step, and the time of its batches in each stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepFact {
    pub(crate) step: u64,
    pub(crate) wall_ns: f64,
    pub(crate) wait_ns: f64,
    /// Busy time of the model device, by its own clock if the log has it.
    pub(crate) busy_ns: f64,
    pub(crate) bucket: Option<u32>,
    /// Time of each stage for the step's batches; decoding divided by the threads. `None` if the log does not have it.
    pub(crate) demand_ns: [Option<f64>; 4],
    /// Features and the step take turns on one card.
    pub(crate) is_one_card: bool,
    /// When the step ran on the device, if the log has it.
    pub(crate) at: Option<StepSpan>,
}

impl StepFact {
    /// The step without the wait.
    pub(crate) fn train_ns(&self) -> f64 {
        (self.wall_ns - self.wait_ns).max(0.0)
    }
}

/// The settings of the feed at the end of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FeedFacts {
    /// Decode threads, as far as the log says.
    pub(crate) threads: f64,
    pub(crate) cores: Option<u32>,
    pub(crate) ahead: usize,
    pub(crate) slots: usize,
    pub(crate) route: Option<String>,
    pub(crate) devices: RoleDevices,
}

/// A log, sorted. It has only the steps that count.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) steps: Vec<StepFact>,
    /// Model-only time of each bucket.
    pub(crate) model_only_ns: BTreeMap<u32, f64>,
    pub(crate) feed: FeedFacts,
    /// Decoding work per step, over all threads.
    pub(crate) load_work: ServiceTime,
    /// CPU time per step, decoding included; `None` if the log does not have it.
    pub(crate) cpu_ns: Option<f64>,
    /// When uploads and transfers ran on the devices, as far as the log has it.
    pub(crate) copies: Vec<TimeSpan>,
    /// Number of records that were dropped.
    pub(crate) dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct StageWork {
    ns: f64,
    busy_ns: f64,
    wait_ns: f64,
}

/// A step by the host's clock.
#[derive(Clone, Copy, Debug)]
struct HostStep {
    step: u64,
    end_ns: u64,
    wall_ns: f64,
    wait_ns: f64,
}

/// A step by the device's clock.
#[derive(Clone, Copy, Debug)]
struct DeviceStep {
    batch: u64,
    batches: u64,
    bucket: u32,
    busy_ns: f64,
    wait_ns: f64,
    began_ns: Option<u64>,
}

/// The last record about the feed's settings.
struct FeedRecord {
    threads: u32,
    cores: u32,
    ahead: u32,
    slots: u32,
    route: String,
}

/// CPU time of the process when `num_steps` steps had ended.
#[derive(Clone, Copy)]
struct CpuReading {
    num_steps: usize,
    cpu_ns: u64,
}

/// Collects facts in one pass over the records.
#[derive(Default)]
struct FactsBuilder {
    steps: Vec<HostStep>,
    device_steps: BTreeMap<u64, DeviceStep>,
    /// Times of each stage by batch.
    work: [BTreeMap<u64, StageWork>; 4],
    model_only_ns: BTreeMap<u32, f64>,
    feed: Option<FeedRecord>,
    devices: RoleDevices,
    pauses: Pauses,
    copies: Vec<TimeSpan>,
    cpu: Vec<CpuReading>,
    dropped: u64,
}

impl Facts {
    pub(crate) fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Facts {
        let mut builder = FactsBuilder::default();
        records.into_iter().for_each(|record| builder.add(record));
        builder.finish()
    }
}

impl FactsBuilder {
    fn add(&mut self, record: &Record) {
        self.pauses.observe(record);
        self.devices.observe(&record.event);
        self.dropped = self.dropped.max(record.dropped);
        match &record.event {
            RunEvent::Step { step, wall_ns, wait_ns } => {
                let (wall_ns, wait_ns) = (*wall_ns as f64, *wait_ns as f64);
                self.steps.push(HostStep { step: *step, end_ns: record.t_ns, wall_ns, wait_ns });
            }
            RunEvent::StepWork { step, batch, batches, bucket, busy_ns, wait_ns, began_ns } => {
                let (batch, batches, bucket) = (*batch, u64::from(*batches), *bucket);
                let (busy_ns, wait_ns) = (*busy_ns as f64, *wait_ns as f64);
                let device_step = DeviceStep { batch, batches, bucket, busy_ns, wait_ns, began_ns: *began_ns };
                self.device_steps.insert(*step, device_step);
            }
            RunEvent::Stage { stage, batch, ns, busy_ns, wait_ns, spans } => {
                let work = StageWork { ns: *ns as f64, busy_ns: *busy_ns as f64, wait_ns: *wait_ns as f64 };
                if let Some(stage) = Stage::named(stage) {
                    self.work[stage as usize].insert(*batch, work);
                    if matches!(stage, Stage::Upload | Stage::Transfer) {
                        self.copies.extend(spans);
                    }
                }
            }
            RunEvent::CpuTime { cpu_ns } => {
                self.cpu.push(CpuReading { num_steps: self.steps.len(), cpu_ns: *cpu_ns });
            }
            RunEvent::ModelOnly { bucket, ns } => {
                self.model_only_ns.insert(*bucket, *ns as f64);
            }
            RunEvent::FeedSetting { threads, cores, buffer_size, prefetch, route } => {
                let (threads, cores, ahead, slots) = (*threads, *cores, *buffer_size, *prefetch);
                self.feed = Some(FeedRecord { threads, cores, ahead, slots, route: route.clone() });
            }
            _ => {}
        }
    }

    fn finish(self) -> Facts {
        let feed = self.feed_facts();
        let load = &self.work[Stage::Load as usize];
        let per_step = self.batches_per_step();
        let busy: Vec<f64> = load.values().map(|work| work.busy_ns * per_step as f64).collect();
        let counted = self.steps.iter().enumerate().skip(WARM_UP_STEPS);
        let steps = counted
            .filter(|(_, step)| {
                let begin_ns = step.end_ns - (step.wall_ns as u64).min(step.end_ns);
                !self.pauses.cover(step.step, begin_ns, step.end_ns)
            })
            .map(|(i, step)| self.step_fact(i as u64, step, per_step, feed.threads))
            .collect();
        let stock = feed.ahead + feed.slots;
        let (mean_ns, std_ns) = mean_std(&busy);
        Facts {
            steps: steady(steps, stock),
            model_only_ns: self.model_only_ns,
            feed,
            load_work: ServiceTime { mean_ns, std_ns },
            cpu_ns: cpu_per_step(&self.cpu),
            copies: self.copies,
            dropped: self.dropped,
        }
    }

    /// Batches per step with gradient accumulation. Without device records it is the ratio of the counts, rounded down,
    /// because the surplus may be prefetched batches.
    fn batches_per_step(&self) -> u64 {
        if let Some(last) = self.device_steps.values().next_back() {
            return last.batches.max(1);
        }
        (self.work[Stage::Load as usize].len() as u64 / (self.steps.len() as u64).max(1)).max(1)
    }

    fn step_fact(&self, i: u64, host: &HostStep, per_step: u64, threads: f64) -> StepFact {
        let HostStep { step, wall_ns, .. } = *host;
        let device = self.device_steps.get(&step);
        let (first, count) =
            device.map_or((i.saturating_mul(per_step), per_step), |device| (device.batch, device.batches));
        let is_one_card = self.devices.is_one_card();
        let wait_ns = match device {
            // Waiting for the card also counts as waiting, although no batch was late.
            Some(device) if is_one_card => device.wait_ns.max(wall_ns - self.own_work_ns(device)),
            Some(device) => device.wait_ns,
            None => host.wait_ns,
        };
        let wait_ns = wait_ns.min(wall_ns);
        let demand_ns = Stage::ALL.map(|stage| {
            let works = &self.work[stage as usize];
            let of_step = works.range(first..first.saturating_add(count)).map(|(_, work)| match stage {
                Stage::Load => work.busy_ns / threads,
                _ => work.ns,
            });
            let of_step: Vec<f64> = of_step.collect();
            // A batch without times counts as the mean of the others.
            let scale = count as f64 / of_step.len().max(1) as f64;
            (!of_step.is_empty()).then(|| of_step.iter().sum::<f64>() * scale)
        });
        let busy_ns = device.map_or(wall_ns - wait_ns, |device| device.busy_ns);
        let at = device.and_then(|device| {
            let work = TimeSpan { began_ns: device.began_ns?, ns: device.busy_ns as u64 };
            let whole_ns = (wall_ns as u64).max(work.ns);
            let whole = TimeSpan { began_ns: work.ended_ns().saturating_sub(whole_ns), ns: whole_ns };
            Some(StepSpan { whole, work })
        });
        let bucket = device.map(|device| device.bucket);
        StepFact { step, wall_ns, wait_ns, busy_ns, bucket, demand_ns, is_one_card, at }
    }

    /// The step's own work on its card. On a shared card the kernels of both roles overlap, and the step is busy for longer than
    /// its model-only time; then the model-only time is its own work.
    fn own_work_ns(&self, device: &DeviceStep) -> f64 {
        match self.model_only_ns.get(&device.bucket) {
            Some(alone_ns) if device.busy_ns > STRETCHED * alone_ns => *alone_ns,
            _ => device.busy_ns,
        }
    }

    fn feed_facts(&self) -> FeedFacts {
        let devices = self.devices;
        match &self.feed {
            Some(feed) => FeedFacts {
                threads: f64::from(feed.threads.max(1)),
                cores: Some(feed.cores),
                ahead: feed.ahead as usize,
                slots: feed.slots as usize,
                route: Some(feed.route.clone()),
                devices,
            },
            None => FeedFacts {
                threads: self.busy_threads(),
                cores: None,
                ahead: DEFAULT_STOCK - 8,
                slots: 8,
                route: None,
                devices,
            },
        }
    }

    /// The number of threads that the decoding work filled, if the model waited for decoding; infinite otherwise, so that
    /// decoding is not a limit.
    fn busy_threads(&self) -> f64 {
        let load = &self.work[Stage::Load as usize];
        let wall_ns: f64 = self.steps.iter().map(|step| step.wall_ns).sum();
        let (busy_ns, wait_ns) =
            load.values().fold((0.0, 0.0), |(busy, wait), work| (busy + work.busy_ns, wait + work.wait_ns));
        if wait_ns < MIN_LOAD_WAIT * wall_ns || wall_ns <= 0.0 {
            return f64::INFINITY;
        }
        (busy_ns / wall_ns).max(1.0)
    }
}

/// The median CPU time per step between two readings, so that checkpoints and samples do not count.
fn cpu_per_step(readings: &[CpuReading]) -> Option<f64> {
    let between = readings.iter().zip(readings.get(1..)?).filter(|(before, _)| before.num_steps >= WARM_UP_STEPS);
    let works: Vec<f64> = between
        .filter(|(before, after)| after.num_steps > before.num_steps)
        .map(|(before, after)| {
            after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / (after.num_steps - before.num_steps) as f64
        })
        .collect();
    (!works.is_empty()).then(|| Summary::of(&works).p50)
}

/// Without the steps that used up prefetched batches, if enough steps remain.
fn steady(steps: Vec<StepFact>, stock: usize) -> Vec<StepFact> {
    let waits = |step: &StepFact| step.wait_ns > 0.05 * step.wall_ns;
    let first = steps.iter().position(waits).unwrap_or(0);
    match first > stock || steps.len() - first < MIN_STEADY_STEPS {
        true => steps,
        false => steps.into_iter().skip(first).collect(),
    }
}

/// Validations, samples and checkpoints. Steps that overlap them say nothing about the pipeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    steps: BTreeSet<u64>,
    /// Sorted by end.
    spans: Vec<PauseSpan>,
}

#[derive(Clone, Copy, Debug)]
struct PauseSpan {
    begin_ns: u64,
    end_ns: u64,
}

impl Pauses {
    /// Returns whether `record` is a pause, and remembers it.
    pub(crate) fn observe(&mut self, record: &Record) -> bool {
        let (step, ns) = match &record.event {
            RunEvent::Validation { step, .. } => (*step, 0),
            RunEvent::Checkpoint { step, ns, .. } | RunEvent::SampleWritten { step, ns, .. } => (*step, *ns),
            _ => return false,
        };
        // A step lasts from the end of the previous one: a pause after step N is part of the time of step N + 1.
        self.steps.extend([step, step + 1]);
        self.spans.push(PauseSpan { begin_ns: record.t_ns.saturating_sub(ns), end_ns: record.t_ns });
        true
    }

    /// Whether a step with this number and time overlaps a pause.
    pub(crate) fn cover(&self, step: u64, begin_ns: u64, end_ns: u64) -> bool {
        let from = self.spans.partition_point(|span| span.end_ns < begin_ns);
        self.steps.contains(&step) || self.spans[from..].iter().any(|span| span.begin_ns <= end_ns)
    }

    /// Forgets pauses that no step from number `step` and time `t_ns` on can overlap.
    pub(crate) fn forget_before(&mut self, step: u64, t_ns: u64) {
        self.steps = self.steps.split_off(&step);
        self.spans.retain(|span| span.end_ns >= t_ns);
    }
}
