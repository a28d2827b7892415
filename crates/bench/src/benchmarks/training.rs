//! `bench training`: the run itself, against what its model could do if batches were always there, and against its own
//! GEMMs.

use std::time::Instant;

use tandem_device::DeviceKind;
use tandem_events::Emitter;
use tandem_train::{StepLoop, StepReport};

use super::BenchError;
use super::spread::mean_and_variation;
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, Launched, Setup};
use tandem_launch::{Peak, Sampler};

/// Steps before anything is measured: self-tuning has found its threads, and a small corpus is in the cache.
const WARM_UP_ON_CARDS: usize = 300;
const WARM_UP_ELSEWHERE: usize = 2;

/// What a run did.
#[derive(Clone, Debug)]
pub struct TrainingReport {
    /// Steps that were measured.
    pub steps: usize,
    /// Steps per second.
    pub steps_per_s: f64,
    /// Steps per second of the same shapes with batches already there.
    pub model_only: f64,
    /// Standard deviation ÷ mean of (step time ÷ model-only time of its own shapes).
    pub variation: f64,
    /// The share of the time in which the host had no batch to step on.
    pub stall: f64,
    /// A step in the mean, with batches already there, and its GEMMs by themselves, in milliseconds.
    pub model_only_ms: f64,
    /// See above.
    pub gemms_ms: f64,
    /// Each card, by the driver's count of this process; none on the CPU.
    pub cards: Vec<Peak>,
    /// Parameters of the model.
    pub num_parameters: u64,
}

impl TrainingReport {
    /// Relative to model-only throughput.
    pub fn of_model_only(&self) -> f64 {
        self.steps_per_s / self.model_only
    }

    /// Of the floor: how many times as long as its GEMMs alone.
    pub fn of_gemms(&self) -> f64 {
        self.model_only_ms / self.gemms_ms
    }
}

/// Trains for `steps` steps without validations and checkpoints, then takes the same steps without a feed, then their GEMMs.
pub fn run(
    resolved: &Resolved,
    corpora: &Corpora,
    steps: usize,
    emitter: &Emitter,
) -> Result<TrainingReport, BenchError> {
    let (launched, _) = Setup::new(resolved, corpora, None, None, emitter)?.launch(&mut |_| {})?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles, num_parameters, mut trainer, .. } = launched;
    let kind = resolved.machine.kind();
    let sampler = (kind != DeviceKind::Cpu).then(|| Sampler::start(&resolved.machine, &roles, emitter)).transpose()?;
    let warm_up = if kind == DeviceKind::Cuda { WARM_UP_ON_CARDS } else { WARM_UP_ELSEWHERE };
    take(&mut trainer, warm_up)?;
    trainer.start_clock();
    let begun = Instant::now();
    let fed = take(&mut trainer, steps)?;
    let seconds = begun.elapsed().as_secs_f64();
    let shapes: Vec<Vec<usize>> = fed.iter().map(|report| report.buckets.clone()).collect();
    let alone = trainer.model_only(&shapes)?;
    let cards = sampler.map_or(Ok(Vec::new()), Sampler::finish)?;
    let gemms_ms = gemms_ms(&trainer, &shapes)?;
    trainer.stop()?;
    Ok(TrainingReport {
        steps,
        steps_per_s: steps as f64 / seconds,
        model_only: 1e3 / mean_ms(&alone),
        variation: variation(&fed, &alone),
        stall: fed.iter().map(|report| report.wait_ns).sum::<u64>() as f64 / 1e9 / seconds,
        model_only_ms: mean_ms(&alone),
        gemms_ms,
        cards,
        num_parameters,
    })
}

fn take(trainer: &mut StepLoop, steps: usize) -> Result<Vec<StepReport>, BenchError> {
    let mut reports = Vec::with_capacity(steps);
    for _ in 0..steps {
        reports.extend(trainer.advance()?);
    }
    reports.extend(trainer.drain()?);
    Ok(reports)
}

/// What a mean step's GEMMs take: each shape is timed once.
fn gemms_ms(trainer: &StepLoop, steps: &[Vec<usize>]) -> Result<f64, BenchError> {
    let mut of_shape = std::collections::BTreeMap::new();
    let mut sum = 0.0;
    for shapes in steps {
        for &shape in shapes {
            let us = match of_shape.get(&shape) {
                Some(us) => *us,
                None => *of_shape.entry(shape).or_insert(trainer.time_gemms(shape)?),
            };
            // Of all batches of a step, one.
            sum += us / shapes.len() as f64;
        }
    }
    Ok(sum / 1e3 / steps.len().max(1) as f64)
}

fn mean_ms(reports: &[StepReport]) -> f64 {
    let (mean, _) = mean_and_variation(&reports.iter().map(|report| report.wall_ns as f64).collect::<Vec<_>>());
    mean / 1e6
}

/// Long and short shapes are not jitter: a step is compared with what its own shapes take without a feed.
fn variation(fed: &[StepReport], alone: &[StepReport]) -> f64 {
    let usual = |shapes: &[usize]| {
        let alike = alone.iter().filter(|report| report.buckets == shapes).map(|report| report.wall_ns as f64);
        mean_and_variation(&alike.collect::<Vec<_>>()).0
    };
    let shares = fed.iter().map(|report| report.wall_ns as f64 / usual(&report.buckets).max(1.0));
    mean_and_variation(&shares.collect::<Vec<_>>()).1
}

#[cfg(test)]
mod tests {
    use tandem_train::ReportedMetrics;

    use super::*;

    fn report(bucket: usize, wall_ns: u64) -> StepReport {
        StepReport {
            step: 1,
            epoch: 0,
            buckets: vec![bucket],
            losses: ReportedMetrics::new(["loss".to_owned()].into(), vec![0.0]),
            gradient_norm: 0.0,
            lr: 0.0,
            skipped: false,
            wall_ns,
            wait_ns: 0,
            on_device: tandem_train::DeviceTimes::default(),
            rank_waits_ns: Vec::new(),
            cpu_ns: None,
        }
    }

    #[test]
    fn long_and_short_shapes_are_no_jitter() {
        let alone = [report(0, 10), report(1, 30), report(0, 10), report(1, 30)];
        let fed = |walls: [u64; 4]| {
            walls.into_iter().zip([0, 1, 0, 1]).map(|(wall, at)| report(at, wall)).collect::<Vec<_>>()
        };
        assert_eq!(variation(&fed([11, 33, 11, 33]), &alone), 0.0);
        assert!(variation(&fed([11, 33, 22, 33]), &alone) > 0.3);
        assert_eq!(mean_ms(&alone), 20.0 / 1e6);
    }
}
