//! The check of a copy while a run uses it: each side computes a checksum of what it holds, and the host compares the two.
//!
//! The data side's checksum is queued before the copy, the model side's after it, each on the copy stream of its card. So
//! no further event is needed: when the copy has arrived, both checksums are on the host.

use crate::arena::{Arena, Block, View};
use crate::bytes::BLOCK_ALIGN;
use crate::device::Device;
use crate::error::DeviceError;
use crate::kernels::{CHECKSUM_BYTES, Checks, sum_of_parts};
use crate::pinned::Pinned;
use crate::stream::Stream;

/// Memory for the checksums of one copy at a time. Taken once, used for any number of copies.
pub struct CopyCheck {
    source: SideCheck,
    target: SideCheck,
}

/// The checksum of one side.
struct SideCheck {
    checks: Checks,
    parts: Block,
    host: Pinned,
}

/// What the two sides computed. The copy changed nothing if they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Of the bytes that were sent.
    pub sent: u64,
    /// Of the bytes that arrived.
    pub arrived: u64,
}

impl CopyCheck {
    /// What it takes from each of the two arenas.
    pub const ARENA_BYTES: u64 = CHECKSUM_BYTES.next_multiple_of(BLOCK_ALIGN);
    /// What it takes of pinned memory.
    pub const PINNED_BYTES: u64 = 2 * CHECKSUM_BYTES;

    /// Takes its memory from both arenas, under the name `owner`, and loads the kernel on both cards.
    pub fn take(owner: &'static str, from: &Arena, to: &Arena) -> Result<CopyCheck, DeviceError> {
        Ok(CopyCheck { source: SideCheck::take(owner, from)?, target: SideCheck::take(owner, to)? })
    }

    /// The checksums of the last copy. Refused until it has arrived.
    pub fn read(&self) -> Result<Checksums, DeviceError> {
        Ok(Checksums { sent: self.source.read()?, arrived: self.target.read()? })
    }

    /// Queues the checksum of what is sent.
    pub(super) fn queue_sent(&mut self, stream: &Stream, from: View<'_>) -> Result<(), DeviceError> {
        self.source.queue(stream, from)
    }

    /// Queues the checksum of what has arrived.
    pub(super) fn queue_arrived(&mut self, stream: &Stream, to: View<'_>) -> Result<(), DeviceError> {
        self.target.queue(stream, to)
    }
}

impl SideCheck {
    fn take(owner: &'static str, arena: &Arena) -> Result<SideCheck, DeviceError> {
        let device: &Device = arena.device();
        let (checks, host) = (Checks::load(device)?, device.pinned(CHECKSUM_BYTES)?);
        Ok(SideCheck { checks, parts: arena.take(owner, CHECKSUM_BYTES)?, host })
    }

    fn queue(&mut self, stream: &Stream, data: View<'_>) -> Result<(), DeviceError> {
        self.checks.checksum(stream, data, self.parts.view())?;
        stream.download_small(self.parts.view(), &mut self.host, 0..CHECKSUM_BYTES)
    }

    fn read(&self) -> Result<u64, DeviceError> {
        Ok(sum_of_parts(self.host.bytes()?))
    }
}
