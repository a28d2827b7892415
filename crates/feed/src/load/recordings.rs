//! Where recordings come from.

use tandem_audio::Clip;
use tandem_corpus::{PendingRecording, Sample};

use super::decode::{fetch, load_fetched_into, load_into};
use crate::FeedError;

/// Where recordings come from: [`FromFiles`], or another source in tests and benchmarks.
pub trait Recordings: Send + Sync {
    /// Decodes the recording of `sample` into `clip`, whose memory is reused: mono, int16, at the recording's sample rate.
    ///
    /// A failure makes the sample a bad one: it is listed and replaced. One that is [about the
    /// storage](FeedError::is_about_storage) ends the run.
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError>;

    /// A recording that will be asked for soon, to be fetched: [`RecordingFetch::start`] asks for its bytes. None if there is
    /// nothing to fetch: it is on this machine.
    ///
    /// It may wait for a list of the recording's folder, and is therefore never called with a lock held.
    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let _ = sample;
        Ok(None)
    }
}

/// A recording that is to be fetched, or on its way here. Dropping it cancels the requests.
pub trait RecordingFetch: Send {
    /// Bytes to fetch. None of them is asked for before [`RecordingFetch::start`].
    fn num_bytes(&self) -> u64;

    /// Asks for the bytes, and waits for nothing.
    fn start(&mut self);

    /// Waits for the bytes, and decodes them as [`Recordings::load_into`] does. `sample` is the one it was fetched for.
    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError>;
}

/// Recordings from the corpus: its files, its shards, and its objects in stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromFiles;

impl Recordings for FromFiles {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        load_into(&sample.audio, clip)
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        Ok(fetch(&sample.audio)?.map(|pending| Box::new(pending) as Box<dyn RecordingFetch>))
    }
}

impl RecordingFetch for PendingRecording {
    fn num_bytes(&self) -> u64 {
        PendingRecording::num_bytes(self)
    }

    fn start(&mut self) {
        PendingRecording::start(self);
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        load_fetched_into(&sample.audio, *self, clip)
    }
}
