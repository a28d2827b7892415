//! The diagnosis of a complete log.

use tandem_events::Record;

use crate::advice::Adviser;
use crate::facts::Facts;
use crate::flow::Flow;
use crate::jitter::{JitterWindow, window_of};
use crate::leaks::{Leak, Leaks};
use crate::overlap::{StepSpan, copy_overlap};
use crate::ranks::{RankWait, RankWaits, Straggler};
use crate::stage::Stage;
use crate::stalls::Stalls;
use crate::statistics::{Summary, ratio};
use crate::tier::TierLine;
use crate::verdicts::{Busy, Verdict, verdicts};

/// Printed if there is no verdict.
const NO_BOTTLENECK: &str = "✅ NO MAJOR BOTTLENECKS DETECTED";

/// A log without usable steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiagnosisError {
    /// No step that counts: the run was too short, or nothing was timed.
    #[error("no timing was collected: the log has no step after the first {warm_up}, other than those at checkpoints")]
    NoTiming {
        /// Warm-up steps, which never count.
        warm_up: usize,
    },
}

/// The diagnosis of a run from its log.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// Steps per second, over the steps that count.
    pub steps_per_s: f64,
    /// Model-only throughput in steps per second; `None` if the log does not have the model-only time of every bucket.
    pub model_only_steps_per_s: Option<f64>,
    /// The step without its wait.
    pub train_ns: Summary,
    /// Stall time by stage.
    pub stalls: Stalls,
    /// Variation of step times, over all steps.
    pub jitter: JitterWindow,
    /// Busy time of the devices.
    pub busy: Busy,
    /// The share of the copy time that overlapped with the step's compute; `None` if nothing was copied or the log has no device
    /// times.
    pub copy_overlap: Option<f64>,
    /// The pipeline as it ran, for further predictions.
    pub flow: Flow,
    /// Memory leaks.
    pub leaks: Vec<Leak>,
    /// The bottlenecks; empty if there are none.
    pub verdicts: Vec<Verdict>,
    /// How long each rank waits for the others, over the last 100 steps; empty with one rank.
    pub rank_waits: Vec<RankWait>,
    /// The rank that the others wait for; `None` if the ranks are alike.
    pub straggler: Option<Straggler>,
    /// The tier.
    pub tier: TierLine,
    /// Events missing from the log.
    pub dropped: u64,
}

impl Diagnosis {
    /// Diagnoses a run from all its records, in order. Fails if no step counts.
    ///
    /// Costs a pass over the records and a few sorts of the steps.
    pub fn of(records: &[Record]) -> Result<Diagnosis, DiagnosisError> {
        let facts = Facts::of(records);
        let steps: Vec<_> = facts.steps.iter().collect();
        let no_timing = DiagnosisError::NoTiming { warm_up: crate::facts::WARM_UP_STEPS };
        let jitter = window_of(&steps, &facts.model_only_ns).ok_or(no_timing)?;
        let stalls = Stalls::of(&facts);
        let flow = Flow::of(&facts, &stalls);
        let busy = busy_of(&facts);
        let model_only_ns = mean_model_only_ns(&facts);
        let steps_per_s = jitter.steps_per_s;
        let adviser = Adviser { flow: &flow, steps: &facts.steps, feed: &facts.feed, model_only_ns, steps_per_s };
        let verdicts = verdicts(&stalls, busy, &jitter, &adviser);
        let trains: Vec<f64> = steps.iter().map(|step| step.train_ns()).collect();
        let mut ranks = RankWaits::default();
        records.iter().for_each(|record| ranks.observe(record));
        let spans: Vec<StepSpan> = steps.iter().filter_map(|step| step.at).collect();
        Ok(Diagnosis {
            steps_per_s,
            model_only_steps_per_s: model_only_ns.map(|ns| ratio(1e9, ns)),
            train_ns: Summary::of(&trains),
            tier: TierLine::of(busy, jitter.variation, stalls.share),
            stalls,
            jitter,
            busy,
            copy_overlap: copy_overlap(&facts.copies, &spans),
            flow,
            leaks: Leaks::of(records),
            verdicts,
            rank_waits: ranks.report(),
            straggler: ranks.straggler(),
            dropped: facts.dropped,
        })
    }

    /// The report: [`times`](Diagnosis::times), then [`findings`](Diagnosis::findings).
    pub fn lines(&self) -> Vec<String> {
        self.times().into_iter().chain(self.findings()).collect()
    }

    /// Throughput and stage times, in lines of the report.
    pub fn times(&self) -> Vec<String> {
        std::iter::once(self.throughput()).chain(self.table()).chain(self.copies()).collect()
    }

    /// Leaks, verdicts, ranks and tier, in lines of the report.
    pub fn findings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.leaks.iter().map(|leak| format!("⚠ {leak}")));
        match self.verdicts.is_empty() {
            true => lines.push(NO_BOTTLENECK.to_owned()),
            false => lines.extend(self.verdicts.iter().map(Verdict::to_string)),
        }
        lines.extend(self.ranks());
        lines.push(format!("Tier: {}", self.tier));
        if self.dropped > 0 {
            lines.push(format!("{} events are missing from the log; the figures are from the others", self.dropped));
        }
        lines
    }

    fn throughput(&self) -> String {
        let (steps, rate) = (self.jitter.step_ns.count, self.steps_per_s);
        match self.model_only_steps_per_s {
            Some(max) => format!("{rate:.1} steps/s over {steps} steps; model-only throughput {max:.1} steps/s"),
            None => format!("{rate:.1} steps/s over {steps} steps"),
        }
    }

    fn copies(&self) -> Option<String> {
        let share = self.copy_overlap?;
        Some(format!("copies: {:.1} % of copy time overlaps with the step's compute", 100.0 * share))
    }

    /// One line about the ranks, if there are several.
    fn ranks(&self) -> Option<String> {
        let count = self.rank_waits.len();
        let share = ratio(self.rank_waits.iter().map(|wait| wait.share).sum(), count as f64);
        (count > 1).then(|| match self.straggler {
            Some(straggler) => format!("Ranks: {count}; {straggler}"),
            None => format!("Ranks: {count}; they wait for each other {:.0} % of each step", 100.0 * share),
        })
    }

    /// A line per stage: its time, and the share of the step time spent waiting for it. Decoding is per thread.
    fn table(&self) -> Vec<String> {
        let head = format!("{:<10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}", "ms", "mean", "std", "min", "max", "p95", "share");
        let row = |name: &str, time: &Summary, share: f64| {
            let [mean, std, min, max, p95] = time.in_ms();
            format!("{name:<10}{mean:>9.2}{std:>9.2}{min:>9.2}{max:>9.2}{p95:>9.2}{:>7.0} %", 100.0 * share)
        };
        let known = self.stalls.stages.iter().filter(|stall| stall.time_ns.count > 0);
        let stages = known.map(|stall| row(stall.stage.name(), &stall.time_ns, stall.share));
        let train = row("train", &self.train_ns, self.busy.train);
        std::iter::once(head).chain(stages).chain([train]).collect()
    }
}

fn busy_of(facts: &Facts) -> Busy {
    let share = |of: &dyn Fn(&crate::facts::StepFact) -> (f64, f64)| {
        let (part, whole) = facts.steps.iter().map(of).fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        ratio(part, whole)
    };
    // Steps whose batch has no stage times say nothing about the data device.
    let stage =
        |stage: Stage| share(&|step| step.demand_ns[stage as usize].map_or((0.0, 0.0), |ns| (ns, step.wall_ns)));
    Busy {
        data: stage(Stage::Upload).max(stage(Stage::Features)).min(1.0),
        model: share(&|step| (step.busy_ns, step.wall_ns)).min(1.0),
        train: share(&|step| (step.train_ns(), step.wall_ns)),
    }
}

/// The mean model-only time of the steps' buckets; `None` if one is unknown.
fn mean_model_only_ns(facts: &Facts) -> Option<f64> {
    let of_step = |step: &crate::facts::StepFact| facts.model_only_ns.get(&step.bucket?).copied();
    let all: Option<Vec<f64>> = facts.steps.iter().map(of_step).collect();
    all.map(|all| ratio(all.iter().sum(), all.len() as f64))
}
