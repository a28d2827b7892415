//! How rank 0 admits the other ranks: it listens until all of them are there.
//!
//! Each connection has a thread for its handshake, so that a silent one delays nobody. Whoever does not belong to the run is
//! dropped and counted.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tandem_pipeline::Worker;

use crate::deadline::{SocketDeadline, TimedStream};
use crate::handshake::{Channel, GroupIdentity, Hello, OTHER_PROTOCOL, refused};
use crate::link::{RankLink, is_closed};
use crate::message::milliseconds;
use crate::wire::{FrameReader, FrameWriter, MAX_CONTROL_FRAME_BYTES, MAX_SMALL_FRAME_BYTES, Malformed, read_frame};
use crate::{RankEnvironment, RankError};

/// How long a connection may take to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most handshakes at a time. More connections are closed at once, and ranks among them try again.
const MAX_HANDSHAKES: usize = 64;
/// The pause between two looks at the handshakes when nobody connects.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The connections of all ranks, and how many others were dropped.
pub(crate) struct Admitted {
    pub(crate) links: Vec<RankLink>,
    pub(crate) num_rejected: u64,
}

/// Listens at the address of `environment`, or with a `listener` that is bound already, until every rank is there; then
/// releases them all.
pub(crate) fn admit(
    environment: &RankEnvironment,
    identity: GroupIdentity,
    join_timeout: Duration,
    listener: Option<TcpListener>,
) -> Result<Admitted, RankError> {
    let listener = listener.map_or_else(|| bind(environment), Ok)?;
    listener.set_nonblocking(true).map_err(|error| RankError::System { reason: error.to_string() })?;
    let roster = Arc::new(Roster::new(identity, environment.world.size));
    let deadline = SocketDeadline::after(join_timeout);
    let mut handshakes = Vec::new();
    loop {
        accept_all(&listener, &roster, &mut handshakes);
        let missing = roster.missing();
        if missing.is_empty() {
            let num_rejected = roster.num_rejected.load(Ordering::Relaxed);
            return Ok(Admitted { links: roster.release()?, num_rejected });
        }
        if deadline.has_passed() {
            let waited = deadline.waited();
            send_all(&roster.lock(), &Release::NotAllJoined { missing: missing.clone(), waited });
            return Err(RankError::NotAllJoined { missing, waited });
        }
        // A failed poll only means that the next look comes at once.
        let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&LOOK_INTERVAL));
    }
}

/// Binds to the loopback address if all ranks can reach it there, and to all addresses otherwise.
fn bind(environment: &RankEnvironment) -> Result<TcpListener, RankError> {
    let port = environment.port;
    let bound = match environment.is_loopback_only() {
        true => TcpListener::bind((environment.address.as_str(), port)),
        // Without IPv6 there is no `::`, which otherwise also takes IPv4.
        false => TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
    };
    bound.map_err(|error| RankError::Bind { address: location(environment), reason: error.to_string() })
}

/// Where rank 0 is, for messages.
pub(crate) fn location(environment: &RankEnvironment) -> String {
    format!("{}:{}", environment.address, environment.port)
}

/// A handshake in flight. Dropping it ends the handshake, and waits for its thread.
struct Handshake {
    connection: Arc<NewConnection>,
    thread: Worker,
}

/// A connection that may be admitted.
struct NewConnection {
    stream: TcpStream,
    /// Set under the lock of the roster.
    is_admitted: AtomicBool,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        // The thread of a connection that was admitted may still be running.
        if !self.connection.is_admitted.load(Ordering::Acquire) {
            let _ = self.connection.stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept_all(listener: &TcpListener, roster: &Arc<Roster>, handshakes: &mut Vec<Handshake>) {
    // An error is that of one connection, or a lack of file handles that may pass: the deadline ends both.
    while let Ok((stream, _)) = listener.accept() {
        handshakes.retain(|handshake| !handshake.thread.is_finished());
        let started = if handshakes.len() < MAX_HANDSHAKES { start_handshake(stream, roster) } else { None };
        match started {
            Some(handshake) => handshakes.push(handshake),
            None => roster.count_rejected(),
        }
    }
}

/// Starts a thread for a handshake. `None` if the system has no room: the connection is closed, and a rank tries again.
fn start_handshake(stream: TcpStream, roster: &Arc<Roster>) -> Option<Handshake> {
    stream.set_nonblocking(false).ok()?;
    let connection = Arc::new(NewConnection { stream, is_admitted: AtomicBool::new(false) });
    let (roster, connecting) = (Arc::clone(roster), Arc::clone(&connection));
    let thread = Worker::spawn("rank-handshake", move |_| roster.shake_hands(&connecting)).ok()?;
    Some(Handshake { connection, thread })
}

/// Who is there already.
struct Roster {
    identity: GroupIdentity,
    num_rejected: AtomicU64,
    /// By rank; rank 0 itself is never there.
    ranks: Mutex<Vec<Connections>>,
}

/// The connections of one rank that were admitted.
#[derive(Default)]
struct Connections {
    data: Option<TcpStream>,
    control: Option<TcpStream>,
}

impl Connections {
    fn of(&mut self, channel: Channel) -> &mut Option<TcpStream> {
        match channel {
            Channel::Data => &mut self.data,
            Channel::Control => &mut self.control,
        }
    }

    fn is_complete(&self) -> bool {
        self.data.is_some() && self.control.is_some()
    }

    /// Forgets connections of a process that has ended, so that another can take its place.
    fn drop_closed(&mut self) {
        for stream in [&mut self.data, &mut self.control] {
            stream.take_if(|stream| is_closed(stream));
        }
    }
}

impl Roster {
    fn new(identity: GroupIdentity, size: u32) -> Roster {
        let ranks = (0..size).map(|_| Connections::default()).collect();
        Roster { identity, num_rejected: AtomicU64::new(0), ranks: Mutex::new(ranks) }
    }

    /// The handshake of one connection, on its own thread. Whoever is not admitted is dropped.
    fn shake_hands(&self, connection: &NewConnection) {
        let mut stream = TimedStream { stream: &connection.stream, deadline: SocketDeadline::after(HANDSHAKE_TIMEOUT) };
        if let Err(reason) = self.read_hello(&mut stream).and_then(|hello| self.enter(&hello, connection)) {
            self.count_rejected();
            if let Some(reason) = reason {
                let _ = stream.write_all(&refused(&reason));
            }
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    /// Who connects. The error is the reason for a rank that is not admitted; nobody else gets one.
    fn read_hello(&self, stream: &mut TimedStream<'_>) -> Result<Hello, Option<String>> {
        let content = read_frame(stream, MAX_SMALL_FRAME_BYTES).map_err(|_| None)?;
        let is_rank = |malformed: &Malformed| *malformed == OTHER_PROTOCOL;
        let hello = Hello::read(&content).map_err(|malformed| is_rank(&malformed).then(|| malformed.to_string()))?;
        self.identity.check(&hello).map(|()| hello).map_err(Some)
    }

    /// Enters a connection and answers it. Under one lock, so that the answer comes before the release.
    fn enter(&self, hello: &Hello, connection: &NewConnection) -> Result<(), Option<String>> {
        let mut ranks = self.lock();
        let rank = hello.rank;
        let taken = || Some(format!("rank {rank} is already there. Give every process its own rank"));
        let connections = ranks.get_mut(rank as usize).filter(|_| rank > 0).ok_or_else(taken)?;
        connections.drop_closed();
        if connections.of(hello.channel).is_some() {
            return Err(taken());
        }
        // Without an answer, the rank tries again.
        let stream = connection.stream.try_clone().map_err(|_| None)?;
        // If the answer cannot be sent, the connection is closed and found to be so.
        let _ = (&stream).write_all(&self.identity.welcome());
        *connections.of(hello.channel) = Some(stream);
        connection.is_admitted.store(true, Ordering::Release);
        Ok(())
    }

    /// The ranks that are not there, or not any more.
    fn missing(&self) -> Vec<u32> {
        let mut ranks = self.lock();
        let mut missing = Vec::new();
        for (rank, connections) in ranks.iter_mut().enumerate().skip(1) {
            connections.drop_closed();
            if !connections.is_complete() {
                missing.push(rank as u32);
            }
        }
        missing
    }

    /// Takes the connections of all ranks, and releases them. From then on every rank counts as there.
    fn release(&self) -> Result<Vec<RankLink>, RankError> {
        let ranks = std::mem::take(&mut *self.lock());
        send_all(&ranks, &Release::AllJoined);
        let mut links = Vec::new();
        for (rank, connections) in ranks.into_iter().enumerate() {
            if let Connections { data: Some(data), control: Some(control) } = connections {
                let link = RankLink::new(0, rank as u32, data, control);
                links.push(link.map_err(|error| RankError::System { reason: error.to_string() })?);
            }
        }
        Ok(links)
    }

    fn count_rejected(&self) {
        self.num_rejected.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connections>> {
        // Every change is one assignment: the list is valid even if a thread panicked.
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send_all(ranks: &[Connections], release: &Release) {
    let frame = release.frame();
    for mut stream in ranks.iter().filter_map(|connections| connections.data.as_ref()) {
        // A rank that is gone is found lost as soon as its control connection is read.
        let _ = stream.write_all(&frame);
    }
}

/// What rank 0 says on each data connection at the end of the join.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Release {
    AllJoined,
    NotAllJoined { missing: Vec<u32>, waited: Duration },
}

impl Release {
    fn frame(&self) -> Vec<u8> {
        let frame = FrameWriter::new();
        match self {
            Release::AllJoined => frame.u8(0).numbers(&[]).u64(0),
            Release::NotAllJoined { missing, waited } => frame.u8(1).numbers(missing).u64(milliseconds(*waited)),
        }
        .finish()
    }

    /// Reads the frame from a data connection.
    pub(crate) fn read(stream: &mut TimedStream<'_>) -> std::io::Result<Release> {
        let content = read_frame(stream, MAX_CONTROL_FRAME_BYTES)?;
        let mut reader = FrameReader::new(&content);
        let (tag, missing, waited) = (reader.u8()?, reader.numbers()?, Duration::from_millis(reader.u64()?));
        match tag {
            0 => Ok(Release::AllJoined),
            1 => Ok(Release::NotAllJoined { missing, waited }),
            _ => Err(Malformed("the release is unknown").into()),
        }
    }
}
