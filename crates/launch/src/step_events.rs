//! The events that a run emits for steps, validation and checkpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_checkpoint::WrittenCheckpoint;
use tandem_events::{Emitter, RunEvent};
use tandem_train::{DeviceTimes, StepReport, ValidationReport};

/// Steps from one reading of the host's work to the next.
const HOST_STEPS: u64 = 10;

/// Emits the events of a finished step. All times are the model device's: the host sees ends late, sometimes several at
/// once.
pub fn step(report: &StepReport, to: &Emitter) {
    let (step, epoch, lr, skipped) = (report.step, report.epoch, report.lr, report.skipped);
    let DeviceTimes { first_batch: batch, began_ns, busy_ns, wait_ns, wall_ns } = report.on_device;
    let (batches, bucket) = (report.buckets.len() as u32, first_bucket(report));
    // Before the `Step` event, so that a reader of that has everything.
    rank_waits(report, to);
    to.emit(RunEvent::StepWork { step, batch, batches, bucket, busy_ns, wait_ns, began_ns: Some(began_ns) });
    to.emit(RunEvent::Step { step, wall_ns, wait_ns });
    let (losses, gradient_norm) = (metrics(report.losses.iter()), number(report.gradient_norm.into()));
    to.emit(RunEvent::StepMetrics { step, epoch, losses, gradient_norm, lr, skipped });
    if let Some(cpu_ns) = report.cpu_ns.filter(|_| step.is_multiple_of(HOST_STEPS)) {
        to.emit(RunEvent::CpuTime { cpu_ns });
    }
}

/// Emits how long the ranks waited in the step before. The first step has none before it: ranks that started at different
/// times are not slow.
fn rank_waits(report: &StepReport, to: &Emitter) {
    if report.step > 1 && !report.rank_waits_ns.is_empty() {
        to.emit(RunEvent::RankWaits { step: report.step - 1, waited_ns: report.rank_waits_ns.clone() });
    }
}

/// Emits the model-only step time of each bucket: the median of `reports` from
/// [`StepLoop::model_only`](tandem_train::StepLoop::model_only). A normal run never measures it: it trains on the same batches
/// again and again.
pub fn model_only(reports: &[StepReport], to: &Emitter) {
    let mut by_bucket: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for report in reports {
        by_bucket.entry(first_bucket(report)).or_default().push(report.on_device.wall_ns);
    }
    for (bucket, mut times) in by_bucket {
        let middle = times.len() / 2;
        let (_, ns, _) = times.select_nth_unstable(middle);
        to.emit(RunEvent::ModelOnly { bucket, ns: *ns });
    }
}

fn first_bucket(report: &StepReport) -> u32 {
    report.buckets.first().map_or(0, |bucket| *bucket as u32)
}

/// Emits the result of a validation, with alignment errors if there are alignments.
pub fn validation(report: &ValidationReport, to: &Emitter) {
    let alignment = report.alignment.iter().flat_map(|alignment| {
        let (without, wrong) = (alignment.tokens_without_frames as f64, alignment.wrong_duration_sums as f64);
        [("tokens_without_frames", without), ("wrong_duration_sums", wrong)]
    });
    let metrics = metrics(report.metrics.iter().chain(alignment));
    to.emit(RunEvent::Validation { step: report.step, utterances: report.utterances as u64, metrics });
}

/// Emits that a checkpoint was written.
pub fn checkpoint(step: u64, written: &WrittenCheckpoint, took: Duration, to: &Emitter) {
    to.emit(RunEvent::Checkpoint { step, bytes: written.bytes, ns: took.as_nanos() as u64 });
}

fn metrics<'a>(named: impl Iterator<Item = (&'a str, f64)>) -> BTreeMap<String, Option<f64>> {
    named.map(|(name, value)| (name.to_owned(), number(value))).collect()
}

/// JSON has no NaN and no infinity.
fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use tandem_train::ReportedMetrics;

    use super::*;
    use crate::event_buffer::EventBuffer;

    fn emitted(emit: impl FnOnce(&Emitter)) -> Vec<RunEvent> {
        let buffer = EventBuffer::new(Emitter::none());
        emit(&buffer.emitter());
        buffer.take().into_iter().map(|record| record.event).collect()
    }

    fn report(bucket: usize, wall_ns: u64) -> StepReport {
        StepReport {
            step: 3,
            epoch: 0,
            buckets: vec![bucket, 0],
            losses: ReportedMetrics::new(["loss".to_owned()].to_vec().into(), vec![1.0]),
            gradient_norm: 1.0,
            lr: 1e-3,
            skipped: false,
            wall_ns: 1,
            wait_ns: 1,
            on_device: DeviceTimes { first_batch: 4, began_ns: 9, busy_ns: 70, wait_ns: 20, wall_ns },
            rank_waits_ns: Vec::new(),
            cpu_ns: Some(5),
        }
    }

    #[test]
    fn a_step_is_emitted_with_its_device_work_on_one_clock() {
        let events = emitted(|to| step(&report(2, 100), to));
        let began_ns = Some(9);
        let work = RunEvent::StepWork { step: 3, batch: 4, batches: 2, bucket: 2, busy_ns: 70, wait_ns: 20, began_ns };
        assert_eq!(events[..2], [work, RunEvent::Step { step: 3, wall_ns: 100, wait_ns: 20 }]);
        let has_host_work = |step_number| {
            let events = emitted(|to| step(&StepReport { step: step_number, ..report(2, 100) }, to));
            events.contains(&RunEvent::CpuTime { cpu_ns: 5 })
        };
        assert_eq!([3, 10, 11, 20].map(has_host_work), [false, true, false, true]);
    }

    #[test]
    fn the_waits_of_ranks_belong_to_the_step_before_and_come_ahead_of_the_step() {
        let events = |number, rank_waits_ns| {
            emitted(|to| step(&StepReport { step: number, rank_waits_ns, ..report(2, 100) }, to))
        };
        let waits = |event: &RunEvent| matches!(event, RunEvent::RankWaits { .. });
        let several = events(3, vec![5, 0]);
        let is_step = |event: &RunEvent| matches!(event, RunEvent::Step { .. });
        assert_eq!(several[0], RunEvent::RankWaits { step: 2, waited_ns: vec![5, 0] });
        assert!(several.iter().position(is_step) > Some(0), "{several:?}");
        assert!(!events(3, Vec::new()).iter().any(waits), "one rank waits for nobody");
        assert!(!events(1, vec![5, 0]).iter().any(waits), "no step before the first");
    }

    #[test]
    fn model_only_time_is_the_median_of_each_bucket() {
        let reports = [(1, 900), (0, 10), (0, 12), (0, 500)].map(|(bucket, ns)| report(bucket, ns));
        let events = emitted(|to| model_only(&reports, to));
        assert_eq!(events, [RunEvent::ModelOnly { bucket: 0, ns: 12 }, RunEvent::ModelOnly { bucket: 1, ns: 900 }]);
    }
}
