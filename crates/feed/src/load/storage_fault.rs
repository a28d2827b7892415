//! Errors of opening and decoding: what is wrong with a recording, and what is wrong with the storage it comes from.
//!
//! A missing or damaged recording is a bad sample: it is listed and replaced. A store that gives no answer, or a shard that is
//! not the one that was indexed, says nothing about the recording: [`FeedError::is_about_storage`].

use std::io;

use tandem_audio::AudioError;
use tandem_corpus::{CorpusError, Locator};
use tandem_shards::ShardFault;
use tandem_storage::StorageError;

use crate::FeedError;

/// Why the recording of `audio` could not be opened.
pub(crate) fn unopened(audio: &Locator<'_>, error: CorpusError) -> FeedError {
    match error {
        CorpusError::Audio { source, .. } if source.kind() == io::ErrorKind::NotFound => missing(audio),
        CorpusError::Storage(error) => {
            of_storage(audio, error).unwrap_or_else(|error| FeedError::Unopened(error.into()))
        }
        CorpusError::Shard { shard, fault: ShardFault::Io(error) } => of_io(audio, error)
            .unwrap_or_else(|error| FeedError::Unopened(CorpusError::Shard { shard, fault: ShardFault::Io(error) })),
        other => FeedError::Unopened(other),
    }
}

/// Why the recording of `audio` could not be decoded. Its bytes may come from a store while it is decoded.
pub(crate) fn undecodable(audio: &Locator<'_>, error: AudioError) -> FeedError {
    let source = match error {
        AudioError::Io(error) => match of_io(audio, error) {
            Ok(error) => return error,
            Err(error) => AudioError::Io(error),
        },
        other => other,
    };
    FeedError::Undecodable { source, location: audio.show() }
}

/// The storage error that a reader wrapped; other errors are given back.
fn of_io(audio: &Locator<'_>, error: io::Error) -> Result<FeedError, io::Error> {
    of_storage(audio, error.downcast::<StorageError>()?).map_err(io::Error::from)
}

/// Errors about the storage, and a missing recording; others are given back.
fn of_storage(audio: &Locator<'_>, error: StorageError) -> Result<FeedError, StorageError> {
    match error {
        StorageError::Missing { .. } => Ok(missing(audio)),
        StorageError::Changed { .. } => Ok(FeedError::CorpusChanged { error }),
        error if error.is_exhausted() => Ok(FeedError::StorageUnreachable { error }),
        error => Err(error),
    }
}

fn missing(audio: &Locator<'_>) -> FeedError {
    FeedError::Missing { location: audio.show() }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Seek, SeekFrom};

    use tandem_audio::{Clip, decode, wav};
    use tandem_corpus::Store;

    use super::*;
    use crate::fixture::sine;

    fn unreachable_store() -> StorageError {
        StorageError::Unreachable { location: "s3://b/k".into(), attempts: 8, last: "503".into() }
    }

    fn changed() -> StorageError {
        StorageError::Changed { location: "s3://b/k".into(), expected: "7 bytes".into(), found: "8 bytes".into() }
    }

    /// The same error, met when the recording is opened, in a shard, and while it is decoded.
    fn everywhere(error: impl Fn() -> StorageError) -> [FeedError; 3] {
        let store = Store::Files { root: "root".into() };
        let audio = Locator { store: &store, key: "x.wav", piece: None, range: None };
        let in_shard = CorpusError::Shard { shard: "a.tar".into(), fault: ShardFault::Io(error().into()) };
        let decoded = AudioError::Io(error().into());
        [unopened(&audio, error().into()), unopened(&audio, in_shard), undecodable(&audio, decoded)]
    }

    #[test]
    fn a_store_without_an_answer_is_no_bad_recording_wherever_it_shows() {
        for error in everywhere(unreachable_store) {
            assert!(error.is_about_storage() && matches!(error, FeedError::StorageUnreachable { .. }), "{error}");
            let expected = "storage is unreachable: no usable answer after 8 attempts, the last: 503: s3://b/k";
            assert_eq!(error.to_string(), expected);
        }
        let denied = |by_service| move || StorageError::Denied { location: "a".into(), reason: "r".into(), by_service };
        assert!(everywhere(denied(true)).iter().all(FeedError::is_about_storage));
        assert!(!everywhere(denied(false)).iter().any(FeedError::is_about_storage));
    }

    #[test]
    fn a_changed_object_is_named_and_says_what_to_type() {
        for error in everywhere(changed) {
            let text = error.to_string();
            assert!(error.is_about_storage() && matches!(error, FeedError::CorpusChanged { .. }), "{text}");
            assert!(text.contains("expected 7 bytes, found 8 bytes: s3://b/k"), "{text}");
            assert!(text.ends_with("Run `tandem corpus index` again"), "{text}");
        }
    }

    #[test]
    fn a_missing_object_is_a_missing_recording() {
        for error in everywhere(|| StorageError::Missing { location: "s3://b/k".into() }) {
            assert!(!error.is_about_storage() && matches!(error, FeedError::Missing { .. }), "{error}");
        }
    }

    #[test]
    fn other_errors_are_those_of_the_recording() {
        let io = || StorageError::Io { location: "a".into(), source: io::ErrorKind::IsADirectory.into() };
        let [opened, in_shard, decoded] = everywhere(io);
        assert!(matches!(opened, FeedError::Unopened(CorpusError::Storage(_))), "{opened:?}");
        assert!(matches!(in_shard, FeedError::Unopened(CorpusError::Shard { .. })), "{in_shard:?}");
        assert!(matches!(decoded, FeedError::Undecodable { source: AudioError::Io(_), .. }), "{decoded:?}");
    }

    /// A recording whose store is lost after so many bytes.
    struct Lost {
        bytes: Cursor<Vec<u8>>,
        after: u64,
    }

    impl Read for Lost {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.after.saturating_sub(self.bytes.position()) {
                0 => Err(unreachable_store().into()),
                left => (&mut self.bytes).take(left).read(out),
            }
        }
    }

    impl Seek for Lost {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    #[test]
    fn a_store_that_is_lost_while_a_recording_is_decoded_is_no_damaged_recording() {
        let mut file = Vec::new();
        wav::write(&sine(22_050, 2.0), &mut file).unwrap();
        let store = Store::Files { root: "root".into() };
        let audio = Locator { store: &store, key: "x.wav", piece: None, range: None };
        for after in [0, 10, 50, 40_000] {
            let source = Lost { bytes: Cursor::new(file.clone()), after };
            let error = undecodable(&audio, decode(source, &mut Clip::default()).unwrap_err());
            assert!(matches!(error, FeedError::StorageUnreachable { .. }), "after {after} bytes: {error:?}");
        }
    }
}
