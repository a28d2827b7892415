//! Where batches are between decoding and the step: how many slots of each ring are filling, ready, leased or free.
//!
//! The log says when a stage has finished a batch, so the counts are differences of batch numbers. Uploads and features are
//! logged with the next batch, and steps two steps late: a count may be off by that much.

use tandem_diagnosis::Stage;
use tandem_events::{Record, RunEvent, VERSION};

use super::plan_facts::PlanFacts;

/// The progress of each stage.
#[derive(Clone, Debug, Default)]
pub(super) struct StageProgress {
    /// Batches each stage has finished, in the order of [`Stage::ALL`]. None for a stage without records.
    finished: [Option<u64>; 4],
    /// Batches that steps have used, from device events.
    used: Option<u64>,
    steps: u64,
    setting: Option<FeedTuning>,
}

/// The settings of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FeedTuning {
    pub(super) threads: u64,
    pub(super) ahead: u64,
    pub(super) slots: u64,
    pub(super) route: String,
}

/// One ring of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) name: &'static str,
    /// The number of slots in each state; the numbers sum to `of`.
    pub(super) states: Vec<(&'static str, u64)>,
    /// Slots with a batch ready for the next stage.
    pub(super) ready: u64,
    pub(super) of: u64,
}

impl FeedTuning {
    /// As a record of the log.
    pub(super) fn as_record(&self) -> Record {
        let [threads, buffer_size, prefetch] =
            [self.threads, self.ahead, self.slots].map(|count| count.min(u32::MAX.into()) as u32);
        // The cores only matter for advice, which the monitor does not show.
        let event = RunEvent::FeedSetting { threads, cores: threads, buffer_size, prefetch, route: self.route.clone() };
        Record { v: VERSION, seq: 0, t_ns: 0, dropped: 0, event }
    }
}

impl StageProgress {
    pub(super) fn observe(&mut self, record: &Record) {
        match &record.event {
            RunEvent::Stage { stage, batch, .. } => {
                let Some(stage) = Stage::named(stage) else { return };
                let finished = &mut self.finished[stage as usize];
                *finished = Some(finished.unwrap_or(0).max(batch.saturating_add(1)));
            }
            RunEvent::StepWork { batch, batches, .. } => {
                self.used = Some(self.used.unwrap_or(0).max(batch.saturating_add((*batches).into())));
            }
            RunEvent::Step { .. } => self.steps += 1,
            RunEvent::FeedSetting { threads, buffer_size, prefetch, route, .. } => {
                let (threads, ahead, slots) = (u64::from(*threads), u64::from(*buffer_size), u64::from(*prefetch));
                self.setting = Some(FeedTuning { threads, ahead, slots, route: route.clone() });
            }
            _ => {}
        }
    }

    /// The settings of the feed: from the log, else from the plan.
    pub(super) fn setting(&self, plan: &PlanFacts) -> Option<FeedTuning> {
        let planned = || {
            let route = plan.transfer.as_deref()?.split(' ').next()?.to_owned();
            Some(FeedTuning { threads: plan.threads?, ahead: plan.buffer_size?, slots: plan.prefetch?, route })
        };
        self.setting.clone().or_else(planned)
    }

    /// The rings in the order batches pass them. None where the log does not have enough.
    pub(super) fn rings(&self, plan: &PlanFacts) -> Vec<Ring> {
        let (Some(setting), Some(loaded)) = (self.setting(plan), self.finished[Stage::Load as usize]) else {
            return Vec::new();
        };
        let made = self.finished[Stage::Features as usize].unwrap_or(0).min(loaded);
        let used = self.used.unwrap_or(self.steps.saturating_mul(plan.batches_per_step)).min(made);
        if setting.route == "handover" {
            // One ring has the slots of both roles, and the step leases from it.
            let planned = plan.buffer_size.unwrap_or(0).saturating_add(plan.prefetch.unwrap_or(0));
            let of = setting.ahead.max(planned);
            return vec![BATCH_SLOTS.ring(of, loaded - made, made - used)];
        }
        match self.finished[Stage::Transfer as usize].map(|sent| sent.clamp(used, made)) {
            Some(sent) => vec![
                DATA_SLOTS.ring(setting.ahead, loaded - made, made - sent),
                MODEL_SLOTS.ring(setting.slots, 0, sent - used),
            ],
            None => vec![BATCH_SLOTS.ring(setting.ahead.saturating_add(setting.slots), loaded - made, made - used)],
        }
    }
}

/// How a ring is shown.
struct RingKind {
    name: &'static str,
    /// The state of the slots that are neither filling nor ready. The log does not say when a slot is returned, so two states
    /// are shown as one.
    other_state: &'static str,
}

const BATCH_SLOTS: RingKind = RingKind { name: "batch slots", other_state: "leased or free" };
const DATA_SLOTS: RingKind = RingKind { name: "data slots", other_state: "in transfer or free" };
const MODEL_SLOTS: RingKind = RingKind { name: "model slots", other_state: "leased or free" };

impl RingKind {
    fn ring(&self, of: u64, filling: u64, ready: u64) -> Ring {
        let filling = filling.min(of);
        let ready = ready.min(of - filling);
        let states = [("filling", filling), ("ready", ready), (self.other_state, of - filling - ready)];
        let states = states.into_iter().filter(|(_, count)| *count > 0).collect();
        Ring { name: self.name, states, ready, of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(events: Vec<RunEvent>) -> StageProgress {
        let mut slots = StageProgress::default();
        for event in events {
            slots.observe(&Record { v: 1, seq: 0, t_ns: 0, dropped: 0, event });
        }
        slots
    }

    fn stage(stage: &str, batch: u64) -> RunEvent {
        RunEvent::Stage { stage: stage.into(), batch, ns: 1, busy_ns: 1, wait_ns: 0, spans: Vec::new() }
    }

    fn setting(route: &str) -> RunEvent {
        RunEvent::FeedSetting { threads: 2, cores: 8, buffer_size: 10, prefetch: 4, route: route.into() }
    }

    fn work(batch: u64) -> RunEvent {
        RunEvent::StepWork { step: 1, batch, batches: 1, bucket: 0, busy_ns: 1, wait_ns: 0, began_ns: None }
    }

    #[track_caller]
    fn check(events: Vec<RunEvent>, expected: &[(&str, u64, u64)]) {
        let rings = slots(events).rings(&PlanFacts::read(""));
        let found: Vec<_> = rings.iter().map(|ring| (ring.name, ring.ready, ring.of)).collect();
        assert_eq!(found, expected);
        for ring in rings {
            assert_eq!(ring.states.iter().map(|(_, count)| count).sum::<u64>(), ring.of, "{ring:?}");
        }
    }

    #[test]
    fn batches_are_where_the_stages_left_them() {
        let made = [stage("load", 19), stage("features", 17), work(9)];
        let with = |more: &[RunEvent]| made.iter().chain(more).cloned().collect::<Vec<_>>();
        check(with(&[setting("peer"), stage("transfer", 12)]), &[("data slots", 5, 10), ("model slots", 3, 4)]);
        check(with(&[setting("bounce")]), &[("batch slots", 8, 14)]);
        check(with(&[setting("handover")]), &[("batch slots", 8, 10)]);
    }

    #[test]
    fn late_records_never_make_more_slots_than_there_are() {
        check(
            vec![setting("peer"), stage("load", 90), stage("features", 89), stage("transfer", 89), work(0)],
            &[("data slots", 0, 10), ("model slots", 4, 4)],
        );
        check(
            vec![setting("peer"), stage("load", 3), stage("features", 1), stage("transfer", 0), work(5)],
            &[("data slots", 0, 10), ("model slots", 0, 4)],
        );
    }

    #[test]
    fn without_records_of_the_feed_no_ring_is_shown() {
        check(vec![], &[]);
        check(vec![setting("peer")], &[]);
        let plan = PlanFacts::read(r#"{"threads":1,"buffer_size":6,"prefetch":3,"transfer":"handover"}"#);
        let rings = slots(vec![stage("load", 4), stage("features", 3)]).rings(&plan);
        assert_eq!((rings[0].ready, rings[0].of), (4, 9));
    }
}
