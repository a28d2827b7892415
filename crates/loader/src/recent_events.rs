//! The last events of a loader, for a diagnosis at any time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tandem_events::{Emitter, Record, RunEvent, Sink, VERSION};

/// Records of some thousand steps.
const MAX_RECORDS: usize = 50_000;

/// Stores the last events as the records that a run log would hold, and forwards each.
pub(crate) struct RecentEvents {
    begun: Instant,
    stored: Mutex<Stored>,
    further: Emitter,
}

#[derive(Default)]
struct Stored {
    next_seq: u64,
    /// Settings and devices: few, and needed by every diagnosis.
    settings: Vec<Record>,
    /// The last of all others.
    recent: VecDeque<Record>,
}

impl RecentEvents {
    pub(crate) fn new(further: Emitter) -> Arc<RecentEvents> {
        Arc::new(RecentEvents { begun: Instant::now(), stored: Mutex::default(), further })
    }

    pub(crate) fn emitter(self: &Arc<RecentEvents>) -> Emitter {
        Emitter::to(Arc::clone(self) as Arc<dyn Sink>)
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        let stored = self.lock();
        stored.settings.iter().chain(&stored.recent).cloned().collect()
    }

    /// Forgets all but the settings: batches are counted from 0 again.
    pub(crate) fn forget_batches(&self) {
        self.lock().recent.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for RecentEvents {
    fn emit(&self, event: RunEvent) {
        self.further.emit(event.clone());
        let mut stored = self.lock();
        let is_setting = matches!(
            event,
            RunEvent::RunStarted { .. }
                | RunEvent::DeviceClock { .. }
                | RunEvent::ArenaReserved { .. }
                | RunEvent::FeedSetting { .. }
        );
        let t_ns = self.begun.elapsed().as_nanos() as u64;
        let record = Record { v: VERSION, seq: stored.next_seq, t_ns, dropped: 0, event };
        stored.next_seq += 1;
        if is_setting {
            stored.settings.push(record);
            return;
        }
        if stored.recent.len() == MAX_RECORDS {
            stored.recent.pop_front();
        }
        stored.recent.push_back(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_stored_and_memory_is_bounded() {
        let recent = RecentEvents::new(Emitter::none());
        recent.emitter().emit(RunEvent::DeviceClock { now_ns: 0, devices: "cpu".to_owned() });
        for step in 0..MAX_RECORDS as u64 + 10 {
            recent.emitter().emit(RunEvent::Step { step, wall_ns: 1, wait_ns: 0 });
        }
        let records = recent.records();
        assert_eq!((records.len(), records[0].seq, records[1].seq), (MAX_RECORDS + 1, 0, 11));
        assert!(records[1..].windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
        recent.forget_batches();
        assert_eq!(recent.records().len(), 1);
    }
}
