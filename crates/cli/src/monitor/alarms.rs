//! Alarms and notes of a run: leaks, jitter, exceeded limits, the run's own notes. Only the most recent are kept.

use std::collections::VecDeque;

/// How many are kept.
const MAX_ALARMS: usize = 50;

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AlarmLevel {
    /// Information.
    Note,
    /// Something is wrong.
    Alarm,
}

/// An alarm or a note, with the step it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alarm {
    pub(super) step: u64,
    pub(super) level: AlarmLevel,
    pub(super) text: String,
}

/// The most recent alarms, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentAlarms {
    last: VecDeque<Alarm>,
}

impl RecentAlarms {
    /// Adds an alarm. A note of the run and the alarm that the monitor derives from the same records count as one.
    pub(super) fn add(&mut self, step: u64, level: AlarmLevel, text: &str) {
        let text = text.trim_start_matches(['⚠', '\u{FE0F}', ' ']).replace('\n', " ").trim().to_owned();
        if text.is_empty() {
            return;
        }
        let is_same = |alarm: &&mut Alarm| alarm.text.contains(&text) || text.contains(&alarm.text);
        if let Some(known) = self.last.iter_mut().rev().find(is_same).filter(|known| known.step <= step) {
            known.level = known.level.max(level);
            return;
        }
        if self.last.len() == MAX_ALARMS {
            self.last.pop_front();
        }
        self.last.push_back(Alarm { step, level, text });
    }

    /// The most recent `count`, alarms before notes, newest first.
    pub(super) fn last(&self, count: usize) -> Vec<&Alarm> {
        let of = |level| self.last.iter().rev().filter(move |alarm| alarm.level == level);
        of(AlarmLevel::Alarm).chain(of(AlarmLevel::Note)).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_the_run_and_the_alarm_it_repeats_are_one() {
        let mut alarms = RecentAlarms::default();
        alarms.add(500, AlarmLevel::Alarm, "memory leak in data role (slots): 1.00 MB per 100 steps");
        alarms.add(500, AlarmLevel::Note, "⚠️ memory leak in data role (slots): 1.00 MB per 100 steps");
        alarms.add(600, AlarmLevel::Note, "decode threads 2 → 3 (the step waits for load)");
        let shown: Vec<_> = alarms.last(9).iter().map(|alarm| (alarm.step, alarm.level)).collect();
        assert_eq!(shown, [(500, AlarmLevel::Alarm), (600, AlarmLevel::Note)]);
    }

    #[test]
    fn an_empty_note_is_ignored() {
        let mut alarms = RecentAlarms::default();
        alarms.add(1, AlarmLevel::Note, "\n");
        alarms.add(2, AlarmLevel::Alarm, "breach");
        assert_eq!(alarms.last(9).len(), 1);
    }

    #[test]
    fn alarms_come_first_and_the_newest_of_them() {
        let mut alarms = RecentAlarms::default();
        (0..200).for_each(|step| alarms.add(step, AlarmLevel::Note, &format!("note <{step}>")));
        alarms.add(200, AlarmLevel::Alarm, "breach");
        let shown: Vec<_> = alarms.last(2).iter().map(|alarm| alarm.text.clone()).collect();
        assert_eq!(shown, ["breach", "note <199>"]);
        assert_eq!(alarms.last(usize::MAX).len(), MAX_ALARMS);
    }
}
