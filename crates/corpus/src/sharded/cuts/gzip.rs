//! Lines of a manifest that may be compressed.

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;

/// The most bytes that a compressed manifest may have when it is decompressed. Ten million cuts have as many.
const MAX_DECOMPRESSED_BYTES: u64 = 4 << 30;

/// Read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// A manifest as text. Compressed ones are decompressed as they are read, and fail after 4 GiB: a small file can stand for
/// very many bytes.
pub(crate) fn open_lines(reader: Box<dyn Read + Send>, is_gzip: bool) -> Box<dyn BufRead + Send> {
    match is_gzip {
        true => decompressed(reader, MAX_DECOMPRESSED_BYTES),
        false => Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)),
    }
}

fn decompressed(reader: Box<dyn Read + Send>, max_bytes: u64) -> Box<dyn BufRead + Send> {
    let bounded = BoundedRead { inner: MultiGzDecoder::new(reader), left: max_bytes, max_bytes };
    Box::new(BufReader::with_capacity(BUFFER_BYTES, bounded))
}

/// Fails once more than `max_bytes` come.
struct BoundedRead<R> {
    inner: R,
    left: u64,
    max_bytes: u64,
}

impl<R: Read> Read for BoundedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // One byte past the limit tells whether there is more.
        let wanted = usize::try_from(self.left.saturating_add(1)).map_or(buffer.len(), |most| most.min(buffer.len()));
        let count = self.inner.read(&mut buffer[..wanted])?;
        match self.left.checked_sub(count as u64) {
            Some(left) => {
                self.left = left;
                Ok(count)
            }
            None => {
                let most = self.max_bytes;
                let detail = format!("expected a manifest of at most {most} bytes, found more: split it into shards");
                Err(io::Error::new(io::ErrorKind::FileTooLarge, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_compressed_manifests_read_alike() {
        let mut twice = gzip(b"one\ntwo\n");
        twice.extend(gzip(b"three\n"));
        for (bytes, is_gzip) in [(b"one\ntwo\nthree\n".to_vec(), false), (twice, true)] {
            let lines = open_lines(Box::new(io::Cursor::new(bytes)), is_gzip).lines();
            let lines: Vec<String> = lines.map(Result::unwrap).collect();
            assert_eq!(lines, ["one", "two", "three"], "{is_gzip}");
        }
    }

    #[test]
    fn a_byte_past_the_limit_is_refused() {
        let bytes = gzip(&[b'x'; 300_000]);
        let read = |max_bytes| {
            let mut text = Vec::new();
            decompressed(Box::new(io::Cursor::new(bytes.clone())), max_bytes).read_to_end(&mut text).map(|_| text.len())
        };
        assert_eq!(read(300_000).unwrap(), 300_000);
        let error = read(299_999).unwrap_err();
        assert!(error.to_string().contains("at most 299999 bytes"), "{error}");
    }

    #[test]
    fn a_cut_off_manifest_fails() {
        let mut bytes = gzip(b"one\ntwo\n");
        bytes.truncate(bytes.len() - 4);
        let mut text = String::new();
        let read = open_lines(Box::new(io::Cursor::new(bytes)), true).read_to_string(&mut text);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
