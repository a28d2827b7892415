//! The lines of a run log on their way to its file.

use std::io::Write;

use crate::spool::Spool;

/// How many bytes of lines wait for the file at most. A line longer than this is taken alone.
pub(crate) const CAP_BYTES: usize = 64 << 10;

/// Lines that are not in the file yet, and the file. No line is ever broken, see [`Spool`].
pub(crate) struct LineBuffer<W> {
    spool: Spool<W>,
    written: u64,
    first_error: Option<String>,
}

impl<W: Write> LineBuffer<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { spool: Spool::new(out, CAP_BYTES), written: 0, first_error: None }
    }

    /// Takes a line (it ends in a newline), or returns false when there is no room and the file takes nothing.
    pub(crate) fn push(&mut self, line: &[u8]) -> bool {
        if self.spool.push(line) {
            return true;
        }
        self.flush();
        self.spool.push(line)
    }

    /// Hands everything that waits to the file, as far as the file takes it.
    pub(crate) fn flush(&mut self) {
        if let Err(error) = self.spool.flush(|taken| self.written += count_lines(taken)) {
            self.first_error.get_or_insert(error.to_string());
        }
    }

    /// Remembers a failure that was not the file's, if it is the first.
    pub(crate) fn failed(&mut self, error: &dyn std::error::Error) {
        self.first_error.get_or_insert(error.to_string());
    }

    /// Lines that are whole in the file.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Lines that were taken and are not whole in the file.
    pub(crate) fn unwritten(&self) -> u64 {
        count_lines(self.spool.waiting())
    }

    /// The first thing that went wrong, so far.
    pub(crate) fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// The first thing that went wrong.
    pub(crate) fn into_first_error(self) -> Option<String> {
        self.first_error
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::tests::LimitedDisk;

    #[test]
    fn a_disk_that_was_full_for_a_while_breaks_no_line() {
        let mut lines = LineBuffer::new(LimitedDisk { room: 6, ..LimitedDisk::default() });
        for line in [b"one\n", b"two\n"] {
            assert!(lines.push(line));
        }
        lines.flush();
        assert_eq!((lines.written(), lines.unwritten()), (1, 1));
        assert_eq!(lines.spool.file().held, b"one\ntw");

        lines.spool.file().room = 100;
        assert!(lines.push(b"three\n"));
        lines.flush();
        assert_eq!((lines.written(), lines.unwritten()), (3, 0));
        assert_eq!(lines.spool.file().held, b"one\ntwo\nthree\n");
        assert!(lines.into_first_error().is_some_and(|error| error.contains("no storage space")));
    }

    #[test]
    fn what_waits_for_a_full_disk_is_bounded() {
        let mut lines = LineBuffer::new(LimitedDisk::default());
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        let taken = (0..100).filter(|_| lines.push(&line)).count();
        assert_eq!(taken * line.len(), CAP_BYTES);
        assert_eq!(lines.unwritten(), taken as u64);
        assert_eq!(lines.written(), 0);
    }

    #[test]
    fn a_line_over_the_cap_is_taken_alone() {
        let mut lines = LineBuffer::new(LimitedDisk { room: usize::MAX, ..LimitedDisk::default() });
        let long = [b"x".repeat(2 * CAP_BYTES), b"\n".to_vec()].concat();
        assert!(lines.push(b"short\n") && lines.push(&long) && lines.push(b"short\n"));
        lines.flush();
        assert_eq!(lines.written(), 3);
        assert_eq!(lines.spool.file().held.len(), long.len() + 12);
    }
}
