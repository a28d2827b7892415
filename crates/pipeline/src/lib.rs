//! Threads that have a name, an owner who joins them, and one way to be told to stop. Knows no speech and no GPU.
//!
//! ```
//! use std::time::Duration;
//! use tandem_pipeline::Worker;
//!
//! let worker = Worker::spawn("ticker", |stop| {
//!     let mut ticks = 0;
//!     while !stop.wait_timeout(Duration::from_millis(1)) {
//!         ticks += 1;
//!     }
//!     ticks
//! })?;
//! worker.stop();
//! let ticks: u32 = worker.join()?;
//! # let _ = ticks;
//! # Ok::<(), tandem_pipeline::WorkerError>(())
//! ```

mod stop;
mod worker;

pub use stop::StopFlag;
pub use worker::{Worker, WorkerError};
