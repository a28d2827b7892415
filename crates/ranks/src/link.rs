//! The two connections between rank 0 and another rank.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::message::ControlMessage;

/// A control message is small: when it does not fit into the socket's buffer for this long, the other end does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connections to one other rank.
pub(crate) struct RankLink {
    /// The rank at the other end.
    pub(crate) rank: u32,
    /// The connection for collectives.
    pub(crate) data: TcpStream,
    /// The connection for control messages. Only the control thread reads it; all threads write, through `send`.
    pub(crate) control: TcpStream,
    /// This rank, as the sender of messages.
    sender: u32,
    /// Whether the last message was sent. The lock also orders writes.
    closing: Mutex<bool>,
}

impl RankLink {
    pub(crate) fn new(sender: u32, rank: u32, data: TcpStream, control: TcpStream) -> io::Result<RankLink> {
        for stream in [&data, &control] {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
        }
        control.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(RankLink { rank, data, control, sender, closing: Mutex::new(false) })
    }

    /// Sends a control message, unless the last one was sent. An error is left to the control thread, which reads the same
    /// connection and knows the cause.
    pub(crate) fn send(&self, message: &ControlMessage) {
        let closing = self.lock();
        if !*closing {
            self.write(message);
        }
    }

    /// Sends the last control message. The other end then closes the connection in its turn.
    pub(crate) fn send_last(&self, message: &ControlMessage) {
        let mut closing = self.lock();
        if !*closing {
            self.write(message);
            self.close_writing(&mut closing);
        }
    }

    /// Sends no more, as the answer to the last message of the other end.
    pub(crate) fn close(&self) {
        self.close_writing(&mut self.lock());
    }

    /// Whether this end has sent its last message, so that the end of the connection is expected.
    pub(crate) fn is_closing(&self) -> bool {
        *self.lock()
    }

    /// Ends the control connection now. A blocked read or write returns.
    pub(crate) fn shut_control(&self) {
        *self.lock() = true;
        let _ = self.control.shutdown(Shutdown::Both);
    }

    /// Ends the data connection now. A blocked read or write of a collective returns.
    pub(crate) fn shut_data(&self) {
        // It fails only if the connection has ended already.
        let _ = self.data.shutdown(Shutdown::Both);
    }

    fn write(&self, message: &ControlMessage) {
        if (&self.control).write_all(&message.frame(self.sender)).is_err() {
            // Half a message may be on its way: nothing can follow it.
            let _ = self.control.shutdown(Shutdown::Both);
        }
    }

    fn close_writing(&self, closing: &mut bool) {
        *closing = true;
        let _ = self.control.shutdown(Shutdown::Write);
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // A bool is never half written.
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether bytes have arrived that were not read yet. Takes none of them, and does not wait.
pub(crate) fn has_bytes(stream: &TcpStream) -> bool {
    peek(stream).is_ok_and(|count| count > 0)
}

/// Whether the other end has closed the connection, or it is broken.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    match peek(stream) {
        Ok(count) => count == 0,
        Err(error) => error != rustix::io::Errno::AGAIN && error != rustix::io::Errno::INTR,
    }
}

fn peek(stream: &TcpStream) -> rustix::io::Result<usize> {
    let mut byte = [0; 1];
    recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).map(|(_, count)| count)
}
