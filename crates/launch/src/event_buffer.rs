//! The events of a run in memory, to diagnose it right after it ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tandem_events::{Emitter, Record, RunEvent, Sink, VERSION};

/// Stores every event as the record that a run log would hold, and forwards it.
///
/// A short run has some thousands of events. A run of hours belongs in a log, not in memory.
pub struct EventBuffer {
    begun: Instant,
    records: Mutex<Vec<Record>>,
    further: Emitter,
}

impl EventBuffer {
    /// An empty buffer that forwards to `further`.
    pub fn new(further: Emitter) -> Arc<EventBuffer> {
        Arc::new(EventBuffer { begun: Instant::now(), records: Mutex::default(), further })
    }

    /// The emitter that fills it.
    pub fn emitter(self: &Arc<EventBuffer>) -> Emitter {
        Emitter::to(Arc::clone(self) as Arc<dyn Sink>)
    }

    /// Takes all records so far.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for EventBuffer {
    fn emit(&self, event: RunEvent) {
        self.further.emit(event.clone());
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let (seq, t_ns) = (records.len() as u64, self.begun.elapsed().as_nanos() as u64);
        records.push(Record { v: VERSION, seq, t_ns, dropped: 0, event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_stored_in_order_and_forwarded() {
        let further = EventBuffer::new(Emitter::none());
        let buffer = EventBuffer::new(further.emitter());
        let note = |text: &str| RunEvent::Note { text: text.to_owned() };
        ["a", "b"].into_iter().for_each(|text| buffer.emitter().emit(note(text)));
        let records = buffer.take();
        assert_eq!(
            records.iter().map(|record| (record.seq, record.event.clone())).collect::<Vec<_>>(),
            [(0, note("a")), (1, note("b"))]
        );
        assert!(records[0].t_ns <= records[1].t_ns);
        assert!(buffer.take().is_empty());
        assert_eq!(further.take().len(), 2);
    }
}
