//! The events a run can report, and the handle that reports them.
//!
//! Emitting never blocks and never fails. The [`Sink`] behind the [`Emitter`] decides what happens to an event: it is the
//! run log, a list in a test, or absent.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use tandem_events::{Emitter, RunEvent, Sink};
//!
//! struct List(Mutex<Vec<RunEvent>>);
//!
//! impl Sink for List {
//!     fn emit(&self, event: RunEvent) {
//!         self.0.lock().unwrap().push(event);
//!     }
//! }
//!
//! let list = Arc::new(List(Mutex::new(Vec::new())));
//! let emitter = Emitter::to(list.clone());
//! emitter.emit(RunEvent::Note { text: "stored".into() });
//! Emitter::none().emit(RunEvent::Note { text: "dropped".into() });
//! assert_eq!(list.0.lock().unwrap().len(), 1);
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
