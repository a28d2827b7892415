//! Bytes in, a container out: what Symphonia sees of a file, and its errors in our words.

use std::io::{self, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, probe::Hint};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::AudioError;

/// A source whose length is known, as Symphonia asks for it.
struct Bytes<S> {
    inner: S,
    len: u64,
}

impl<S: Read> Read for Bytes<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buf)
    }
}

impl<S: Seek> Seek for Bytes<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<S: Read + Seek + Send + Sync> MediaSource for Bytes<S> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len)
    }
}

/// A container that was recognised, and the bytes it has.
pub(crate) struct OpenContainer<'s> {
    pub(crate) format: Box<dyn FormatReader + 's>,
    pub(crate) len_bytes: u64,
}

/// Recognises the container by its bytes; a file's name and extension play no part.
pub(crate) fn open<'s, S: Read + Seek + Send + Sync + 's>(mut source: S) -> Result<OpenContainer<'s>, AudioError> {
    let len_bytes = source.seek(SeekFrom::End(0))?;
    if len_bytes == 0 {
        return Err(AudioError::Empty);
    }
    source.seek(SeekFrom::Start(0))?;
    let stream =
        MediaSourceStream::new(Box::new(Bytes { inner: source, len: len_bytes }), MediaSourceStreamOptions::default());
    let format = symphonia::default::get_probe()
        .probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default())
        .map_err(unopened)?;
    Ok(OpenContainer { format, len_bytes })
}

/// A decoder's own assertion is about bytes, not about us: to the caller it is a damaged file.
///
/// Symphonia is safe Rust but asserts on what it reads (a Vorbis codebook, for one). Its message still goes through
/// the program's panic hook; the run goes on.
pub(crate) fn fenced<T>(work: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(AudioError::Corrupt { detail: "the decoder gave up on its contents".into() }))
}

/// Errors while the container is opened, before any sample.
fn unopened(error: Error) -> AudioError {
    match error {
        // Symphonia has one kind for "no container known" and for "a container, but this in it is not read".
        Error::Unsupported(what) if what.contains("no suitable format reader") => AudioError::NotAudio,
        Error::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            AudioError::Truncated { got: 0, expected: None }
        }
        other => in_our_words(other),
    }
}

/// Errors of which nothing more is known than what they say.
pub(crate) fn in_our_words(error: Error) -> AudioError {
    match error {
        Error::IoError(error) => AudioError::Io(error),
        Error::Unsupported(what) => AudioError::Unsupported { what: what.into() },
        Error::ResetRequired => AudioError::Unsupported { what: "a file made of several streams in a row".into() },
        other => AudioError::Corrupt { detail: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_panicking_decoder_is_a_damaged_file() {
        let outcome: Result<(), AudioError> = fenced(|| panic!("injected by a test"));
        assert!(matches!(outcome, Err(AudioError::Corrupt { .. })));
    }

    #[test]
    fn a_file_that_is_not_audio_and_an_empty_file_have_distinct_errors() {
        assert!(matches!(open(Cursor::new([])), Err(AudioError::Empty)));
        for bytes in [b"x".as_slice(), b"id|text\nLJ001|hello\n", b"\x89PNG\r\n\x1a\n________________", &[0; 5000]] {
            assert!(matches!(open(Cursor::new(bytes)), Err(AudioError::NotAudio)), "{bytes:?}");
        }
    }
}
