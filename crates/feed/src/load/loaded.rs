//! What loading produces: rows, batches of them, and the memory they are in.

use tandem_audio::NOT_CACHED;
use tandem_corpus::{Batch, Cursor, SampleIndex};
use tandem_device::{Event, Pinned};
use tandem_pipeline::{Filler, ReadySlot, Taker};

use super::bad_samples::Replacement;

/// Page-locked memory of one batch. None while it is split into rows.
pub(crate) type UploadMemory = Option<Pinned>;
/// The name of the ring between decode threads and upload.
pub(crate) const PINNED_RING: &str = "pinned ring";
/// The decode threads' end of that ring.
pub(crate) type LoadedFiller = Filler<UploadMemory, LoadedBatch, Event>;
/// The data thread's end of that ring.
pub(crate) type LoadedTaker = Taker<UploadMemory, LoadedBatch, Event>;
/// A loaded batch in that ring.
pub(crate) type LoadedSlot = ReadySlot<UploadMemory, LoadedBatch, Event>;

/// A loaded batch. Its samples and tables are in its [`UploadMemory`].
pub(crate) struct LoadedBatch {
    /// Its number since the feed started, from 0.
    pub(crate) sequence: u64,
    pub(crate) batch: Batch,
    /// The first of the batches that the ranks of a run work on at the same time.
    pub(crate) group: Cursor,
    pub(crate) rows: Vec<LoadedRow>,
    /// From opening the batch to its last row.
    pub(crate) wall_ns: u64,
}

/// The `rate` of a row that needs no resampling, as kernels know it.
pub(crate) const AT_FEATURES_RATE: u32 = u32::MAX;

/// A loaded row.
#[derive(Clone, Debug)]
pub(crate) struct LoadedRow {
    /// None for an empty row.
    pub(crate) sample: Option<SampleIndex>,
    /// Samples as written.
    pub(crate) in_samples: u32,
    /// Samples after resampling to the features' rate.
    pub(crate) out_samples: u32,
    /// Index of its sample rate in the plan, or [`AT_FEATURES_RATE`].
    pub(crate) rate: u32,
    pub(crate) frames: u32,
    /// Offset of its cached pitch, or [`NOT_CACHED`].
    pub(crate) pitch_offset: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) speaker: u32,
    /// The id of its language.
    pub(crate) language: u32,
    /// Set if the row holds another sample than the order asks for.
    pub(crate) replacement: Option<Replacement>,
    /// Time of loading, failed attempts included.
    pub(crate) busy_ns: u64,
}

impl LoadedRow {
    /// A row without a sample: an evaluation leaves rows empty.
    pub(crate) fn empty() -> LoadedRow {
        LoadedRow {
            sample: None,
            in_samples: 0,
            out_samples: 0,
            rate: AT_FEATURES_RATE,
            frames: 0,
            pitch_offset: NOT_CACHED,
            tokens: Vec::new(),
            speaker: 0,
            language: 0,
            replacement: None,
            busy_ns: 0,
        }
    }
}
