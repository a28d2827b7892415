//! The steps of a log once more, with other buffers: what bursts cost cannot be told from a mean and a deviation.

use crate::facts::StepFact;
use crate::flow::{Flow, HOST_PLACES, UPLOAD_PLACES};
use crate::stage::Stage;

/// Steps in a second when the batches of `steps` take what they took, in the same order, through `ahead` and `slots`
/// places. A stage whose time for a batch is not known takes what it takes in the mean.
pub(crate) fn steps_per_s(steps: &[StepFact], flow: &Flow, ahead: usize, slots: usize) -> f64 {
    let usual = [flow.load_work.shared_by(flow.threads), flow.upload, flow.features, flow.transfer];
    let places = [HOST_PLACES as usize, UPLOAD_PLACES as usize, ahead, slots];
    // When each stage, the step last, was done with each batch.
    let mut done: [Vec<f64>; 5] = Default::default();
    for (at, step) in steps.iter().enumerate() {
        let mut ready = 0.0;
        for stage in 0..5 {
            let takes = match Stage::ALL.get(stage) {
                Some(_) => step.demand_ns[stage].unwrap_or(usual[stage].mean_ns),
                None => step.train_ns(),
            };
            let own = done[stage].last().copied().unwrap_or(0.0);
            // Room: the stage behind has begun with the batch that many places ahead of this one.
            let room = places.get(stage).and_then(|places| done[stage + 1].get(at.checked_sub(places + 1)?)).copied();
            let begins = f64::max(ready, own).max(room.unwrap_or(0.0));
            ready = begins + takes;
            done[stage].push(ready);
        }
    }
    let end = done[4].last().copied().unwrap_or(0.0);
    if end > 0.0 { 1e9 * steps.len() as f64 / end } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Time;

    /// 100 steps of 10 ms, every tenth batch decoded in `burst_ms`; the share of the ceiling that is kept.
    fn check(burst_ms: f64, ahead: usize, range: std::ops::Range<f64>) {
        let step = |i: usize| StepFact {
            wall_ns: 10e6,
            demand_ns: [Some(if i % 10 == 9 { burst_ms * 1e6 } else { 1e6 }), None, None, None],
            ..StepFact::default()
        };
        let steps: Vec<StepFact> = (0..100).map(step).collect();
        let none = Time::NONE;
        let flow = Flow {
            load_work: none,
            threads: 1.0,
            upload: none,
            features: none,
            transfer: none,
            train: none,
            ahead,
            slots: 1,
            is_one_card: false,
            host_work_ns: 0.0,
            cores: f64::INFINITY,
        };
        let rate = steps_per_s(&steps, &flow, ahead, 1);
        assert!(range.contains(&(rate / 100.0)), "{burst_ms} {ahead}: {rate}");
    }

    #[test]
    fn a_buffer_helps_against_bursts_as_far_as_it_goes_and_not_against_the_mean() {
        check(1.0, 1, 0.98..1.0);
        check(95.0, 1, 0.6..0.9);
        check(95.0, 20, 0.95..1.0);
        check(191.0, 50, 0.45..0.55);
    }
}
