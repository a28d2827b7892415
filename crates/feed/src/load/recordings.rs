//! Where recordings come from.

use tandem_audio::Clip;
use tandem_corpus::Sample;

use super::decode::load_into;
use crate::FeedError;

/// Where recordings come from: [`FromFiles`], or another source in tests and benchmarks.
pub trait Recordings: Send + Sync {
    /// Decodes the recording of `sample` into `clip`, whose memory is reused: mono, int16, at the recording's sample rate.
    ///
    /// A failure makes the sample a bad one: it is listed and replaced.
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError>;
}

/// Recordings from the files of the corpus.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromFiles;

impl Recordings for FromFiles {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        load_into(&sample.audio, clip)
    }
}
