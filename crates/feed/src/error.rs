//! Errors between a recording and a batch. Each variant calls for a different next step.

use std::io;
use std::path::PathBuf;

use tandem_audio::AudioError;
use tandem_corpus::CorpusError;
use tandem_device::{DeviceError, Route};
use tandem_espeak::EspeakError;
use tandem_pipeline::{Closed, WorkerError};
use tandem_storage::StorageError;
use tandem_text::TextError;

use crate::load::bad_samples::TooManyBad;

/// A recording or a corpus cannot be used, or the feed failed.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// A reader's stream is captured into a graph, which would replay with other batches in the slot.
    #[error(
        "a batch cannot be read on a stream that is being captured: take batches outside of the capture, and copy them in"
    )]
    CapturedReader,
    /// The end of a reader of a shared batch could not be recorded.
    #[error(
        "a batch was not released ({0}): the streams that read it must be of its device, and exist until its last tensor is gone"
    )]
    Release(#[source] DeviceError),
    /// The recording does not exist: restore it, or remove its row.
    #[error("no such file: {location}")]
    Missing {
        /// Its expected location.
        location: String,
    },

    /// The phonemes of espeak-ng are asked for, and it cannot be used.
    #[error(transparent)]
    Espeak(#[from] EspeakError),

    /// The store of the recordings gives no answer, or refuses every request: repair the connection or the credentials, then
    /// resume. Says nothing about the recording.
    #[error("storage is unreachable: {error}")]
    StorageUnreachable {
        /// The error of the store. Not the `source`: it would be printed twice.
        error: StorageError,
    },

    /// The corpus is not the one that was indexed: index it again, then resume. Says nothing about the recording.
    #[error("the corpus is not what was indexed: {error}\n   Run `tandem corpus index` again")]
    CorpusChanged {
        /// What changed, and how. Not the `source`: it would be printed twice.
        error: StorageError,
    },

    /// The recording exists and cannot be opened: correct its permissions.
    #[error(transparent)]
    Unopened(CorpusError),

    /// The recording cannot be decoded or resampled.
    #[error("{source}: {location}")]
    Undecodable {
        /// The reason.
        source: AudioError,
        /// Its location.
        location: String,
    },

    /// The named part is outside the recording: correct the offset or the duration.
    #[error("the part from {from_s:.3} s to {to_s:.3} s is outside the recording, which has {has_s:.3} s: {location}")]
    OutsideRecording {
        /// Start of the part.
        from_s: f64,
        /// Its end.
        to_s: f64,
        /// Duration of the recording.
        has_s: f64,
        /// Its location.
        location: String,
    },

    /// A file or folder of the run cannot be used: correct its permissions, or choose another.
    #[error("the {what} cannot be used ({why}): {}", path.display())]
    Unusable {
        /// Its purpose.
        what: &'static str,
        /// The error of the system. Not the `source`: it would be printed twice.
        why: io::Error,
        /// Its path.
        path: PathBuf,
    },

    /// More recordings are bad than allowed: repair them, or allow more.
    #[error(transparent)]
    TooManyBad(#[from] TooManyBad),

    /// The recording is longer than listed, by more than rounding: correct the list, or measure lengths again.
    #[error("the recording is {over_s:.3} s longer than listed: {location}")]
    LongerThanListed {
        /// The excess over the room of its row.
        over_s: f64,
        /// Its location.
        location: String,
    },

    /// The text is empty or has unknown characters.
    #[error(transparent)]
    Text(#[from] TextError),

    /// The text has more tokens than fit in its batch.
    #[error("the text has {found} tokens, its batch has room for {most}")]
    TextTooLong {
        /// Its tokens.
        found: u64,
        /// The room of its row.
        most: u64,
    },

    /// The recording has fewer frames than its text has tokens: one of the two is wrong.
    #[error("the text has {tokens} tokens, the recording only {frames} frames: {location}")]
    ShorterThanText {
        /// Tokens of its text.
        tokens: u64,
        /// Frames of the recording.
        frames: u64,
        /// Its location.
        location: String,
    },

    /// The decoder has a bug that this file triggers.
    #[error("the decoder panicked: {message}")]
    Panicked {
        /// The panic message.
        message: String,
    },

    /// A bad sample cannot be replaced: every other sample that fits its row is bad as well.
    #[error("no sample is left to replace {id}")]
    NothingLeft {
        /// The bad sample.
        id: String,
    },

    /// No row of the corpus fits the shapes.
    #[error(transparent)]
    Corpus(CorpusError),

    /// A batch has more samples than kernels can index: lower the batch size.
    #[error("a batch of {samples} samples is more than kernels can index ({}): lower the batch size", u32::MAX)]
    BatchTooLarge {
        /// Samples of all its rows.
        samples: u64,
    },

    /// The features cannot be computed with these settings.
    #[error(transparent)]
    Features(#[from] AudioError),

    /// The checkpoint belongs to another corpus: start a new run, or give the corpus of the checkpoint.
    #[error("the checkpoint refers to sample {sample}, and the corpus has {num_samples} samples")]
    ForeignState {
        /// A sample of the checkpoint.
        sample: u32,
        /// Samples of the corpus.
        num_samples: usize,
    },

    /// A verified batch arrived with other bytes than were sent. Nothing has read it.
    #[error(
        "batch {batch} changed on its way from GPU {from} to GPU {to} ({}, slot {slot}): the checksums of both sides differ. {}",
        route.name(), instead_of(*route)
    )]
    CorruptBatch {
        /// Its route.
        route: Route,
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Its number since the feed started, from 0.
        batch: u64,
        /// Its slot on the model side, from 0.
        slot: usize,
        /// One in so many batches is verified.
        every: u64,
    },

    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// A ring is closed: the feed is ending.
    #[error(transparent)]
    Closed(#[from] Closed),

    /// The feed was stopped.
    #[error("the feed has ended")]
    Ended,

    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// What to try after a route that changes bytes.
fn instead_of(route: Route) -> &'static str {
    match route {
        Route::Bounce => "No other route is left: test the memory of the host and of both cards",
        Route::Peer | Route::PeerCopy | Route::Staged | Route::Handover => {
            "To resume over another route, type the same command with --transfer bounce"
        }
    }
}

impl FeedError {
    /// Whether it is about the storage of the corpus, not about a recording: another recording fails alike. A run then ends
    /// with a checkpoint; nothing is counted as bad or replaced.
    pub fn is_about_storage(&self) -> bool {
        matches!(self, FeedError::StorageUnreachable { .. } | FeedError::CorpusChanged { .. })
    }

    /// The error of a device, if one failed.
    pub fn device_error(&self) -> Option<&DeviceError> {
        match self {
            FeedError::Device(error) | FeedError::Features(AudioError::Device(error)) => Some(error),
            _ => None,
        }
    }
}
