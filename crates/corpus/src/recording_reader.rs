//! The bytes of a recording, wherever they are.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tandem_storage::{ObjectReader, ReadAt};

/// Read at once of a piece: the header of a wav or flac fits, and a probe rarely needs more.
const PIECE_READ_BYTES: usize = 16 << 10;

/// The bytes of a recording, for a decoder.
#[derive(Debug)]
pub enum RecordingReader {
    /// A file of its own.
    File(File),
    /// In memory.
    Bytes(Cursor<Bytes>),
    /// A large piece of a file or object, to be read from its beginning to its end.
    Section(Box<ObjectReader>),
    /// A piece of a shard, of which only the header may be wanted.
    Piece(PieceReader),
}

impl RecordingReader {
    pub(crate) fn of_bytes(bytes: impl Into<Bytes>) -> RecordingReader {
        RecordingReader::Bytes(Cursor::new(bytes.into()))
    }

    pub(crate) fn of_piece(bytes: Arc<dyn ReadAt>, range: Range<u64>) -> RecordingReader {
        RecordingReader::Piece(PieceReader::new(bytes, range))
    }
}

impl Read for RecordingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            RecordingReader::File(file) => file.read(buffer),
            RecordingReader::Bytes(bytes) => bytes.read(buffer),
            RecordingReader::Section(section) => section.read(buffer),
            RecordingReader::Piece(piece) => piece.read(buffer),
        }
    }
}

impl Seek for RecordingReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            RecordingReader::File(file) => file.seek(to),
            RecordingReader::Bytes(bytes) => bytes.seek(to),
            RecordingReader::Section(section) => section.seek(to),
            RecordingReader::Piece(piece) => piece.seek(to),
        }
    }
}

/// A range of bytes as a reader, with a small buffer. Position 0 is the beginning of the range.
pub struct PieceReader {
    bytes: Arc<dyn ReadAt>,
    range: Range<u64>,
    position: u64,
    buffer: Vec<u8>,
    /// Where the buffer begins, from the beginning of the range.
    buffer_start: u64,
}

impl PieceReader {
    /// The bytes of `range`, cut where `bytes` end.
    pub(crate) fn new(bytes: Arc<dyn ReadAt>, range: Range<u64>) -> PieceReader {
        let end = range.end.min(bytes.num_bytes());
        let range = range.start.min(end)..end;
        PieceReader { bytes, range, position: 0, buffer: Vec::new(), buffer_start: 0 }
    }

    /// All of `bytes`.
    pub(crate) fn whole(bytes: Arc<dyn ReadAt>) -> PieceReader {
        PieceReader::new(bytes, 0..u64::MAX)
    }

    /// What the buffer holds from the position on.
    fn buffered(&self) -> &[u8] {
        let skip = self.position.checked_sub(self.buffer_start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.buffer.get(skip..)).unwrap_or(&[])
    }
}

impl Read for PieceReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = (self.range.end - self.range.start).saturating_sub(self.position);
        // At most the size of a slice.
        let wanted = (out.len() as u64).min(left) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        if self.buffered().is_empty() {
            let start = self.range.start + self.position;
            if wanted >= PIECE_READ_BYTES {
                self.bytes.read_exact_at(start, &mut out[..wanted])?;
                self.position += wanted as u64;
                return Ok(wanted);
            }
            self.buffer.resize((PIECE_READ_BYTES as u64).min(left) as usize, 0);
            self.buffer_start = self.position;
            // A failed read leaves nothing that could be taken for bytes of the piece.
            self.bytes.read_exact_at(start, &mut self.buffer).inspect_err(|_| self.buffer.clear())?;
        }
        let bytes = self.buffered();
        let count = bytes.len().min(wanted);
        out[..count].copy_from_slice(&bytes[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for PieceReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => (self.range.end - self.range.start).checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the beginning");
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl fmt::Debug for PieceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PieceReader");
        shown.field("range", &self.range).field("position", &self.position).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_piece_reads_as_its_slice_does(
            start in 0_u64..50_000, len in 0_u64..60_000,
            steps in prop::collection::vec((0_u64..70_000, 1_usize..40_000), 1..12),
        ) {
            let bytes: Vec<u8> = (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let slice = &bytes[start as usize..((start + len) as usize).min(bytes.len())];
            let mut expected = Cursor::new(slice);
            let mut piece = PieceReader::new(Arc::new(bytes.clone()), start..start + len);
            for (position, count) in steps {
                prop_assert_eq!(piece.seek(SeekFrom::Start(position)).unwrap(), position);
                expected.set_position(position);
                let (mut found, mut wanted) = (Vec::new(), Vec::new());
                (&mut piece).take(count as u64).read_to_end(&mut found).unwrap();
                (&mut expected).take(count as u64).read_to_end(&mut wanted).unwrap();
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
