//! The vocabulary of what can be observed, and the handle through which it is told.
//!
//! Everyone emits; nobody waits for it and nobody can fail by it. What becomes of an event is the business of
//! the [`Sink`] behind the [`Emitter`]: usually the run log, in a test a list, mostly nothing at all.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use tandem_events::{Emitter, Event, Sink};
//!
//! struct Heard(Mutex<Vec<Event>>);
//!
//! impl Sink for Heard {
//!     fn emit(&self, event: Event) {
//!         self.0.lock().unwrap().push(event);
//!     }
//! }
//!
//! let heard = Arc::new(Heard(Mutex::new(Vec::new())));
//! let emitter = Emitter::to(heard.clone());
//! emitter.emit(Event::Note { text: "warm".into() });
//! Emitter::none().emit(Event::Note { text: "nobody hears this".into() });
//! assert_eq!(heard.0.lock().unwrap().len(), 1);
//! ```

mod emitter;
mod event;
mod record;
mod role;
mod span;

pub use emitter::{Emitter, Sink};
pub use event::RunEvent;
pub use record::{Record, VERSION};
pub use role::Role;
pub use span::TimeSpan;
