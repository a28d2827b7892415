//! An object store for tests: a folder behind http, in the language of S3, with faults on order.
//!
//! `/bucket/key` is the file `bucket/key` of the folder. GET with a range, HEAD and ListObjectsV2 work as in S3, so plain
//! http works too. Which requests fail is decided by their numbers, so the same requests fail in every run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, UNIX_EPOCH};

/// What goes wrong, and how often. The default is a server without faults.
///
/// `every` is in requests, counted from 1: 3 means the third, the sixth and so on, shifted by `seed`.
#[derive(Clone, Debug, Default)]
pub struct ServerFaults {
    /// Shifts which requests the others fail.
    pub seed: u64,
    /// Answers 503.
    pub unavailable_every: Option<u64>,
    /// Answers 503 to every request from the one with this number on.
    pub down_from: Option<u64>,
    /// Closes the connection in the middle of the body.
    pub cut_every: Option<u64>,
    /// Says in Content-Range that it sends other bytes than were asked for, and sends them.
    pub wrong_range_every: Option<u64>,
    /// Sends fewer bytes than Content-Range says, and as many as Content-Length says.
    pub wrong_length_every: Option<u64>,
    /// Never answers the request with this number.
    pub hang_on: Option<u64>,
    /// Gives other ETags from the request with this number on.
    pub new_etags_from: Option<u64>,
    /// Waits before each answer.
    pub latency: Duration,
    /// Answers nothing until so many requests are in flight at the same time, for the first time. Closes connections
    /// after 20 s of waiting for them.
    pub gather: u64,
    /// Gathers only requests from this number on.
    pub gather_from: u64,
    /// Answers a range with the whole object and 200.
    pub ignores_ranges: bool,
    /// Gives neither ETags nor times.
    pub no_stamps: bool,
    /// Answers 403 to requests without this text in their query, and to every HEAD.
    pub signature: Option<String>,
    /// Answers 403 to requests without this header, as `name: value`.
    pub header: Option<String>,
    /// Entries of a page of a list; 0 is 1,000.
    pub page_entries: usize,
}

/// How long requests that are gathered wait for each other.
const GATHER_LIMIT: Duration = Duration::from_secs(20);

/// A running server. Dropping it closes every connection and ends its threads.
pub struct ObjectServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    folder: PathBuf,
    faults: ServerFaults,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    num_requests: u64,
    num_bytes: u64,
    num_in_flight: u64,
    max_in_flight: u64,
    num_closed_early: u64,
    stops: bool,
    connections: BTreeMap<u64, (TcpStream, Option<JoinHandle<()>>)>,
}

impl ObjectServer {
    /// Serves `folder` on a free port of this machine.
    ///
    /// # Panics
    ///
    /// If there is no port or no thread.
    pub fn start(folder: &Path, faults: ServerFaults) -> ObjectServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap_or_else(|error| panic!("no port: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { folder: folder.to_owned(), faults, state, changed });
        let accepting = shared.clone();
        let accepts = thread("object-server", move || accept(&listener, &accepting));
        ObjectServer { shared, address, accepts: Some(accepts) }
    }

    /// `http://127.0.0.1:port`, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment variables, names and values, with which a client finds this server as S3.
    pub fn variables(&self) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let url = self.url();
        vec![pair("AWS_ENDPOINT_URL", &url), pair("AWS_ALLOW_HTTP", "true"), pair("AWS_REGION", "us-east-1")]
    }

    /// Requests so far, also those that failed.
    pub fn requests(&self) -> u64 {
        self.shared.lock().num_requests
    }

    /// Bytes of bodies that were sent so far.
    pub fn bytes(&self) -> u64 {
        self.shared.lock().num_bytes
    }

    /// The largest number of requests that waited for their answers at the same time.
    pub fn max_in_flight(&self) -> u64 {
        self.shared.lock().max_in_flight
    }

    /// Waits until so many clients have closed their connection before they had their answer.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    #[track_caller]
    pub fn wait_until_closed_early(&self, count: u64) {
        self.wait_until("closed connections", |state| state.num_closed_early >= count);
    }

    /// Waits until there were so many requests.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    #[track_caller]
    pub fn wait_until_requests(&self, count: u64) {
        self.wait_until("requests", |state| state.num_requests >= count);
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let limit = Duration::from_secs(60);
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, |state| !is_so(state));
        let (_state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!result.timed_out(), "too few {what} within {limit:?}");
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let connections = {
            let mut state = self.shared.lock();
            state.stops = true;
            std::mem::take(&mut state.connections)
        };
        self.shared.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        for (_, (stream, thread)) in connections {
            let _ = stream.shutdown(Shutdown::Both);
            if let Some(thread) = thread {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().name(name.into()).spawn(work).unwrap_or_else(|error| panic!("no thread: {error}"))
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (id, stream) in (0..).zip(listener.incoming()) {
        let Ok(stream) = stream else { continue };
        let Ok(closer) = stream.try_clone() else { continue };
        let mut state = shared.lock();
        if state.stops {
            return;
        }
        let serving = shared.clone();
        let thread = thread("object-connection", move || {
            // A client that closes its connection is no failure of the server.
            let _ = serve(&stream, &serving);
            let _ = stream.shutdown(Shutdown::Both);
            serving.lock().connections.remove(&id);
        });
        // The thread removes itself only after this lock is free.
        state.connections.insert(id, (closer, Some(thread)));
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let number = {
            let mut state = shared.lock();
            state.num_requests += 1;
            state.num_in_flight += 1;
            state.max_in_flight = state.max_in_flight.max(state.num_in_flight);
            state.num_requests
        };
        shared.changed.notify_all();
        let waited = wait_before_answer(stream, shared, number);
        // Before the answer: a client that asks one thing at a time may ask the next as soon as it has the last byte.
        shared.lock().num_in_flight -= 1;
        let result = waited.and_then(|()| answer(stream, shared, &request, number));
        shared.lock().num_closed_early +=
            u64::from(matches!(&result, Err(error) if error.kind() != io::ErrorKind::Interrupted));
        shared.changed.notify_all();
        result?;
    }
    Ok(())
}

/// Latency, gathering, and the request that is never answered.
fn wait_before_answer(stream: &TcpStream, shared: &Shared, number: u64) -> io::Result<()> {
    let faults = &shared.faults;
    if faults.hang_on == Some(number) {
        // Ends when the client closes the connection, or the server does.
        let mut byte = [0];
        let mut stream = stream;
        while matches!(stream.read(&mut byte), Ok(1)) {}
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let state = shared.lock();
    let gathers = number >= faults.gather_from;
    let gathering = |state: &mut State| gathers && !state.stops && state.max_in_flight < faults.gather;
    let waited = shared.changed.wait_timeout_while(state, GATHER_LIMIT, gathering);
    let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
    if result.timed_out() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    if !faults.latency.is_zero() {
        let _state = shared.changed.wait_timeout_while(state, faults.latency, |state| !state.stops);
    }
    Ok(())
}

struct Request {
    method: String,
    /// Decoded, without the first slash.
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
}

impl Request {
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or("").to_owned(), words.next().unwrap_or("").to_owned());
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let query = query.map(|(name, value)| (decoded(name), decoded(&value.replace('+', " ")))).collect();
        Ok(Some(Request { method, path: decoded(path.trim_start_matches('/')), query, headers }))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn is_signed(&self, faults: &ServerFaults) -> bool {
        let header = faults.header.as_deref().and_then(|header| header.split_once(": "));
        let has_header = header.is_none_or(|(name, value)| self.header(&name.to_ascii_lowercase()) == Some(value));
        let has_query = faults.signature.as_ref().is_none_or(|signature| {
            self.method != "HEAD" && self.query.iter().any(|(name, value)| format!("{name}={value}") == *signature)
        });
        has_header && has_query
    }
}

fn answer(stream: &TcpStream, shared: &Shared, request: &Request, number: u64) -> io::Result<()> {
    let faults = &shared.faults;
    let is_due = |every: Option<u64>| every.is_some_and(|every| (number + faults.seed).is_multiple_of(every));
    let empty = |status: &str| Answer { status: status.into(), ..Answer::default() };
    let is_down = faults.down_from.is_some_and(|from| number >= from);
    let mut answer = if is_down || is_due(faults.unavailable_every) {
        empty("503 Slow Down")
    } else if !request.is_signed(faults) {
        empty("403 Forbidden")
    } else if request.query("list-type") == Some("2") {
        list(shared, request)?
    } else {
        object(shared, request, number, is_due(faults.wrong_range_every))?.unwrap_or_else(|| empty("404 Not Found"))
    };
    if is_due(faults.wrong_length_every) && !answer.body.is_empty() {
        answer.body.truncate(answer.body.len() - 1);
        answer.num_bytes = answer.body.len();
    }
    let cut = is_due(faults.cut_every) && answer.body.len() > 1;
    answer.send(stream, shared, request.method == "HEAD", cut)
}

#[derive(Default)]
struct Answer {
    status: String,
    headers: Vec<String>,
    body: Vec<u8>,
    /// The length to give; of a HEAD there is no body.
    num_bytes: usize,
}

impl Answer {
    fn send(&self, mut stream: &TcpStream, shared: &Shared, is_head: bool, cut: bool) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {}\r\nContent-Length: {}\r\n", self.status, self.num_bytes);
        for header in &self.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        let body = match (is_head, cut) {
            (true, _) => &[],
            (false, true) => &self.body[..self.body.len() / 2],
            (false, false) => &self.body[..],
        };
        stream.write_all(body)?;
        shared.lock().num_bytes += body.len() as u64;
        // Interrupted: by the server itself.
        if cut && !is_head { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

/// A file, or part of it.
fn object(shared: &Shared, request: &Request, number: u64, wrong_range: bool) -> io::Result<Option<Answer>> {
    let faults = &shared.faults;
    let path = shared.folder.join(&request.path);
    let is_inside = !request.path.split('/').any(|segment| segment == "..");
    let Some(mut file) = is_inside.then(|| File::open(&path).ok()).flatten() else { return Ok(None) };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut answer = Answer { status: "200 OK".into(), ..Answer::default() };
    if !faults.no_stamps {
        let is_new = faults.new_etags_from.is_some_and(|from| number >= from);
        let etag = format!("\"{}{}\"", etag(&metadata), if is_new { "-new" } else { "" });
        let modified = http_time(seconds(&metadata));
        answer.headers.extend([format!("ETag: {etag}"), format!("Last-Modified: {modified}")]);
    }
    let size = metadata.len();
    let mut range = 0..size;
    if let Some(asked) = request.header("range").and_then(parse_range)
        && !faults.ignores_ranges
    {
        range = asked.start..asked.end.min(size);
        if range.start >= range.end {
            return Ok(Some(Answer { status: "416 Range Not Satisfiable".into(), ..Answer::default() }));
        }
        if wrong_range {
            range = if range.start > 0 { range.start - 1..range.end - 1 } else { 0..range.end - 1 };
        }
        let last = range.end.saturating_sub(1);
        answer.status = "206 Partial Content".into();
        answer.headers.push(format!("Content-Range: bytes {}-{last}/{size}", range.start));
    }
    answer.num_bytes = (range.end - range.start) as usize;
    if request.method != "HEAD" {
        file.seek(SeekFrom::Start(range.start))?;
        file.take(range.end - range.start).read_to_end(&mut answer.body)?;
    }
    Ok(Some(answer))
}

/// ListObjectsV2.
fn list(shared: &Shared, request: &Request) -> io::Result<Answer> {
    let bucket = shared.folder.join(request.path.trim_end_matches('/'));
    let prefix = request.query("prefix").unwrap_or("");
    let mut keys = Vec::new();
    add_keys(&bucket, "", &mut keys)?;
    let mut entries = BTreeMap::new();
    for key in keys.iter().filter(|key| key.starts_with(prefix)) {
        let rest = &key[prefix.len()..];
        match request.query("delimiter").and_then(|delimiter| rest.find(delimiter)) {
            Some(at) => entries.insert(format!("{prefix}{}", &rest[..=at]), None),
            None => entries.insert(key.clone(), Some(bucket.join(key))),
        };
    }
    let after = request.query("continuation-token").unwrap_or("");
    let page_entries = if shared.faults.page_entries == 0 { 1000 } else { shared.faults.page_entries };
    let mut entries = entries.into_iter().filter(|(key, _)| key.as_str() > after);
    let page: Vec<_> = entries.by_ref().take(page_entries).collect();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult>");
    for (key, path) in &page {
        let name = escaped(key);
        match path {
            None => xml.push_str(&format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>")),
            Some(path) => {
                let metadata = fs::metadata(path)?;
                let (size, time, etag) = (metadata.len(), iso_time(seconds(&metadata)), etag(&metadata));
                xml.push_str(&format!(
                    "<Contents><Key>{name}</Key><Size>{size}</Size><LastModified>{time}</LastModified>\
                     <ETag>&quot;{etag}&quot;</ETag></Contents>"
                ));
            }
        }
    }
    if entries.next().is_some()
        && let Some((last, _)) = page.last()
    {
        xml.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(last)));
    }
    xml.push_str("</ListBucketResult>");
    let headers = vec!["Content-Type: application/xml".into()];
    Ok(Answer { status: "200 OK".into(), headers, num_bytes: xml.len(), body: xml.into_bytes() })
}

fn add_keys(folder: &Path, prefix: &str, keys: &mut Vec<String>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let key = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => add_keys(&entry.path(), &format!("{key}/"), keys)?,
            false => keys.push(key),
        }
    }
    Ok(())
}

fn etag(metadata: &fs::Metadata) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{:x}-{:x}", metadata.len(), modified.map_or(0, |since| since.as_nanos()))
}

fn seconds(metadata: &fs::Metadata) -> u64 {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    modified.map_or(0, |since| since.as_secs())
}

fn parse_range(value: &str) -> Option<Range<u64>> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let escape = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        let escape = escape.filter(|_| *byte == b'%');
        bytes.push(escape.unwrap_or(*byte));
        rest = if escape.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `1970-01-01T00:00:00.000Z`.
fn iso_time(seconds: u64) -> String {
    let ((year, month, day), (hour, minute, second)) = date_and_time(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// `Thu, 01 Jan 1970 00:00:00 GMT`.
fn http_time(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let ((year, month, day), (hour, minute, second)) = date_and_time(seconds);
    let (weekday, month) = (DAYS[(seconds / 86_400 % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

type Triple = (u64, u64, u64);

fn date_and_time(seconds: u64) -> (Triple, Triple) {
    let is_leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let (mut days, mut year, mut month) = (seconds / 86_400, 1970, 1);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    ((year, month, days + 1), (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_http_and_s3_write_them() {
        let check = |seconds, http: &str, iso: &str| {
            assert_eq!((http_time(seconds).as_str(), iso_time(seconds).as_str()), (http, iso));
        };
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00.000Z");
        check(951_827_696, "Tue, 29 Feb 2000 12:34:56 GMT", "2000-02-29T12:34:56.000Z");
        check(1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT", "2024-12-31T23:59:59.000Z");
    }

    #[test]
    fn a_path_is_decoded() {
        assert_eq!(decoded("a%20b%2Fc%"), "a b/c%");
        assert_eq!(escaped("a<&>\"b"), "a&lt;&amp;&gt;&quot;b");
    }

    #[test]
    fn a_file_is_served_and_the_server_ends() {
        let folder = std::env::temp_dir().join(format!("tandem-object-server-{}", std::process::id()));
        let written =
            fs::create_dir_all(folder.join("bucket")).and_then(|()| fs::write(folder.join("bucket/a"), "text"));
        let server = ObjectServer::start(&folder, ServerFaults::default());
        let ask = |head: &str| -> io::Result<String> {
            let mut stream = TcpStream::connect(server.address)?;
            write!(stream, "{head}\r\n\r\n")?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let part = ask("GET /bucket/a HTTP/1.1\r\nRange: bytes=1-2");
        let missing = ask("HEAD /bucket/b HTTP/1.1");
        let listed = ask("GET /bucket?list-type=2 HTTP/1.1");
        let (requests, bytes) = (server.requests(), server.bytes());
        drop(server);
        let _ = fs::remove_dir_all(&folder);
        assert!(written.is_ok());
        let part = part.unwrap_or_default();
        assert!(
            part.starts_with("HTTP/1.1 206 ") && part.contains("bytes 1-2/4") && part.ends_with("\r\n\r\nex"),
            "{part}"
        );
        assert!(missing.unwrap_or_default().starts_with("HTTP/1.1 404 "));
        assert!(listed.unwrap_or_default().contains("<Key>a</Key><Size>4</Size>"));
        assert!(requests == 3 && bytes > 2);
    }
}
