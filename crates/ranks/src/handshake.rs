//! The first frames on a connection: who connects, and whether rank 0 admits it.

use crate::token::{MAX_TOKEN_BYTES, same_token};
use crate::wire::{FrameReader, FrameWriter, Malformed, clipped};
use crate::{RankEnvironment, Token};

const MAGIC: &[u8; 8] = b"TNDMRANK";
/// Changes with every change of what goes over the wire.
const PROTOCOL: u32 = 1;

/// What a connection is for. Every rank but 0 has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Collectives, on the thread that calls them.
    Data = 0,
    /// Heartbeats and the end of the group, on a thread of its own.
    Control = 1,
}

/// What all ranks of a run have in common.
pub(crate) struct GroupIdentity {
    size: u32,
    restart: u32,
    version: String,
    token: Option<Token>,
}

impl GroupIdentity {
    pub(crate) fn new(environment: &RankEnvironment, version: &str) -> GroupIdentity {
        GroupIdentity {
            size: environment.world.size,
            restart: environment.restart,
            version: clipped(version).to_owned(),
            token: environment.token.clone(),
        }
    }

    /// The first frame that `rank` sends.
    pub(crate) fn hello(&self, rank: u32, channel: Channel) -> Vec<u8> {
        opening(channel as u8)
            .u32(rank)
            .u32(self.size)
            .u32(self.restart)
            .text(&self.version)
            .bytes(Token::bytes(self.token.as_ref()))
            .finish()
    }

    /// Whether a process that sent `hello` belongs to this run. The error is for its user. The token comes first: without
    /// it nobody learns anything about the run.
    pub(crate) fn check(&self, hello: &Hello) -> Result<(), String> {
        if !same_token(&hello.token, Token::bytes(self.token.as_ref())) {
            return Err("wrong token".to_owned());
        }
        if hello.version != self.version {
            let (theirs, ours) = (&hello.version, &self.version);
            return Err(format!(
                "it is version {theirs} and rank 0 is {ours}. Install the same version on every machine"
            ));
        }
        if hello.restart != self.restart {
            let (theirs, ours) = (hello.restart, self.restart);
            return Err(format!("it is of restart {theirs} and rank 0 of restart {ours}. Start all ranks together"));
        }
        if hello.size != self.size {
            let (theirs, ours) = (hello.size, self.size);
            return Err(format!("it is one of {theirs} ranks and rank 0 one of {ours}. Set the same WORLD_SIZE"));
        }
        if hello.rank >= self.size {
            return Err(format!("there is no rank {} among {} ranks", hello.rank, self.size));
        }
        Ok(())
    }

    /// The answer to a rank that is admitted. It has the token already, and learns that rank 0 has it too.
    pub(crate) fn welcome(&self) -> Vec<u8> {
        opening(WELCOME).bytes(Token::bytes(self.token.as_ref())).finish()
    }

    /// Reads the answer of rank 0.
    pub(crate) fn read_answer(&self, content: &[u8]) -> Result<Answer, Malformed> {
        let mut reader = FrameReader::new(content);
        match read_opening(&mut reader)? {
            WELCOME => {
                let is_ours = same_token(reader.bytes()?, Token::bytes(self.token.as_ref()));
                let answer = if is_ours { Answer::Welcome } else { Answer::OtherRun };
                reader.end().map(|()| answer)
            }
            REFUSED => {
                let reason = reader.text()?;
                reader.end().map(|()| Answer::Refused(reason))
            }
            _ => Err(Malformed("its answer is unknown")),
        }
    }
}

const WELCOME: u8 = 0;
const REFUSED: u8 = 1;

/// What rank 0 says to a process that connects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is admitted.
    Welcome,
    /// It does not belong to the run, or is already there.
    Refused(String),
    /// Whoever answered has another token.
    OtherRun,
}

/// The answer to a process that is not admitted.
pub(crate) fn refused(reason: &str) -> Vec<u8> {
    opening(REFUSED).text(reason).finish()
}

/// Who connects.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) channel: Channel,
    pub(crate) rank: u32,
    size: u32,
    restart: u32,
    version: String,
    token: Vec<u8>,
}

impl Hello {
    pub(crate) fn read(content: &[u8]) -> Result<Hello, Malformed> {
        let mut reader = FrameReader::new(content);
        let channel = match read_opening(&mut reader)? {
            0 => Channel::Data,
            1 => Channel::Control,
            _ => return Err(Malformed("the channel is unknown")),
        };
        let (rank, size, restart) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (version, token) = (reader.text()?, reader.bytes()?.to_vec());
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Malformed("the token is too long"));
        }
        reader.end().map(|()| Hello { channel, rank, size, restart, version, token })
    }
}

fn opening(tag: u8) -> FrameWriter {
    FrameWriter::new().raw(MAGIC).u32(PROTOCOL).u8(tag)
}

fn read_opening(reader: &mut FrameReader<'_>) -> Result<u8, Malformed> {
    if reader.raw(MAGIC.len())? != MAGIC {
        return Err(Malformed("another program is there"));
    }
    if reader.u32()? != PROTOCOL {
        return Err(OTHER_PROTOCOL);
    }
    reader.u8()
}

/// The other end is a rank of a version that speaks another protocol.
pub(crate) const OTHER_PROTOCOL: Malformed =
    Malformed("another version of Tandem is there. Install the same version on every machine");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(token: Option<&str>) -> GroupIdentity {
        let token = token.map(|token| Token::new(token).unwrap());
        GroupIdentity::new(&RankEnvironment::local(0, 4, 1, 2, token), "0.1.0")
    }

    fn hello_of(identity: &GroupIdentity, rank: u32) -> Hello {
        Hello::read(&identity.hello(rank, Channel::Control)[4..]).unwrap()
    }

    #[test]
    fn a_rank_of_the_same_run_is_admitted_and_knows_rank_0() {
        for token in [None, Some("secret")] {
            let run = identity(token);
            let hello = hello_of(&run, 3);
            assert_eq!((hello.channel, hello.rank, run.check(&hello)), (Channel::Control, 3, Ok(())));
            assert_eq!(run.read_answer(&run.welcome()[4..]), Ok(Answer::Welcome));
        }
    }

    #[test]
    fn whoever_differs_is_refused_with_the_reason() {
        let run = identity(Some("secret"));
        let check = |other: GroupIdentity, rank, reason: &str| {
            assert_eq!(run.check(&hello_of(&other, rank)).unwrap_err(), reason);
            let answer = run.read_answer(&refused(reason)[4..]).unwrap();
            assert_eq!(answer, Answer::Refused(reason.to_owned()));
        };
        check(identity(None), 1, "wrong token");
        check(identity(Some("Secret")), 1, "wrong token");
        let version = GroupIdentity { version: "0.2.0".into(), ..identity(Some("secret")) };
        check(version, 1, "it is version 0.2.0 and rank 0 is 0.1.0. Install the same version on every machine");
        let restart = GroupIdentity { restart: 3, ..identity(Some("secret")) };
        check(restart, 1, "it is of restart 3 and rank 0 of restart 2. Start all ranks together");
        let size = GroupIdentity { size: 8, ..identity(Some("secret")) };
        check(size, 1, "it is one of 8 ranks and rank 0 one of 4. Set the same WORLD_SIZE");
        check(identity(Some("secret")), 4, "there is no rank 4 among 4 ranks");
    }

    #[test]
    fn the_wrong_token_says_nothing_about_the_run() {
        let stranger = GroupIdentity { version: "x".into(), restart: 9, size: 9, token: None };
        assert_eq!(identity(Some("secret")).check(&hello_of(&stranger, 99)).unwrap_err(), "wrong token");
    }

    #[test]
    fn a_listener_of_another_run_or_program_is_not_rank_0() {
        let run = identity(Some("secret"));
        assert_eq!(run.read_answer(&identity(Some("other")).welcome()[4..]), Ok(Answer::OtherRun));
        assert_eq!(run.read_answer(b"HTTP/1.1 400"), Err(Malformed("another program is there")));
        let mut later = run.welcome();
        later[12] += 1;
        assert_eq!(run.read_answer(&later[4..]), Err(OTHER_PROTOCOL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hello_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..60) {
            let _ = Hello::read(&bytes);
            let _ = identity(None).read_answer(&bytes);
            // Bytes that begin as a frame of ours reach further into the reader.
            let frame = identity(Some("secret")).hello(1, Channel::Data);
            let mixed = [&frame[4..frame.len().min(4 + at)], &bytes[..]].concat();
            let _ = Hello::read(&mixed);
            let _ = identity(None).read_answer(&mixed);
        }
    }
}
