//! The run log, and exporters to TensorBoard, Prometheus and Perfetto.
//!
//! [`RunLog`] writes one JSONL file of typed, versioned events per run, never blocking training, and [`read`]
//! reads it back. Everything that shows or judges a run reads these records. The exporters:
//! [`TensorBoard`] files, a page for [`Prometheus`], a [`Trace`] for Perfetto. [`Exporters`] feeds them during a run,
//! [`export_log`] from a finished log.
//!
//! ```no_run
//! use tandem_events::RunEvent;
//! use tandem_runlog::{LogEntry, RunLog, read};
//!
//! let (log, emitter) = RunLog::create("run.jsonl")?;
//! emitter.emit(RunEvent::Note { text: "warm-up done".into() });
//! let summary = log.finish_with(RunEvent::RunEnded { exit_code: 0, reason: "done".into() });
//! assert_eq!((summary.written, summary.dropped), (2, 0));
//!
//! for entry in read("run.jsonl")? {
//!     if let LogEntry::Known(record) = entry? {
//!         println!("{:>12} ns  {:?}", record.t_ns, record.event);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With every exporter:
//!
//! ```no_run
//! use std::time::SystemTime;
//! use tandem_events::RunEvent;
//! use tandem_runlog::{Exporter, Exporters, Prometheus, RunLog, TensorBoard, Trace, listen_address};
//!
//! let exporters: Vec<Box<dyn Exporter>> = vec![
//!     Box::new(TensorBoard::create("run/tensorboard", "run", SystemTime::now())?),
//!     Box::new(Prometheus::serve(listen_address(":9090")?)?),
//!     Box::new(Trace::create("trace.json")?),
//! ];
//! let exporters = Exporters::start(exporters, |problem| eprintln!("{problem}"))?;
//! let (log, emitter) = RunLog::create_with_listener("run/run.jsonl", exporters.listener(), |error| eprintln!("{error}"))?;
//! emitter.emit(RunEvent::Step { step: 1, wall_ns: 1_000_000, wait_ns: 0 });
//! log.finish_with(RunEvent::RunEnded { exit_code: 0, reason: "done".into() });
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
