//! How a rank reaches rank 0, which may start later.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use crate::admission::{Release, location};
use crate::deadline::{SocketDeadline, TimedStream};
use crate::handshake::{Answer, Channel, GroupIdentity};
use crate::link::RankLink;
use crate::wire::{MAX_SMALL_FRAME_BYTES, read_frame};
use crate::{RankEnvironment, RankError};

/// The first pause after a failed attempt. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long one attempt may take. A machine that is off does not answer at all.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than rank 0 a rank waits for its release: rank 0 knows who is missing, so it speaks first.
const RELEASE_MARGIN: Duration = Duration::from_secs(10);

/// Connects to rank 0, and returns when all ranks are there.
pub(crate) fn connect(
    environment: &RankEnvironment,
    identity: &GroupIdentity,
    join_timeout: Duration,
) -> Result<RankLink, RankError> {
    let target = Target { environment, identity, deadline: SocketDeadline::after(join_timeout) };
    let data = target.open(Channel::Data)?;
    let control = target.open(Channel::Control)?;
    wait_for_release(&data, SocketDeadline::after(join_timeout.saturating_add(RELEASE_MARGIN)))?;
    let link = RankLink::new(environment.world.rank, 0, data, control);
    link.map_err(|error| RankError::System { reason: error.to_string() })
}

fn wait_for_release(data: &TcpStream, deadline: SocketDeadline) -> Result<(), RankError> {
    match Release::read(&mut TimedStream { stream: data, deadline }) {
        Ok(Release::AllJoined) => Ok(()),
        Ok(Release::NotAllJoined { missing, waited }) => Err(RankError::NotAllJoined { missing, waited }),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(RankError::Protocol { rank: 0, reason: error.to_string() })
        }
        Err(error) => {
            let reason = format!("its connection broke before all ranks were there ({error})");
            Err(RankError::Lost { rank: 0, reason })
        }
    }
}

/// Rank 0, seen from a rank that joins.
struct Target<'a> {
    environment: &'a RankEnvironment,
    identity: &'a GroupIdentity,
    deadline: SocketDeadline,
}

/// Why an attempt failed.
enum Attempt {
    /// Rank 0 is not there yet, or has no room: try again.
    Again(String),
    /// Another attempt would end the same way.
    Final(RankError),
}

impl Target<'_> {
    /// One connection, admitted by rank 0.
    fn open(&self, channel: Channel) -> Result<TcpStream, RankError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match self.try_open(channel) {
                Ok(stream) => return Ok(stream),
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Again(reason)) => reason,
            };
            if self.deadline.has_passed() {
                return Err(self.unreachable(reason));
            }
            thread::sleep(pause.min(self.deadline.remaining()));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn try_open(&self, channel: Channel) -> Result<TcpStream, Attempt> {
        let stream = self.connect()?;
        let mut timed = TimedStream { stream: &stream, deadline: self.deadline };
        let answered = timed.write_all(&self.identity.hello(self.environment.world.rank, channel));
        let content = match answered.and_then(|()| read_frame(&mut timed, MAX_SMALL_FRAME_BYTES)) {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(self.not_rank_zero("another program is there".to_owned()));
            }
            Err(error) => return Err(Attempt::Again(format!("the connection ended without an answer: {error}"))),
        };
        match self.identity.read_answer(&content) {
            Ok(Answer::Welcome) => Ok(stream),
            Ok(Answer::Refused(reason)) => Err(Attempt::Final(RankError::Refused { reason })),
            Ok(Answer::OtherRun) => Err(self.not_rank_zero("another run is there".to_owned())),
            Err(malformed) => Err(self.not_rank_zero(malformed.to_string())),
        }
    }

    /// Tries every address of the name.
    fn connect(&self) -> Result<TcpStream, Attempt> {
        let RankEnvironment { address, port, .. } = self.environment;
        let addresses = (address.as_str(), *port).to_socket_addrs();
        let addresses = addresses.map_err(|error| Attempt::Again(error.to_string()))?;
        let mut last = Attempt::Again(format!("{address} has no address"));
        for address in addresses {
            let timeout = self.deadline.remaining().clamp(Duration::from_millis(1), ATTEMPT_TIMEOUT);
            match TcpStream::connect_timeout(&address, timeout).and_then(not_itself) {
                Ok(stream) => return Ok(stream),
                Err(error) if may_pass(&error) => last = Attempt::Again(error.to_string()),
                Err(error) => last = Attempt::Final(self.unreachable(error.to_string())),
            }
        }
        Err(last)
    }

    fn unreachable(&self, reason: String) -> RankError {
        RankError::Unreachable { address: location(self.environment), waited: self.deadline.waited(), reason }
    }

    fn not_rank_zero(&self, reason: String) -> Attempt {
        Attempt::Final(RankError::NotRankZero { address: location(self.environment), reason })
    }
}

/// Linux connects a socket to itself when it happens to get the target's port as its own and nobody listens there.
fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
}

/// Whether an error is usual while machines and processes are starting.
fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
    )
}
