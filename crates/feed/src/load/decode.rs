//! Decodes the recording of a [`Locator`], or a part of it, into the caller's [`Clip`], at the recording's sample rate.
//!
//! The error of a bad recording has its location and the reason; the clip is then empty. An error of the storage says nothing
//! about the recording: see [`storage_fault`](super::storage_fault).

use std::ops::Range;

use tandem_audio::{Clip, decode};
use tandem_corpus::{Locator, PendingRecording, RecordingReader};

use super::storage_fault::{undecodable, unopened};
use crate::FeedError;

/// Lists round durations, and encoders pad: a part that ends up to this much after its recording is cut at the end.
pub(crate) const END_SLACK_S: f64 = 0.1;

/// Decodes `audio` into `clip`, whose memory is reused.
///
/// Cost: decodes the whole recording, even for a part of it. Fails with [`FeedError::Missing`],
/// [`FeedError::Unopened`], [`FeedError::Undecodable`] and [`FeedError::OutsideRecording`], and if nothing is known about the
/// recording, with [`FeedError::StorageUnreachable`] and [`FeedError::CorpusChanged`].
pub fn load_into(audio: &Locator<'_>, clip: &mut Clip) -> Result<(), FeedError> {
    load_whole_into(audio, clip)?;
    cut(audio, clip)
}

/// The same from the bytes of [`fetch`].
pub(crate) fn load_fetched_into(
    audio: &Locator<'_>,
    pending: PendingRecording,
    clip: &mut Clip,
) -> Result<(), FeedError> {
    clip.clear();
    let reader = audio.open_fetched(pending).map_err(|error| unopened(audio, error))?;
    decode_whole_into(audio, reader, clip)?;
    cut(audio, clip)
}

/// A recording of an object store, to be fetched. None for one on this machine.
pub(crate) fn fetch(audio: &Locator<'_>) -> Result<Option<PendingRecording>, FeedError> {
    audio.fetch().map_err(|error| unopened(audio, error))
}

/// Cuts the whole recording in `clip` to the part that `audio` names.
fn cut(audio: &Locator<'_>, clip: &mut Clip) -> Result<(), FeedError> {
    let part = part_of(audio, clip).inspect_err(|_| clip.samples.clear())?;
    clip.samples.truncate(part.end);
    clip.samples.drain(..part.start);
    Ok(())
}

/// Decodes the whole recording of `audio`, which may name a part of it.
pub(crate) fn load_whole_into(audio: &Locator<'_>, clip: &mut Clip) -> Result<(), FeedError> {
    clip.clear();
    decode_whole_into(audio, open(audio)?, clip)
}

/// Decodes `recording`, which is all of the recording of `audio`.
pub(crate) fn decode_whole_into(
    audio: &Locator<'_>,
    recording: RecordingReader,
    clip: &mut Clip,
) -> Result<(), FeedError> {
    decode(recording, clip).map_err(|source| undecodable(audio, source))
}

pub(crate) fn open(audio: &Locator<'_>) -> Result<RecordingReader, FeedError> {
    audio.open().map_err(|error| unopened(audio, error))
}

/// The samples of the whole recording `clip` that `audio` names: at least one.
pub(crate) fn part_of(audio: &Locator<'_>, clip: &Clip) -> Result<Range<usize>, FeedError> {
    let Some(range) = audio.range else { return Ok(0..clip.samples.len()) };
    let rate_hz = f64::from(clip.rate_hz);
    let to_s = range.duration_s.map_or(clip.seconds(), |duration_s| range.offset_s + duration_s);
    // The cast saturates: a huge offset is past the end.
    let from = (range.offset_s * rate_hz).round() as usize;
    let to = ((to_s * rate_hz).round() as usize).min(clip.samples.len());
    if from >= to || to_s > clip.seconds() + END_SLACK_S {
        let (from_s, has_s) = (range.offset_s, clip.seconds());
        return Err(FeedError::OutsideRecording { from_s, to_s, has_s, location: audio.show() });
    }
    Ok(from..to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_corpus::{AudioRange, Store};

    fn tone(num_samples: i16) -> Clip {
        Clip { samples: (0..num_samples).collect(), rate_hz: 1000 }
    }

    #[test]
    fn parts_of_a_recording() {
        let store = Store::Files { root: "root".into() };
        let check = |offset_s: f64, duration_s: Option<f64>, expected: Option<Range<usize>>| {
            let range = Some(AudioRange { offset_s, duration_s });
            let found = part_of(&Locator { store: &store, key: "x.wav", piece: None, range }, &tone(2000));
            assert_eq!(found.as_ref().ok(), expected.as_ref(), "{offset_s} {duration_s:?}");
            if let Err(error) = found {
                let shown = error.to_string();
                assert!(shown.contains("which has 2.000 s") && shown.ends_with("root/x.wav"), "{shown}");
            }
        };
        check(0.0, None, Some(0..2000));
        check(0.5, None, Some(500..2000));
        check(0.5, Some(0.25), Some(500..750));
        check(1.5, Some(0.55), Some(1500..2000));
        check(1.5, Some(0.65), None);
        check(2.0, None, None);
        check(9e300, None, None);
        check(0.0, Some(9e300), None);
        check(1.0, Some(1e-9), None);
    }

    #[test]
    fn a_missing_file_and_a_file_that_cannot_be_opened_are_different_errors() {
        let store = Store::Files { root: std::env::temp_dir() };
        let load =
            |key: &str| load_into(&Locator { store: &store, key, piece: None, range: None }, &mut tone(3)).unwrap_err();
        assert!(matches!(load("no such recording.wav"), FeedError::Missing { .. }));
        assert!(matches!(load(""), FeedError::Unopened(_)));
    }
}
