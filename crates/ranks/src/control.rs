//! The thread of a control connection: it sends heartbeats, and learns how the rank at the other end is.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use crate::RankError;
use crate::error::seconds;
use crate::link::RankLink;
use crate::message::ControlMessage;
use crate::shared::Shared;
use crate::wire::{FrameBuffer, MAX_CONTROL_FRAME_BYTES, Malformed};

/// The longest pause between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the control connection number `index` until either end closes it.
pub(crate) fn serve(shared: &Shared, index: usize) {
    let link = &shared.links[index];
    let end = Control { shared, link }.run();
    match end {
        End::Closed => {}
        End::Lost(reason) if !link.is_closing() => {
            shared.fail(RankError::Lost { rank: link.rank, reason });
        }
        // This end has said goodbye: nobody waits for the other one any more.
        End::Lost(_) => {}
        End::Malformed(malformed) => {
            shared.fail(RankError::Protocol { rank: link.rank, reason: malformed.to_string() });
        }
    }
    shared.close(link, None);
    shared.note_control_ended();
}

/// How a control connection ends.
enum End {
    /// The other end has sent its last message.
    Closed,
    /// The other end is gone.
    Lost(String),
    /// The other end sent what no rank sends.
    Malformed(Malformed),
}

struct Control<'a> {
    shared: &'a Shared,
    link: &'a RankLink,
}

impl Control<'_> {
    fn run(&self) -> End {
        let timeout = self.shared.heartbeat_timeout;
        // Several heartbeats fit into the timeout, however short.
        let interval = HEARTBEAT_INTERVAL.min(timeout / 4).max(Duration::from_millis(1));
        let mut buffer = FrameBuffer::new(MAX_CONTROL_FRAME_BYTES);
        let mut last_arrival = Instant::now();
        let mut next_heartbeat = Instant::now();
        let mut bytes = [0; 4096];
        loop {
            if Instant::now() >= next_heartbeat {
                self.link.send(&ControlMessage::Heartbeat);
                next_heartbeat = Instant::now() + interval;
            }
            let pause = next_heartbeat.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let read =
                self.link.control.set_read_timeout(Some(pause)).and_then(|()| (&self.link.control).read(&mut bytes));
            match read {
                Ok(0) => return End::Lost("it ended or was killed, without a goodbye".to_owned()),
                Ok(count) => {
                    last_arrival = Instant::now();
                    buffer.push(&bytes[..count]);
                    if let Some(end) = self.handle_all(&mut buffer) {
                        return end;
                    }
                }
                // Only a read that found nothing shows silence: this process may have been stopped itself.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if last_arrival.elapsed() > timeout {
                        return End::Lost(silence(timeout));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return End::Lost(format!("its connection broke ({error})")),
            }
        }
    }

    /// Handles every message that has arrived. Returns the end of the connection if one of them is the last.
    fn handle_all(&self, buffer: &mut FrameBuffer) -> Option<End> {
        loop {
            let message =
                match buffer.next().and_then(|frame| frame.map(|frame| ControlMessage::read(&frame)).transpose()) {
                    Ok(Some(message)) => message,
                    Ok(None) => return None,
                    Err(malformed) => return Some(End::Malformed(malformed)),
                };
            if let Some(end) = self.handle(message) {
                return Some(end);
            }
        }
    }

    fn handle(&self, message: ControlMessage) -> Option<End> {
        let (shared, link) = (self.shared, self.link);
        let is_rank_0 = shared.world.rank == 0;
        match message {
            ControlMessage::Heartbeat => None,
            ControlMessage::Failed(error) => {
                shared.fail(error);
                Some(End::Closed)
            }
            ControlMessage::Leave { completed } => {
                if is_rank_0 {
                    let message = ControlMessage::OtherLeft { rank: link.rank, completed };
                    shared.links.iter().filter(|other| other.rank != link.rank).for_each(|other| other.send(&message));
                }
                shared.note_left(link.rank, completed);
                Some(End::Closed)
            }
            ControlMessage::OtherLeft { rank, completed } if !is_rank_0 => {
                shared.note_left(rank, completed);
                None
            }
            ControlMessage::Late { number, what, waited } if is_rank_0 => {
                let mut ranks = shared.late_ranks(number, link.rank);
                if ranks.is_empty() {
                    // All are there, and rank 0 has not answered.
                    ranks.push(0);
                }
                shared.fail(RankError::TimedOut { ranks, what, waited });
                Some(End::Closed)
            }
            ControlMessage::OtherLeft { .. } | ControlMessage::Late { .. } => {
                Some(End::Malformed(Malformed("a control message went the wrong way")))
            }
        }
    }
}

fn silence(timeout: Duration) -> String {
    let timeout = seconds(timeout);
    format!("no heartbeat for {timeout}: the process is stopped, its machine hangs, or the network is down")
}
