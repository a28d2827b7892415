//! Replays the steps of a log with other buffer sizes. The cost of bursts does not follow from a mean and a standard deviation.

use crate::facts::StepFact;
use crate::flow::{Flow, HOST_BUFFERS, UPLOAD_BUFFERS};
use crate::stage::Stage;

/// Steps per second if the batches of `steps` keep their stage times and order, with buffers of `ahead` and `slots` batches.
/// A stage without a time for a batch takes its mean time.
pub(crate) fn steps_per_s(steps: &[StepFact], flow: &Flow, ahead: usize, slots: usize) -> f64 {
    let mean = [flow.load_work.shared_by(flow.threads), flow.upload, flow.features, flow.transfer];
    let buffers = [HOST_BUFFERS as usize, UPLOAD_BUFFERS as usize, ahead, slots];
    // When each stage, and last the step, finished each batch.
    let mut done: [Vec<f64>; 5] = Default::default();
    for (at, step) in steps.iter().enumerate() {
        let mut ready = 0.0;
        for stage in 0..5 {
            let takes = match Stage::ALL.get(stage) {
                Some(_) => step.demand_ns[stage].unwrap_or(mean[stage].mean_ns),
                None => step.train_ns(),
            };
            let own = done[stage].last().copied().unwrap_or(0.0);
            // A buffer is free once the next stage has started the batch `size` batches before this one.
            let free = buffers.get(stage).and_then(|size| done[stage + 1].get(at.checked_sub(size + 1)?)).copied();
            let begin = f64::max(ready, own).max(free.unwrap_or(0.0));
            ready = begin + takes;
            done[stage].push(ready);
        }
    }
    let end = done[4].last().copied().unwrap_or(0.0);
    if end > 0.0 { 1e9 * steps.len() as f64 / end } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::ServiceTime;

    /// 100 steps of 10 ms, every tenth batch decoded in `burst_ms`. Checks the achieved share of the model-only throughput.
    fn check(burst_ms: f64, ahead: usize, range: std::ops::Range<f64>) {
        let step = |i: usize| StepFact {
            wall_ns: 10e6,
            demand_ns: [Some(if i % 10 == 9 { burst_ms * 1e6 } else { 1e6 }), None, None, None],
            ..StepFact::default()
        };
        let steps: Vec<StepFact> = (0..100).map(step).collect();
        let none = ServiceTime::NONE;
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
    fn a_buffer_absorbs_bursts_up_to_its_size_but_not_a_slow_mean() {
        check(1.0, 1, 0.98..1.0);
        check(95.0, 1, 0.6..0.9);
        check(95.0, 20, 0.95..1.0);
        check(191.0, 50, 0.45..0.55);
    }
}
