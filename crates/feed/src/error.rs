//! What can go wrong on the way from a recording to a batch. A variant is a different thing to do next.

use std::io;
use std::path::PathBuf;

use tandem_audio::AudioError;
use tandem_corpus::CorpusError;
use tandem_device::DeviceError;
use tandem_pipeline::{Closed, WorkerError};
use tandem_text::TextError;

use crate::load::bad_samples::TooManyBad;

/// A recording or a corpus could not be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// There is no such recording, or not any more: put it back, or take its row out.
    #[error("there is no such file: {place}")]
    Missing {
        /// Where it should be.
        place: String,
    },

    /// The recording is there and cannot be opened: mend the rights on it.
    #[error(transparent)]
    Unopened(CorpusError),

    /// The recording was opened and is no good, for the reason given.
    #[error("{source}: {place}")]
    Undecodable {
        /// What is wrong with it.
        source: AudioError,
        /// Where it is.
        place: String,
    },

    /// The part that is meant is not in the recording: correct the offset or the duration.
    #[error("the part from {from_s:.3} s to {to_s:.3} s is outside the recording, which has {has_s:.3} s: {place}")]
    OutsideRecording {
        /// Where the part begins.
        from_s: f64,
        /// Where it ends.
        to_s: f64,
        /// How long the recording is.
        has_s: f64,
        /// Where it is.
        place: String,
    },

    /// A file or folder of ours cannot be used: mend the rights on it, or choose another.
    #[error("the {what} cannot be used ({why}): {}", path.display())]
    Unusable {
        /// What it is to us.
        what: &'static str,
        /// What the system said. Not its source: it would be told twice.
        why: io::Error,
        /// Where it is.
        path: PathBuf,
    },

    /// So many recordings are bad that training on the rest would not be what was asked for: mend them, or allow more.
    #[error(transparent)]
    TooManyBad(#[from] TooManyBad),

    /// The recording is longer than its list says, by more than rounding: correct the list, or measure lengths anew.
    #[error("the recording is {over_s:.3} s longer than what it was planned as: {place}")]
    LongerThanListed {
        /// By how much it is longer than its batch has room for.
        over_s: f64,
        /// Where it is.
        place: String,
    },

    /// The text says nothing, or has characters no symbol stands for.
    #[error(transparent)]
    Text(#[from] TextError),

    /// The text has more tokens than its batch has room for.
    #[error("the text has {found} tokens, and its batch has room for {most}")]
    TextTooLong {
        /// Its tokens.
        found: u64,
        /// What there is room for.
        most: u64,
    },

    /// The recording has fewer frames than its text has tokens: one of the two is not what it should be.
    #[error("the text has {tokens} tokens, and the recording only {frames} frames: {place}")]
    ShorterThanText {
        /// Tokens of its text.
        tokens: u64,
        /// Frames of it.
        frames: u64,
        /// Where it is.
        place: String,
    },

    /// The decoder met a file it has a mistake for.
    #[error("the decoder panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },

    /// A bad sample could not be replaced: every other one that fits its batch is bad as well.
    #[error("no sample is left to stand in for {id}")]
    NothingLeft {
        /// The bad one.
        id: String,
    },

    /// Nothing of the corpus fits the shapes it should be served in.
    #[error(transparent)]
    Corpus(CorpusError),

    /// A batch has more samples than kernels can count: lower the batch size.
    #[error("a batch of {samples} samples is more than kernels can count ({}): lower the batch size", u32::MAX)]
    BatchTooLarge {
        /// Samples of all its rows.
        samples: u64,
    },

    /// The features cannot be made as they are set.
    #[error(transparent)]
    Features(#[from] AudioError),

    /// What a checkpoint kept is of another corpus: begin anew, or give the corpus it was made with.
    #[error("the checkpoint's batches name sample {sample}, and the corpus has {num_samples}")]
    ForeignState {
        /// A sample it names.
        sample: u32,
        /// Samples there are.
        num_samples: usize,
    },

    /// A device said no.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// A link or ring was closed: the feed is ending.
    #[error(transparent)]
    Closed(#[from] Closed),

    /// The feed was stopped.
    #[error("the feed has ended")]
    Ended,

    /// A thread could not be started, or met a mistake of ours.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}
