//! The run log, and the programs of others that a run is shown in.
//!
//! [`RunLog`] writes one JSONL file of typed, versioned events per run, without anyone waiting for it, and [`read`]
//! reads it back. Whatever shows or judges a run is a reader of these records. Here are those for other programs:
//! [`TensorBoard`] files, a page for [`Prometheus`], a [`Trace`] for Perfetto. [`Exporters`] feeds them while a run
//! goes on, [`export_log`] from a finished log.
//!
//! ```no_run
//! use tandem_events::Event;
//! use tandem_runlog::{Entry, RunLog, read};
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
//!
//! The same with everything on:
//!
//! ```no_run
//! use std::time::SystemTime;
//! use tandem_events::Event;
//! use tandem_runlog::{Exporter, Exporters, Prometheus, RunLog, TensorBoard, Trace, listen_address};
//!
//! let exporters: Vec<Box<dyn Exporter>> = vec![
//!     Box::new(TensorBoard::create("run/tensorboard", "run", SystemTime::now())?),
//!     Box::new(Prometheus::serve(listen_address(":9090")?)?),
//!     Box::new(Trace::create("trace.json")?),
//! ];
//! let exporters = Exporters::start(exporters, |problem| eprintln!("{problem}"))?;
//! let (log, emitter) = RunLog::create_with_listener("run/run.jsonl", exporters.listener(), |error| eprintln!("{error}"))?;
//! emitter.emit(Event::Step { step: 1, wall_ns: 1_000_000, wait_ns: 0 });
//! log.finish_with(Event::RunEnded { exit_code: 0, reason: "done".into() });
//! let summary = exporters.finish();
//! assert_eq!((summary.taken, summary.dropped), (2, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod nonblocking_writer;
mod spool;
mod lines;
mod writer;
mod run_log;
mod read;
mod export;
mod tensorboard;
mod prometheus;
mod trace;

pub use export::{ExportError, ExportProblem, ExportSummary, Exporter, Exporters, export_log, log_began};
pub use prometheus::{Prometheus, listen_address};
pub use read::{LogEntry, ReadError, Reader, UnknownRecord, read};
pub use run_log::{LogError, LogSummary, RunLog};
pub use tensorboard::TensorBoard;
pub use trace::Trace;
