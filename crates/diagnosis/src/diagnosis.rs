//! A whole log, judged.

use tandem_events::Record;

use crate::advice::Adviser;
use crate::facts::Facts;
use crate::flow::Flow;
use crate::jitter::{JitterWindow, window_of};
use crate::leaks::{Leak, Leaks};
use crate::overlap::{SteppedAt, beside_work};
use crate::stage::Stage;
use crate::stalls::Stalls;
use crate::statistics::{Summary, ratio};
use crate::tier::TierLine;
use crate::verdicts::{Busy, Verdict, verdicts};

/// What is said when nothing is wrong.
const NOTHING_WRONG: &str = "✅ NO MAJOR BOTTLENECKS DETECTED";

/// A log that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiagnosisError {
    /// No step that counts: the run was too short, or nothing was timed.
    #[error("no timing was collected: the log has no step after the first {warm_up}, but for those beside checkpoints")]
    NoTiming {
        /// Steps that never count.
        warm_up: usize,
    },
}

/// What a log says about its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// Steps in a second, those left out that do not count.
    pub steps_per_s: f64,
    /// Steps in a second if no batch were ever waited for; none where the log has no model_only of every bucket.
    pub headspace_steps_per_s: Option<f64>,
    /// The step without its wait.
    pub train_ns: Summary,
    /// What was waited for.
    pub stalls: Stalls,
    /// How even steps are, all of them in one window.
    pub jitter: JitterWindow,
    /// How busy the devices were.
    pub busy: Busy,
    /// The share of the time of copies that passed beside the step's work; none where nothing was copied, or where devices
    /// did not tell when.
    pub copies_beside_work: Option<f64>,
    /// The line as it ran, for predictions of one's own.
    pub flow: Flow,
    /// What leaks.
    pub leaks: Vec<Leak>,
    /// What is wrong; empty when nothing is.
    pub verdicts: Vec<Verdict>,
    /// How good it is.
    pub tier: TierLine,
    /// Events that are missing in the log.
    pub dropped: u64,
}

impl Diagnosis {
    /// Of all records of a run, in order. Fails when there is nothing to judge.
    ///
    /// Costs a pass over the records and a few sorts of the steps.
    pub fn of(records: &[Record]) -> Result<Diagnosis, DiagnosisError> {
        let facts = Facts::of(records);
        let steps: Vec<_> = facts.steps.iter().collect();
        let no_timing = DiagnosisError::NoTiming { warm_up: crate::facts::WARM_UP_STEPS };
        let jitter = window_of(&steps, &facts.headspace_ns).ok_or(no_timing)?;
        let stalls = Stalls::of(&facts);
        let flow = Flow::of(&facts, &stalls);
        let busy = busy_of(&facts);
        let headspace_ns = headspace_of(&facts);
        let steps_per_s = jitter.steps_per_s;
        let adviser = Adviser { flow: &flow, steps: &facts.steps, setting: &facts.setting, headspace_ns, steps_per_s };
        let verdicts = verdicts(&stalls, busy, &jitter, &adviser);
        let trains: Vec<f64> = steps.iter().map(|step| step.train_ns()).collect();
        let stepped_at: Vec<SteppedAt> = steps.iter().filter_map(|step| step.at).collect();
        Ok(Diagnosis {
            steps_per_s,
            headspace_steps_per_s: headspace_ns.map(|ns| ratio(1e9, ns)),
            train_ns: Summary::of(&trains),
            tier: TierLine::of(busy, jitter.variation, stalls.share),
            stalls,
            jitter,
            busy,
            copies_beside_work: beside_work(&facts.copies, &stepped_at),
            flow,
            leaks: Leaks::of(records),
            verdicts,
            dropped: facts.dropped,
        })
    }

    /// All of it in lines for people: [`times`](Diagnosis::times), then [`findings`](Diagnosis::findings).
    pub fn lines(&self) -> Vec<String> {
        self.times().into_iter().chain(self.findings()).collect()
    }

    /// Pace and stages, in lines for people.
    pub fn times(&self) -> Vec<String> {
        std::iter::once(self.pace()).chain(self.table()).chain(self.copies()).collect()
    }

    /// Leaks, verdicts, tier, in lines for people.
    pub fn findings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.leaks.iter().map(|leak| format!("⚠ {leak}")));
        match self.verdicts.is_empty() {
            true => lines.push(NOTHING_WRONG.to_owned()),
            false => lines.extend(self.verdicts.iter().map(Verdict::to_string)),
        }
        lines.push(format!("Tier: {}", self.tier));
        if self.dropped > 0 {
            lines.push(format!("{} events are missing in the log: figures are of the rest", self.dropped));
        }
        lines
    }

    fn pace(&self) -> String {
        let (steps, rate) = (self.jitter.step_ns.count, self.steps_per_s);
        match self.headspace_steps_per_s {
            Some(most) => format!("{rate:.1} steps/s over {steps} steps; model_only {most:.1}"),
            None => format!("{rate:.1} steps/s over {steps} steps"),
        }
    }

    fn copies(&self) -> Option<String> {
        let share = self.copies_beside_work?;
        Some(format!("copies: {:.1} % of their time passes beside the step's work", 100.0 * share))
    }

    /// A line per stage: its time, and the share of the step in which it was waited for. Decoding is per thread.
    fn table(&self) -> Vec<String> {
        let head = format!("{:<10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}", "ms", "mean", "std", "min", "max", "p95", "share");
        let row = |name: &str, time: &Summary, share: f64| {
            let [mean, std, min, max, p95] = [time.mean, time.std, time.min, time.max, time.p95].map(|ns| ns / 1e6);
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
    // Steps whose batch nobody timed say nothing about the data device.
    let stage =
        |stage: Stage| share(&|step| step.demand_ns[stage as usize].map_or((0.0, 0.0), |ns| (ns, step.wall_ns)));
    Busy {
        data: stage(Stage::Upload).max(stage(Stage::Features)).min(1.0),
        model: share(&|step| (step.busy_ns, step.wall_ns)).min(1.0),
        train: share(&|step| (step.train_ns(), step.wall_ns)),
    }
}

/// The mean of the steps' own buckets.
fn headspace_of(facts: &Facts) -> Option<f64> {
    let of_step = |step: &crate::facts::StepFact| facts.headspace_ns.get(&step.bucket?).copied();
    let all: Option<Vec<f64>> = facts.steps.iter().map(of_step).collect();
    all.map(|all| ratio(all.iter().sum(), all.len() as f64))
}
