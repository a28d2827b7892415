//! What a run log says about the run: leaks, jitter, stalls, bottlenecks, and what to change.
//!
//! Pure functions over the records of a log, live or of a run that ended long ago: no device, no plan, no thread, no
//! clock. [`Leaks`] and [`Jitter`] take records one by one, for warnings while a run goes on; [`Diagnosis::of`]
//! looks at a whole log.
//!
//! ```
//! use tandem_diagnosis::Diagnosis;
//! use tandem_events::{Event, Record, VERSION};
//!
//! let step = |step| Event::Step { step, wall_ns: 20_000_000, wait_ns: 100_000 };
//! let record = |seq| Record { v: VERSION, seq, t_ns: seq * 20_000_000, dropped: 0, event: step(seq + 1) };
//! let records: Vec<Record> = (0..100).map(record).collect();
//! let diagnosis = Diagnosis::of(&records).unwrap();
//! assert!(diagnosis.told().contains(&"✅ NO MAJOR BOTTLENECKS DETECTED".to_owned()));
//! ```

mod statistics;
mod stage;
mod places;
mod facts;
mod leaks;
mod overlap;
mod jitter;
mod stalls;
mod flow;
mod replay;
mod advice;
mod verdicts;
mod tier;
mod diagnosis;

pub use advice::{Advice, SettingChange};
pub use diagnosis::{Diagnosis, DiagnosisError};
pub use flow::{Flow, Time};
pub use jitter::{Jitter, JitterWarning, JitterWindow};
pub use leaks::{Leak, LeakKind, Leaks, MemoryOwner};
pub use stage::{Stage, StepPart};
pub use stalls::{Stall, Stalls, StepStall};
pub use statistics::Summary;
pub use tier::{Tier, TierLine};
pub use verdicts::{Busy, Verdict, VerdictKind};
