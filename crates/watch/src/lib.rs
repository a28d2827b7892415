//! The run log: one JSONL file of typed, versioned events per run, written without anyone waiting for it.
//!
//! [`RunLog`] writes it and [`read`] reads it back; whatever else shows or judges a run is a reader of this file.
//!
//! ```no_run
//! use tandem_events::Event;
//! use tandem_watch::{Entry, RunLog, read};
//!
//! let (log, emitter) = RunLog::create("run.jsonl")?;
//! emitter.emit(Event::Note { text: "warm-up done".into() });
//! let summary = log.finish_with(Event::RunEnded { exit_code: 0, reason: "done".into() });
//! assert_eq!((summary.written, summary.dropped), (2, 0));
//!
//! for entry in read("run.jsonl")? {
//!     if let Entry::Known(record) = entry? {
//!         println!("{:>12} ns  {:?}", record.t_ns, record.event);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod lines;
mod read;
mod run_log;
mod writer;

pub use read::{Entry, ReadError, Reader, UnknownRecord, read};
pub use run_log::{LogError, LogSummary, RunLog};
