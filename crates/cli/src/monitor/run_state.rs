//! The state of a run, accumulated from its records. Pure, and of bounded size for any length of log.

use std::collections::BTreeMap;

use tandem_diagnosis::{Diagnosis, Jitter, Leaks, RankWait, RankWaits, Straggler};
use tandem_events::{Record, Role, RunEvent};

use super::alarms::{AlarmLevel, RecentAlarms};
use super::curve::Curve;
use super::plan_facts::PlanFacts;
use super::recent::{Recent, RecentPace};
use super::slots::{FeedTuning, Ring, StageProgress};

/// The state after the records seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct RunState {
    /// The command that writes the log. None before its first record.
    pub(super) command: Option<String>,
    pub(super) plan: PlanFacts,
    /// Time of the last record since the log was opened.
    pub(super) t_ns: u64,
    /// Records seen, without those of newer versions and invalid lines.
    pub(super) records: u64,
    /// Records of newer versions.
    pub(super) unknown: u64,
    /// Lines that are not records.
    pub(super) broken: u64,
    /// Events that the log dropped.
    pub(super) dropped: u64,
    pub(super) step: u64,
    /// From 0. None before the first step.
    pub(super) epoch: Option<u64>,
    /// Of the last step, by name.
    pub(super) losses: BTreeMap<String, Option<f64>>,
    pub(super) lr: Option<f64>,
    pub(super) gradient_norm: Option<f64>,
    /// The total loss over all steps.
    pub(super) curve: Curve,
    /// Data first.
    pub(super) memory: [RoleUsage; 2],
    /// The memory of the process on each GPU, as the driver reports it.
    pub(super) process: BTreeMap<usize, ProcessMemory>,
    pub(super) host: Option<ProcessMemory>,
    pub(super) validation: Option<LastValidation>,
    /// The step of the last checkpoint.
    pub(super) checkpoint: Option<u64>,
    pub(super) samples: u64,
    /// The checks of `validate`.
    pub(super) checks: CheckCounts,
    /// Exit code and reason, once the run has ended.
    pub(super) ended: Option<(u8, String)>,
    alarms: RecentAlarms,
    slots: StageProgress,
    recent: Recent,
    leaks: Leaks,
    jitter: Jitter,
    ranks: RankWaits,
}

/// A role's memory. Unknown values are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RoleUsage {
    pub(super) card: Option<usize>,
    pub(super) used_bytes: Option<u64>,
    pub(super) peak_bytes: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// The owner with the most memory, and its bytes.
    pub(super) largest: Option<(String, u64)>,
}

/// Memory of the process, on a GPU or on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessMemory {
    pub(super) bytes: u64,
    pub(super) limit_bytes: u64,
}

/// The last validation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LastValidation {
    pub(super) step: u64,
    pub(super) utterances: u64,
    pub(super) metrics: BTreeMap<String, Option<f64>>,
    /// The best mel L1 so far, and its step.
    pub(super) best: Option<(f64, u64)>,
}

/// Passed and failed checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckCounts {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// Figures of the last steps. Computing them takes a pass over those steps, so it is done once per frame.
pub(super) struct RecentFigures {
    pub(super) pace: Option<RecentPace>,
    pub(super) diagnosis: Option<Diagnosis>,
    pub(super) rings: Vec<Ring>,
    pub(super) setting: Option<FeedTuning>,
    /// Empty with one rank.
    pub(super) rank_waits: Vec<RankWait>,
    pub(super) straggler: Option<Straggler>,
}

impl RunState {
    /// Adds the next record.
    pub(super) fn observe(&mut self, record: &Record) {
        self.observe_early(record);
        if let Some(warning) = self.jitter.observe(record) {
            self.alarms.add(warning.0.step, AlarmLevel::Alarm, &warning.to_string());
        }
    }

    /// Adds the next record of a part of the log whose stage records are skipped. Jitter cannot be attributed there; the run's
    /// own warning is in the log.
    pub(super) fn observe_early(&mut self, record: &Record) {
        self.records += 1;
        self.t_ns = self.t_ns.max(record.t_ns);
        self.dropped = self.dropped.max(record.dropped);
        self.take(&record.event);
        self.slots.observe(record);
        self.recent.observe(record);
        self.ranks.observe(record);
        for leak in self.leaks.observe(record) {
            self.alarms.add(leak.step, AlarmLevel::Alarm, &leak.to_string());
        }
    }

    /// Counts a record of a newer version.
    pub(super) fn observe_unknown(&mut self) {
        self.unknown += 1;
    }

    /// Counts a line that is not a record.
    pub(super) fn observe_broken(&mut self) {
        self.broken += 1;
    }

    /// The run restarted with a new log. The loss curve continues.
    pub(super) fn restart(&mut self) {
        *self = RunState { curve: std::mem::take(&mut self.curve), ..RunState::default() };
    }

    pub(super) fn alarms(&self) -> &RecentAlarms {
        &self.alarms
    }

    pub(super) fn recent_figures(&self) -> RecentFigures {
        let setting = self.slots.setting(&self.plan);
        let planned = setting.as_ref().map(FeedTuning::as_record);
        RecentFigures {
            pace: self.recent.pace(),
            diagnosis: self.recent.diagnosis(self.plan.batches_per_step.max(1), planned),
            rings: self.slots.rings(&self.plan),
            setting,
            rank_waits: self.ranks.report(),
            straggler: self.ranks.straggler(),
        }
    }

    /// The limit of a role: from the log, else from the plan.
    pub(super) fn limit_bytes(&self, role: Role) -> Option<u64> {
        self.memory[index_of(role)].limit_bytes.or(self.plan.roles[index_of(role)].limit_bytes)
    }

    fn take(&mut self, event: &RunEvent) {
        match event {
            RunEvent::RunStarted { command, plan_json, .. } => {
                self.command = Some(command.clone());
                self.plan = PlanFacts::read(plan_json.as_deref().unwrap_or_default());
            }
            RunEvent::Step { step, .. } => self.step = *step,
            RunEvent::StepMetrics { step, epoch, losses, gradient_norm, lr, skipped } => {
                (self.epoch, self.lr, self.gradient_norm) = (Some(*epoch), Some(*lr), *gradient_norm);
                self.losses.clone_from(losses);
                if let Some(Some(loss)) = losses.get("loss") {
                    self.curve.push(*step, *loss);
                }
                if *skipped {
                    self.alarms.add(*step, AlarmLevel::Alarm, &format!("step {step} skipped: non-finite gradient"));
                }
            }
            RunEvent::Validation { step, utterances, metrics } => self.validated(*step, *utterances, metrics),
            RunEvent::Checkpoint { step, .. } => self.checkpoint = Some(*step),
            RunEvent::SampleWritten { .. } => self.samples += 1,
            RunEvent::Check { passed, .. } => {
                self.checks.passed += u64::from(*passed);
                self.checks.failed += u64::from(!*passed);
            }
            RunEvent::Note { text } => self.alarms.add(self.step, AlarmLevel::Note, text),
            RunEvent::RunEnded { exit_code, reason } => self.ended = Some((*exit_code, reason.clone())),
            other => self.take_memory(other),
        }
    }

    /// Events about memory.
    fn take_memory(&mut self, event: &RunEvent) {
        match event {
            RunEvent::ArenaReserved { role, card, limit_bytes, .. } => {
                let memory = &mut self.memory[index_of(*role)];
                (memory.card, memory.limit_bytes) = (Some(*card), Some(*limit_bytes));
            }
            RunEvent::Memory { role, card, used_bytes, limit_bytes, peak_bytes } => {
                let memory = &mut self.memory[index_of(*role)];
                (memory.card, memory.limit_bytes) = (Some(*card), Some(*limit_bytes));
                (memory.used_bytes, memory.peak_bytes) = (Some(*used_bytes), Some(*peak_bytes));
            }
            RunEvent::MemoryOwners { role, owners } => {
                let largest = owners.iter().max_by_key(|(_, bytes)| **bytes);
                self.memory[index_of(*role)].largest = largest.map(|(owner, bytes)| (owner.clone(), *bytes));
            }
            RunEvent::HostMemory { bytes, limit_bytes, .. } => {
                self.host = Some(ProcessMemory { bytes: *bytes, limit_bytes: *limit_bytes });
            }
            RunEvent::ProcessMemory { card, bytes, limit_bytes } => {
                self.process.insert(*card, ProcessMemory { bytes: *bytes, limit_bytes: *limit_bytes });
            }
            // `validate` exceeds the limits on purpose.
            RunEvent::Refused { role, asked_bytes, limit_bytes, owner, .. }
                if self.command.as_deref() != Some("validate") =>
            {
                let (asked, limit) = (asked_bytes >> 20, limit_bytes >> 20);
                let text = format!("{role}: {asked} MB for {owner} refused, over the limit of {limit} MB");
                self.alarms.add(self.step, AlarmLevel::Alarm, &text);
            }
            RunEvent::LimitExceeded { card, bytes, limit_bytes } => {
                let (used, limit) = (bytes >> 20, limit_bytes >> 20);
                let text =
                    format!("the process uses {used} MB on GPU {card}, over its limit of {limit} MB: the run stops");
                self.alarms.add(self.step, AlarmLevel::Alarm, &text);
            }
            _ => {}
        }
    }

    fn validated(&mut self, step: u64, utterances: u64, metrics: &BTreeMap<String, Option<f64>>) {
        let before = self.validation.as_ref().and_then(|validation| validation.best);
        let now = metrics.get("mel").copied().flatten().map(|mel| (mel, step));
        let best = match (before, now) {
            (Some(before), Some(now)) if now.0 < before.0 => Some(now),
            (before, now) => before.or(now),
        };
        self.validation = Some(LastValidation { step, utterances, metrics: metrics.clone(), best });
    }
}

/// The index of a role in pairs: data first.
pub(super) fn index_of(role: Role) -> usize {
    usize::from(role == Role::Model)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const PLAN: &str = r#"{"mode":"multi","simulated":false,"model_size":"nano","batch_size":4,"grad_accum":1,
        "threads":2,"buffer_size":25,"prefetch":4,"transfer":"peer","training":{"max_steps":300,"epochs":500},
        "roles":{"data":{"gpu":0,"uuid":"GPU-a","name":"NVIDIA H200","limit_bytes":8589934592},
                 "model":{"gpu":1,"uuid":"GPU-b","name":"NVIDIA H200","limit_bytes":17179869184}}}"#;

    pub(crate) fn state_of(events: impl IntoIterator<Item = (u64, RunEvent)>) -> RunState {
        let mut state = RunState::default();
        for (seq, (t_ns, event)) in events.into_iter().enumerate() {
            state.observe(&Record { v: 1, seq: seq as u64, t_ns, dropped: 0, event });
        }
        state
    }

    pub(crate) fn started() -> RunEvent {
        RunEvent::RunStarted { command: "train".into(), version: "0.1.0".into(), plan_json: Some(PLAN.into()) }
    }

    /// A run of `steps` on two GPUs: the step waits for decoding, half of the memory is used, the loss falls.
    pub(crate) fn pair(steps: u64) -> Vec<(u64, RunEvent)> {
        let mut events = vec![(0, started())];
        let mib = 1 << 20;
        for role in Role::BOTH {
            let (card, limit_bytes) = (index_of(role), (8192 << index_of(role)) * mib);
            events.push((
                1,
                RunEvent::ArenaReserved { role, card, bytes: limit_bytes / 2, limit_bytes, driver_bytes: mib },
            ));
        }
        events.push((
            1,
            RunEvent::FeedSetting { threads: 2, cores: 8, buffer_size: 25, prefetch: 4, route: "peer".into() },
        ));
        for step in 1..=steps {
            let (batch, t_ns) = (step - 1, step * 20_000_000);
            for (stage, ns) in [("load", 40_000_000), ("upload", 200_000), ("features", 900_000), ("transfer", 300_000)]
            {
                events.push((
                    t_ns,
                    RunEvent::Stage { stage: stage.into(), batch, ns, busy_ns: ns, wait_ns: 0, spans: Vec::new() },
                ));
            }
            events.push((t_ns, RunEvent::Step { step, wall_ns: 20_000_000, wait_ns: 5_000_000 }));
            let (busy_ns, wait_ns) = (15_000_000, 5_000_000);
            events.push((
                t_ns,
                RunEvent::StepWork { step, batch, batches: 1, bucket: 0, busy_ns, wait_ns, began_ns: None },
            ));
            let losses = BTreeMap::from([("loss".to_owned(), Some(4.0 / step as f64)), ("mel".to_owned(), Some(0.5))]);
            let (gradient_norm, lr, skipped) = (Some(1.5), 1e-3, false);
            events.push((t_ns, RunEvent::StepMetrics { step, epoch: step / 100, losses, gradient_norm, lr, skipped }));
            if step % 10 == 0 {
                for role in Role::BOTH {
                    let (card, limit_bytes) = (index_of(role), (8192 << index_of(role)) * mib);
                    let used_bytes = limit_bytes / 2;
                    events.push((
                        t_ns,
                        RunEvent::Memory { role, card, used_bytes, limit_bytes, peak_bytes: used_bytes + mib },
                    ));
                    let owners = BTreeMap::from([("slots".to_owned(), used_bytes - mib), ("other".to_owned(), mib)]);
                    events.push((t_ns, RunEvent::MemoryOwners { role, owners }));
                }
            }
        }
        events
    }

    /// The same run with a rank for each of `waits`, in tenths of a millisecond.
    pub(crate) fn ranks(steps: u64, waits: &[u64]) -> Vec<(u64, RunEvent)> {
        let waited_ns: Vec<u64> = waits.iter().map(|tenths| tenths * 100_000).collect();
        let with_waits = |(t_ns, event): (u64, RunEvent)| {
            let waits = match event {
                RunEvent::Step { step, .. } => Some(RunEvent::RankWaits { step, waited_ns: waited_ns.clone() }),
                _ => None,
            };
            [Some(event), waits].into_iter().flatten().map(move |event| (t_ns, event))
        };
        pair(steps).into_iter().flat_map(with_waits).collect()
    }

    #[test]
    fn the_slowest_rank_of_the_last_steps_is_known() {
        let recent = state_of(ranks(60, &[21, 20, 0, 22])).recent_figures();
        assert_eq!((recent.rank_waits.len(), recent.straggler.map(|straggler| straggler.rank)), (4, Some(2)));
        let alone = state_of(pair(60)).recent_figures();
        assert_eq!((alone.rank_waits, alone.straggler), (Vec::new(), None));
    }

    #[test]
    fn the_latest_record_of_each_kind_counts() {
        let state = state_of(pair(250));
        assert_eq!((state.command.as_deref(), state.step, state.epoch), (Some("train"), 250, Some(2)));
        assert_eq!((state.plan.max_steps, state.limit_bytes(Role::Model)), (Some(300), Some(16 << 30)));
        let data = &state.memory[0];
        assert_eq!((data.used_bytes, data.limit_bytes, data.card), (Some(4 << 30), Some(8 << 30), Some(0)));
        assert_eq!(data.largest.as_ref().map(|(owner, _)| owner.as_str()), Some("slots"));
        assert!(state.alarms().last(9).is_empty() && state.ended.is_none());
        let recent = state.recent_figures();
        let diagnosis = recent.diagnosis.unwrap();
        assert!((diagnosis.busy.model - 0.75).abs() < 0.01 && (diagnosis.stalls.share - 0.25).abs() < 0.01);
        assert_eq!(recent.rings.len(), 2);
    }

    #[test]
    fn a_leak_and_an_exceeded_limit_are_alarms_and_a_note_is_not() {
        let mut events = pair(800);
        let mut grown = 0;
        for (_, event) in &mut events {
            if let RunEvent::MemoryOwners { role: Role::Data, owners } = event {
                grown += 1 << 20;
                owners.insert("leaky".into(), grown);
            }
        }
        events.push((0, RunEvent::Note { text: "decode threads 2 → 3".into() }));
        events.push((0, RunEvent::LimitExceeded { card: 1, bytes: 20 << 30, limit_bytes: 16 << 30 }));
        let state = state_of(events);
        let shown: Vec<_> = state.alarms().last(9).iter().map(|alarm| (alarm.level, alarm.text.as_str())).collect();
        assert_eq!(shown.len(), 3, "{shown:?}");
        assert!(shown[0].1.contains("uses 20480 MB on GPU 1"), "{shown:?}");
        assert!(shown[1].1.contains("memory leak in data role (leaky)"), "{shown:?}");
        assert_eq!(shown[2], (AlarmLevel::Note, "decode threads 2 → 3"));
    }

    #[test]
    fn refused_memory_is_an_alarm_except_in_a_validation() {
        let refused = || RunEvent::Refused {
            role: Role::Data,
            asked_bytes: 1 << 20,
            limit_bytes: 2 << 20,
            in_use_bytes: 2 << 20,
            owner: "slots".into(),
        };
        let alarms = |command: &str| {
            let started = RunEvent::RunStarted { command: command.into(), version: String::new(), plan_json: None };
            state_of([(0, started), (0, refused())]).alarms().last(9).len()
        };
        assert_eq!((alarms("train"), alarms("validate")), (1, 0));
    }

    #[test]
    fn non_finite_losses_do_not_enter_the_curve() {
        let learned = |step, loss| {
            let losses = BTreeMap::from([("loss".to_owned(), loss)]);
            RunEvent::StepMetrics { step, epoch: 0, losses, gradient_norm: None, lr: 1e-3, skipped: step == 2 }
        };
        let state = state_of([(0, learned(1, Some(2.0))), (1, learned(2, None)), (2, learned(3, Some(1.0)))]);
        assert_eq!(state.curve.points(), [(1.0, 2.0), (3.0, 1.0)]);
        assert!(state.alarms().last(1)[0].text.contains("step 2 skipped"));
    }

    #[test]
    fn the_best_validation_is_remembered() {
        let validated = |step, mel| {
            let metrics = BTreeMap::from([("mel".to_owned(), mel)]);
            (step, RunEvent::Validation { step, utterances: 3, metrics })
        };
        let state = state_of([validated(1, None), validated(2, Some(0.5)), validated(3, Some(0.7))]);
        let validation = state.validation.unwrap();
        assert_eq!((validation.step, validation.best), (3, Some((0.5, 2))));
    }

    #[test]
    fn a_restart_keeps_only_the_curve() {
        let mut state = state_of(pair(50));
        state.restart();
        assert_eq!((state.step, state.records, state.curve.points().len()), (0, 0, 50));
        assert!(state.command.is_none() && state.recent_figures().diagnosis.is_none());
    }
}
