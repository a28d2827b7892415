//! Verdicts and predictions over simulated pipelines whose faults are known.

use std::collections::BTreeSet;

use tandem_diagnosis::{Diagnosis, Stage, VerdictKind};
use tandem_events::{Record, RunEvent};

use crate::simulator::{self, Random, SimPipeline};

/// Cases with a share this close to a threshold are not used.
const UNCLEAR: f64 = 0.05;

/// The expected verdicts of a line, from its injected faults without noise and buffers. `None` if a share is close to a threshold.
fn expected_verdicts(line: &SimPipeline) -> Option<BTreeSet<VerdictKind>> {
    let load = line.load_ms / line.threads.min(line.cores) as f64;
    let transfer = if line.route == "handover" { 0.0 } else { line.transfer_ms };
    let (features, train) = (line.features_ms, line.train_ms);
    let busy = if line.is_one_card() { features + train } else { train.max(features) };
    let step = [load, line.upload_ms, transfer].into_iter().fold(busy, f64::max);
    let late = |ms: f64| (ms - train).max(0.0) / step;
    let features_share = if line.is_one_card() { features / step } else { late(features) };
    use VerdictKind::*;
    let margins = [
        (DataLoading, late(load) - 0.20),
        (GpuPreprocess, features_share - 0.15),
        (GpuTransfer, late(line.upload_ms).max(late(transfer)) - 0.15),
        (UnderutilizedGpu, 0.50 - train / step),
        (LowModelGpuUtil, 0.70 - train / step),
        (DataGpuOverloaded, features.max(line.upload_ms) / step - 0.80),
    ];
    let is_clear = margins.iter().all(|(_, over)| over.abs() > UNCLEAR);
    is_clear.then(|| margins.into_iter().filter(|(_, over)| *over > 0.0).map(|(kind, _)| kind).collect())
}

/// std ÷ mean of (step time ÷ model-only time of its bucket), once the prefetched batches are used up.
fn variation(line: &SimPipeline, log: &[Record]) -> f64 {
    let walls = log.iter().filter_map(|record| match &record.event {
        RunEvent::Step { wall_ns, .. } => Some(*wall_ns as f64),
        _ => None,
    });
    let lengths = log.iter().filter_map(|record| match &record.event {
        RunEvent::StepWork { bucket, .. } => Some(simulator::BUCKETS[*bucket as usize]),
        _ => None,
    });
    let from = line.ahead + line.slots + 10;
    let times: Vec<f64> = walls.zip(lengths).skip(from).map(|(wall_ns, length)| wall_ns / length).collect();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / times.len() as f64).sqrt() / mean
}

/// A random line whose stages `slow` are slower than the step.
fn draw(random: &mut Random, slow: &[usize], is_one_card: bool) -> (SimPipeline, BTreeSet<VerdictKind>) {
    for _ in 0..10_000 {
        let mut line = SimPipeline::quick(random.between(4.0, 40.0));
        line.cv = [0.0, 0.05, 0.15, 0.3][random.below(4)];
        line.threads = 1 + random.below(6);
        line.cores = [line.threads, 16, 32][random.below(3)];
        line.ahead = [6, 12, 25, 50][random.below(4)];
        line.slots = 3 + random.below(4);
        line.route = ["peer", "bounce"][random.below(2)];
        let mut ms = |i: usize| {
            let factor = if slow.contains(&i) { random.between(1.2, 4.0) } else { random.between(0.02, 0.7) };
            line.train_ms * factor
        };
        let [load, upload, features, transfer] = [ms(0), ms(1), ms(2), ms(3)];
        line.load_ms = load * line.threads as f64;
        (line.upload_ms, line.features_ms, line.transfer_ms) = (upload, features, transfer);
        if is_one_card {
            line.cards = [0, 0];
            line.is_step_first = random.below(2) == 0;
            line.route = ["handover", "bounce"][random.below(2)];
            line.features_ms *= if slow.contains(&2) { 0.6 } else { 0.1 };
        }
        if let Some(expected) = expected_verdicts(&line) {
            return (line, expected);
        }
    }
    panic!("no clear case of {slow:?}");
}

const SLOW: [&[usize]; 11] = [&[], &[0], &[1], &[2], &[3], &[0, 1], &[0, 2], &[0, 3], &[1, 2], &[2, 3], &[1, 3]];

/// Number of correct cases, and descriptions of the others.
struct Score {
    right: usize,
    wrong: Vec<String>,
}

impl Score {
    fn count(&mut self, is_right: bool, describe: impl FnOnce() -> String) {
        match is_right {
            true => self.right += 1,
            false => self.wrong.push(describe()),
        }
    }

    /// At least 95 % must be correct.
    fn check(&self, name: &str) {
        let cases = self.right + self.wrong.len();
        println!("{name}: {} of {cases}", self.right);
        assert!(
            cases > 50 && 20 * self.right >= 19 * cases,
            "{name}: {} of {cases}\n{}",
            self.right,
            self.wrong.join("\n")
        );
    }
}

#[test]
fn verdicts_are_right_and_predictions_come_true() {
    let [mut verdicts, mut predictions, mut bounds] = [const { Score { right: 0, wrong: Vec::new() } }; 3];
    let mut changes = BTreeSet::new();
    for seed in 0..396_u64 {
        let random = &mut Random::new(seed);
        let (line, expected) = draw(random, SLOW[seed as usize % SLOW.len()], seed % 3 == 2);
        let log = line.run(seed, [105, 300][random.below(2)]);
        let diagnosis = Diagnosis::of(&log).unwrap();
        let mut found: BTreeSet<VerdictKind> = diagnosis.verdicts.iter().map(|verdict| verdict.kind).collect();
        // Late stages cause oscillation as well. It must match the measured variation, unless that is close to the threshold.
        let variation = variation(&line, &log);
        let is_right =
            found.remove(&VerdictKind::Oscillation) == (variation > 0.30) || (variation - 0.30).abs() < UNCLEAR;
        let describe = || format!("seed {seed}: {found:?}, expected {expected:?}\n{line:?}\n{:#?}", diagnosis.lines());
        verdicts.count(is_right && found == expected, describe);
        let Some(advice) = diagnosis.verdicts.iter().find_map(|verdict| verdict.advice) else { continue };
        let measured = line.with(advice.change).steps_per_s(seed + 1000);
        let score = if advice.is_upper_bound { &mut bounds } else { &mut predictions };
        let describe =
            || format!("seed {seed}: {advice}, measured {measured:.1}, before {:.1}\n{line:?}", diagnosis.steps_per_s);
        score.count((advice.steps_per_s / measured - 1.0).abs() < 0.15, describe);
        changes.insert(format!("{:?}", advice.change).split('(').next().unwrap().to_owned());
    }
    verdicts.check("verdicts right");
    predictions.check("predictions within 15 %");
    bounds.check("upper bounds within 15 % of an ideal card");
    assert_eq!(changes.len(), 7, "every kind of advice is tried: {changes:?}");
}

#[test]
fn bursts_are_oscillation_and_larger_buffers_help() {
    for seed in 0..40_u64 {
        let random = &mut Random::new(seed);
        let mut line = SimPipeline { ahead: 3, slots: 3, cv: 0.05, ..SimPipeline::quick(random.between(5.0, 30.0)) };
        // Decoding is fast enough on average: 70 % of the step time, most of it in one batch of many.
        let (every, times) = (40 + random.below(21), random.between(60.0, 120.0));
        line.burst = Some((every, times));
        line.load_ms = 0.7 * line.train_ms * line.threads as f64 * every as f64 / (every as f64 - 1.0 + times);
        let diagnosis = Diagnosis::of(&line.run(seed, 600)).unwrap();
        let verdict = diagnosis.verdicts.iter().find(|verdict| verdict.kind == VerdictKind::Oscillation);
        let verdict = verdict.unwrap_or_else(|| panic!("seed {seed}: {line:?}\n{:#?}", diagnosis.lines()));
        assert_eq!(verdict.stage, Some(Stage::Load), "seed {seed}");
        let advice = verdict.advice.unwrap_or_else(|| panic!("seed {seed}: {line:?}\n{:#?}", diagnosis.lines()));
        let measured = line.with(advice.change).steps_per_s(seed);
        assert!(
            (advice.steps_per_s / measured - 1.0).abs() < 0.15,
            "seed {seed}: {advice}, measured {measured:.1}, before {:.1} {line:?}",
            diagnosis.steps_per_s
        );
    }
}

#[test]
fn logs_without_device_records_are_diagnosed() {
    for seed in 0..60_u64 {
        let random = &mut Random::new(seed);
        let (mut line, expected) = draw(random, SLOW[seed as usize % 5], false);
        line.is_old_log = true;
        let diagnosis = Diagnosis::of(&line.run(seed, 300)).unwrap();
        let mut found: BTreeSet<VerdictKind> = diagnosis.verdicts.iter().map(|verdict| verdict.kind).collect();
        // Without buckets in the log, long and short batches look like jitter.
        found.remove(&VerdictKind::Oscillation);
        assert_eq!(found, expected, "seed {seed}: {line:?}\n{:#?}", diagnosis.lines());
    }
}
