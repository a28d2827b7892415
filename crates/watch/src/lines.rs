//! Whole lines on their way to a file that may be slow, full, or full for a while.

use std::io::{self, ErrorKind, Write};

/// How many bytes of lines wait for the file at most. A line longer than this is taken alone.
pub(crate) const CAP_BYTES: usize = 64 << 10;

/// Lines that are not in the file yet, and the file.
///
/// What a failed write left behind is kept, and the next write goes on at the very byte where the last one stopped:
/// a disk that was full for a while leaves no broken line in the middle of the log.
pub(crate) struct Lines<W> {
    out: W,
    waiting: Vec<u8>,
    written: u64,
    first_error: Option<String>,
}

impl<W: Write> Lines<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, waiting: Vec::with_capacity(CAP_BYTES), written: 0, first_error: None }
    }

    /// Takes a line (it ends in a newline), or returns false when there is no room and the file takes nothing.
    pub(crate) fn push(&mut self, line: &[u8]) -> bool {
        if !self.fits(line) {
            self.flush();
        }
        if !self.fits(line) {
            return false;
        }
        self.waiting.extend_from_slice(line);
        true
    }

    /// Hands everything that waits to the file, as far as the file takes it.
    pub(crate) fn flush(&mut self) {
        let mut taken = 0;
        let mut result = Ok(());
        while taken < self.waiting.len() && result.is_ok() {
            match self.out.write(&self.waiting[taken..]) {
                Ok(0) => result = Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        self.written += count_lines(&self.waiting[..taken]);
        self.waiting.drain(..taken);
        if let Err(error) = result.and_then(|()| self.out.flush()) {
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
        count_lines(&self.waiting)
    }

    /// The first thing that went wrong.
    pub(crate) fn into_first_error(self) -> Option<String> {
        self.first_error
    }

    fn fits(&self, line: &[u8]) -> bool {
        self.waiting.is_empty() || self.waiting.len() + line.len() <= CAP_BYTES
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with `room` bytes left.
    #[derive(Default)]
    struct Disk {
        room: usize,
        held: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.held.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_was_full_for_a_while_breaks_no_line() {
        let mut lines = Lines::new(Disk { room: 6, ..Disk::default() });
        for line in [b"one\n", b"two\n"] {
            assert!(lines.push(line));
        }
        lines.flush();
        assert_eq!((lines.written(), lines.unwritten()), (1, 1));
        assert_eq!(lines.out.held, b"one\ntw");

        lines.out.room = 100;
        assert!(lines.push(b"three\n"));
        lines.flush();
        assert_eq!((lines.written(), lines.unwritten()), (3, 0));
        assert_eq!(lines.out.held, b"one\ntwo\nthree\n");
        assert!(lines.into_first_error().is_some_and(|error| error.contains("no storage space")));
    }

    #[test]
    fn what_waits_for_a_full_disk_is_bounded() {
        let mut lines = Lines::new(Disk::default());
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        let taken = (0..100).filter(|_| lines.push(&line)).count();
        assert_eq!(taken * line.len(), CAP_BYTES);
        assert_eq!(lines.unwritten(), taken as u64);
        assert_eq!(lines.written(), 0);
    }

    #[test]
    fn a_line_over_the_cap_is_taken_alone() {
        let mut lines = Lines::new(Disk { room: usize::MAX, ..Disk::default() });
        let long = [b"x".repeat(2 * CAP_BYTES), b"\n".to_vec()].concat();
        assert!(lines.push(b"short\n") && lines.push(&long) && lines.push(b"short\n"));
        lines.flush();
        assert_eq!(lines.written(), 3);
        assert_eq!(lines.out.held.len(), long.len() + 12);
    }
}
