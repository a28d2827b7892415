//! Fault injection: a slow decoder.

use std::sync::Arc;

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::{Fault, Slow};

use super::recordings::{RecordingFetch, Recordings};
use crate::FeedError;

/// Recordings that are decoded several times over, with the same result.
pub(crate) struct SlowRecordings {
    inner: Arc<dyn Recordings>,
    times: u32,
}

impl SlowRecordings {
    /// `inner`, as slow as `TANDEM_FAULT=slow:decode:TIMES` asks for; without that, `inner` itself.
    pub(crate) fn wrap(inner: Arc<dyn Recordings>) -> Result<Arc<dyn Recordings>, FeedError> {
        Ok(match Fault::from_env()?.times(Slow::Decode) {
            1 => inner,
            times => Arc::new(SlowRecordings { inner, times }),
        })
    }
}

impl Recordings for SlowRecordings {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        (0..self.times).try_for_each(|_| self.inner.load_into(sample, clip))
    }

    fn fetch(&self, sample: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
        let slow = |fetch| -> Box<dyn RecordingFetch> {
            Box::new(SlowFetch {
                fetch,
                again: SlowRecordings { inner: Arc::clone(&self.inner), times: self.times - 1 },
            })
        };
        Ok(self.inner.fetch(sample)?.map(slow))
    }
}

/// A fetched recording that is decoded several times over: the first time from what was fetched.
struct SlowFetch {
    fetch: Box<dyn RecordingFetch>,
    again: SlowRecordings,
}

impl RecordingFetch for SlowFetch {
    fn num_bytes(&self) -> u64 {
        self.fetch.num_bytes()
    }

    fn start(&mut self) {
        self.fetch.start();
    }

    fn load_into(self: Box<Self>, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.fetch.load_into(sample, clip)?;
        self.again.load_into(sample, clip)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tandem_corpus::{Locator, Store, Subset};

    use super::*;

    /// Counts how often it is asked, and fails at the third call.
    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Recordings for Counted {
        fn load_into(&self, _: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
            clip.rate_hz = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            if clip.rate_hz == 3 { Err(FeedError::Ended) } else { Ok(()) }
        }

        fn fetch(&self, _: &Sample<'_>) -> Result<Option<Box<dyn RecordingFetch>>, FeedError> {
            Ok(Some(Box::new(Fetched { is_started: false })))
        }
    }

    /// A fetched recording, which asks nobody.
    struct Fetched {
        is_started: bool,
    }

    impl RecordingFetch for Fetched {
        fn num_bytes(&self) -> u64 {
            7
        }

        fn start(&mut self) {
            self.is_started = true;
        }

        fn load_into(self: Box<Self>, _: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
            assert!(self.is_started);
            clip.rate_hz = 100;
            Ok(())
        }
    }

    #[test]
    fn a_slow_decoder_decodes_again_and_fails_as_the_decoder_does() {
        let store = Store::Files { root: "corpus".into() };
        let sample = Sample {
            id: "a",
            text: "t",
            speaker: None,
            lang: None,
            audio: Locator { store: &store, key: "a.wav", piece: None, range: None },
            duration_s: None,
            part: Subset::Train,
            file: Path::new("corpus/metadata.csv"),
            line: 1,
        };
        let slow = SlowRecordings { inner: Arc::new(Counted::default()), times: 2 };
        let mut clip = Clip::default();
        assert!(slow.load_into(&sample, &mut clip).is_ok() && clip.rate_hz == 2);
        assert!(slow.load_into(&sample, &mut clip).is_err() && clip.rate_hz == 3);
        // The first time from what was fetched, and then once more.
        let mut fetch = slow.fetch(&sample).unwrap().unwrap();
        assert_eq!(fetch.num_bytes(), 7);
        fetch.start();
        assert!(fetch.load_into(&sample, &mut clip).is_ok() && clip.rate_hz == 4);
    }
}
