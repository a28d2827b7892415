//! Jitter: variation of step times over the last 100 steps, and which stage causes it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use tandem_events::{Record, RunEvent};

use crate::facts::{Pauses, StepFact};
use crate::role_devices::RoleDevices;
use crate::stage::{Stage, StepPart};
use crate::stalls::attribute;
use crate::statistics::{Summary, mean_std, median, ratio};
use crate::warm_up::StepWarmUp;

/// Steps in the window.
pub(crate) const WINDOW: usize = 100;
/// Variation above this raises a warning.
pub(crate) const MAX_VARIATION: f64 = 0.30;
/// The warning can be raised again after the variation falls below this.
const CALM: f64 = 0.25;
/// Steps in the window before the first warning: half of it.
const MIN_STEPS: usize = WINDOW / 2;
/// Batches whose stage times are remembered: more than are ever prefetched.
const REMEMBERED: usize = 512;

/// Figures of the last steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterWindow {
    /// The last step.
    pub step: u64,
    /// Step times.
    pub step_ns: Summary,
    /// Steps per second.
    pub steps_per_s: f64,
    /// std ÷ mean of (step time ÷ model-only time of its bucket). A bucket without a model-only time uses the median busy time of
    /// the device; steps without a bucket use the step time itself.
    pub variation: f64,
    /// The part that varies most: the wait for a stage, or the step itself.
    pub varies: StepPart,
}

/// Step times vary too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterWarning(pub JitterWindow);

/// Watches step times. Give it every record of a run, in order.
///
/// The warm-up does not count: a cache that is being filled is not jitter. Steps with a validation, a sample or a checkpoint do not count, even if its record comes after them.
#[derive(Clone, Debug, Default)]
pub struct Jitter {
    window: VecDeque<TimedStep>,
    /// Stage times by batch; decoding divided by the threads.
    stages: BTreeMap<u64, [Option<f64>; 4]>,
    /// Model-only time of each bucket.
    model_only_ns: BTreeMap<u32, f64>,
    /// Device records of steps whose host record has not come yet.
    device_steps: BTreeMap<u64, DeviceStep>,
    threads: Option<u32>,
    devices: RoleDevices,
    pauses: Pauses,
    warm_up: StepWarmUp,
    epoch: u64,
    steps: u64,
    is_warned: bool,
}

#[derive(Clone, Copy, Debug)]
struct DeviceStep {
    batch: u64,
    bucket: u32,
    busy_ns: f64,
    wait_ns: f64,
}

#[derive(Clone, Debug)]
struct TimedStep {
    begin_ns: u64,
    end_ns: u64,
    fact: StepFact,
}

impl Jitter {
    /// Observes a record. Returns a warning when the variation first exceeds the threshold.
    pub fn observe(&mut self, record: &Record) -> Option<JitterWarning> {
        if self.pauses.observe(record) {
            let Jitter { window, pauses, .. } = self;
            window.retain(|timed| !pauses.cover(timed.fact.step, timed.begin_ns, timed.end_ns));
            return None;
        }
        self.devices.observe(&record.event);
        match &record.event {
            RunEvent::Stage { stage, batch, ns, busy_ns, .. } => self.stage(stage, *batch, *ns as f64, *busy_ns as f64),
            RunEvent::ModelOnly { bucket, ns } => drop(self.model_only_ns.insert(*bucket, *ns as f64)),
            RunEvent::FeedSetting { threads, .. } => self.threads = Some((*threads).max(1)),
            RunEvent::BufferWait { cached_from_epoch, .. } => {
                self.warm_up = StepWarmUp::new(*cached_from_epoch, record.t_ns);
            }
            RunEvent::StepMetrics { epoch, .. } => self.epoch = *epoch,
            RunEvent::StepWork { step, batch, bucket, busy_ns, wait_ns, .. } => {
                let (busy_ns, wait_ns) = (*busy_ns as f64, *wait_ns as f64);
                self.device_step(*step, DeviceStep { batch: *batch, bucket: *bucket, busy_ns, wait_ns });
            }
            RunEvent::Step { step, wall_ns, wait_ns } => {
                self.host_step(*step, record.t_ns, *wall_ns as f64, *wait_ns as f64);
                return self.warn();
            }
            _ => {}
        }
        None
    }

    /// Figures of the last steps; `None` before the first.
    pub fn window(&self) -> Option<JitterWindow> {
        let facts: Vec<&StepFact> = self.window.iter().map(|timed| &timed.fact).collect();
        window_of(&facts, &self.model_only_ns)
    }

    fn stage(&mut self, stage: &str, batch: u64, ns: f64, busy_ns: f64) {
        let Some(stage) = Stage::named(stage) else { return };
        // Without the number of threads, decoding counts from begin to end.
        let ns =
            if stage == Stage::Load { self.threads.map_or(ns, |threads| busy_ns / f64::from(threads)) } else { ns };
        self.stages.entry(batch).or_default()[stage as usize] = Some(ns);
        if self.stages.len() > REMEMBERED {
            self.stages.pop_first();
        }
    }

    fn device_step(&mut self, step: u64, device: DeviceStep) {
        match self.window.iter_mut().rev().find(|timed| timed.fact.step == step) {
            Some(TimedStep { fact, .. }) => {
                (fact.bucket, fact.busy_ns) = (Some(device.bucket), device.busy_ns);
                fact.wait_ns = device.wait_ns.min(fact.wall_ns);
            }
            None => drop(self.device_steps.insert(step, device)),
        }
    }

    fn host_step(&mut self, step: u64, end_ns: u64, wall_ns: f64, wait_ns: f64) {
        let begin_ns = end_ns.saturating_sub(wall_ns as u64);
        let device = self.device_steps.remove(&step);
        self.device_steps = self.device_steps.split_off(&step);
        let (batch, bucket) = (device.map_or(self.steps, |device| device.batch), device.map(|device| device.bucket));
        let wait_ns = device.map_or(wait_ns, |device| device.wait_ns).min(wall_ns);
        self.pauses.forget_before(step, begin_ns);
        let demand_ns = self.stages.get(&batch).copied().unwrap_or_default();
        self.steps += 1;
        if self.warm_up.covers(self.epoch, end_ns) || self.pauses.cover(step, begin_ns, end_ns) {
            return;
        }
        let fact = StepFact {
            step,
            wall_ns,
            wait_ns,
            busy_ns: device.map_or(wall_ns - wait_ns, |device| device.busy_ns),
            bucket,
            demand_ns,
            is_one_card: self.devices.is_one_card(),
            at: None,
        };
        self.window.push_back(TimedStep { begin_ns, end_ns, fact });
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
    }

    fn warn(&mut self) -> Option<JitterWarning> {
        if self.window.len() < MIN_STEPS {
            return None;
        }
        // All figures of the window cost a sort and more: compute them only for a warning.
        let variation = variation_of(self.window.iter().map(|timed| &timed.fact), &self.model_only_ns);
        let is_new = variation > MAX_VARIATION && !self.is_warned;
        self.is_warned = variation > MAX_VARIATION || (self.is_warned && variation > CALM);
        is_new.then(|| self.window().map(JitterWarning)).flatten()
    }
}

/// Figures of `steps`; `None` if there are none.
pub(crate) fn window_of(steps: &[&StepFact], model_only_ns: &BTreeMap<u32, f64>) -> Option<JitterWindow> {
    let last = steps.last()?;
    let walls: Vec<f64> = steps.iter().map(|step| step.wall_ns).collect();
    let step_ns = Summary::of(&walls);
    Some(JitterWindow {
        step: last.step,
        step_ns,
        steps_per_s: ratio(1e9, step_ns.mean),
        variation: variation_of(steps.iter().copied(), model_only_ns),
        varies: varies_most(steps),
    })
}

/// std ÷ mean of (step time ÷ model-only time of its bucket, or the median busy time); of the step time if a bucket is unknown.
fn variation_of<'a>(steps: impl Iterator<Item = &'a StepFact> + Clone, model_only_ns: &BTreeMap<u32, f64>) -> f64 {
    let without_time = |step: &&StepFact| step.bucket.is_none_or(|bucket| !model_only_ns.contains_key(&bucket));
    let median_ns = median_busy(steps.clone().filter(without_time));
    let relative = |step: &StepFact| {
        let bucket = step.bucket?;
        let alone = model_only_ns.get(&bucket).or_else(|| median_ns.get(&bucket));
        alone.filter(|ns| **ns > 0.0).map(|ns| step.wall_ns / ns)
    };
    // All or none: a mean must not mix times and ratios.
    let ratios: Option<Vec<f64>> = steps.clone().map(relative).collect();
    let (mean, std) = mean_std(&ratios.unwrap_or_else(|| steps.map(|step| step.wall_ns).collect()));
    ratio(std, mean)
}

/// The median busy time of `steps` for each bucket.
fn median_busy<'a>(steps: impl Iterator<Item = &'a StepFact>) -> BTreeMap<u32, f64> {
    let mut busy_ns: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for step in steps {
        step.bucket.into_iter().for_each(|bucket| busy_ns.entry(bucket).or_default().push(step.busy_ns));
    }
    busy_ns.into_iter().map(|(bucket, mut times)| (bucket, median(&mut times))).collect()
}

/// The part of the step time with the largest standard deviation.
fn varies_most(steps: &[&StepFact]) -> StepPart {
    let mean = Stage::ALL.map(|stage| {
        let times: Vec<f64> = steps.iter().filter_map(|step| step.demand_ns[stage as usize]).collect();
        mean_std(&times).0
    });
    let parts: Vec<[f64; 4]> = steps.iter().map(|step| attribute(step, &mean).by_stage_ns).collect();
    let of_stage = |stage: Stage| {
        let waits: Vec<f64> = parts.iter().map(|part| part[stage as usize]).collect();
        (StepPart::Waiting(stage), mean_std(&waits).1)
    };
    let trains: Vec<f64> = steps.iter().map(|step| step.train_ns()).collect();
    let train = (StepPart::Train, mean_std(&trains).1);
    Stage::ALL.map(of_stage).into_iter().fold(train, |most, next| if next.1 > most.1 { next } else { most }).0
}

impl fmt::Display for JitterWarning {
    /// `step time varies by 41 % (p50 12.1 ms, p99 60.3 ms over 100 steps): load varies most`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JitterWindow { step_ns, variation, varies, .. } = self.0;
        let [p50, p99] = [step_ns.p50, step_ns.p99].map(|ns| ns / 1e6);
        let (percent, count) = (100.0 * variation, step_ns.count);
        write!(
            f,
            "step time varies by {percent:.0} % (p50 {p50:.1} ms, p99 {p99:.1} ms over {count} steps): {varies} varies most"
        )
    }
}

#[cfg(test)]
mod tests {
    use tandem_events::VERSION;

    use super::*;

    /// 100 steps of two buckets, one four times as long as the other, without model-only times. Every tenth waits for `late_ms`.
    fn variation(late_ms: u64, with_work: bool) -> f64 {
        let mut jitter = Jitter::default();
        for step in 1..=100_u64 {
            let (bucket, wait_ms) = ((step % 2) as u32, if step.is_multiple_of(10) { late_ms } else { 0 });
            let busy_ns = [10, 40][bucket as usize] * 1_000_000;
            let wait_ns = wait_ms * 1_000_000;
            let work =
                RunEvent::StepWork { step, batch: step - 1, batches: 1, bucket, busy_ns, wait_ns, began_ns: None };
            let events =
                [Some(work).filter(|_| with_work), Some(RunEvent::Step { step, wall_ns: busy_ns + wait_ns, wait_ns })];
            for event in events.into_iter().flatten() {
                jitter.observe(&Record { v: VERSION, seq: step, t_ns: step * 50_000_000, dropped: 0, event });
            }
        }
        jitter.window().unwrap().variation
    }

    #[test]
    fn long_and_short_buckets_are_no_jitter_if_the_log_has_device_times() {
        assert_eq!(variation(0, true), 0.0);
        assert!(variation(0, false) > MAX_VARIATION, "step times alone do not show the bucket");
        assert!(variation(100, true) > MAX_VARIATION);
    }
}
