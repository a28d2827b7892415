//! What can go wrong on the way from a recording to a batch. A variant is a different thing to do next.

use tandem_audio::AudioError;
use tandem_corpus::CorpusError;
use tandem_pipeline::WorkerError;

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

    /// A thread could not be started, or met a mistake of ours.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}
