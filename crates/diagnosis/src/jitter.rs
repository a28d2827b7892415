//! Whether steps take turns being fast and slow: the last 100 of them, and what varies.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use tandem_events::{Record, RunEvent};

use crate::facts::{Pauses, StepFact};
use crate::places::Places;
use crate::stage::{Stage, StepPart};
use crate::stalls::attribute;
use crate::statistics::{Summary, mean_std, median, ratio};

/// Steps in the window.
pub(crate) const WINDOW: usize = 100;
/// Variation above this is warned of.
pub(crate) const MAX_VARIATION: f64 = 0.30;
/// A warning may come again once variation fell below this.
const CALM: f64 = 0.25;
/// Steps that must be in the window before anything is said: half of it.
const MIN_STEPS: usize = WINDOW / 2;
/// Batches whose stage times are remembered: more than are ever ahead of a step.
const REMEMBERED: usize = 512;

/// The last steps in figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterWindow {
    /// The last of them.
    pub step: u64,
    /// Their times.
    pub step_ns: Summary,
    /// How many there are in a second.
    pub steps_per_s: f64,
    /// std ÷ mean of step time ÷ model_only time of its bucket. Of a bucket whose model_only is not known, what the device
    /// usually works for it stands in; of step time itself where buckets are not known.
    pub variation: f64,
    /// What varies most: the wait for a stage, or the step itself.
    pub varies: StepPart,
}

/// Steps vary too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterWarning(pub JitterWindow);

/// Watches the time of steps. Give it every record of a run, in order.
///
/// Steps with a validation, a sample or a checkpoint are left out, also when that is told after them.
#[derive(Clone, Debug, Default)]
pub struct Jitter {
    window: VecDeque<Timed>,
    /// Time of a stage for a batch, as far as it is not decoding.
    stages: BTreeMap<u64, [Option<f64>; 4]>,
    headspace_ns: BTreeMap<u32, f64>,
    /// What the device told of steps that are not told of yet.
    on_device: BTreeMap<u64, OnDevice>,
    threads: Option<u32>,
    places: Places,
    pauses: Pauses,
    steps: u64,
    is_warned: bool,
}

#[derive(Clone, Copy, Debug)]
struct OnDevice {
    batch: u64,
    bucket: u32,
    busy_ns: f64,
    wait_ns: f64,
}

#[derive(Clone, Debug)]
struct Timed {
    begin_ns: u64,
    end_ns: u64,
    fact: StepFact,
}

impl Jitter {
    /// Takes a record; a warning when the window it completes varies too much and the one before did not.
    pub fn observe(&mut self, record: &Record) -> Option<JitterWarning> {
        if self.pauses.observe(record) {
            let Jitter { window, pauses, .. } = self;
            window.retain(|timed| !pauses.cover(timed.fact.step, timed.begin_ns, timed.end_ns));
            return None;
        }
        self.places.observe(&record.event);
        match &record.event {
            RunEvent::Stage { stage, batch, ns, busy_ns, .. } => self.stage(stage, *batch, *ns as f64, *busy_ns as f64),
            RunEvent::ModelOnly { bucket, ns } => drop(self.headspace_ns.insert(*bucket, *ns as f64)),
            RunEvent::FeedSetting { threads, .. } => self.threads = Some((*threads).max(1)),
            RunEvent::StepWork { step, batch, bucket, busy_ns, wait_ns, .. } => {
                let (busy_ns, wait_ns) = (*busy_ns as f64, *wait_ns as f64);
                let seen = OnDevice { batch: *batch, bucket: *bucket, busy_ns, wait_ns };
                self.on_device(*step, seen);
            }
            RunEvent::Step { step, wall_ns, wait_ns } => {
                self.step(*step, record.t_ns, *wall_ns as f64, *wait_ns as f64);
                return self.warn();
            }
            _ => {}
        }
        None
    }

    /// The last steps; none before there are any.
    pub fn window(&self) -> Option<JitterWindow> {
        let facts: Vec<&StepFact> = self.window.iter().map(|timed| &timed.fact).collect();
        window_of(&facts, &self.headspace_ns)
    }

    fn stage(&mut self, stage: &str, batch: u64, ns: f64, busy_ns: f64) {
        let Some(stage) = Stage::named(stage) else { return };
        // Without the number of threads, decoding is as late as it is from end to end.
        let ns =
            if stage == Stage::Load { self.threads.map_or(ns, |threads| busy_ns / f64::from(threads)) } else { ns };
        self.stages.entry(batch).or_default()[stage as usize] = Some(ns);
        if self.stages.len() > REMEMBERED {
            self.stages.pop_first();
        }
    }

    fn on_device(&mut self, step: u64, seen: OnDevice) {
        match self.window.iter_mut().rev().find(|timed| timed.fact.step == step) {
            Some(Timed { fact, .. }) => {
                (fact.bucket, fact.busy_ns) = (Some(seen.bucket), seen.busy_ns);
                fact.wait_ns = seen.wait_ns.min(fact.wall_ns);
            }
            None => drop(self.on_device.insert(step, seen)),
        }
    }

    fn step(&mut self, step: u64, end_ns: u64, wall_ns: f64, wait_ns: f64) {
        let begin_ns = end_ns.saturating_sub(wall_ns as u64);
        let seen = self.on_device.remove(&step);
        self.on_device = self.on_device.split_off(&step);
        let (batch, bucket) = (seen.map_or(self.steps, |seen| seen.batch), seen.map(|seen| seen.bucket));
        let wait_ns = seen.map_or(wait_ns, |seen| seen.wait_ns).min(wall_ns);
        self.pauses.forget_before(step, begin_ns);
        let demand_ns = self.stages.get(&batch).copied().unwrap_or_default();
        self.steps += 1;
        if self.steps == 1 || self.pauses.cover(step, begin_ns, end_ns) {
            return;
        }
        let fact = StepFact {
            step,
            wall_ns,
            wait_ns,
            busy_ns: seen.map_or(wall_ns - wait_ns, |seen| seen.busy_ns),
            bucket,
            demand_ns,
            is_one_card: self.places.is_one_card(),
            at: None,
        };
        self.window.push_back(Timed { begin_ns, end_ns, fact });
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
    }

    fn warn(&mut self) -> Option<JitterWarning> {
        if self.window.len() < MIN_STEPS {
            return None;
        }
        // The whole window costs a sort and more: only for one that is worth a warning.
        let variation = variation_of(self.window.iter().map(|timed| &timed.fact), &self.headspace_ns);
        let is_news = variation > MAX_VARIATION && !self.is_warned;
        self.is_warned = variation > MAX_VARIATION || (self.is_warned && variation > CALM);
        is_news.then(|| self.window().map(JitterWarning)).flatten()
    }
}

/// Figures of some steps; none of no steps.
pub(crate) fn window_of(steps: &[&StepFact], headspace_ns: &BTreeMap<u32, f64>) -> Option<JitterWindow> {
    let last = steps.last()?;
    let walls: Vec<f64> = steps.iter().map(|step| step.wall_ns).collect();
    let step_ns = Summary::of(&walls);
    Some(JitterWindow {
        step: last.step,
        step_ns,
        steps_per_s: ratio(1e9, step_ns.mean),
        variation: variation_of(steps.iter().copied(), headspace_ns),
        varies: what_varies(steps),
    })
}

/// std ÷ mean of step time ÷ model_only time of its bucket, or what stands in for it; of step time where a bucket is not known.
fn variation_of<'a>(steps: impl Iterator<Item = &'a StepFact> + Clone, headspace_ns: &BTreeMap<u32, f64>) -> f64 {
    let usual_ns = usual_busy(steps.clone().filter(|step| step.bucket.is_none_or(|b| !headspace_ns.contains_key(&b))));
    let measure = |step: &StepFact| {
        let bucket = step.bucket?;
        let alone = headspace_ns.get(&bucket).or_else(|| usual_ns.get(&bucket));
        alone.filter(|ns| **ns > 0.0).map(|ns| step.wall_ns / ns)
    };
    // All or none: a time and a ratio do not go into one mean.
    let measured: Option<Vec<f64>> = steps.clone().map(measure).collect();
    let (mean, std) = mean_std(&measured.unwrap_or_else(|| steps.map(|step| step.wall_ns).collect()));
    ratio(std, mean)
}

/// What the device works for a step of each bucket: the median of `steps`.
fn usual_busy<'a>(steps: impl Iterator<Item = &'a StepFact>) -> BTreeMap<u32, f64> {
    let mut busy_ns: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for step in steps {
        step.bucket.into_iter().for_each(|bucket| busy_ns.entry(bucket).or_default().push(step.busy_ns));
    }
    busy_ns.into_iter().map(|(bucket, mut times)| (bucket, median(&mut times))).collect()
}

/// The part of the step's time that deviates most.
fn what_varies(steps: &[&StepFact]) -> StepPart {
    let usual = Stage::ALL.map(|stage| {
        let times: Vec<f64> = steps.iter().filter_map(|step| step.demand_ns[stage as usize]).collect();
        mean_std(&times).0
    });
    let parts: Vec<[f64; 4]> = steps.iter().map(|step| attribute(step, &usual).by_stage_ns).collect();
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

    /// 100 steps of two buckets, one four times as long as the other, without a model_only. Every tenth waits for `late_ms`.
    fn variation(late_ms: u64, with_work: bool) -> f64 {
        let mut jitter = Jitter::default();
        for step in 1..=100_u64 {
            let (bucket, wait_ms) = ((step % 2) as u32, if step.is_multiple_of(10) { late_ms } else { 0 });
            let busy_ns = [10, 40][bucket as usize] * 1_000_000;
            let wait_ns = wait_ms * 1_000_000;
            let work =
                RunEvent::StepWork { step, batch: step - 1, batches: 1, bucket, busy_ns, wait_ns, began_ns: None };
            let told =
                [Some(work).filter(|_| with_work), Some(RunEvent::Step { step, wall_ns: busy_ns + wait_ns, wait_ns })];
            for event in told.into_iter().flatten() {
                jitter.observe(&Record { v: VERSION, seq: step, t_ns: step * 50_000_000, dropped: 0, event });
            }
        }
        jitter.window().unwrap().variation
    }

    #[test]
    fn long_and_short_buckets_are_no_jitter_where_the_device_tells_of_its_work() {
        assert_eq!(variation(0, true), 0.0);
        assert!(variation(0, false) > MAX_VARIATION, "times alone cannot tell");
        assert!(variation(100, true) > MAX_VARIATION);
    }
}
