//! The handle through which events leave the code that saw them.

use std::fmt;
use std::sync::Arc;

use crate::RunEvent;

/// Where events go.
///
/// The promise of an implementation: [`emit`](Sink::emit) returns at once whatever the disk, the network or another
/// thread is doing, and does not panic. An event it has no room for is lost, and counted.
pub trait Sink: Send + Sync {
    /// Takes an event, or loses it.
    fn emit(&self, event: RunEvent);
}

/// What everyone who has something to tell holds. A clone tells the same sink and costs one atomic increment.
///
/// Holding one keeps the sink alive and nothing else: a run ends whether or not emitters are still about.
#[derive(Clone, Default)]
pub struct Emitter {
    sink: Option<Arc<dyn Sink>>,
}

impl Emitter {
    /// An emitter nobody listens to.
    pub fn none() -> Self {
        Self::default()
    }

    /// An emitter that `sink` listens to.
    pub fn to(sink: Arc<dyn Sink>) -> Self {
        Self { sink: Some(sink) }
    }

    /// Tells of an event. Never blocks, never fails.
    pub fn emit(&self, event: RunEvent) {
        if let Some(sink) = &self.sink {
            sink.emit(event);
        }
    }
}

impl fmt::Debug for Emitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sink.is_some() { "Emitter(heard)" } else { "Emitter(unheard)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<RunEvent>>);

    impl Sink for Heard {
        fn emit(&self, event: RunEvent) {
            self.0.lock().unwrap().push(event);
        }
    }

    #[test]
    fn clones_tell_the_same_sink() {
        let heard = Arc::new(Heard::default());
        let emitter = Emitter::to(heard.clone());
        emitter.emit(RunEvent::Note { text: "one".into() });
        emitter.clone().emit(RunEvent::Note { text: "two".into() });
        let texts: Vec<RunEvent> = ["one", "two"].map(|text| RunEvent::Note { text: text.into() }).into();
        assert_eq!(*heard.0.lock().unwrap(), texts);
    }

    #[test]
    fn nobody_listening_is_fine() {
        Emitter::none().emit(RunEvent::Note { text: "lost".into() });
        assert_eq!(format!("{:?}", Emitter::none()), "Emitter(unheard)");
    }
}
