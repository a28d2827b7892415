//! What a pipeline is made of: threads that are always joined, links bounded in bytes, and memory that goes round in a
//! ring of slots. Knows no speech, no GPU and no events.
//!
//! # Threads
//!
//! A thread has a name, an owner who joins it, and one way to be told to stop. A [`Worker`] is one; a [`Crew`] are
//! several that end together.
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
//! # Links
//!
//! A [`link()`] is for items that are made and used up. Room is taken first and the item made afterwards, so that what
//! is being made is counted too.
//!
//! ```
//! use tandem_pipeline::{Crew, link};
//!
//! let (sender, mut clips) = link::<Vec<i16>>("load-upload", 1 << 20);
//! let mut crew = Crew::new("load");
//! // A thread that waits on a link does not see the stop flag: closing the link wakes it.
//! let handle = sender.handle();
//! crew.on_stop(move || handle.close());
//! for number in 0..2 {
//!     let sender = sender.clone();
//!     crew.spawn(number.to_string(), move |_| {
//!         for num_samples in [22_050, 44_100] {
//!             let Ok(permit) = sender.reserve(2 * num_samples as u64) else { return };
//!             let _ = permit.send(vec![0; num_samples]);
//!         }
//!     })?;
//! }
//! drop(sender);
//! let mut num_samples = 0;
//! while let Some(clip) = clips.recv() {
//!     num_samples += clip.len(); // Its bytes go back as `clip` is dropped.
//! }
//! assert_eq!(num_samples, 2 * (22_050 + 44_100));
//! crew.join()?;
//! # Ok::<(), tandem_pipeline::WorkerError>(())
//! ```
//!
//! # Rings
//!
//! A [`ring()`] is for memory that is made once and used for ever, while a device may still be at work in it. Each slot
//! owns its fences, and every step of its way asks for the right one. Here a fence is a count of the work that a
//! pretended device has been given.
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
//! drop(filler); // The end: what is ready is still taken.
//! while let Some(ready) = taker.take() {
//!     let Ok(leased) = ready.lease(wait);
//!     assert_eq!((*leased.payload(), leased.memory()[3]), ("batch 0", 0.5));
//!     queued.set(queued.get() + 1);
//!     let Ok(()) = leased.release(record);
//! }
//! # Ok::<(), tandem_pipeline::Closed>(())
//! ```
//!
//! Links and rings are model-checked: `tests/loom.rs` runs them through every order of a few threads.

mod stop;
mod worker;
mod crew;
mod sync;
mod closed;
mod link;
mod ring;

pub use closed::Closed;
pub use crew::Crew;
pub use link::{LinkHandle, LinkStats, Load, Parcel, Permit, Receiver, Sender, link};
pub use ring::{Filler, FillingSlot, FreeSlot, LeasedSlot, ReadySlot, RingHandle, RingSlot, RingStats, Taker, ring};
pub use stop::StopFlag;
pub use worker::{Worker, WorkerError};
