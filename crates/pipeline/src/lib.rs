//! The building blocks of a pipeline: named threads that are always joined, and rings of memory slots guarded by
//! fences. The crate knows nothing about speech, GPUs or events.
//!
//! # Threads
//!
//! A thread has a name, an owner that joins it, and one [`StopFlag`]. A [`Worker`] is one thread; a [`Crew`] is a
//! group of threads that stop together, on the cores of a [`CoreSet`] if it has one.
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
//!
//! # Rings
//!
//! A [`ring()`] recycles a fixed set of memory slots that a device may still be reading or writing asynchronously. Each
//! slot owns its fences, and every state change asks for the right one. In this example a fence is the count of work
//! queued on an imaginary device.
//!
//! ```
//! use std::cell::Cell;
//! use std::convert::Infallible;
//! use tandem_pipeline::{RingSlot, ring};
//!
//! let queued = Cell::new(0);
//! let record = |fence: &Cell<u32>| Ok::<(), Infallible>(fence.set(queued.get()));
//! let wait = |fence: &Cell<u32>| Ok::<(), Infallible>(assert!(fence.get() <= queued.get()));
//!
//! let slot = |memory| RingSlot { memory, written: Cell::new(0), freed: Cell::new(0) };
//! let (filler, taker) = ring("data-model", [vec![0.0; 4], vec![0.0; 4]].map(slot));
//!
//! let Ok(mut filling) = filler.take()?.claim(wait);
//! filling.memory_mut().fill(0.5);
//! queued.set(queued.get() + 1);
//! let Ok(()) = filling.publish("batch 0", record);
//!
//! drop(filler); // End of stream. Slots that are ready can still be taken.
//! while let Some(ready) = taker.take() {
//!     let Ok(leased) = ready.lease(wait);
//!     assert_eq!((*leased.payload(), leased.memory()[3]), ("batch 0", 0.5));
//!     queued.set(queued.get() + 1);
//!     let Ok(()) = leased.release(record);
//! }
//! # Ok::<(), tandem_pipeline::Closed>(())
//! ```
//!
//! Rings are model-checked: `tests/loom.rs` runs them through every interleaving of a few threads.

mod stop;
mod worker;
mod cores;
mod crew;
mod sync;
mod closed;
mod ring;

pub use closed::Closed;
pub use cores::CoreSet;
pub use crew::Crew;
pub use ring::{Filler, FillingSlot, FreeSlot, LeasedSlot, ReadySlot, RingHandle, RingSlot, RingStats, Taker, ring};
pub use stop::StopFlag;
pub use worker::{Worker, WorkerError};
