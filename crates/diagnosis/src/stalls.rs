//! What the model stream waited for: per step, and in sums.
//!
//! A step works for t and waits for W. A stage that takes longer than t for a batch is late by the difference; one that
//! takes less is not waited for, because batches are made ahead; but on one card features take turns with the step, and
//! when it waits it waits for all of them. The wait is laid out in layers between t and the latest
//! stage, each shared by the stages that reach it: parts add up to the whole, and equally slow stages get equal parts.

use crate::facts::{Facts, StepFact};
use crate::stage::Stage;
use crate::statistics::{Summary, ratio};

/// What one step waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStall {
    /// The step.
    pub step: u64,
    /// From the end of the step before to the end of this one.
    pub wall_ns: f64,
    /// The model stream waited.
    pub wait_ns: f64,
    /// For which stage, in the order of [`Stage::ALL`]; the parts add up to the wait.
    pub by_stage_ns: [f64; 4],
    /// How long it would have waited if this stage were the only slow one.
    pub alone_ns: [f64; 4],
}

/// What one stage cost the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// The stage.
    pub stage: Stage,
    /// Waited for it, in all steps; the stages' add up to the whole.
    pub wait_ns: f64,
    /// That, as a share of the time of all steps.
    pub share: f64,
    /// The share there would be if this stage were the only slow one.
    pub alone_share: f64,
    /// Its time for a step's batches; decoding divided by its threads. Zeros where the log has nothing of it.
    pub time_ns: Summary,
}

/// What the run waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct Stalls {
    /// Each step that counts.
    pub steps: Vec<StepStall>,
    /// Each stage, in order.
    pub stages: [Stall; 4],
    /// Waited, as a share of the time of all steps.
    pub share: f64,
}

impl Stalls {
    pub(crate) fn of(facts: &Facts) -> Stalls {
        let times: [Vec<f64>; 4] =
            Stage::ALL.map(|stage| facts.steps.iter().filter_map(|step| step.demand_ns[stage as usize]).collect());
        let time_ns = times.map(|times| Summary::of(&times));
        let usual = time_ns.map(|time| time.mean);
        let steps: Vec<StepStall> = facts.steps.iter().map(|step| attribute(step, &usual)).collect();
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

/// What `step` waited for; a stage whose time for it is not known took the `usual` one.
pub(crate) fn attribute(step: &StepFact, usual: &[f64; 4]) -> StepStall {
    let own = Stage::ALL.map(|stage| step.demand_ns[stage as usize].unwrap_or(usual[stage as usize]));
    let by_own = late(&own, step);
    // A batch that was quick itself, and still late, came after ones that were not: then what is usual is to blame.
    let by_usual = late(usual, step);
    let latest = |late: &[f64; 4]| late.iter().copied().fold(0.0, f64::max);
    let late = match (latest(&by_own) > 0.0, latest(&by_usual) > 0.0) {
        (true, _) => by_own,
        (false, true) => by_usual,
        (false, false) => only_the_slowest(&own),
    };
    let scale = ratio(step.wait_ns, latest(&late));
    StepStall {
        step: step.step,
        wall_ns: step.wall_ns,
        wait_ns: step.wait_ns,
        by_stage_ns: shares(&late).map(|share| share * scale),
        alone_ns: Stage::ALL.map(|stage| match (stage, step.is_one_card) {
            // Features that take turns with the step never cost more than they take.
            (Stage::Features, true) => late[stage as usize] * scale.min(1.0),
            _ => late[stage as usize] * scale,
        }),
    }
}

/// How long `step` would wait for each stage if it were the only slow one.
fn late(demand_ns: &[f64; 4], step: &StepFact) -> [f64; 4] {
    Stage::ALL.map(|stage| match (stage, step.is_one_card) {
        // They take turns on the card: the step waits for all of it.
        (Stage::Features, true) => demand_ns[stage as usize],
        _ => (demand_ns[stage as usize] - step.train_ns()).max(0.0),
    })
}

fn only_the_slowest(demand_ns: &[f64; 4]) -> [f64; 4] {
    let slowest = Stage::ALL.into_iter().max_by(|a, b| demand_ns[*a as usize].total_cmp(&demand_ns[*b as usize]));
    Stage::ALL.map(|stage| if Some(stage) == slowest { 1.0 } else { 0.0 })
}

/// Layer by layer: what lies between two latenesses is shared by all that are later.
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

    /// A step that works for 10 and waits for `wait`, whose batch took `demand`; what it waited for.
    fn check(demand: [f64; 4], wait: f64, by_stage: [f64; 4], alone: [f64; 4]) {
        let step = StepFact { wall_ns: 10.0 + wait, wait_ns: wait, demand_ns: demand.map(Some), ..StepFact::default() };
        let stall = attribute(&step, &demand);
        assert_eq!((stall.by_stage_ns, stall.alone_ns), (by_stage, alone), "{demand:?} {wait}");
        assert!((stall.by_stage_ns.iter().sum::<f64>() - wait).abs() < 1e-9, "parts add up");
    }

    #[test]
    fn only_what_is_slower_than_the_step_is_waited_for() {
        check([5.0, 1.0, 8.0, 9.0], 0.0, [0.0; 4], [0.0; 4]);
        check([30.0, 1.0, 8.0, 9.0], 20.0, [20.0, 0.0, 0.0, 0.0], [20.0, 0.0, 0.0, 0.0]);
        check([9.0, 1.0, 18.0, 2.0], 8.0, [0.0, 0.0, 8.0, 0.0], [0.0, 0.0, 8.0, 0.0]);
    }

    #[test]
    fn two_slow_stages_share_what_both_cost_and_are_both_seen() {
        check([20.0, 1.0, 16.0, 1.0], 10.0, [7.0, 0.0, 3.0, 0.0], [10.0, 0.0, 6.0, 0.0]);
        check([20.0, 1.0, 1.0, 20.0], 10.0, [5.0, 0.0, 0.0, 5.0], [10.0, 0.0, 0.0, 10.0]);
    }

    #[test]
    fn on_one_card_features_cost_all_they_take() {
        let demand_ns = [20.0, 1.0, 8.0, 0.0].map(Some);
        let step = StepFact { wall_ns: 20.0, wait_ns: 10.0, demand_ns, is_one_card: true, ..StepFact::default() };
        let stall = attribute(&step, &[0.0; 4]);
        assert_eq!((stall.by_stage_ns, stall.alone_ns), ([6.0, 0.0, 4.0, 0.0], [10.0, 0.0, 8.0, 0.0]));
    }

    #[test]
    fn a_wait_nobody_owns_up_to_goes_to_the_slowest() {
        check([3.0, 1.0, 8.0, 1.0], 2.0, [0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 2.0, 0.0]);
    }
}
