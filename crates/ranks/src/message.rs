//! What travels on the control connections.

use std::time::Duration;

use crate::RankError;
use crate::wire::{FrameReader, FrameWriter, Malformed};

/// A message between rank 0 and another rank, beside the collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// The sender is alive.
    Heartbeat,
    /// The sender leaves after `completed` collectives. Its last message.
    Leave { completed: u64 },
    /// `rank` has left after `completed` collectives: rank 0 passes it on.
    OtherLeft { rank: u32, completed: u64 },
    /// The sender has waited too long in collective number `number`. Only rank 0 knows for whom.
    Late { number: u64, what: String, waited: Duration },
    /// The group has failed. The sender's last message.
    Failed(RankError),
}

const HEARTBEAT: u8 = 0;
const LEAVE: u8 = 1;
const OTHER_LEFT: u8 = 2;
const LATE: u8 = 3;
const LOST: u8 = 4;
const LEFT: u8 = 5;
const ABORTED: u8 = 6;
const TIMED_OUT: u8 = 7;
const PROTOCOL: u8 = 8;

impl ControlMessage {
    /// The frame of this message, sent by `sender`.
    pub(crate) fn frame(&self, sender: u32) -> Vec<u8> {
        let frame = FrameWriter::new();
        match self {
            ControlMessage::Heartbeat => frame.u8(HEARTBEAT),
            ControlMessage::Leave { completed } => frame.u8(LEAVE).u64(*completed),
            ControlMessage::OtherLeft { rank, completed } => frame.u8(OTHER_LEFT).u32(*rank).u64(*completed),
            ControlMessage::Late { number, what, waited } => {
                frame.u8(LATE).u64(*number).text(what).u64(milliseconds(*waited))
            }
            ControlMessage::Failed(error) => write_failure(frame, error, sender),
        }
        .finish()
    }

    pub(crate) fn read(content: &[u8]) -> Result<ControlMessage, Malformed> {
        let mut reader = FrameReader::new(content);
        let message = match reader.u8()? {
            HEARTBEAT => ControlMessage::Heartbeat,
            LEAVE => ControlMessage::Leave { completed: reader.u64()? },
            OTHER_LEFT => ControlMessage::OtherLeft { rank: reader.u32()?, completed: reader.u64()? },
            LATE => ControlMessage::Late {
                number: reader.u64()?,
                what: reader.text()?,
                waited: Duration::from_millis(reader.u64()?),
            },
            tag => ControlMessage::Failed(read_failure(tag, &mut reader)?),
        };
        reader.end().map(|()| message)
    }
}

fn write_failure(frame: FrameWriter, error: &RankError, sender: u32) -> FrameWriter {
    match error {
        RankError::Lost { rank, reason } => frame.u8(LOST).u32(*rank).text(reason),
        RankError::Left { rank } => frame.u8(LEFT).u32(*rank),
        RankError::Aborted { rank, reason } => frame.u8(ABORTED).u32(*rank).text(reason),
        RankError::TimedOut { ranks, what, waited } => {
            frame.u8(TIMED_OUT).numbers(ranks).text(what).u64(milliseconds(*waited))
        }
        RankError::Protocol { rank, reason } => frame.u8(PROTOCOL).u32(*rank).text(reason),
        // The others do not end a group that has formed. If one did, its text would say why.
        other => frame.u8(ABORTED).u32(sender).text(&other.to_string()),
    }
}

fn read_failure(tag: u8, reader: &mut FrameReader<'_>) -> Result<RankError, Malformed> {
    Ok(match tag {
        LOST => RankError::Lost { rank: reader.u32()?, reason: reader.text()? },
        LEFT => RankError::Left { rank: reader.u32()? },
        ABORTED => RankError::Aborted { rank: reader.u32()?, reason: reader.text()? },
        TIMED_OUT => RankError::TimedOut {
            ranks: reader.numbers()?,
            what: reader.text()?,
            waited: Duration::from_millis(reader.u64()?),
        },
        PROTOCOL => RankError::Protocol { rank: reader.u32()?, reason: reader.text()? },
        _ => return Err(Malformed("a control message is unknown")),
    })
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::environment::MAX_RANKS;
    use crate::wire::{MAX_CONTROL_FRAME_BYTES, MAX_TEXT_BYTES};

    fn messages() -> Vec<ControlMessage> {
        let waited = Duration::from_millis(1500);
        let (what, reason) = ("gradients".to_owned(), "x".repeat(MAX_TEXT_BYTES));
        vec![
            ControlMessage::Heartbeat,
            ControlMessage::Leave { completed: 7 },
            ControlMessage::OtherLeft { rank: 2, completed: 7 },
            ControlMessage::Late { number: 3, what: what.clone(), waited },
            ControlMessage::Failed(RankError::Lost { rank: 3, reason: reason.clone() }),
            ControlMessage::Failed(RankError::Left { rank: 3 }),
            ControlMessage::Failed(RankError::Aborted { rank: 3, reason: reason.clone() }),
            ControlMessage::Failed(RankError::TimedOut { ranks: (0..MAX_RANKS).collect(), what, waited }),
            ControlMessage::Failed(RankError::Protocol { rank: 3, reason }),
        ]
    }

    #[test]
    fn every_message_is_read_as_it_was_written_and_within_the_limit() {
        for message in messages() {
            let frame = message.frame(1);
            assert!(frame.len() <= MAX_CONTROL_FRAME_BYTES);
            assert_eq!(ControlMessage::read(&frame[4..]), Ok(message));
        }
    }

    #[test]
    fn any_other_error_arrives_as_an_abort_of_its_sender() {
        let error = RankError::Refused { reason: "no".into() };
        let read = ControlMessage::read(&ControlMessage::Failed(error.clone()).frame(5)[4..]);
        assert_eq!(read, Ok(ControlMessage::Failed(RankError::Aborted { rank: 5, reason: error.to_string() })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            tag in 0u8..12, bytes in prop::collection::vec(any::<u8>(), 0..60), which in 0usize..9, at in 0usize..40,
        ) {
            let _ = ControlMessage::read(&bytes);
            let _ = ControlMessage::read(&[&[tag], &bytes[..]].concat());
            let frame = messages()[which].frame(0);
            let _ = ControlMessage::read(&[&frame[4..frame.len().min(4 + at)], &bytes[..]].concat());
        }
    }
}
