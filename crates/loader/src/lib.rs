//! Batches for training loops of other programs: from a corpus to tensors on their device.
//!
//! A [`Loader`] is a [`Feed`](tandem_feed::Feed) that plans itself: [`LoaderOptions`] name a corpus, a device and the tensors
//! to make, and everything else has a default. It knows no model. Its batches are [`TensorBatch`]es, which other libraries read on
//! streams of their own; the Python package wraps them as DLPack tensors.
//!
//! ```text
//! options ─> corpus ─> placement ─> plan ─> loader ─> batch
//! ```
//!
//! ```
//! # use std::time::Duration;
//! use tandem_loader::{Loader, LoaderOptions, Next};
//!
//! # let folder = tempfile::tempdir()?;
//! # let corpus = tandem_loader::write_demo(folder.path(), 1.0)?;
//! let options = serde_json::json!({ "source": corpus, "device": "cpu", "batch_size": 4, "fields": ["mel", "mel_lengths"] });
//! let mut loader = Loader::open(LoaderOptions::from_json(&options)?)?;
//! let mut batches = 0;
//! loop {
//!     match loader.next_batch(Duration::from_secs(1))? {
//!         Next::Batch(batch) => {
//!             assert_eq!(batch.tensors()[0].shape[0], 4);
//!             batches += 1;
//!         } // Dropped: its memory is used for a later batch.
//!         Next::NotReady => {}
//!         Next::EpochEnd => break,
//!     }
//! }
//! assert_eq!(batches, loader.batches_per_epoch());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod options;
mod fields;
mod feature_options;
mod source;
mod placement;
mod plan;
mod recent_events;
mod state;
mod batch;
mod held;
mod log;
mod loader;
mod report;
mod demo;

pub use batch::{ConsumerStream, TensorBatch, TensorDevice, TensorInfo};
pub use demo::write_demo;
pub use error::LoaderError;
pub use fields::FIELDS;
pub use loader::{Loader, Next};
pub use options::LoaderOptions;
pub use plan::plan;
pub use tandem_device::DType;
pub use tandem_feed::{CustomTokenizer, TextMap};
