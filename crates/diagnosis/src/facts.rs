//! The records of a log, sorted into what the parts of a diagnosis ask for.

use std::collections::{BTreeMap, BTreeSet};

use tandem_events::{Record, RunEvent, TimeSpan};

use crate::overlap::SteppedAt;
use crate::places::Places;
use crate::stage::Stage;
use crate::statistics::{Summary, mean_std};

/// The first steps of a log pay for what is only done once.
pub(crate) const WARM_UP_STEPS: usize = 5;
/// Fewer steps than this are no steady state of anything.
const MIN_STEADY_STEPS: usize = 20;
/// Batches made ahead where the log does not say how many: the defaults of both buffers.
const USUAL_STOCK: usize = 58;
/// Decoding that is waited for less than this share of the time limits nothing.
const HARDLY: f64 = 0.02;

/// A step that is at work for this many times what it takes alone shares its card.
const STRETCHED: f64 = 1.1;

/// One step, and what its batches took in each stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepFact {
    pub(crate) step: u64,
    pub(crate) wall_ns: f64,
    pub(crate) wait_ns: f64,
    /// The model device worked, by its own clock where it told.
    pub(crate) busy_ns: f64,
    pub(crate) bucket: Option<u32>,
    /// Time of each stage for its batches; decoding divided by the threads. None where the log has nothing.
    pub(crate) demand_ns: [Option<f64>; 4],
    /// Features and the step take turns on one card.
    pub(crate) is_one_card: bool,
    /// When it was, where its device told.
    pub(crate) at: Option<SteppedAt>,
}

impl StepFact {
    /// The step without the wait.
    pub(crate) fn train_ns(&self) -> f64 {
        (self.wall_ns - self.wait_ns).max(0.0)
    }
}

/// How the feed was set at the end of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FeedFacts {
    /// Threads that were at work, as far as the log says.
    pub(crate) threads: f64,
    pub(crate) cores: Option<u32>,
    pub(crate) ahead: usize,
    pub(crate) slots: usize,
    pub(crate) route: Option<String>,
    pub(crate) places: Places,
}

/// A log, sorted. Only steps that count are in it.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) steps: Vec<StepFact>,
    pub(crate) headspace_ns: BTreeMap<u32, f64>,
    pub(crate) setting: FeedFacts,
    /// Work of decoding per step, over all threads: mean and deviation.
    pub(crate) load_work_ns: (f64, f64),
    /// What the cores worked in a step, decoding and everything; none where the log does not say.
    pub(crate) cpu_ns: Option<f64>,
    /// When uploads and transfers were under way, as far as devices told.
    pub(crate) copies: Vec<TimeSpan>,
    /// Records that were lost before the last one was written.
    pub(crate) dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Work {
    ns: f64,
    busy_ns: f64,
    wait_ns: f64,
}

type Works = [BTreeMap<u64, Work>; 4];

#[derive(Clone, Copy, Debug)]
struct OnDevice {
    batch: u64,
    batches: u64,
    bucket: u32,
    busy_ns: f64,
    wait_ns: f64,
    began_ns: Option<u64>,
}

/// What is collected in the one pass over the records.
#[derive(Default)]
struct Heap {
    steps: Vec<(u64, u64, f64, f64)>,
    on_device: BTreeMap<u64, OnDevice>,
    works: Works,
    headspace_ns: BTreeMap<u32, f64>,
    feed: Option<(u32, u32, u32, u32, String)>,
    places: Places,
    pauses: Pauses,
    copies: Vec<TimeSpan>,
    /// Steps that had ended, and what the cores had worked by then.
    host: Vec<(usize, u64)>,
    dropped: u64,
}

impl Facts {
    pub(crate) fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Facts {
        let mut heap = Heap::default();
        records.into_iter().for_each(|record| heap.take(record));
        heap.into_facts()
    }
}

impl Heap {
    fn take(&mut self, record: &Record) {
        self.pauses.observe(record);
        self.places.observe(&record.event);
        self.dropped = self.dropped.max(record.dropped);
        match &record.event {
            RunEvent::Step { step, wall_ns, wait_ns } => {
                self.steps.push((*step, record.t_ns, *wall_ns as f64, *wait_ns as f64));
            }
            RunEvent::StepWork { step, batch, batches, bucket, busy_ns, wait_ns, began_ns } => {
                let (batch, batches, bucket) = (*batch, u64::from(*batches), *bucket);
                let (busy_ns, wait_ns) = (*busy_ns as f64, *wait_ns as f64);
                self.on_device
                    .insert(*step, OnDevice { batch, batches, bucket, busy_ns, wait_ns, began_ns: *began_ns });
            }
            RunEvent::Stage { stage, batch, ns, busy_ns, wait_ns, spans } => {
                let work = Work { ns: *ns as f64, busy_ns: *busy_ns as f64, wait_ns: *wait_ns as f64 };
                if let Some(stage) = Stage::named(stage) {
                    self.works[stage as usize].insert(*batch, work);
                    if matches!(stage, Stage::Upload | Stage::Transfer) {
                        self.copies.extend(spans);
                    }
                }
            }
            RunEvent::HostWork { cpu_ns } => self.host.push((self.steps.len(), *cpu_ns)),
            RunEvent::ModelOnly { bucket, ns } => {
                self.headspace_ns.insert(*bucket, *ns as f64);
            }
            RunEvent::FeedSetting { threads, cores, ahead, slots, route } => {
                self.feed = Some((*threads, *cores, *ahead, *slots, route.clone()));
            }
            _ => {}
        }
    }

    fn into_facts(self) -> Facts {
        let setting = self.setting();
        let load = &self.works[Stage::Load as usize];
        let per_step = self.batches_per_step();
        let busy: Vec<f64> = load.values().map(|work| work.busy_ns * per_step as f64).collect();
        let counted = self.steps.iter().enumerate().skip(WARM_UP_STEPS);
        let steps = counted
            .filter(|(_, (step, t_ns, wall_ns, _))| {
                !self.pauses.cover(*step, t_ns - (*wall_ns as u64).min(*t_ns), *t_ns)
            })
            .map(|(i, step)| self.fact(i as u64, step, per_step, setting.threads))
            .collect();
        let stock = setting.ahead + setting.slots;
        Facts {
            steps: steady(steps, stock),
            headspace_ns: self.headspace_ns,
            setting,
            load_work_ns: mean_std(&busy),
            cpu_ns: cpu_per_step(&self.host),
            copies: self.copies,
            dropped: self.dropped,
        }
    }

    /// Gradient accumulation, where only the counts tell of it. More batches than steps may also be batches ahead.
    fn batches_per_step(&self) -> u64 {
        if let Some(work) = self.on_device.values().next_back() {
            return work.batches.max(1);
        }
        (self.works[Stage::Load as usize].len() as u64 / (self.steps.len() as u64).max(1)).max(1)
    }

    fn fact(&self, i: u64, step: &(u64, u64, f64, f64), per_step: u64, threads: f64) -> StepFact {
        let (step, _, wall_ns, host_wait_ns) = *step;
        let seen = self.on_device.get(&step);
        let (first, count) = seen.map_or((i * per_step, per_step), |seen| (seen.batch, seen.batches));
        let is_one_card = self.places.is_one_card();
        let wait_ns = match seen {
            // Waiting for one's turn on the card is waiting as well, but no batch was late.
            Some(seen) if is_one_card => seen.wait_ns.max(wall_ns - self.own_work_ns(seen)),
            Some(seen) => seen.wait_ns,
            None => host_wait_ns,
        };
        let wait_ns = wait_ns.min(wall_ns);
        let demand_ns = Stage::ALL.map(|stage| {
            let works = &self.works[stage as usize];
            let of_step = works.range(first..first + count).map(|(_, work)| match stage {
                Stage::Load => work.busy_ns / threads,
                _ => work.ns,
            });
            let of_step: Vec<f64> = of_step.collect();
            // A batch whose times nobody took is like those whose times were.
            let scale = count as f64 / of_step.len().max(1) as f64;
            (!of_step.is_empty()).then(|| of_step.iter().sum::<f64>() * scale)
        });
        let busy_ns = seen.map_or(wall_ns - wait_ns, |seen| seen.busy_ns);
        let at = seen.and_then(|seen| {
            let work = TimeSpan { began_ns: seen.began_ns?, ns: seen.busy_ns as u64 };
            let whole_ns = (wall_ns as u64).max(work.ns);
            let whole = TimeSpan { began_ns: work.ended_ns().saturating_sub(whole_ns), ns: whole_ns };
            Some(SteppedAt { whole, work })
        });
        StepFact { step, wall_ns, wait_ns, busy_ns, bucket: seen.map(|seen| seen.bucket), demand_ns, is_one_card, at }
    }

    /// What the step itself takes of its card. Kernels of the two roles run beside each other there, and then a step is at work
    /// for longer than it takes alone: what it takes alone is its own.
    fn own_work_ns(&self, seen: &OnDevice) -> f64 {
        match self.headspace_ns.get(&seen.bucket) {
            Some(alone_ns) if seen.busy_ns > STRETCHED * alone_ns => *alone_ns,
            _ => seen.busy_ns,
        }
    }

    fn setting(&self) -> FeedFacts {
        let places = self.places;
        match &self.feed {
            Some((threads, cores, ahead, slots, route)) => FeedFacts {
                threads: f64::from((*threads).max(1)),
                cores: Some(*cores),
                ahead: *ahead as usize,
                slots: *slots as usize,
                route: Some(route.clone()),
                places,
            },
            None => FeedFacts {
                threads: self.threads_at_work(),
                cores: None,
                ahead: USUAL_STOCK - 8,
                slots: 8,
                route: None,
                places,
            },
        }
    }

    /// As many threads as the work filled, where decoding was waited for; else as many as make it no matter.
    fn threads_at_work(&self) -> f64 {
        let load = &self.works[Stage::Load as usize];
        let wall_ns: f64 = self.steps.iter().map(|(_, _, wall_ns, _)| wall_ns).sum();
        let (busy_ns, wait_ns) =
            load.values().fold((0.0, 0.0), |(busy, wait), work| (busy + work.busy_ns, wait + work.wait_ns));
        if wait_ns < HARDLY * wall_ns || wall_ns <= 0.0 {
            return f64::INFINITY;
        }
        (busy_ns / wall_ns).max(1.0)
    }
}

/// The middle one of what was worked from each reading to the next, so that a checkpoint or a sample does not count.
fn cpu_per_step(host: &[(usize, u64)]) -> Option<f64> {
    let between = host.iter().zip(host.get(1..)?).filter(|((before, _), _)| *before >= WARM_UP_STEPS);
    let works: Vec<f64> = between
        .filter(|((before, _), (after, _))| after > before)
        .map(|((before, from_ns), (after, to_ns))| to_ns.saturating_sub(*from_ns) as f64 / (after - before) as f64)
        .collect();
    (!works.is_empty()).then(|| Summary::of(&works).p50)
}

/// Without the steps that lived on the batches made ahead, when more are left than that.
fn steady(steps: Vec<StepFact>, stock: usize) -> Vec<StepFact> {
    let waits = |step: &StepFact| step.wait_ns > 0.05 * step.wall_ns;
    let first = steps.iter().position(waits).unwrap_or(0);
    match first > stock || steps.len() - first < MIN_STEADY_STEPS {
        true => steps,
        false => steps.into_iter().skip(first).collect(),
    }
}

/// Validations, samples and checkpoints: steps beside them say nothing about the pipeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    steps: BTreeSet<u64>,
    /// Beginning and end, in the order of their ends.
    spans_ns: Vec<(u64, u64)>,
}

impl Pauses {
    /// Whether `record` is one.
    pub(crate) fn observe(&mut self, record: &Record) -> bool {
        let (step, ns) = match &record.event {
            RunEvent::Validated { step, .. } => (*step, 0),
            RunEvent::Checkpoint { step, ns, .. } | RunEvent::SampleWritten { step, ns, .. } => (*step, *ns),
            _ => return false,
        };
        // A step lasts from the end of the one before: what follows step N is in the time of N + 1.
        self.steps.extend([step, step + 1]);
        self.spans_ns.push((record.t_ns.saturating_sub(ns), record.t_ns));
        true
    }

    /// Whether a step of that number and time is beside one.
    pub(crate) fn cover(&self, step: u64, begin_ns: u64, end_ns: u64) -> bool {
        let from = self.spans_ns.partition_point(|(_, end)| *end < begin_ns);
        self.steps.contains(&step) || self.spans_ns[from..].iter().any(|(begin, _)| *begin <= end_ns)
    }

    /// Forgets what a step from number `step` on cannot meet.
    pub(crate) fn forget_before(&mut self, step: u64, t_ns: u64) {
        self.steps = self.steps.split_off(&step);
        self.spans_ns.retain(|(_, end)| *end >= t_ns);
    }
}
