//! Diagnosis of a run from its log: leaks, jitter, stalls, bottlenecks, and what to change.
//!
//! Pure functions over the records of a log, of a running or a finished run: no device, no plan, no thread, no clock.
//! [`Leaks`], [`Jitter`] and [`RankWaits`] observe records one by one, during a run; [`Diagnosis::of`] takes a complete log.
//!
//! ```
//! use tandem_diagnosis::Diagnosis;
//! use tandem_events::{Record, RunEvent, VERSION};
//!
//! let step = |step| RunEvent::Step { step, wall_ns: 20_000_000, wait_ns: 100_000 };
//! let record = |seq| Record { v: VERSION, seq, t_ns: seq * 20_000_000, dropped: 0, event: step(seq + 1) };
//! let records: Vec<Record> = (0..100).map(record).collect();
//! let diagnosis = Diagnosis::of(&records).unwrap();
//! assert!(diagnosis.lines().contains(&"✅ NO MAJOR BOTTLENECKS DETECTED".to_owned()));
//! ```

mod statistics;
mod stage;
mod role_devices;
mod facts;
mod warm_up;
mod leaks;
mod overlap;
mod jitter;
mod ranks;
mod stalls;
mod flow;
mod replay;
mod advice;
mod verdicts;
mod tier;
mod diagnosis;
mod json;

pub use advice::{Advice, SettingChange};
pub use diagnosis::{Diagnosis, DiagnosisError};
pub use flow::{Flow, ServiceTime};
pub use jitter::{Jitter, JitterWarning, JitterWindow};
pub use leaks::{Leak, LeakKind, Leaks, MemoryOwner};
pub use ranks::{RankWait, RankWaits, Straggler};
pub use stage::{Stage, StepPart};
pub use stalls::{Stall, Stalls, StepStall};
pub use statistics::Summary;
pub use tier::{Tier, TierLine};
pub use verdicts::{Busy, Verdict, VerdictKind};
pub use warm_up::StepWarmUp;
