//! Lines of a text file that may be anything: read one at a time, none of them held longer than it is looked at.

use std::io::{self, BufRead, Read};

/// The longest line that is read. A transcript of an hour has a tenth of it; what is longer is not a row.
pub const MAX_LINE_BYTES: usize = 1 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What a line turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedLine<'a> {
    /// Text, without its line end (and without a byte order mark).
    Text(&'a str),
    /// Nothing but white space.
    Blank,
    /// Bytes that are no UTF-8.
    NotUtf8 {
        /// The first wrong byte, from 1.
        column: usize,
        /// Whether it is the first line and begins as UTF-16 files do.
        like_utf16: bool,
    },
    /// More than [`MAX_LINE_BYTES`]; they were stepped over.
    TooLong {
        /// How many there are.
        num_bytes: u64,
    },
}

/// Reads lines into one buffer. Memory: the longest line, at most [`MAX_LINE_BYTES`].
pub(crate) struct LineReader<R> {
    input: R,
    buffer: Vec<u8>,
    number: u32,
}

impl<R: BufRead> LineReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0 }
    }

    /// The next line with its number, from 1. None at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<(u32, ParsedLine<'_>)>> {
        self.buffer.clear();
        let limit = MAX_LINE_BYTES as u64 + 2;
        let num_bytes = (&mut self.input).take(limit).read_until(b'\n', &mut self.buffer)?;
        if num_bytes == 0 {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        let ended = self.buffer.ends_with(b"\n");
        let text = without_end(&self.buffer);
        if text.len() > MAX_LINE_BYTES {
            let rest = if ended { 0 } else { skip_line(&mut self.input)? };
            return Ok(Some((self.number, ParsedLine::TooLong { num_bytes: text.len() as u64 + rest })));
        }
        Ok(Some((self.number, classify(text, self.number == 1))))
    }
}

fn classify(bytes: &[u8], first: bool) -> ParsedLine<'_> {
    let text = if first { bytes.strip_prefix(BOM).unwrap_or(bytes) } else { bytes };
    match str::from_utf8(text) {
        Ok(text) if text.trim().is_empty() => ParsedLine::Blank,
        Ok(text) => ParsedLine::Text(text),
        Err(error) => ParsedLine::NotUtf8 {
            column: error.valid_up_to() + 1,
            like_utf16: first && (text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff")),
        },
    }
}

fn without_end(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}

/// Steps over the rest of a line; how many bytes that was, without its end.
fn skip_line(input: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            return Ok(skipped);
        }
        let (found, used) = match chunk.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (false, chunk.len()),
        };
        skipped += used as u64 - u64::from(found);
        input.consume(used);
        if found {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[(u32, ParsedLine<'_>)]) {
        // A tiny buffer, so that lines straddle it.
        let mut lines = LineReader::new(io::BufReader::with_capacity(3, input));
        for (number, line) in expected {
            let (found_number, found) = lines.next_line().unwrap().expect("one more line");
            assert_eq!((found_number, &found), (*number, line));
        }
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn line_ends_marks_and_blanks() {
        check(b"", &[]);
        check(
            b"\xef\xbb\xbfa|b\r\n\r\n \t\nc",
            &[(1, ParsedLine::Text("a|b")), (2, ParsedLine::Blank), (3, ParsedLine::Blank), (4, ParsedLine::Text("c"))],
        );
        check(b"a\n\xef\xbb\xbfb\n", &[(1, ParsedLine::Text("a")), (2, ParsedLine::Text("\u{feff}b"))]);
    }

    #[test]
    fn a_wrong_byte_costs_its_line_only() {
        check(
            b"ab\xffc\nd\n",
            &[(1, ParsedLine::NotUtf8 { column: 3, like_utf16: false }), (2, ParsedLine::Text("d"))],
        );
        check(b"\xff\xfea\0", &[(1, ParsedLine::NotUtf8 { column: 1, like_utf16: true })]);
    }

    #[test]
    fn a_line_that_never_ends_is_counted_and_not_held() {
        let check_length = |length: usize, end: &[u8], too_long: bool| {
            let mut input = vec![b'x'; length];
            input.extend_from_slice(end);
            input.extend_from_slice(b"\nnext");
            let mut lines = LineReader::new(io::BufReader::new(&input[..]));
            let (_, line) = lines.next_line().unwrap().expect("a line");
            assert_eq!(matches!(line, ParsedLine::TooLong { .. }), too_long, "{length}");
            if let ParsedLine::TooLong { num_bytes } = line {
                assert!(num_bytes.abs_diff(length as u64) <= 1, "{num_bytes} {length}");
            }
            assert!(lines.buffer.capacity() <= 4 * MAX_LINE_BYTES);
            assert_eq!(lines.next_line().unwrap(), Some((2, ParsedLine::Text("next"))));
        };
        check_length(MAX_LINE_BYTES, b"", false);
        check_length(MAX_LINE_BYTES, b"\r", false);
        check_length(MAX_LINE_BYTES + 1, b"", true);
        check_length(MAX_LINE_BYTES + 1, b"\r", true);
        check_length(MAX_LINE_BYTES + 2, b"", true);
        check_length(10_000_000, b"", true);
    }
}
