//! The smallest web server there is: one page, a few clients at a time, and none that can block the others.
//!
//! One thread serves all clients without blocking on any of them. A client that says nothing, or takes its answer too
//! slowly, is dropped after [`PATIENCE`], or earlier when there are [`MAX_CLIENTS`] and another one comes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tandem_pipeline::StopFlag;

/// The longest wait for clients: how long the thread takes to notice that it should stop.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections at a time. A scraper has one.
pub(super) const MAX_CLIENTS: usize = 32;

/// The longest request. Prometheus' own has about 300 bytes.
pub(super) const LONGEST_REQUEST_BYTES: usize = 8 << 10;

/// A connection, with what was read of its request or what is left of its answer.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
    since: Instant,
}

/// What became of a client.
#[derive(PartialEq, Eq)]
enum Progress {
    Waiting,
    Done,
}

/// Answers until it is stopped. `listener` does not block. No client can make it fail.
pub(super) fn serve(listener: &TcpListener, stop: &StopFlag, text: impl Fn() -> String) {
    let mut clients: Vec<Client> = Vec::new();
    while !stop.is_raised() {
        wait_for_events(listener, &clients);
        while let Ok((stream, _)) = listener.accept() {
            if clients.len() == MAX_CLIENTS {
                // The one that has waited longest without getting on.
                clients.remove(0);
            }
            if stream.set_nonblocking(true).is_ok() {
                let mut client = Client { stream, request: Vec::new(), answer: None, since: Instant::now() };
                // At once: most clients have already sent their request.
                if matches!(client.advance(&text), Ok(Progress::Waiting)) {
                    clients.push(client);
                }
            }
        }
        clients.retain_mut(|client| {
            client.since.elapsed() < PATIENCE && matches!(client.advance(&text), Ok(Progress::Waiting))
        });
    }
}

/// Waits until somebody connects, sends or can take more, for [`WAIT`] at most.
fn wait_for_events(listener: &TcpListener, clients: &[Client]) {
    let mut events = vec![PollFd::new(listener, PollFlags::IN)];
    events.extend(clients.iter().map(|client| {
        PollFd::new(&client.stream, if client.answer.is_some() { PollFlags::OUT } else { PollFlags::IN })
    }));
    // An interrupted wait is a short one.
    let _ = poll(&mut events, Some(&WAIT));
}

impl Client {
    /// Reads and writes as much as is possible without waiting.
    fn advance(&mut self, text: &impl Fn() -> String) -> io::Result<Progress> {
        if self.answer.is_none() {
            if !self.read_request()? {
                return Ok(Progress::Waiting);
            }
            self.answer = Some(answer_to(&self.request, text));
        }
        self.write_answer()
    }

    /// Whether the request is complete: up to its empty line, or what there was when the client closed its side or said
    /// too much.
    fn read_request(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(bytes) => self.request.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            let has_end = |end: &[u8]| self.request.windows(end.len()).any(|found| found == end);
            if has_end(b"\r\n\r\n") || has_end(b"\n\n") || self.request.len() > LONGEST_REQUEST_BYTES {
                return Ok(true);
            }
        }
    }

    fn write_answer(&mut self) -> io::Result<Progress> {
        let Some(answer) = &mut self.answer else { return Ok(Progress::Done) };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => drop(answer.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Waiting),
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::Done)
    }
}

fn answer_to(request: &[u8], text: &impl Fn() -> String) -> Vec<u8> {
    let (status, body) = match is_for_metrics(request) {
        true => ("200 OK", text()),
        false => ("404 Not Found", "only GET /metrics is here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Whether the first line asks for the page, with or without something behind a question mark.
fn is_for_metrics(request: &[u8]) -> bool {
    let line = request.split(|&byte| byte == b'\r' || byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.and_then(|target| target.split(|&byte| byte == b'?').next());
    method == Some(b"GET") && path == Some(b"/metrics") && version.is_some_and(|word| word.starts_with(b"HTTP/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_question_is_answered() {
        let check = |request: &str, expected| assert_eq!(is_for_metrics(request.as_bytes()), expected, "{request:?}");
        check("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", true);
        check("GET /metrics?name=x HTTP/1.0\r\n\r\n", true);
        check("GET /metrics/ HTTP/1.1\r\n\r\n", false);
        check("GET / HTTP/1.1\r\n\r\n", false);
        check("POST /metrics HTTP/1.1\r\n\r\n", false);
        check("GET /metrics", false);
        check("", false);
        check("\r\n\r\n", false);
    }
}
