//! Communicators: groups of cards, one in each process, that sum gradients together.
//!
//! Rank 0 makes a [`CommunicatorId`] and sends its bytes to the others; then every rank [joins](Communicator::join). All ranks
//! must queue the same collectives, with the same lengths, in the same order. NVIDIA cards use NCCL, which is searched for when
//! the first id is made or the first communicator is joined. Other devices have no communicators: there the host reduces.
//!
//! A rank that ends leaves the others waiting on their cards for ever, and NCCL does not always notice. So no rank waits for the
//! result of a collective without a deadline: it polls an event with [`Event::synchronize_within`](crate::Event::synchronize_within) and
//! [`Communicator::check`], and then calls [`Communicator::abort`]. Abort before memory is freed and before the card is closed:
//! both wait for all streams of the card.

use std::sync::Arc;
use std::time::Duration;

use crate::arena::View;
use crate::cuda::REQUIRED_ENVIRONMENT;
use crate::device::{Device, OpenDevice};
use crate::driver::{COMMUNICATOR_ID_BYTES, Membership, MembershipId};
use crate::error::DeviceError;
use crate::machine::Machine;
use crate::stream::Stream;

const F32_BYTES: u64 = size_of::<f32>() as u64;

/// What rank 0 makes and all ranks join with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommunicatorId([u8; COMMUNICATOR_ID_BYTES]);

impl CommunicatorId {
    /// Its bytes, to send to the other ranks. They contain an address of this machine.
    pub fn to_bytes(&self) -> [u8; COMMUNICATOR_ID_BYTES] {
        self.0
    }

    /// The id with these bytes, from rank 0.
    pub fn from_bytes(bytes: [u8; COMMUNICATOR_ID_BYTES]) -> CommunicatorId {
        CommunicatorId(bytes)
    }
}

impl std::fmt::Debug for CommunicatorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CommunicatorId({} bytes)", self.0.len())
    }
}

/// One rank's membership in a group of cards that reduce gradients together.
///
/// Dropping it destroys the communicator, or aborts it: after an error, and if its collectives do not end within ten seconds.
pub struct Communicator {
    open: Arc<OpenDevice>,
    id: MembershipId,
    rank: u32,
    size: u32,
    description: String,
}

impl Communicator {
    /// The variables that the process that starts ranks must set for each of them, so that sums have the same bits in every
    /// run. They cannot be set later: a process with threads must not change its environment.
    pub fn required_environment() -> &'static [(&'static str, &'static str)] {
        REQUIRED_ENVIRONMENT
    }

    /// Makes an id. Rank 0 calls it; its process must live until all ranks have joined.
    ///
    /// Fails without NCCL, with an environment that does not disable NVLS, and with [`DeviceError::NoCommunicator`] on the CPU
    /// and on simulated cards.
    pub fn new_id(machine: &Machine) -> Result<CommunicatorId, DeviceError> {
        machine.inner.driver.new_communicator_id().map(CommunicatorId)
    }

    /// Joins the communicator `id` as `rank` of `size`, and waits until all ranks have joined. After `deadline` it fails and
    /// leaves nothing behind. `deadline` is also the longest that queueing a collective may take.
    ///
    /// NCCL takes device memory of its own, outside of arenas. Panics if `rank` is not less than `size`.
    pub fn join(
        device: &Device,
        id: &CommunicatorId,
        rank: u32,
        size: u32,
        deadline: Duration,
    ) -> Result<Communicator, DeviceError> {
        assert!(rank < size, "rank {rank} of {size}");
        let membership = Membership { id: id.0, rank, size, deadline };
        let joined = device.open.driver().join_communicator(device.open.card, &membership)?;
        Ok(Communicator { open: device.open.clone(), id: joined.id, rank, size, description: joined.description })
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Queues the sum over all ranks of the f32 values in `memory`, in place, on `stream`; in buckets of `bucket_bytes`.
    ///
    /// Returns when the work is queued. The first collective also connects the ranks, and waits for the others until the
    /// deadline of [`join`](Communicator::join). With three ranks or more the order of additions, and so the last bits, depend
    /// on `bucket_bytes`. It cannot be part of a captured graph.
    ///
    /// Panics if `memory` is not of the communicator's card, and if a length is not a multiple of four bytes.
    pub fn all_reduce(&self, stream: &Stream, memory: View<'_>, bucket_bytes: u64) -> Result<(), DeviceError> {
        let is_f32 = |bytes: u64| bytes.is_multiple_of(F32_BYTES);
        assert!(bucket_bytes > 0 && is_f32(bucket_bytes), "buckets of {bucket_bytes} bytes");
        assert!(is_f32(memory.bytes()), "{} bytes are no f32 values", memory.bytes());
        self.check_place(stream, memory)?;
        let mut offset = 0;
        while offset < memory.bytes() {
            let bytes = bucket_bytes.min(memory.bytes() - offset);
            let at = memory.address().plus(offset);
            self.open.driver().all_reduce(at, bytes / F32_BYTES, self.id, stream.id)?;
            offset += bytes;
        }
        Ok(())
    }

    /// Queues the copy of `memory` of rank `root` to that of all others, on `stream`. Like
    /// [`all_reduce`](Communicator::all_reduce), but of any bytes.
    pub fn broadcast(&self, stream: &Stream, memory: View<'_>, root: u32) -> Result<(), DeviceError> {
        assert!(root < self.size, "root {root} of {} ranks", self.size);
        self.check_place(stream, memory)?;
        if memory.bytes() == 0 {
            return Ok(());
        }
        self.open.driver().broadcast(memory.address(), memory.bytes(), root, self.id, stream.id)
    }

    /// The error of a collective that runs on the card, if there is one. Never blocks. A rank that waits for results polls
    /// this: a bare synchronise would wait for ever for a rank that died.
    ///
    /// Not every death is noticed: between cards of one machine NCCL may see nothing. A deadline is needed too.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.open.driver().check_communicator(self.open.card, self.id)
    }

    /// Ends collectives that wait for a rank that is gone. Later calls fail. May be called by any thread.
    ///
    /// What the collectives were writing is undefined afterwards.
    pub fn abort(&self) {
        self.open.driver().abort_communicator(self.open.card, self.id);
    }

    /// The library, its version and its algorithm: `NCCL 2.28.9, Ring`.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    fn check_place(&self, stream: &Stream, memory: View<'_>) -> Result<(), DeviceError> {
        let (card, own) = (stream.open.card, self.open.card);
        assert!(Arc::ptr_eq(&stream.open, &self.open), "a stream of GPU {card} in a communicator of GPU {own}");
        stream.owns(memory);
        stream.outside_capture("a collective")
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.open.driver().leave_communicator(self.open.card, self.id);
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {} on GPU {}, {})", self.rank, self.size, self.open.card, self.description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimSpec;

    #[test]
    fn the_cpu_and_simulated_cards_have_no_communicator() {
        for machine in [Machine::cpu(), Machine::simulated(SimSpec::new(1, 1 << 30))] {
            let kind = machine.kind().name();
            let refused = |error: DeviceError| {
                let text = error.to_string();
                assert!(text.contains(kind) && text.contains("reduce on the host"), "{text}");
                assert!(matches!(error, DeviceError::NoCommunicator { .. }), "{text}");
            };
            refused(Communicator::new_id(&machine).unwrap_err());
            let (device, id) = (machine.open(0).unwrap(), CommunicatorId::from_bytes([7; 128]));
            refused(Communicator::join(&device, &id, 0, 1, Duration::from_secs(1)).unwrap_err());
        }
    }

    #[test]
    fn an_id_survives_the_way_to_another_rank() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(CommunicatorId::from_bytes(bytes).to_bytes(), bytes);
    }

    #[test]
    fn every_rank_needs_nvls_disabled_and_the_ring() {
        let required = Communicator::required_environment();
        for pair in [("NCCL_NVLS_ENABLE", "0"), ("NCCL_GRAPH_MIXING_SUPPORT", "0"), ("NCCL_ALGO", "Ring")] {
            assert!(required.contains(&pair), "{pair:?}");
        }
    }
}
