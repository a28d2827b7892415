//! The handle that reports events.

use std::fmt;
use std::sync::Arc;

use crate::RunEvent;

/// A receiver of events.
///
/// An implementation promises that [`emit`](Sink::emit) returns at once, whatever the disk, the network or another thread
/// is doing, and does not panic. If its queue is full, it drops the event and counts it.
pub trait Sink: Send + Sync {
    /// Queues an event, or drops and counts it.
    fn emit(&self, event: RunEvent);
}

/// Reports events to a sink. A clone reports to the same sink and costs one atomic increment.
///
/// An emitter keeps its sink alive, but does not keep a run from ending.
#[derive(Clone, Default)]
pub struct Emitter {
    sink: Option<Arc<dyn Sink>>,
}

impl Emitter {
    /// An emitter without a sink: it drops every event.
    pub fn none() -> Self {
        Self::default()
    }

    /// An emitter that reports to `sink`.
    pub fn to(sink: Arc<dyn Sink>) -> Self {
        Self { sink: Some(sink) }
    }

    /// Reports an event. Never blocks, never fails.
    pub fn emit(&self, event: RunEvent) {
        if let Some(sink) = &self.sink {
            sink.emit(event);
        }
    }
}

impl fmt::Debug for Emitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sink.is_some() { "Emitter(sink)" } else { "Emitter(none)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct List(Mutex<Vec<RunEvent>>);

    impl Sink for List {
        fn emit(&self, event: RunEvent) {
            self.0.lock().unwrap().push(event);
        }
    }

    #[test]
    fn clones_report_to_the_same_sink() {
        let list = Arc::new(List::default());
        let emitter = Emitter::to(list.clone());
        emitter.emit(RunEvent::Note { text: "one".into() });
        emitter.clone().emit(RunEvent::Note { text: "two".into() });
        let texts: Vec<RunEvent> = ["one", "two"].map(|text| RunEvent::Note { text: text.into() }).into();
        assert_eq!(*list.0.lock().unwrap(), texts);
    }

    #[test]
    fn an_emitter_without_a_sink_works() {
        Emitter::none().emit(RunEvent::Note { text: "dropped".into() });
        assert_eq!(format!("{:?}", Emitter::none()), "Emitter(none)");
    }
}
