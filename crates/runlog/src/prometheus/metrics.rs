//! What is known of a run, and how Prometheus wants it written (text format 0.0.4).

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};

use tandem_events::{Record, RunEvent};

/// Steps that `tandem_steps_per_second` looks back on.
const PACE_STEPS: usize = 100;

/// The metrics of a run. As many as there are losses, roles, cards, stages and ranks: they do not grow with the run.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By family and labels. A family without values is not shown.
    values: BTreeMap<(Family, Labels), f64>,
    /// How long the last steps took.
    wall_ns: VecDeque<u64>,
}

/// Names and values, in the order they are written.
type Labels = Vec<(&'static str, String)>;

/// A metric family. The order is that of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Run,
    Step,
    Epoch,
    Steps,
    SkippedSteps,
    StepSeconds,
    StallSeconds,
    StepsPerSecond,
    Ranks,
    RankWaitSeconds,
    Loss,
    GradientNorm,
    LearningRate,
    Validation,
    Validations,
    Checkpoints,
    CheckpointSeconds,
    Samples,
    MemoryUsed,
    MemoryLimit,
    MemoryPeak,
    ProcessBytes,
    ProcessLimit,
    Refusals,
    Batches,
    BusySeconds,
    WaitSeconds,
    DroppedEvents,
}

impl Family {
    /// Name, kind and meaning.
    fn description(self) -> (&'static str, &'static str, &'static str) {
        const GAUGE: &str = "gauge";
        const COUNTER: &str = "counter";
        match self {
            Family::Run => ("tandem_run_info", GAUGE, "Command and version; always 1."),
            Family::Step => ("tandem_step", GAUGE, "The last finished training step of the run."),
            Family::Epoch => ("tandem_epoch", GAUGE, "The epoch of the last step, from 0."),
            Family::Steps => ("tandem_steps_total", COUNTER, "Training steps since this start."),
            Family::SkippedSteps => {
                ("tandem_skipped_steps_total", COUNTER, "Steps skipped because a gradient was not finite.")
            }
            Family::StepSeconds => ("tandem_step_seconds_total", COUNTER, "Wall time of training steps."),
            Family::StallSeconds => (
                "tandem_stall_seconds_total",
                COUNTER,
                "Time the model waited for a batch; part of tandem_step_seconds_total.",
            ),
            Family::StepsPerSecond => {
                ("tandem_steps_per_second", GAUGE, "Training throughput over the last 100 steps.")
            }
            Family::Ranks => ("tandem_ranks", GAUGE, "Ranks of the run."),
            Family::RankWaitSeconds => {
                ("tandem_rank_wait_seconds_total", COUNTER, "Time a rank waited for the others.")
            }
            Family::Loss => ("tandem_loss", GAUGE, "Training losses of the last step by name."),
            Family::GradientNorm => ("tandem_gradient_norm", GAUGE, "Gradient norm of the last step before clipping."),
            Family::LearningRate => ("tandem_learning_rate", GAUGE, "The learning rate of the last step."),
            Family::Validation => ("tandem_validation", GAUGE, "Metrics of the last validation by name."),
            Family::Validations => ("tandem_validations_total", COUNTER, "Validations since this start."),
            Family::Checkpoints => ("tandem_checkpoints_total", COUNTER, "Checkpoints written since this start."),
            Family::CheckpointSeconds => {
                ("tandem_checkpoint_seconds_total", COUNTER, "Time spent writing checkpoints.")
            }
            Family::Samples => ("tandem_samples_total", COUNTER, "Sample sentences written since this start."),
            Family::MemoryUsed => ("tandem_memory_used_bytes", GAUGE, "Memory in use by a role."),
            Family::MemoryLimit => ("tandem_memory_limit_bytes", GAUGE, "Memory limit of a role."),
            Family::MemoryPeak => ("tandem_memory_peak_bytes", GAUGE, "Highest memory use of a role."),
            Family::ProcessBytes => {
                ("tandem_process_bytes", GAUGE, "Highest memory of this process on a card, as reported by the driver.")
            }
            Family::ProcessLimit => {
                ("tandem_process_limit_bytes", GAUGE, "Limit for the memory of this process on a card.")
            }
            Family::Refusals => {
                ("tandem_refused_allocations_total", COUNTER, "Allocations refused by an arena because of its limit.")
            }
            Family::Batches => ("tandem_stage_batches_total", COUNTER, "Batches finished by a pipeline stage."),
            Family::BusySeconds => {
                ("tandem_stage_busy_seconds_total", COUNTER, "Busy time of a pipeline stage, summed over its threads.")
            }
            Family::WaitSeconds => {
                ("tandem_stage_wait_seconds_total", COUNTER, "Time the next stage waited for this one.")
            }
            Family::DroppedEvents => {
                ("tandem_dropped_events_total", COUNTER, "Events dropped because the run log could not keep up.")
            }
        }
    }
}

impl Metrics {
    /// Takes a record in.
    pub(crate) fn take(&mut self, record: &Record) {
        self.set(Family::DroppedEvents, vec![], record.dropped as f64);
        match &record.event {
            RunEvent::RunStarted { command, version, .. } => {
                let labels = vec![("command", command.clone()), ("version", version.clone())];
                self.set(Family::Run, labels, 1.0);
            }
            RunEvent::Step { step, wall_ns, wait_ns } => self.stepped(*step, *wall_ns, *wait_ns),
            RunEvent::RankWaits { waited_ns, .. } => self.waited(waited_ns),
            RunEvent::StepMetrics { epoch, losses, gradient_norm, lr, skipped, .. } => {
                self.set(Family::Epoch, vec![], *epoch as f64);
                self.add(Family::SkippedSteps, vec![], f64::from(u8::from(*skipped)));
                self.set_all(Family::Loss, "part", losses);
                self.set(Family::GradientNorm, vec![], gradient_norm.unwrap_or(f64::NAN));
                self.set(Family::LearningRate, vec![], *lr);
            }
            RunEvent::Validation { metrics, .. } => {
                self.add(Family::Validations, vec![], 1.0);
                self.set_all(Family::Validation, "metric", metrics);
            }
            RunEvent::Checkpoint { ns, .. } => {
                self.add(Family::Checkpoints, vec![], 1.0);
                self.add(Family::CheckpointSeconds, vec![], seconds(*ns));
            }
            RunEvent::SampleWritten { .. } => self.add(Family::Samples, vec![], 1.0),
            RunEvent::Memory { role, card, used_bytes, limit_bytes, peak_bytes } => {
                let labels = || vec![("role", role.to_string()), ("card", card.to_string())];
                self.set(Family::MemoryUsed, labels(), *used_bytes as f64);
                self.set(Family::MemoryLimit, labels(), *limit_bytes as f64);
                self.set(Family::MemoryPeak, labels(), *peak_bytes as f64);
            }
            RunEvent::ProcessMemory { card, bytes, limit_bytes }
            | RunEvent::LimitExceeded { card, bytes, limit_bytes } => {
                self.set(Family::ProcessBytes, vec![("card", card.to_string())], *bytes as f64);
                self.set(Family::ProcessLimit, vec![("card", card.to_string())], *limit_bytes as f64);
            }
            RunEvent::Refused { role, .. } => self.add(Family::Refusals, vec![("role", role.to_string())], 1.0),
            RunEvent::Stage { stage, busy_ns, wait_ns, .. } => {
                let labels = || vec![("stage", stage.clone())];
                self.add(Family::Batches, labels(), 1.0);
                self.add(Family::BusySeconds, labels(), seconds(*busy_ns));
                self.add(Family::WaitSeconds, labels(), seconds(*wait_ns));
            }
            _ => {}
        }
    }

    fn stepped(&mut self, step: u64, wall_ns: u64, wait_ns: u64) {
        self.set(Family::Step, vec![], step as f64);
        self.add(Family::Steps, vec![], 1.0);
        self.add(Family::StepSeconds, vec![], seconds(wall_ns));
        self.add(Family::StallSeconds, vec![], seconds(wait_ns));
        if self.wall_ns.len() == PACE_STEPS {
            self.wall_ns.pop_front();
        }
        self.wall_ns.push_back(wall_ns);
        let lasted_s: f64 = self.wall_ns.iter().map(|&ns| seconds(ns)).sum();
        let per_second = if lasted_s > 0.0 { self.wall_ns.len() as f64 / lasted_s } else { 0.0 };
        self.set(Family::StepsPerSecond, vec![], per_second);
    }

    fn waited(&mut self, waited_ns: &[u64]) {
        self.set(Family::Ranks, vec![], waited_ns.len() as f64);
        for (rank, ns) in waited_ns.iter().enumerate() {
            self.add(Family::RankWaitSeconds, vec![("rank", rank.to_string())], seconds(*ns));
        }
    }

    fn set_all(&mut self, family: Family, label: &'static str, values: &BTreeMap<String, Option<f64>>) {
        for (name, value) in values {
            self.set(family, vec![(label, name.clone())], value.unwrap_or(f64::NAN));
        }
    }

    fn set(&mut self, family: Family, labels: Labels, value: f64) {
        self.values.insert((family, labels), value);
    }

    fn add(&mut self, family: Family, labels: Labels, value: f64) {
        *self.values.entry((family, labels)).or_default() += value;
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for ((family, labels), value) in &self.values {
            let (name, kind, meaning) = family.description();
            if last.replace(*family) != Some(*family) {
                writeln!(f, "# HELP {name} {meaning}\n# TYPE {name} {kind}")?;
            }
            f.write_str(name)?;
            for (index, (label, text)) in labels.iter().enumerate() {
                write!(f, "{}{label}=\"{}\"", if index == 0 { '{' } else { ',' }, Escaped(text))?;
            }
            f.write_str(if labels.is_empty() { "" } else { "}" })?;
            writeln!(f, " {}", Number(*value))?;
        }
        Ok(())
    }
}

/// A label's value: text may come from anybody.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// A figure, which may be none.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{value}"),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use tandem_events::{Role, VERSION};

    use super::*;

    fn page(events: impl IntoIterator<Item = RunEvent>) -> String {
        let mut metrics = Metrics::default();
        for (seq, event) in (0..).zip(events) {
            metrics.take(&Record { v: VERSION, seq, t_ns: seq, dropped: 2, event });
        }
        metrics.to_string()
    }

    #[test]
    fn a_family_has_one_heading_and_a_line_for_each_of_its_figures() {
        let memory = |role, card| RunEvent::Memory { role, card, used_bytes: 1 << 40, limit_bytes: 9, peak_bytes: 3 };
        let page = page([memory(Role::Model, 1), memory(Role::Data, 0), memory(Role::Model, 1)]);
        let expected = "\
# HELP tandem_memory_used_bytes Memory in use by a role.
# TYPE tandem_memory_used_bytes gauge
tandem_memory_used_bytes{role=\"data\",card=\"0\"} 1099511627776
tandem_memory_used_bytes{role=\"model\",card=\"1\"} 1099511627776
# HELP tandem_memory_limit_bytes Memory limit of a role.
";
        assert!(page.starts_with(expected), "{page}");
        assert!(
            page.ends_with("# TYPE tandem_dropped_events_total counter\ntandem_dropped_events_total 2\n"),
            "{page}"
        );
    }

    #[test]
    fn steps_are_counted_and_their_pace_is_that_of_the_last_hundred() {
        let step = |step, wall_ns| RunEvent::Step { step, wall_ns, wait_ns: 250_000_000 };
        let slow = (1..=50).map(|number| step(number, 7_000_000_000));
        let page = page(slow.chain((51..=150).map(|number| step(number, 500_000_000))));
        for line in [
            "tandem_step 150\n",
            "tandem_steps_total 150\n",
            "tandem_step_seconds_total 400\n",
            "tandem_stall_seconds_total 37.5\n",
            "tandem_steps_per_second 2\n",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn the_waits_of_each_rank_add_up() {
        let waits = |waited_ns| RunEvent::RankWaits { step: 1, waited_ns };
        let found = page([waits(vec![500_000_000, 0]), waits(vec![250_000_000, 250_000_000])]);
        let expected = "\
# HELP tandem_ranks Ranks of the run.
# TYPE tandem_ranks gauge
tandem_ranks 2
# HELP tandem_rank_wait_seconds_total Time a rank waited for the others.
# TYPE tandem_rank_wait_seconds_total counter
tandem_rank_wait_seconds_total{rank=\"0\"} 0.75
tandem_rank_wait_seconds_total{rank=\"1\"} 0.25
";
        assert!(found.starts_with(expected), "{found}");
        let alone = page([RunEvent::Step { step: 1, wall_ns: 1, wait_ns: 0 }]);
        assert!(!alone.contains("tandem_rank"), "{alone}");
    }

    #[test]
    fn names_and_figures_of_any_kind_are_written_as_the_format_has_them() {
        let losses = [("a\"b\\c\nd".to_owned(), Some(1e-7)), ("mel".to_owned(), None)].into();
        let learned = RunEvent::StepMetrics { step: 1, epoch: 0, losses, gradient_norm: None, lr: 0.0, skipped: true };
        let page = page([learned]);
        for line in [
            "tandem_loss{part=\"a\\\"b\\\\c\\nd\"} 0.0000001\n",
            "tandem_loss{part=\"mel\"} NaN\n",
            "tandem_gradient_norm NaN\n",
            "tandem_skipped_steps_total 1\n",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
