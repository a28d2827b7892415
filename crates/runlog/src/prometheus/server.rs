//! The smallest web server there is: one page, one client at a time, and none that can hold it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tandem_pipeline::StopFlag;

/// How often it looks up from waiting: what a client waits at most before it is let in, and the end for the thread.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What a client has for its question, and again for taking the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest question. Prometheus' own has about 300 bytes.
pub(super) const LONGEST_REQUEST_BYTES: usize = 8 << 10;

/// Answers until it is stopped. `listener` does not block. No client can make it fail.
pub(super) fn serve(listener: &TcpListener, stop: &StopFlag, text: impl Fn() -> String) {
    while !stop.is_raised() {
        match listener.accept() {
            // A client that goes away, or never speaks, is its own loss.
            Ok((client, _)) => drop(answer(client, stop, &text)),
            // Nobody is there; or there are no file handles left, which also passes.
            Err(_) => drop(stop.wait_timeout(LOOK_UP)),
        }
    }
}

fn answer(mut client: TcpStream, stop: &StopFlag, text: impl Fn() -> String) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let Some(request) = read_request(&mut client, stop)? else { return Ok(()) };
    let (status, body) = match is_for_metrics(&request) {
        true => ("200 OK", text()),
        false => ("404 Not Found", "only GET /metrics is here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write_answer(&mut client, (head + &body).as_bytes(), stop)
}

/// Everything up to the empty line that ends a request, or what there was when the client closed its side or said too
/// much. None when its time was up.
fn read_request(client: &mut TcpStream, stop: &StopFlag) -> io::Result<Option<Vec<u8>>> {
    let (begun, mut request, mut buffer) = (Instant::now(), Vec::new(), [0; 1024]);
    client.set_read_timeout(Some(LOOK_UP))?;
    while begun.elapsed() < PATIENCE && !stop.is_raised() {
        match client.read(&mut buffer) {
            Ok(0) => return Ok(Some(request)),
            Ok(bytes) => request.extend_from_slice(&buffer[..bytes]),
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
        let ended = request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n");
        if ended || request.len() > LONGEST_REQUEST_BYTES {
            return Ok(Some(request));
        }
    }
    Ok(None)
}

fn write_answer(client: &mut TcpStream, mut answer: &[u8], stop: &StopFlag) -> io::Result<()> {
    let begun = Instant::now();
    client.set_write_timeout(Some(LOOK_UP))?;
    while !answer.is_empty() && begun.elapsed() < PATIENCE && !stop.is_raised() {
        match client.write(answer) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(bytes) => answer = &answer[bytes..],
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
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
