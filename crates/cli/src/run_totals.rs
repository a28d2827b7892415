//! Totals of a training run, from the same reports that the run log gets, and the JSON document of `train --json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tandem_plan::Plan;
use tandem_train::{ReportedMetrics, StepReport, ValidationReport};

/// What a run has done since it was started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunTotals {
    steps: u64,
    epoch: Option<u64>,
    /// By the model device's clock, as in the log.
    wall_ns: u64,
    wait_ns: u64,
    /// Steps whose update was skipped because of a non-finite gradient.
    skipped_steps: u64,
    losses: Metrics,
    best_loss: Option<BestValue>,
    validation: Option<LastMetrics>,
    best_validation: Option<BestValue>,
    checkpoints: Vec<PathBuf>,
}

/// Values by name; null where a value is not finite.
type Metrics = BTreeMap<String, Option<f64>>;

#[derive(Clone, Debug, PartialEq)]
struct LastMetrics {
    step: u64,
    utterances: usize,
    metrics: Metrics,
}

/// The lowest value so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BestValue {
    value: f64,
    step: u64,
}

/// How a run ended, and what the totals do not know.
pub(crate) struct RunEnd<'a> {
    pub(crate) exit_code: u8,
    /// As in the log: `done`, `stopped`.
    pub(crate) reason: &'a str,
    pub(crate) step: u64,
    pub(crate) total_steps: u64,
    /// The checkpoint that the run resumed from.
    pub(crate) resumed_from: Option<&'a Path>,
    pub(crate) folder: &'a Path,
    pub(crate) run_log: &'a Path,
    /// Utterances of the training set and of the validation set.
    pub(crate) num_trained: usize,
    pub(crate) num_validated: usize,
    /// `id: reason` of every recording that was replaced.
    pub(crate) replaced: &'a [String],
    /// Batches that were verified after their transfer, if any are.
    pub(crate) verified: Option<u64>,
    pub(crate) warnings: Vec<String>,
}

impl RunTotals {
    pub(crate) fn step(&mut self, report: &StepReport) {
        self.steps += 1;
        self.epoch = Some(report.epoch);
        self.wall_ns += report.on_device.wall_ns;
        self.wait_ns += report.on_device.wait_ns;
        self.skipped_steps += u64::from(report.skipped);
        self.losses = metrics(&report.losses);
        improve(&mut self.best_loss, report.loss(), report.step);
    }

    pub(crate) fn validation(&mut self, report: &ValidationReport) {
        let (step, utterances) = (report.step, report.utterances);
        self.validation = Some(LastMetrics { step, utterances, metrics: metrics(&report.metrics) });
        improve(&mut self.best_validation, report.score(), report.step);
    }

    pub(crate) fn checkpoint(&mut self, path: &Path) {
        self.checkpoints.push(path.to_owned());
    }

    /// The document of a run that has ended.
    pub(crate) fn document(&self, end: &RunEnd<'_>, plan: &Plan) -> Value {
        let seconds = self.wall_ns as f64 / 1e9;
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let validation = self.validation.as_ref().map(|last| {
            let (step, utterances) = (last.step, last.utterances);
            let best = self.best_validation.map(|best| json!({ "step": best.step, "score": best.value }));
            json!({ "step": step, "utterances": utterances, "metrics": last.metrics, "best": best })
        });
        let corpus = plan.corpus.as_ref();
        let left_out = corpus.map(|corpus| corpus.left_out).unwrap_or_default();
        // Old checkpoints are removed while the run continues.
        let checkpoints = self.checkpoints.iter().filter(|path| path.is_dir()).map(|path| path.display().to_string());
        json!({
            "simulated": plan.simulated,
            "exit_code": end.exit_code,
            "exit_reason": end.reason,
            "step": end.step,
            "total_steps": end.total_steps,
            "steps": self.steps,
            "epoch": self.epoch,
            "losses": (self.steps > 0).then_some(&self.losses),
            "best_loss": self.best_loss.map(|best| json!({ "step": best.step, "loss": best.value })),
            "validation": validation,
            "steps_per_s": (self.wall_ns > 0).then(|| self.steps as f64 / seconds),
            "stall_share": share(self.wait_ns, self.wall_ns),
            "skipped_steps": self.skipped_steps,
            "verified_batches": end.verified,
            "checkpoint_dir": end.folder.display().to_string(),
            "checkpoints": checkpoints.collect::<Vec<_>>(),
            "resumed_from": end.resumed_from.map(|path| path.display().to_string()),
            "run_log": end.run_log.display().to_string(),
            "utterances": {
                "trained": end.num_trained,
                "validated": end.num_validated,
                "excluded": corpus.map_or(0, |corpus| corpus.num_excluded),
                "skipped": {
                    "too_long": left_out.too_long,
                    "too_short": left_out.too_short,
                    "bad_text": left_out.bad_text(),
                    "no_length": left_out.no_length(),
                    "rejected": corpus.map(|corpus| &corpus.rejected),
                },
                "replaced": end.replaced,
            },
            "warnings": end.warnings,
        })
    }
}

fn metrics(reported: &ReportedMetrics) -> Metrics {
    reported.iter().map(|(name, value)| (name.to_owned(), value.is_finite().then_some(value))).collect()
}

fn improve(best: &mut Option<BestValue>, value: f64, step: u64) {
    if value.is_finite() && best.is_none_or(|best| value < best.value) {
        *best = Some(BestValue { value, step });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_lowest_finite_values_is_the_best() {
        let mut best = None;
        for (step, value) in [f64::NAN, 3.0, 1.0, 1.0, 2.0].into_iter().enumerate() {
            improve(&mut best, value, step as u64);
        }
        assert_eq!(best, Some(BestValue { value: 1.0, step: 2 }));
    }
}
