//! The collectives, as a star through rank 0: every rank sends its part, and rank 0 answers each with the result.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use crate::RankError;
use crate::deadline::{SocketDeadline, TimedStream};
use crate::link::RankLink;
use crate::message::ControlMessage;
use crate::shared::Shared;
use crate::wire::{
    FrameReader, FrameWriter, MAX_PAYLOAD_BYTES, MAX_SMALL_FRAME_BYTES, Malformed, clipped, read_frame, read_payload,
    write_payload,
};

/// The values of an all-reduce that go over the wire at a time: 1 MiB. Rank 0 needs memory for one chunk, however many ranks
/// and values there are.
pub(crate) const CHUNK_VALUES: usize = 256 << 10;

/// How long a collective whose connection broke waits for the control thread to find the cause.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Which collective this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    AllGather = 0,
    Broadcast = 1,
    Barrier = 2,
    AllReduce = 3,
}

impl CollectiveKind {
    fn read(tag: u8) -> Result<CollectiveKind, Malformed> {
        let kinds =
            [CollectiveKind::AllGather, CollectiveKind::Broadcast, CollectiveKind::Barrier, CollectiveKind::AllReduce];
        kinds.get(usize::from(tag)).copied().ok_or(Malformed("it is in an unknown collective"))
    }

    fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Barrier => "barrier",
            CollectiveKind::AllReduce => "all_reduce",
        }
    }
}

/// Why a collective stopped, before the cause is known.
enum Fault {
    /// The connection to `rank` broke.
    Broken { rank: u32, error: io::Error },
    /// `rank` sent what it should not.
    Protocol { rank: u32, reason: String },
    /// The deadline has passed while this rank was reading from or writing to `rank`.
    Late { rank: u32 },
}

/// One collective of this rank.
pub(crate) struct Collective<'a> {
    shared: &'a Shared,
    kind: CollectiveKind,
    what: &'static str,
    deadline: SocketDeadline,
}

impl<'a> Collective<'a> {
    pub(crate) fn new(shared: &'a Shared, kind: CollectiveKind, what: &'static str, timeout: Duration) -> Self {
        Collective { shared, kind, what, deadline: SocketDeadline::after(timeout) }
    }

    /// Sends `mine` to rank 0, which gives everybody's parts to `combine`. Returns what `combine` makes of them, on every
    /// rank. It makes `num_results` payloads.
    pub(crate) fn exchange(
        &self,
        mine: &[u8],
        num_results: usize,
        combine: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, RankError> {
        self.run(|| {
            if mine.len() > MAX_PAYLOAD_BYTES {
                return Err(self.too_large(mine.len()));
            }
            match self.shared.world.rank {
                0 => self.collect(mine).and_then(|parts| self.answer(combine(parts))),
                _ => self.send_part(mine).and_then(|()| self.read_results(num_results)),
            }
        })
    }

    /// Replaces `values` by the sum over ranks. `chunk` is memory for what rank 0 reads.
    pub(crate) fn sum(&self, values: &mut [f32], chunk: &mut Vec<f32>) -> Result<(), RankError> {
        self.run(|| match self.shared.world.rank {
            0 => self.sum_all(values, chunk),
            _ => self.exchange_chunks(values),
        })
    }

    fn run<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, RankError> {
        let number = self.shared.begin()?;
        let result = body().map_err(|fault| self.cause(fault, number));
        self.shared.end(result.is_ok());
        result
    }

    /// The error that ends the group: an earlier one if there is one, because a broken connection is often its effect.
    fn cause(&self, fault: Fault, number: u64) -> RankError {
        match fault {
            Fault::Protocol { rank, reason } => self.shared.fail(RankError::Protocol { rank, reason }),
            Fault::Broken { rank, error } => {
                let cause = self.shared.wait_for_failure(CAUSE_TIMEOUT);
                let reason = format!("its connection broke ({error})");
                cause.unwrap_or_else(|| self.shared.fail(RankError::Lost { rank, reason }))
            }
            Fault::Late { rank } => self.late(number, rank),
        }
    }

    /// The deadline has passed. Rank 0 knows who is late; the others ask it.
    fn late(&self, number: u64, rank: u32) -> RankError {
        let (what, waited) = (self.what.to_owned(), self.deadline.waited());
        if self.shared.world.rank == 0 {
            let mut ranks = self.shared.late_ranks(number, 0);
            if ranks.is_empty() {
                // All are there, and `rank` does not read its result.
                ranks.push(rank);
            }
            return self.shared.fail(RankError::TimedOut { ranks, what, waited });
        }
        let message = ControlMessage::Late { number, what: what.clone(), waited };
        self.shared.links.iter().for_each(|link| link.send(&message));
        // By then rank 0 has answered, or its heartbeats have stopped.
        let answer = self.shared.wait_for_failure(self.shared.heartbeat_timeout.saturating_add(CAUSE_TIMEOUT));
        answer.unwrap_or_else(|| self.shared.fail(RankError::TimedOut { ranks: vec![0], what, waited }))
    }

    fn too_large(&self, num_bytes: usize) -> Fault {
        let name = self.name(self.kind, self.what);
        let reason = format!("its part of {name} has {num_bytes} bytes, and the limit is {MAX_PAYLOAD_BYTES}");
        Fault::Protocol { rank: self.shared.world.rank, reason }
    }

    fn name(&self, kind: CollectiveKind, what: &str) -> String {
        format!("{} {what:?}", kind.name())
    }
}

/// Rank 0.
impl Collective<'_> {
    /// Everybody's parts, in rank order.
    fn collect(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut parts = vec![mine.to_vec()];
        for (index, link) in self.shared.links.iter().enumerate() {
            self.read_head(link)?;
            parts.push(self.with(link, |stream| read_payload(stream))?);
            self.shared.set_arrived(index);
        }
        Ok(parts)
    }

    fn answer(&self, results: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Fault> {
        for link in &self.shared.links {
            self.with(link, |stream| results.iter().try_for_each(|result| write_payload(stream, result)))?;
        }
        Ok(results)
    }

    fn sum_all(&self, values: &mut [f32], chunk: &mut Vec<f32>) -> Result<(), Fault> {
        for (index, link) in self.shared.links.iter().enumerate() {
            let theirs = self.read_head(link)?;
            self.shared.set_arrived(index);
            if theirs != values.len() as u64 {
                let (name, ours) = (self.name(self.kind, self.what), values.len());
                let reason = format!("it has {theirs} values in {name}, and rank 0 has {ours}");
                return Err(Fault::Protocol { rank: link.rank, reason });
            }
        }
        chunk.resize(values.len().min(CHUNK_VALUES), 0.0);
        for sum in values.chunks_mut(CHUNK_VALUES) {
            self.sum_chunk(sum, &mut chunk[..sum.len()])?;
        }
        Ok(())
    }

    /// One round: reads a chunk of every rank and adds them in rank order, then sends the sum.
    fn sum_chunk(&self, sum: &mut [f32], chunk: &mut [f32]) -> Result<(), Fault> {
        self.shared.clear_arrived();
        for (index, link) in self.shared.links.iter().enumerate() {
            self.with(link, |stream| stream.read_exact(bytemuck::cast_slice_mut(chunk)))?;
            self.shared.set_arrived(index);
            sum.iter_mut().zip(&*chunk).for_each(|(sum, value)| *sum += value);
        }
        for link in &self.shared.links {
            self.with(link, |stream| stream.write_all(bytemuck::cast_slice(sum)))?;
        }
        Ok(())
    }

    /// Reads which collective the rank at `link` is in, and returns its count of values.
    fn read_head(&self, link: &RankLink) -> Result<u64, Fault> {
        let content = self.with(link, |stream| read_frame(stream, MAX_SMALL_FRAME_BYTES))?;
        let (kind, what, count) = parse_head(&content)
            .map_err(|malformed| Fault::Protocol { rank: link.rank, reason: malformed.to_string() })?;
        if kind == self.kind && what == clipped(self.what) {
            return Ok(count);
        }
        let (theirs, ours) = (self.name(kind, &what), self.name(self.kind, self.what));
        Err(Fault::Protocol { rank: link.rank, reason: format!("it is in {theirs}, and rank 0 is in {ours}") })
    }
}

/// The other ranks.
impl Collective<'_> {
    fn send_part(&self, mine: &[u8]) -> Result<(), Fault> {
        let head = self.head(0);
        self.with_rank_0(|stream| stream.write_all(&head).and_then(|()| write_payload(stream, mine)))
    }

    fn read_results(&self, count: usize) -> Result<Vec<Vec<u8>>, Fault> {
        self.with_rank_0(|stream| (0..count).map(|_| read_payload(stream)).collect())
    }

    fn exchange_chunks(&self, values: &mut [f32]) -> Result<(), Fault> {
        let head = self.head(values.len() as u64);
        self.with_rank_0(|stream| stream.write_all(&head))?;
        for chunk in values.chunks_mut(CHUNK_VALUES) {
            self.with_rank_0(|stream| stream.write_all(bytemuck::cast_slice(chunk)))?;
            self.with_rank_0(|stream| stream.read_exact(bytemuck::cast_slice_mut(chunk)))?;
        }
        Ok(())
    }

    fn head(&self, num_values: u64) -> Vec<u8> {
        FrameWriter::new().u8(self.kind as u8).text(self.what).u64(num_values).finish()
    }

    fn with_rank_0<T>(&self, body: impl FnOnce(&mut TimedStream<'_>) -> io::Result<T>) -> Result<T, Fault> {
        self.with(&self.shared.links[0], body)
    }
}

/// Both ends.
impl Collective<'_> {
    /// Reads from or writes to the rank at `link`, up to the deadline.
    fn with<T>(&self, link: &RankLink, body: impl FnOnce(&mut TimedStream<'_>) -> io::Result<T>) -> Result<T, Fault> {
        let mut stream = TimedStream { stream: &link.data, deadline: self.deadline };
        body(&mut stream).map_err(|error| self.fault(link.rank, error))
    }

    fn fault(&self, rank: u32, error: io::Error) -> Fault {
        match error.kind() {
            ErrorKind::TimedOut if self.deadline.has_passed() => Fault::Late { rank },
            ErrorKind::InvalidData => Fault::Protocol { rank, reason: error.to_string() },
            _ => Fault::Broken { rank, error },
        }
    }
}

fn parse_head(content: &[u8]) -> Result<(CollectiveKind, String, u64), Malformed> {
    let mut reader = FrameReader::new(content);
    let head = (CollectiveKind::read(reader.u8()?)?, reader.text()?, reader.u64()?);
    reader.end().map(|()| head)
}
