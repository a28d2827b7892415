//! Reading and writing that end at a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A point in time; `None` is too far away to be represented.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketDeadline {
    start: Instant,
    end: Option<Instant>,
}

impl SocketDeadline {
    /// The deadline `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> SocketDeadline {
        let start = Instant::now();
        SocketDeadline { start, end: start.checked_add(timeout) }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time since the deadline was set.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// What is left, in the form that a socket takes; an error when nothing is left.
    fn socket_timeout(&self) -> io::Result<Option<Duration>> {
        match self.remaining() {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            Duration::MAX => Ok(None),
            // A socket rounds what is less than a microsecond to zero, which means no timeout.
            left => Ok(Some(left.max(Duration::from_micros(1)))),
        }
    }
}

/// A stream whose reads and writes fail with `TimedOut` when the deadline has passed.
pub(crate) struct TimedStream<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) deadline: SocketDeadline,
}

impl Read for TimedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.deadline.socket_timeout()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.deadline.socket_timeout()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Linux reports a timeout of a socket as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}
