//! What a person should look at: leaks, jitter, breaches, remarks. The last ones; of a long run's there may be many.

use std::collections::VecDeque;

/// So many are kept.
const MOST: usize = 50;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// Worth knowing.
    Remark,
    /// Something is wrong.
    Alarm,
}

/// Something that was seen after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alarm {
    pub(super) step: u64,
    pub(super) weight: Weight,
    pub(super) text: String,
}

/// The last of them, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentAlarms {
    last: VecDeque<Alarm>,
}

impl RecentAlarms {
    /// Adds one. What the run itself remarked on, and what is found in its log here, is one alarm.
    pub(super) fn add(&mut self, step: u64, weight: Weight, text: &str) {
        let text = text.trim_start_matches(['⚠', '\u{FE0F}', ' ']).replace('\n', " ").trim().to_owned();
        if text.is_empty() {
            return;
        }
        let is_same = |alarm: &&mut Alarm| alarm.text.contains(&text) || text.contains(&alarm.text);
        if let Some(known) = self.last.iter_mut().rev().find(is_same).filter(|known| known.step <= step) {
            known.weight = known.weight.max(weight);
            return;
        }
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(Alarm { step, weight, text });
    }

    /// The last `count`, newest first: alarms before remarks.
    pub(super) fn last(&self, count: usize) -> Vec<&Alarm> {
        let of = |weight| self.last.iter().rev().filter(move |alarm| alarm.weight == weight);
        of(Weight::Alarm).chain(of(Weight::Remark)).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_run_said_itself_is_not_said_twice() {
        let mut alarms = RecentAlarms::default();
        alarms.add(500, Weight::Alarm, "memory of data, slots grows: 1.00 MB in 100 steps");
        alarms.add(500, Weight::Remark, "⚠️ memory of data, slots grows: 1.00 MB in 100 steps");
        alarms.add(600, Weight::Remark, "decode threads 2 -> 3: load is waited for");
        let told: Vec<_> = alarms.last(9).iter().map(|alarm| (alarm.step, alarm.weight)).collect();
        assert_eq!(told, [(500, Weight::Alarm), (600, Weight::Remark)]);
    }

    #[test]
    fn an_empty_remark_is_none_and_hides_none() {
        let mut alarms = RecentAlarms::default();
        alarms.add(1, Weight::Remark, "\n");
        alarms.add(2, Weight::Alarm, "breach");
        assert_eq!(alarms.last(9).len(), 1);
    }

    #[test]
    fn alarms_come_first_and_the_newest_of_them() {
        let mut alarms = RecentAlarms::default();
        (0..200).for_each(|step| alarms.add(step, Weight::Remark, &format!("remark <{step}>")));
        alarms.add(200, Weight::Alarm, "breach");
        let told: Vec<_> = alarms.last(2).iter().map(|alarm| alarm.text.clone()).collect();
        assert_eq!(told, ["breach", "remark <199>"]);
        assert_eq!(alarms.last(usize::MAX).len(), MOST);
    }
}
