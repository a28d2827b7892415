//! Real clients over real sockets: good ones, and those who mean harm.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use tandem_events::{RunEvent, VERSION};

use super::*;

/// Long enough that only a server that is held outlasts it.
const PATIENCE: Duration = Duration::from_secs(60);

fn serve() -> Prometheus {
    let mut prometheus = Prometheus::serve(listen_address("0").unwrap()).unwrap();
    let event = RunEvent::Step { step: 42, wall_ns: 500_000_000, wait_ns: 0 };
    prometheus.take(&Record { v: VERSION, seq: 0, t_ns: 0, dropped: 0, event }).unwrap();
    prometheus
}

fn client(prometheus: &Prometheus) -> TcpStream {
    let client = TcpStream::connect(prometheus.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// What is answered, up to where the server closes the connection.
fn ask(prometheus: &Prometheus, request: &[u8]) -> String {
    let mut client = client(prometheus);
    client.write_all(request).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

const QUESTION: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

#[test]
fn a_scrape_gets_the_page() {
    let prometheus = serve();
    for _ in 0..2 {
        let answer = ask(&prometheus, QUESTION);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains("\ntandem_step 42\n") && body.contains("\ntandem_steps_per_second 2\n"), "{body}");
    }
}

#[test]
fn anything_else_is_not_found() {
    let prometheus = serve();
    let long = [b"GET /metrics", "x".repeat(5_000).as_bytes(), b" HTTP/1.1\r\n\r\n"].concat();
    for request in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"POST /metrics HTTP/1.1\r\n\r\n", b"\xFF\0\n\n", b"", &long]
    {
        let answer = ask(&prometheus, request);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{request:?}: {answer}");
    }
}

#[test]
fn a_client_that_never_speaks_holds_nobody_up_for_long() {
    let prometheus = serve();
    let _silent = client(&prometheus);
    assert!(ask(&prometheus, QUESTION).contains("tandem_step 42"));
}

#[test]
fn a_crowd_of_silent_clients_starves_nobody() {
    let prometheus = serve();
    // Several times as many as are served at a time; one after the other they would take minutes.
    let _silent: Vec<TcpStream> = (0..4 * server::MAX_CLIENTS).map(|_| client(&prometheus)).collect();
    for _ in 0..3 {
        assert!(ask(&prometheus, QUESTION).contains("tandem_step 42"));
    }
}

#[test]
fn a_client_that_never_stops_speaking_is_cut_short() {
    let prometheus = serve();
    let mut talker = client(&prometheus);
    // It ends only because the server closes the connection.
    while talker.write_all(&[b'x'; 4096]).is_ok() {}
    assert!(ask(&prometheus, QUESTION).contains("tandem_step 42"));
}

#[test]
fn a_question_without_end_is_answered_at_its_longest() {
    let prometheus = serve();
    let mut talker = client(&prometheus);
    talker.write_all(&[b'x'; server::LONGEST_REQUEST_BYTES + 1]).unwrap();
    // Had the server gone on listening, its time would be up, and nothing said.
    let mut answer = String::new();
    talker.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[test]
fn it_ends_with_the_run_whoever_is_connected() {
    let mut prometheus = serve();
    let mut silent = client(&prometheus);
    prometheus.finish().unwrap();
    // The connection is over, and not because the client lost patience.
    let end = silent.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_which() {
    let first = serve();
    let second = Prometheus::serve(first.address()).unwrap_err();
    assert!(matches!(second, ExportError::Bind { .. }), "{second}");
    assert!(second.to_string().starts_with(&first.address().to_string()), "{second}");
}

#[test]
fn addresses_are_of_this_machine_alone_unless_they_say_otherwise() {
    let check = |text: &str, expected: Option<&str>| {
        let address = listen_address(text).ok().map(|address| address.to_string());
        assert_eq!(address.as_deref(), expected, "{text}");
    };
    check("9090", Some("127.0.0.1:9090"));
    check(":9090", Some("127.0.0.1:9090"));
    check("localhost:9090", Some("127.0.0.1:9090"));
    check("0.0.0.0:9090", Some("0.0.0.0:9090"));
    check("[::1]:9090", Some("[::1]:9090"));
    for wrong in ["", ":", "99999", "0.0.0.0", "host", "host:9090", "-1", ":9090/metrics"] {
        check(wrong, None);
    }
}
