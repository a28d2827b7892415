//! Where batches are between the recordings and the step: how many slots of each ring are being filled, are ready, are
//! leased or free.
//!
//! The log tells when a stage has finished a batch, so the figures are differences of batch numbers. Uploads and features
//! are told with the next batch, and steps two steps late: a figure may be off by that much.

use tandem_diagnosis::Stage;
use tandem_events::{Record, RunEvent, VERSION};

use super::plan_facts::PlanFacts;

/// How far each stage has come.
#[derive(Clone, Debug, Default)]
pub(super) struct StageProgress {
    /// Batches a stage has finished, in the order of [`Stage::ALL`]; none where it was never told of.
    finished: [Option<u64>; 4],
    /// Batches that steps have taken, by the device's own count.
    taken: Option<u64>,
    steps: u64,
    setting: Option<FeedTuning>,
}

/// How the feed is set.
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
    /// Slots by what they are at: only what is known, and what adds up to all of them.
    pub(super) states: Vec<(&'static str, u64)>,
    /// Slots that hold a batch for whoever comes next.
    pub(super) ready: u64,
    pub(super) of: u64,
}

impl FeedTuning {
    /// As the log would have told it.
    pub(super) fn as_record(&self) -> Record {
        let [threads, ahead, slots] =
            [self.threads, self.ahead, self.slots].map(|count| count.min(u32::MAX.into()) as u32);
        // Cores matter for advice, and none is given here.
        let event = RunEvent::FeedSetting { threads, cores: threads, ahead, slots, route: self.route.clone() };
        Record { v: VERSION, seq: 0, t_ns: 0, dropped: 0, event }
    }
}

impl StageProgress {
    pub(super) fn observe(&mut self, record: &Record) {
        match &record.event {
            RunEvent::Stage { stage, batch, .. } => {
                let Some(stage) = Stage::named(stage) else { return };
                let finished = &mut self.finished[stage as usize];
                *finished = Some(finished.unwrap_or(0).max(batch + 1));
            }
            RunEvent::StepWork { batch, batches, .. } => {
                self.taken = Some(self.taken.unwrap_or(0).max(batch + u64::from(*batches)));
            }
            RunEvent::Step { .. } => self.steps += 1,
            RunEvent::FeedSetting { threads, ahead, slots, route, .. } => {
                let (threads, ahead, slots) = (u64::from(*threads), u64::from(*ahead), u64::from(*slots));
                self.setting = Some(FeedTuning { threads, ahead, slots, route: route.clone() });
            }
            _ => {}
        }
    }

    /// How the feed is set: as it told, else as it was planned.
    pub(super) fn setting(&self, plan: &PlanFacts) -> Option<FeedTuning> {
        let planned = || {
            let route = plan.transfer.as_deref()?.split(' ').next()?.to_owned();
            Some(FeedTuning { threads: plan.threads?, ahead: plan.buffer_size?, slots: plan.prefetch?, route })
        };
        self.setting.clone().or_else(planned)
    }

    /// The rings in the order batches meet them; none where the log does not tell enough.
    pub(super) fn rings(&self, plan: &PlanFacts) -> Vec<Ring> {
        let (Some(setting), Some(loaded)) = (self.setting(plan), self.finished[Stage::Load as usize]) else {
            return Vec::new();
        };
        let made = self.finished[Stage::Features as usize].unwrap_or(0).min(loaded);
        let taken = self.taken.unwrap_or(self.steps * plan.grad_accum).min(made);
        if setting.route == "handover" {
            // One ring with the slots of both, and the step leases from it.
            let planned = plan.buffer_size.unwrap_or(0) + plan.prefetch.unwrap_or(0);
            return vec![ring(("batch slots", LEASED), setting.ahead.max(planned), loaded - made, made - taken)];
        }
        match self.finished[Stage::Transfer as usize].map(|sent| sent.clamp(taken, made)) {
            Some(sent) => vec![
                ring(("data slots", SENT), setting.ahead, loaded - made, made - sent),
                ring(("model slots", LEASED), setting.slots, 0, sent - taken),
            ],
            None => vec![ring(("batch slots", LEASED), setting.ahead + setting.slots, loaded - made, made - taken)],
        }
    }
}

/// What the log does not tell apart: nobody says when a slot is given back.
const LEASED: &str = "leased or free";
const SENT: &str = "in transfer or free";

fn ring((name, rest): (&'static str, &'static str), of: u64, filling: u64, ready: u64) -> Ring {
    let filling = filling.min(of);
    let ready = ready.min(of - filling);
    let states = [("filling", filling), ("ready", ready), (rest, of - filling - ready)];
    let told = states.into_iter().filter(|(_, count)| *count > 0).collect();
    Ring { name, states: told, ready, of }
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
        RunEvent::FeedSetting { threads: 2, cores: 8, ahead: 10, slots: 4, route: route.into() }
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
    fn what_is_told_late_never_makes_more_slots_than_there_are() {
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
    fn without_a_word_of_the_feed_there_is_nothing_to_show() {
        check(vec![], &[]);
        check(vec![setting("peer")], &[]);
        let plan = PlanFacts::read(r#"{"threads":1,"buffer_size":6,"prefetch":3,"transfer":"handover"}"#);
        let rings = slots(vec![stage("load", 4), stage("features", 3)]).rings(&plan);
        assert_eq!((rings[0].ready, rings[0].of), (4, 9));
    }
}
