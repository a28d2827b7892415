//! The records of the last steps, from which the diagnosis is computed.

use std::collections::{BTreeMap, VecDeque};

use tandem_diagnosis::Diagnosis;
use tandem_events::{Record, Role, RunEvent};

/// Steps kept: the jitter window, and as many again for batches prepared ahead.
const MAX_STEPS: usize = 200;
/// Records kept for them.
const MAX_RECORDS: usize = 8192;

/// The last steps and their work.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    records: VecDeque<Record>,
    /// The number of steps in `records`, and before them.
    steps: usize,
    steps_before: u64,
    has_step_work: bool,
    /// Records that hold until the next one of their kind.
    clock: Option<Record>,
    reserved: BTreeMap<Role, Record>,
    model_only: BTreeMap<u32, Record>,
    setting: Option<Record>,
}

/// The speed of the last steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecentPace {
    pub(super) steps_per_s: f64,
    /// The share of the time without a batch, by the host clock.
    pub(super) stall: f64,
}

impl Recent {
    pub(super) fn observe(&mut self, record: &Record) {
        match &record.event {
            RunEvent::DeviceClock { .. } => self.clock = Some(record.clone()),
            RunEvent::ArenaReserved { role, .. } => drop(self.reserved.insert(*role, record.clone())),
            RunEvent::ModelOnly { bucket, .. } => drop(self.model_only.insert(*bucket, record.clone())),
            RunEvent::FeedSetting { .. } => self.setting = Some(record.clone()),
            RunEvent::Step { .. }
            | RunEvent::StepWork { .. }
            | RunEvent::CpuTime { .. }
            | RunEvent::Stage { .. }
            | RunEvent::Checkpoint { .. }
            | RunEvent::Validation { .. }
            | RunEvent::SampleWritten { .. } => self.push(record),
            _ => {}
        }
    }

    /// The speed of the last 100 steps. None before the first step.
    pub(super) fn pace(&self) -> Option<RecentPace> {
        let times = |record: &Record| match record.event {
            RunEvent::Step { wall_ns, wait_ns, .. } => Some((wall_ns as f64, wait_ns as f64)),
            _ => None,
        };
        let last = self.records.iter().rev().filter_map(times).take(100);
        let (steps, wall, wait) =
            last.fold((0.0, 0.0, 0.0), |sum, (wall, wait)| (sum.0 + 1.0, sum.1 + wall, sum.2 + wait));
        (wall > 0.0).then(|| RecentPace { steps_per_s: steps * 1e9 / wall, stall: (wait / wall).min(1.0) })
    }

    /// The diagnosis of the last steps. None while they are too few. Where the log lacks them, the batches per step are
    /// `batches_per_step` and the feed setting is `planned`.
    pub(super) fn diagnosis(&self, batches_per_step: u64, planned: Option<Record>) -> Option<Diagnosis> {
        let setting = self.setting.clone().or(planned);
        let latest = self.clock.iter().chain(self.reserved.values()).chain(self.model_only.values());
        let standing = latest.cloned().chain(setting);
        // Without device events, the first step of a log is assumed to use its first batch.
        let first_batch = if self.has_step_work { 0 } else { self.steps_before.saturating_mul(batches_per_step) };
        let records: Vec<Record> =
            standing.chain(self.records.iter().filter_map(|r| counted_from(r, first_batch))).collect();
        Diagnosis::of(&records).ok()
    }

    fn push(&mut self, record: &Record) {
        self.records.push_back(record.clone());
        self.steps += usize::from(matches!(record.event, RunEvent::Step { .. }));
        self.has_step_work |= matches!(record.event, RunEvent::StepWork { .. });
        while self.steps > MAX_STEPS || self.records.len() > MAX_RECORDS {
            let dropped = self.records.pop_front();
            if dropped.is_some_and(|dropped| matches!(dropped.event, RunEvent::Step { .. })) {
                self.steps -= 1;
                self.steps_before += 1;
            }
        }
    }
}

/// The record with its batch counted from `first`. None for an earlier batch.
fn counted_from(record: &Record, first: u64) -> Option<Record> {
    let mut record = record.clone();
    if let RunEvent::Stage { batch, .. } = &mut record.event {
        *batch = batch.checked_sub(first)?;
    }
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of `steps` whose decoding takes `load_ms` and whose step takes 10 ms and waits for the difference.
    fn run(steps: u64, load_ms: u64, has_step_work: bool) -> Recent {
        let mut recent = Recent::default();
        let mut seq = 0;
        let mut emit = |t_ms: u64, event: RunEvent| {
            seq += 1;
            recent.observe(&Record { v: 1, seq, t_ns: t_ms * 1_000_000, dropped: 0, event });
        };
        let (wall, wait) = (load_ms.max(10), load_ms.saturating_sub(10));
        let setting = RunEvent::FeedSetting { threads: 1, cores: 2, buffer_size: 4, prefetch: 3, route: "peer".into() };
        emit(0, setting);
        for step in 1..=steps {
            let (batch, t_ms) = (step - 1, step * wall);
            let ns = load_ms * 1_000_000;
            emit(t_ms, RunEvent::Stage { stage: "load".into(), batch, ns, busy_ns: ns, wait_ns: 0, spans: Vec::new() });
            emit(
                t_ms,
                RunEvent::Stage {
                    stage: "features".into(),
                    batch,
                    ns: 1_000_000,
                    busy_ns: 1_000_000,
                    wait_ns: 0,
                    spans: Vec::new(),
                },
            );
            emit(t_ms, RunEvent::Step { step, wall_ns: wall * 1_000_000, wait_ns: wait * 1_000_000 });
            if has_step_work {
                let (busy_ns, wait_ns) = (10_000_000, wait * 1_000_000);
                emit(t_ms, RunEvent::StepWork { step, batch, batches: 1, bucket: 0, busy_ns, wait_ns, began_ns: None });
            }
        }
        recent
    }

    #[test]
    fn the_slow_stage_is_found_in_the_last_steps_with_and_without_device_events() {
        for has_step_work in [true, false] {
            let recent = run(3000, 40, has_step_work);
            let pace = recent.pace().unwrap();
            assert!((pace.steps_per_s - 25.0).abs() < 0.1 && (pace.stall - 0.75).abs() < 0.01, "{pace:?}");
            let stalls = recent.diagnosis(1, None).unwrap().stalls;
            assert!((stalls.share - 0.75).abs() < 0.01, "{}", stalls.share);
            assert!((stalls.stages[0].share - 0.75).abs() < 0.01, "load is to blame: {:?}", stalls.stages);
            assert!((stalls.stages[0].time_ns.mean - 40e6).abs() < 1.0);
        }
    }

    #[test]
    fn no_more_records_are_kept_than_needed() {
        let recent = run(100_000, 5, true);
        assert!(recent.steps == MAX_STEPS && recent.records.len() <= 5 * MAX_STEPS, "{}", recent.records.len());
        let mut stages_only = Recent::default();
        for batch in 0..100_000 {
            let event =
                RunEvent::Stage { stage: "load".into(), batch, ns: 1, busy_ns: 1, wait_ns: 0, spans: Vec::new() };
            stages_only.observe(&Record { v: 1, seq: batch, t_ns: batch, dropped: 0, event });
        }
        assert_eq!(stages_only.records.len(), MAX_RECORDS);
    }

    #[test]
    fn there_is_no_diagnosis_before_the_first_steps() {
        assert!(Recent::default().pace().is_none() && Recent::default().diagnosis(1, None).is_none());
    }

    /// On the CPU a step that shares its cores waits for nothing, and more threads give no more than the cores: both are
    /// known from records that come before the steps or between them.
    #[test]
    fn the_last_steps_on_the_cpu_get_the_diagnosis_of_the_whole_log() {
        let reserved = |role| RunEvent::ArenaReserved { role, card: 0, bytes: 1, limit_bytes: 2, driver_bytes: 1 };
        let mut events = vec![RunEvent::DeviceClock { now_ns: 0, devices: "cpu".into() }];
        events.extend(Role::BOTH.map(reserved));
        events.push(RunEvent::FeedSetting {
            threads: 1,
            cores: 2,
            buffer_size: 4,
            prefetch: 2,
            route: "handover".into(),
        });
        events.push(RunEvent::ModelOnly { bucket: 0, ns: 10_000_000 });
        for step in 1..=60 {
            let (batch, ns, spans) = (step - 1, 15_000_000, Vec::new());
            events.push(RunEvent::Stage { stage: "features".into(), batch, ns, busy_ns: ns, wait_ns: 0, spans });
            let (busy_ns, wait_ns, began_ns) = (20_000_000, 0, None);
            events.push(RunEvent::StepWork { step, batch, batches: 1, bucket: 0, busy_ns, wait_ns, began_ns });
            events.push(RunEvent::Step { step, wall_ns: 20_000_000, wait_ns });
            if step % 10 == 0 {
                events.push(RunEvent::CpuTime { cpu_ns: step * 35_000_000 });
            }
        }
        let record = |(seq, event)| Record { v: 1, seq, t_ns: seq * 5_000_000, dropped: 0, event };
        let records: Vec<Record> = (0..).zip(events).map(record).collect();
        let mut recent = Recent::default();
        records.iter().for_each(|record| recent.observe(record));
        let (last_steps, whole) = (recent.diagnosis(1, None).unwrap(), Diagnosis::of(&records).unwrap());
        assert_eq!((&last_steps.verdicts, &last_steps.flow), (&whole.verdicts, &whole.flow));
        assert!(last_steps.verdicts.is_empty() && last_steps.flow.cores == 2.0, "{last_steps:?}");
    }
}
