//! The state of a run as text, shared by the terminal view and the snapshot.

use std::path::PathBuf;
use std::time::Duration;

use tandem_diagnosis::{RankWait, Stage, Straggler};
use tandem_events::Role;

use crate::duration::short_duration;

use super::liveness::RunStatus;
use super::run_state::{RecentFigures, RunState, index_of};

/// Shown for a value that the log does not have.
pub(super) const UNKNOWN: &str = "—";

/// Everything that is shown of a run at one time.
pub(super) struct MonitorFrame<'a> {
    pub(super) state: &'a RunState,
    pub(super) recent: RecentFigures,
    pub(super) status: RunStatus,
    /// Power of each role's GPU, data first.
    pub(super) watts: [Option<f32>; 2],
    pub(super) log: PathBuf,
    /// How much of the log is read, from 0 to 1.
    pub(super) share_read: f64,
}

/// How a line is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Plain,
    Bad,
}

/// A row of the stage table.
pub(super) struct StageRow {
    pub(super) name: &'static str,
    pub(super) mean_ms: Option<f64>,
    pub(super) p95_ms: Option<f64>,
    /// Share of the step spent waiting for it.
    pub(super) stall: Option<f64>,
}

impl MonitorFrame<'_> {
    /// `running`, `ended: done`, `killed (no end in the log)`.
    pub(super) fn status(&self) -> (String, Tone) {
        match &self.status {
            RunStatus::NotStarted => ("no records yet".to_owned(), Tone::Plain),
            RunStatus::Running { silent } => (format!("running{}", last_record(*silent)), Tone::Good),
            RunStatus::Ended { exit_code: 0, reason } => (format!("ended: {reason}"), Tone::Good),
            RunStatus::Ended { exit_code, reason } => (format!("ended: {reason} (exit code {exit_code})"), Tone::Bad),
            RunStatus::Killed { silent } => (format!("killed (no end in the log){}", last_record(*silent)), Tone::Bad),
            RunStatus::Unknown { process: Some(process), silent } => {
                (format!("unknown, no end in the log ({process}){}", last_record(*silent)), Tone::Plain)
            }
            RunStatus::Unknown { process: None, silent } => {
                (format!("unknown, no end in the log{}", last_record(*silent)), Tone::Plain)
            }
        }
    }

    /// `train, multi, nano, batch 4`
    pub(super) fn description(&self) -> String {
        let plan = &self.state.plan;
        let simulated = plan.simulated.then(|| "simulated".to_owned());
        let batch = plan.batch_size.map(|batch| format!("batch {batch}"));
        let parts = [self.state.command.clone(), plan.mode.clone(), simulated, plan.model_size.clone(), batch];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// `120 of 300, epoch 2 of 500, 12 min`. Epochs are shown from 1.
    pub(super) fn step(&self) -> String {
        let (state, plan) = (self.state, &self.state.plan);
        let of = |most: Option<u64>| most.map(|most| format!(" of {most}")).unwrap_or_default();
        let mut text = format!("{}{}", state.step, of(plan.max_steps));
        if let Some(epoch) = state.epoch {
            text += &format!(", epoch {}{}", epoch + 1, of(plan.epochs));
        }
        format!("{text}, {}", short_duration(Duration::from_nanos(state.t_ns)))
    }

    pub(super) fn steps_per_s(&self) -> String {
        self.recent.pace.map_or(UNKNOWN.to_owned(), |pace| format!("{:.2} steps/s", pace.steps_per_s))
    }

    /// The share of the time without a batch. By the device clock where the log has it, else by the host clock.
    pub(super) fn stall_share(&self) -> Option<f64> {
        let seen = self.recent.diagnosis.as_ref().map(|diagnosis| diagnosis.stalls.share);
        seen.or(self.recent.pace.map(|pace| pace.stall))
    }

    pub(super) fn stall(&self) -> String {
        share(self.stall_share(), 1)
    }

    pub(super) fn variation(&self) -> String {
        share(self.recent.diagnosis.as_ref().map(|diagnosis| diagnosis.jitter.variation), 0)
    }

    /// `loss 0.033  mel 0.500  lr 1.0e-3  gradient norm 1.50`
    pub(super) fn losses(&self) -> String {
        let state = self.state;
        let mut parts: Vec<String> =
            state.losses.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
        // The total loss comes first, then its parts.
        parts.sort_by_key(|part| !part.starts_with("loss "));
        parts.extend(state.lr.map(|lr| format!("lr {lr:.1e}")));
        parts.extend(state.gradient_norm.map(|norm| format!("gradient norm {norm:.2}")));
        if parts.is_empty() { UNKNOWN.to_owned() } else { parts.join("  ") }
    }

    /// `Data GPU 0`, `Model on the CPU`.
    pub(super) fn role(&self, role: Role) -> String {
        let name = if role == Role::Data { "Data" } else { "Model" };
        let (memory, plan) = (&self.state.memory[index_of(role)], &self.state.plan);
        match plan.roles[index_of(role)].card.or(memory.card.map(|card| card as u64)) {
            _ if plan.mode.as_deref() == Some("cpu") => format!("{name} on the CPU"),
            Some(card) => format!("{name} GPU {card}"),
            None => name.to_owned(),
        }
    }

    /// The product name of a role's GPU.
    pub(super) fn card_name(&self, role: Role) -> Option<&str> {
        self.state.plan.roles[index_of(role)].name.as_deref().filter(|_| self.state.plan.mode.as_deref() != Some("cpu"))
    }

    /// `4096/8192 MB (50.0 %)`: used bytes and the limit.
    pub(super) fn memory(&self, role: Role) -> String {
        let used = self.state.memory[index_of(role)].used_bytes;
        let text = format!("{}/{} MB", mb(used), mb(self.state.limit_bytes(role)));
        match self.memory_share(role) {
            Some(part) => format!("{text} ({})", share(Some(part), 1)),
            None => text,
        }
    }

    pub(super) fn memory_share(&self, role: Role) -> Option<f64> {
        let limit = self.state.limit_bytes(role).filter(|limit| *limit > 0)?;
        Some(self.state.memory[index_of(role)].used_bytes? as f64 / limit as f64)
    }

    /// The share of the time that a role's device is busy.
    pub(super) fn busy(&self, role: Role) -> Option<f64> {
        let busy = self.recent.diagnosis.as_ref()?.busy;
        Some(if role == Role::Data { busy.data } else { busy.model })
    }

    pub(super) fn power(&self, role: Role) -> String {
        self.watts[index_of(role)].map_or(UNKNOWN.to_owned(), |watts| format!("{watts:.0} W"))
    }

    /// `slots 4095 MB`: the owner with the most memory.
    pub(super) fn largest(&self, role: Role) -> Option<String> {
        let (owner, bytes) = self.state.memory[index_of(role)].largest.as_ref()?;
        Some(format!("{owner} {} MB", mb(Some(*bytes))))
    }

    pub(super) fn stages(&self) -> Vec<StageRow> {
        let diagnosis = self.recent.diagnosis.as_ref();
        let ms = |ns: f64| ns / 1e6;
        let stage = |stage: Stage| {
            let stall = diagnosis.map(|diagnosis| diagnosis.stalls.stages[stage as usize]);
            let known = stall.filter(|stall| stall.time_ns.count > 0);
            StageRow {
                name: stage.name(),
                mean_ms: known.map(|stall| ms(stall.time_ns.mean)),
                p95_ms: known.map(|stall| ms(stall.time_ns.p95)),
                stall: known.map(|stall| stall.share),
            }
        };
        let train = StageRow {
            name: "train",
            mean_ms: diagnosis.map(|diagnosis| ms(diagnosis.train_ns.mean)),
            p95_ms: diagnosis.map(|diagnosis| ms(diagnosis.train_ns.p95)),
            stall: None,
        };
        Stage::ALL.map(stage).into_iter().chain([train]).collect()
    }

    /// `2 decode threads, peer`
    pub(super) fn feed(&self) -> String {
        match &self.recent.setting {
            Some(setting) => format!("{} decode threads, {}", setting.threads, setting.route),
            None => UNKNOWN.to_owned(),
        }
    }

    /// The number of ranks, if there are several.
    pub(super) fn num_ranks(&self) -> Option<u64> {
        let seen = Some(self.recent.rank_waits.len() as u64).filter(|seen| *seen > 0);
        seen.or(self.state.plan.ranks).filter(|ranks| *ranks > 1)
    }

    /// `waiting 0: 2.1 ms  1: 0.0 ms`: the wait of each rank for the others.
    pub(super) fn rank_waits(&self) -> String {
        let wait = |wait: &RankWait| format!("{}: {:.1} ms", wait.rank, wait.wait_ns / 1e6);
        let waits: Vec<String> = self.recent.rank_waits.iter().map(wait).collect();
        if waits.is_empty() { format!("waiting {UNKNOWN}") } else { format!("waiting {}", waits.join("  ")) }
    }

    /// `mean wait 2.1 ms`: for more ranks than there is room for.
    pub(super) fn mean_rank_wait(&self) -> String {
        let waits = &self.recent.rank_waits;
        let sum_ns: f64 = waits.iter().map(|wait| wait.wait_ns).sum();
        let mean_ms = (!waits.is_empty()).then(|| sum_ns / 1e6 / waits.len() as f64);
        mean_ms.map_or(format!("mean wait {UNKNOWN}"), |mean_ms| format!("mean wait {mean_ms:.1} ms"))
    }

    /// `rank 2 is the slowest (18 % of each step)`: the rank that the others wait for.
    pub(super) fn straggler(&self) -> Option<String> {
        let Straggler { rank, others_wait_share } = self.recent.straggler?;
        Some(format!("rank {rank} is the slowest ({} of each step)", share(Some(others_wait_share), 0)))
    }

    /// The last validation, one value per line.
    pub(super) fn validation(&self) -> Vec<String> {
        let Some(validation) = &self.state.validation else { return vec![UNKNOWN.to_owned()] };
        let mut lines = vec![format!("step {}, {} utterances", validation.step, validation.utterances)];
        // The log has the score as `mel` and that of a constant mean prediction as `mean`.
        let scores = [("mel", "mel L1"), ("mean", "baseline")];
        for (name, title) in scores {
            lines.extend(validation.metrics.get(name).map(|value| format!("{title} {}", number(*value))));
        }
        if let Some((best, step)) = validation.best {
            lines.push(format!("best mel L1 {best:.3} (step {step})"));
        }
        let others = validation.metrics.iter().filter(|(name, _)| scores.iter().all(|(score, _)| score != name));
        lines.extend(others.map(|(name, value)| format!("{} {}", name.replace('_', " "), number(*value))));
        lines
    }

    /// `checkpoint of step 100, 3 samples`
    pub(super) fn saved(&self) -> String {
        let checkpoint = self.state.checkpoint.map(|step| format!("checkpoint of step {step}"));
        let samples = (self.state.samples > 0).then(|| format!("{} samples", self.state.samples));
        let parts: Vec<_> = [checkpoint, samples].into_iter().flatten().collect();
        if parts.is_empty() { UNKNOWN.to_owned() } else { parts.join(", ") }
    }

    /// Alarms, gaps in the log, and notes; the serious ones first.
    pub(super) fn alarms(&self, count: usize) -> Vec<(String, Tone)> {
        let state = self.state;
        let gaps = [
            (state.dropped, "events are missing in the log: the figures do not include them"),
            (state.broken, "lines of the log could not be read"),
            (state.unknown, "records of a newer version are not shown"),
            (state.checks.failed, "checks failed"),
        ];
        let gaps = gaps
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, text)| (format!("{count} {text}"), Tone::Bad));
        let alarms = state.alarms().last(count).into_iter().map(|alarm| {
            let tone = if alarm.level == super::alarms::AlarmLevel::Alarm { Tone::Bad } else { Tone::Plain };
            (format!("[Step {}] {}", alarm.step, alarm.text), tone)
        });
        let mut all: Vec<_> = alarms.chain(gaps).collect();
        all.sort_by_key(|(_, tone)| *tone != Tone::Bad);
        all.truncate(count);
        all
    }
}

/// The age of the last record, if it is old: the run may be stuck, or its file system slow.
fn last_record(silent: Option<Duration>) -> String {
    const MIN_SHOWN: Duration = Duration::from_secs(5);
    match silent.filter(|silent| *silent >= MIN_SHOWN) {
        Some(silent) => format!(", last record {} ago", short_duration(silent)),
        None => String::new(),
    }
}

pub(super) fn number(value: Option<f64>) -> String {
    match value {
        None => "NaN".to_owned(),
        // Counts have no decimals.
        Some(value) if value.fract() == 0.0 && value.abs() < 1e9 => format!("{value:.0}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// `25.0 %`
pub(super) fn share(part: Option<f64>, digits: usize) -> String {
    part.map_or(UNKNOWN.to_owned(), |part| format!("{:.digits$} %", 100.0 * part))
}

pub(super) fn ms(time: Option<f64>) -> String {
    time.map_or(UNKNOWN.to_owned(), |ms| format!("{ms:.2}"))
}

/// MiB, rounded up.
pub(super) fn mb(bytes: Option<u64>) -> String {
    bytes.map_or(UNKNOWN.to_owned(), |bytes| tandem_device::bytes::mib_ceil(bytes).to_string())
}

/// A bar of `width` cells, filled to `part`.
pub(super) fn bar(part: Option<f64>, width: usize) -> String {
    let filled = (part.unwrap_or(0.0).clamp(0.0, 1.0) * width as f64).round() as usize;
    "█".repeat(filled) + &"░".repeat(width - filled)
}

/// The ASCII replacement of a character.
pub(super) fn plain_char(c: char) -> char {
    match c {
        c if c.is_ascii() => c,
        '─' | '—' | '–' | '·' => '-',
        '│' => '|',
        '\u{2500}'..='\u{257F}' => '+',
        '\u{2800}'..='\u{28FF}' | '●' | '•' => '*',
        '░' => '.',
        '█' => '#',
        '▁'..='▇' => ['_', '.', '-', '=', '+', '*', '%'][c as usize - '▁' as usize],
        '…' => '.',
        '→' => '>',
        '⚠' => '!',
        _ => '?',
    }
}

/// Text for an ASCII terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(plain_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_signs() {
        assert_eq!(plain("── 5 — █▇▁░ ⠿ … ⚠"), "-- 5 - #%_. * . !");
    }

    #[test]
    fn bars_are_filled_in_proportion() {
        assert_eq!(bar(Some(0.5), 4), "██░░");
        assert_eq!(bar(Some(7.0), 3), "███");
        assert_eq!(bar(None, 2), "░░");
    }

    #[test]
    fn the_age_of_an_old_last_record_is_shown() {
        assert_eq!(last_record(Some(Duration::from_secs(4))), "");
        assert_eq!(last_record(Some(Duration::from_secs(130))), ", last record 2 min 10 s ago");
        assert_eq!(last_record(None), "");
    }
}
