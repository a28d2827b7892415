//! Bytes on their way to a file that may be slow, full, or full for a while.

use std::io::{self, ErrorKind, Write};

/// Pieces that are not in the file yet, and the file.
///
/// What a failed write left behind is kept, and the next write goes on at the very byte where the last one stopped: a
/// disk that was full for a while leaves no broken piece in the middle of the file.
pub(crate) struct Spool<W> {
    out: W,
    waiting: Vec<u8>,
    cap_bytes: usize,
}

impl<W: Write> Spool<W> {
    /// At most `cap_bytes` wait for the file. A piece longer than that is taken alone.
    pub(crate) fn new(out: W, cap_bytes: usize) -> Self {
        Self { out, waiting: Vec::with_capacity(cap_bytes), cap_bytes }
    }

    /// Takes the piece and returns true, or false when there is no room: then [`flush`](Spool::flush) may make some.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        let fits = self.waiting.is_empty() || self.waiting.len() + piece.len() <= self.cap_bytes;
        if fits {
            self.waiting.extend_from_slice(piece);
        }
        fits
    }

    /// [`push`](Spool::push), after handing over what waits if that is what it takes. The piece is lost when the file
    /// takes nothing.
    pub(crate) fn push_or_flush(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.push(piece) {
            return Ok(());
        }
        let flushed = self.flush(|_| ());
        match self.push(piece) {
            true => Ok(()),
            false => Err(flushed.err().unwrap_or_else(|| ErrorKind::WriteZero.into())),
        }
    }

    /// Hands everything that waits to the file, as far as the file takes it, and shows what it took.
    pub(crate) fn flush(&mut self, taken: impl FnOnce(&[u8])) -> io::Result<()> {
        let (bytes, written) = self.write();
        taken(&self.waiting[..bytes]);
        self.waiting.drain(..bytes);
        written.and_then(|()| self.out.flush())
    }

    /// What was taken and is not in the file.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.waiting
    }

    fn write(&mut self) -> (usize, io::Result<()>) {
        let mut taken = 0;
        while taken < self.waiting.len() {
            match self.out.write(&self.waiting[taken..]) {
                Ok(0) => return (taken, Err(ErrorKind::WriteZero.into())),
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A disk with `room` bytes left.
    #[derive(Default)]
    pub(crate) struct LimitedDisk {
        pub(crate) room: usize,
        pub(crate) held: Vec<u8>,
    }

    impl Write for LimitedDisk {
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

    impl<W> Spool<W> {
        pub(crate) fn file(&mut self) -> &mut W {
            &mut self.out
        }
    }

    #[test]
    fn a_piece_that_finds_no_room_is_lost_whole_and_the_others_stay_whole() {
        let mut spool = Spool::new(LimitedDisk { room: 3, ..LimitedDisk::default() }, 8);
        spool.push_or_flush(b"first").unwrap();
        assert_eq!(spool.push_or_flush(b"second--").unwrap_err().kind(), ErrorKind::StorageFull);
        spool.file().room = 100;
        spool.push_or_flush(b"third").unwrap();
        spool.flush(|_| ()).unwrap();
        assert_eq!(spool.file().held, b"firstthird");
        assert!(spool.waiting().is_empty());
    }
}
