//! The last events of a loader, for a diagnosis at any time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_events::{Emitter, Record, RunEvent, Sink, VERSION};

/// Records of some thousand steps.
const MAX_RECORDS: usize = 50_000;

/// Stores the last events as the records that a run log would hold, and forwards each.
pub(crate) struct RecentEvents {
    begun: Instant,
    records: Mutex<VecDeque<Record>>,
    further: Emitter,
}

impl RecentEvents {
    pub(crate) fn new(further: Emitter) -> Arc<RecentEvents> {
        Arc::new(RecentEvents { begun: Instant::now(), records: Mutex::default(), further })
    }

    pub(crate) fn emitter(self: &Arc<RecentEvents>) -> Emitter {
        Emitter::to(Arc::clone(self) as Arc<dyn Sink>)
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Sink for RecentEvents {
    fn emit(&self, event: RunEvent) {
        self.further.emit(event.clone());
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = records.back().map_or(0, |last| last.seq + 1);
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        let t_ns = self.begun.elapsed().as_nanos() as u64;
        records.push_back(Record { v: VERSION, seq, t_ns, dropped: 0, event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_stored_and_memory_is_bounded() {
        let recent = RecentEvents::new(Emitter::none());
        for step in 0..MAX_RECORDS as u64 + 10 {
            recent.emitter().emit(RunEvent::Step { step, wall_ns: 1, wait_ns: 0 });
        }
        let records = recent.records();
        assert_eq!((records.len(), records[0].seq), (MAX_RECORDS, 10));
        assert!(records.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
    }
}
