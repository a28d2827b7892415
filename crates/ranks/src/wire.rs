//! Bytes between ranks: little-endian numbers and texts with a length. What is read is bounded before it is allocated.

use std::io::{self, Read, Write};

/// The most bytes that one rank gives to a collective, except to an all-reduce.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// The longest text in a handshake and the longest name of a collective.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 10;
/// The longest frame of a handshake or at the head of a collective: a few texts and numbers.
pub(crate) const MAX_SMALL_FRAME_BYTES: usize = 4 << 10;
/// The longest control message: a reason, and a number for each of 4096 ranks.
pub(crate) const MAX_CONTROL_FRAME_BYTES: usize = 32 << 10;

/// The bytes of a length before a frame.
const LENGTH_BYTES: usize = 4;

/// What was read has not the form that ranks write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, malformed)
    }
}

/// A frame that is being written: its length, then its content.
pub(crate) struct FrameWriter {
    bytes: Vec<u8>,
}

impl FrameWriter {
    pub(crate) fn new() -> FrameWriter {
        FrameWriter { bytes: vec![0; LENGTH_BYTES] }
    }

    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes of a length that the reader knows.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).raw(bytes)
    }

    /// A text, cut to the longest that may be sent.
    pub(crate) fn text(self, text: &str) -> Self {
        self.bytes(clipped(text).as_bytes())
    }

    pub(crate) fn numbers(self, numbers: &[u32]) -> Self {
        numbers.iter().fold(self.u32(numbers.len() as u32), |frame, &number| frame.u32(number))
    }

    /// What was written, without a length.
    pub(crate) fn content(mut self) -> Vec<u8> {
        self.bytes.split_off(LENGTH_BYTES)
    }

    /// The frame, with its length.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = (self.bytes.len() - LENGTH_BYTES) as u32;
        self.bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.bytes
    }
}

/// `text` up to the longest that may be sent, cut between characters.
pub(crate) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// Reads the content of a frame.
pub(crate) struct FrameReader<'a> {
    rest: &'a [u8],
}

impl<'a> FrameReader<'a> {
    pub(crate) fn new(content: &'a [u8]) -> Self {
        FrameReader { rest: content }
    }

    pub(crate) fn raw(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("a message is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[value]| value)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.u32()?;
        self.raw(count as usize)
    }

    /// A text of at most [`MAX_TEXT_BYTES`].
    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.bytes()?;
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(Malformed("a text is too long"));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub(crate) fn numbers(&mut self) -> Result<Vec<u32>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / size_of::<u32>() {
            return Err(Malformed("a message is too short"));
        }
        (0..count).map(|_| self.u32()).collect()
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("a message is too long")) }
    }
}

/// Reads one frame of at most `limit` bytes, and returns its content.
pub(crate) fn read_frame(reader: &mut impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    reader.read_exact(&mut length)?;
    read_content(reader, u64::from(u32::from_le_bytes(length)), limit)
}

/// Reads one payload, whose length takes eight bytes.
pub(crate) fn read_payload(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    reader.read_exact(&mut length)?;
    read_content(reader, u64::from_le_bytes(length), MAX_PAYLOAD_BYTES)
}

pub(crate) fn write_payload(writer: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    writer.write_all(&(payload.len() as u64).to_le_bytes())?;
    writer.write_all(payload)
}

fn read_content(reader: &mut impl Read, length: u64, limit: usize) -> io::Result<Vec<u8>> {
    if length > limit as u64 {
        return Err(Malformed("a message is longer than any that ranks send").into());
    }
    let mut content = vec![0; length as usize];
    reader.read_exact(&mut content)?;
    Ok(content)
}

/// Collects bytes as they arrive and gives back whole frames.
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    limit: usize,
}

impl FrameBuffer {
    /// A buffer for frames of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> FrameBuffer {
        FrameBuffer { bytes: Vec::new(), limit }
    }

    /// Adds what has arrived. Take all frames before the next call, so that the buffer holds one frame at most.
    pub(crate) fn push(&mut self, arrived: &[u8]) {
        self.bytes.extend_from_slice(arrived);
    }

    /// The content of the next frame, if all of it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(Malformed("a message is longer than any that ranks send"));
        }
        let Some(content) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.bytes.drain(..LENGTH_BYTES + length);
        Ok(Some(content))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let frame = FrameWriter::new().u8(7).u32(8).u64(9).text("grüße").numbers(&[1, 2]).bytes(b"x").finish();
        let content = read_frame(&mut &frame[..], MAX_SMALL_FRAME_BYTES).unwrap();
        let mut reader = FrameReader::new(&content);
        assert_eq!((reader.u8().unwrap(), reader.u32().unwrap(), reader.u64().unwrap()), (7, 8, 9));
        assert_eq!((reader.text().unwrap().as_str(), reader.numbers().unwrap()), ("grüße", vec![1, 2]));
        assert!(reader.end().is_err());
        assert_eq!((reader.bytes().unwrap(), reader.end()), (&b"x"[..], Ok(())));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "é".repeat(MAX_TEXT_BYTES);
        let frame = FrameWriter::new().text(&format!("x{long}")).finish();
        let text = FrameReader::new(&frame[LENGTH_BYTES..]).text().unwrap();
        assert_eq!(text.len(), MAX_TEXT_BYTES - 1);
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_anything_is_allocated() {
        let frame = u32::MAX.to_le_bytes();
        assert_eq!(read_frame(&mut &frame[..], 64).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let payload = u64::MAX.to_le_bytes();
        assert_eq!(read_payload(&mut &payload[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut numbers = FrameReader::new(&frame);
        assert!(numbers.numbers().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_within_the_limit_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..200), limit in 0usize..64, small_lengths: bool,
        ) {
            // Random lengths are nearly always over the limit: half of the cases have small ones.
            let mask = |(index, byte): (usize, u8)| if index % 8 < 4 && small_lengths { byte % 2 } else { byte };
            let bytes: Vec<u8> = bytes.into_iter().enumerate().map(mask).collect();
            let mut whole = Ok(Vec::new());
            let mut reader = &bytes[..];
            loop {
                match read_frame(&mut reader, limit) {
                    Ok(frame) => whole.as_mut().unwrap().push(frame),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => whole = Err(()),
                    Err(_) => break,
                }
                if whole.is_err() { break }
            }
            // A buffer that gets the bytes in pieces finds the same frames.
            let mut buffer = FrameBuffer::new(limit);
            let mut pieces = Ok(Vec::new());
            'pieces: for piece in bytes.chunks(3) {
                buffer.push(piece);
                loop {
                    match buffer.next() {
                        Ok(Some(frame)) => pieces.as_mut().unwrap().push(frame),
                        Ok(None) => break,
                        Err(_) => { pieces = Err(()); break 'pieces }
                    }
                }
                prop_assert!(buffer.bytes.len() <= LENGTH_BYTES + limit + 3);
            }
            prop_assert_eq!(whole, pieces);
        }
    }
}
