//! Stall attribution: which stage the model stream waited for, per step and in total.
//!
//! A step computes for t and waits for W. A stage that takes longer than t for a batch is late by the difference. The step does
//! not wait for a faster stage, because batches are prefetched. On one card features take turns with the step, and a waiting
//! step waits for all of their time. The wait is split into layers between t and the latest stage; the stages that reach a
//! layer share it equally. So the parts add up to the wait, and equally slow stages get equal parts.

use crate::facts::{Facts, StepFact};
use crate::stage::Stage;
use crate::statistics::{Summary, ratio};

/// The stall of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStall {
    /// Step number.
    pub step: u64,
    /// From the end of the previous step to the end of this one.
    pub wall_ns: f64,
    /// How long the model stream waited.
    pub wait_ns: f64,
    /// The wait by stage, in the order of [`Stage::ALL`]. The parts add up to `wait_ns`.
    pub by_stage_ns: [f64; 4],
    /// How long it would have waited if this stage were the only slow one.
    pub alone_ns: [f64; 4],
}

/// The stall that one stage caused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// The stage.
    pub stage: Stage,
    /// Time waited for it, over all steps. The stages add up to the total.
    pub wait_ns: f64,
    /// The same as a share of the time of all steps.
    pub share: f64,
    /// The share if this stage were the only slow one.
    pub alone_share: f64,
    /// Its time for a step's batches; decoding divided by the threads. Zeros if the log has no times for it.
    pub time_ns: Summary,
}

/// The stalls of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Stalls {
    /// Each step that counts.
    pub steps: Vec<StepStall>,
    /// Each stage, in order.
    pub stages: [Stall; 4],
    /// Time waited, as a share of the time of all steps.
    pub share: f64,
}

impl Stalls {
    pub(crate) fn of(facts: &Facts) -> Stalls {
        let times: [Vec<f64>; 4] =
            Stage::ALL.map(|stage| facts.steps.iter().filter_map(|step| step.demand_ns[stage as usize]).collect());
        let time_ns = times.map(|times| Summary::of(&times));
        let mean = time_ns.map(|time| time.mean);
        let steps: Vec<StepStall> = facts.steps.iter().map(|step| attribute(step, &mean)).collect();
        let wall_ns: f64 = steps.iter().map(|step| step.wall_ns).sum();
        let sum = |of: &dyn Fn(&StepStall) -> f64| steps.iter().map(of).sum::<f64>();
        let stages = Stage::ALL.map(|stage| {
            let wait_ns = sum(&|step| step.by_stage_ns[stage as usize]);
            let alone_ns = sum(&|step| step.alone_ns[stage as usize]);
            Stall {
                stage,
                wait_ns,
                share: ratio(wait_ns, wall_ns),
                alone_share: ratio(alone_ns, wall_ns),
                time_ns: time_ns[stage as usize],
            }
        });
        let share = ratio(sum(&|step| step.wait_ns), wall_ns);
        Stalls { steps, stages, share }
    }
}

/// Attributes the wait of `step` to stages. A stage without a time for it gets its `mean`.
pub(crate) fn attribute(step: &StepFact, mean: &[f64; 4]) -> StepStall {
    let own = Stage::ALL.map(|stage| step.demand_ns[stage as usize].unwrap_or(mean[stage as usize]));
    let by_own = late(&own, step);
    // A fast batch that was still late came after slow ones: then the mean times decide.
    let by_mean = late(mean, step);
    let latest = |late: &[f64; 4]| late.iter().copied().fold(0.0, f64::max);
    let late = match (latest(&by_own) > 0.0, latest(&by_mean) > 0.0) {
        (true, _) => by_own,
        (false, true) => by_mean,
        (false, false) => only_the_slowest(&own),
    };
    let scale = ratio(step.wait_ns, latest(&late));
    StepStall {
        step: step.step,
        wall_ns: step.wall_ns,
        wait_ns: step.wait_ns,
        by_stage_ns: shares(&late).map(|share| share * scale),
        alone_ns: Stage::ALL.map(|stage| match (stage, step.is_one_card) {
            // Features that take turns with the step never cost more than their own time.
            (Stage::Features, true) => late[stage as usize] * scale.min(1.0),
            _ => late[stage as usize] * scale,
        }),
    }
}

/// How long `step` would wait for each stage if it were the only slow one.
fn late(demand_ns: &[f64; 4], step: &StepFact) -> [f64; 4] {
    Stage::ALL.map(|stage| match (stage, step.is_one_card) {
        // They take turns on the card: the step waits for all of their time.
        (Stage::Features, true) => demand_ns[stage as usize],
        _ => (demand_ns[stage as usize] - step.train_ns()).max(0.0),
    })
}

fn only_the_slowest(demand_ns: &[f64; 4]) -> [f64; 4] {
    let slowest = Stage::ALL.into_iter().max_by(|a, b| demand_ns[*a as usize].total_cmp(&demand_ns[*b as usize]));
    Stage::ALL.map(|stage| if Some(stage) == slowest { 1.0 } else { 0.0 })
}

/// Splits the lateness into layers; all stages that are later than a layer share it equally.
fn shares(late: &[f64; 4]) -> [f64; 4] {
    let mut levels = *late;
    levels.sort_by(f64::total_cmp);
    let mut parts = [0.0; 4];
    let mut below = 0.0;
    for (i, level) in levels.into_iter().enumerate() {
        let layer = (level - below) / (4 - i) as f64;
        late.iter().zip(&mut parts).filter(|(late, _)| **late >= level).for_each(|(_, part)| *part += layer);
        below = level;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the attribution of a step that computes for 10 and waits for `wait`, with stage times `demand`.
    fn check(demand: [f64; 4], wait: f64, by_stage: [f64; 4], alone: [f64; 4]) {
        let step = StepFact { wall_ns: 10.0 + wait, wait_ns: wait, demand_ns: demand.map(Some), ..StepFact::default() };
        let stall = attribute(&step, &demand);
        assert_eq!((stall.by_stage_ns, stall.alone_ns), (by_stage, alone), "{demand:?} {wait}");
        assert!((stall.by_stage_ns.iter().sum::<f64>() - wait).abs() < 1e-9, "parts add up");
    }

    #[test]
    fn the_step_waits_only_for_stages_slower_than_itself() {
        check([5.0, 1.0, 8.0, 9.0], 0.0, [0.0; 4], [0.0; 4]);
        check([30.0, 1.0, 8.0, 9.0], 20.0, [20.0, 0.0, 0.0, 0.0], [20.0, 0.0, 0.0, 0.0]);
        check([9.0, 1.0, 18.0, 2.0], 8.0, [0.0, 0.0, 8.0, 0.0], [0.0, 0.0, 8.0, 0.0]);
    }

    #[test]
    fn two_slow_stages_share_the_wait_they_both_cause() {
        check([20.0, 1.0, 16.0, 1.0], 10.0, [7.0, 0.0, 3.0, 0.0], [10.0, 0.0, 6.0, 0.0]);
        check([20.0, 1.0, 1.0, 20.0], 10.0, [5.0, 0.0, 0.0, 5.0], [10.0, 0.0, 0.0, 10.0]);
    }

    #[test]
    fn on_one_card_features_cost_all_of_their_time() {
        let demand_ns = [20.0, 1.0, 8.0, 0.0].map(Some);
        let step = StepFact { wall_ns: 20.0, wait_ns: 10.0, demand_ns, is_one_card: true, ..StepFact::default() };
        let stall = attribute(&step, &[0.0; 4]);
        assert_eq!((stall.by_stage_ns, stall.alone_ns), ([6.0, 0.0, 4.0, 0.0], [10.0, 0.0, 8.0, 0.0]));
    }

    #[test]
    fn an_unexplained_wait_goes_to_the_slowest_stage() {
        check([3.0, 1.0, 8.0, 1.0], 2.0, [0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 2.0, 0.0]);
    }
}
