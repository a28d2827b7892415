//! A writer for a pipe or a terminal whose reader may stall. A regular file is always ready.

use std::fs::File;
use std::io::{self, ErrorKind, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;

/// A reader that takes nothing for this long counts as stalled; one that reads slowly does not.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A write always returns: with the bytes taken, or with [`ErrorKind::TimedOut`].
pub(crate) struct NonBlockingWriter {
    file: File,
    patience: Timespec,
    /// The reader took something at the last wait, so the next wait is worth it.
    is_read: bool,
}

impl NonBlockingWriter {
    pub(crate) fn new(file: File) -> io::Result<NonBlockingWriter> {
        if !file.metadata()?.is_file() {
            fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        }
        Ok(NonBlockingWriter { file, patience: PATIENCE, is_read: true })
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut watched = [PollFd::new(&self.file, PollFlags::OUT)];
        self.is_read = self.is_read && retry_on_intr(|| poll(&mut watched, Some(&self.patience)))? > 0;
        if self.is_read { Ok(()) } else { Err(io::Error::new(ErrorKind::TimedOut, "its reader is stalled")) }
    }
}

impl Write for NonBlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait()?,
                taken => {
                    self.is_read |= taken.is_ok();
                    return taken;
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use tandem_pipeline::Worker;

    use super::*;

    /// Both ends of a pipe, which holds 64 KiB, and whose writer waits for a reader for so many seconds.
    fn pipe(tv_sec: i64) -> (io::PipeReader, NonBlockingWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = NonBlockingWriter::new(File::from(OwnedFd::from(writer))).unwrap();
        (reader, NonBlockingWriter { patience: Timespec { tv_sec, tv_nsec: 0 }, ..writer })
    }

    #[test]
    fn a_reader_that_stops_is_waited_for_once_and_may_come_back() {
        let (mut reader, mut writer_end) = pipe(0);
        let piece = [7; 8 << 10];
        let taken: usize = std::iter::from_fn(|| writer_end.write(&piece).ok()).sum();
        assert!(!writer_end.is_read);
        assert_eq!(writer_end.write(&piece).unwrap_err().kind(), ErrorKind::TimedOut);
        let mut read = vec![0; taken];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(writer_end.write(&piece).unwrap(), piece.len(), "there is room again");
        assert!(writer_end.is_read && read.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_reader_that_is_slower_gets_everything() {
        let (mut reader, mut writer_end) = pipe(600);
        let all: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8).collect();
        let expected = all.clone();
        let writer = Worker::spawn("writer", move |_| writer_end.write_all(&all)).unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        writer.join().unwrap().unwrap();
        assert!(read == expected);
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_at_once() {
        let (reader, mut writer_end) = pipe(0);
        drop(reader);
        assert_eq!(writer_end.write(b"line\n").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
