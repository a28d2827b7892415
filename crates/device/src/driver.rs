//! The operations of every kind of device, at about the level of the CUDA driver API.
//!
//! [`crate::cuda`], [`crate::sim`] and [`crate::cpu`] implement them. The trait is private to this crate: handles are
//! plain numbers here, and the safe types around it ([`crate::Device`], [`crate::Stream`], [`crate::Arena`], …) keep them
//! valid.

use std::time::Duration;

use crate::card::{Card, CardReading, PeerAttributes, Visibility};
use crate::error::DeviceError;
use crate::gemm::RawGemm;
use crate::kernel::{Grid, Kernel, Source};
use crate::library::FoundLibrary;
use crate::workers::Workers;

/// A stream of one card.
pub(crate) type StreamId = u64;
/// An event of one card.
pub(crate) type EventId = u64;
/// A kernel loaded on one card.
pub(crate) type KernelId = u64;
/// A captured graph of one card.
pub(crate) type GraphId = u64;
/// One rank's membership in a communicator.
pub(crate) type MembershipId = u64;

/// The bytes of a communicator's id, as NCCL defines them.
pub(crate) const COMMUNICATOR_ID_BYTES: usize = 128;

/// What a rank joins a communicator with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    pub(crate) id: [u8; COMMUNICATOR_ID_BYTES],
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// How long joining may take, and queueing a collective.
    pub(crate) deadline: Duration,
}

/// A communicator that this process is a member of.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) id: MembershipId,
    /// The library, its version and its algorithm.
    pub(crate) description: String,
}

/// An address in the memory of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Index of the card, in the order of [`Driver::cards`].
    pub(crate) card: usize,
    /// The device pointer.
    pub(crate) raw: u64,
}

/// What a thread has set in a driver that several libraries of a process share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadState {
    /// The current context.
    pub(crate) context: u64,
    /// Which captures of other threads restrict its calls.
    pub(crate) capture_mode: i32,
}

impl Address {
    pub(crate) fn plus(self, bytes: u64) -> Address {
        Address { raw: self.raw + bytes, ..self }
    }
}

/// Pinned (page-locked) host memory. Its owner must free it with [`Driver::free_host`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSpan {
    pub(crate) ptr: *mut u8,
    pub(crate) bytes: u64,
}

// SAFETY: a span is an address and a length; `Pinned` guards access to the bytes.
unsafe impl Send for HostSpan {}
// SAFETY: as above.
unsafe impl Sync for HostSpan {}

impl HostSpan {
    /// The part of `bytes` bytes at `offset`. Panics if it is not inside the span.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> HostSpan {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "part {offset}+{bytes} of a host span of {} bytes", self.bytes);
        // SAFETY: offset is inside the allocation, asserted above.
        HostSpan { ptr: unsafe { self.ptr.add(offset as usize) }, bytes }
    }
}

/// One driver allocation on a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) base: Address,
    pub(crate) bytes: u64,
    /// The driver's memory pool behind it (0: none). A pool enforces its own cap.
    pub(crate) pool: u64,
}

/// Source and destination of a copy. Lengths are equal on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyPath {
    /// Pinned host memory to the stream's card.
    HostToDevice { from: HostSpan, to: Address },
    /// The stream's card to pinned host memory.
    DeviceToHost { from: Address, to: HostSpan },
    /// Within one card.
    WithinDevice { from: Address, to: Address, bytes: u64 },
    /// From card to card. Within one card it is allowed too, for testing.
    Peer { from: Address, to: Address, bytes: u64, call: PeerCall },
}

/// The driver call for a copy from card to card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerCall {
    /// A copy between two addresses, as within one card. Needs peer access.
    Unified,
    /// A copy between two contexts. With peer access it goes from card to card, without through memory of the driver.
    BetweenContexts,
}

impl CopyPath {
    /// Whether it reads or writes the memory of `card` from another card.
    pub(crate) fn touches(&self, card: usize) -> bool {
        matches!(self, CopyPath::Peer { from, to, .. } if from.card == card || to.card == card)
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            CopyPath::HostToDevice { from, .. } => from.bytes,
            CopyPath::DeviceToHost { to, .. } => to.bytes,
            CopyPath::WithinDevice { bytes, .. } | CopyPath::Peer { bytes, .. } => *bytes,
        }
    }
}

/// A kernel argument that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawArg {
    Read { at: Address, bytes: u64 },
    Write { at: Address, bytes: u64 },
    U32(u32),
    U64(u64),
    F32(f32),
}

/// How long memory that is freed, a card that is closed or a feed that ends waits for work in flight: two steps are queued at
/// most, and no step takes nearly as long.
pub(crate) const TEARDOWN_DEADLINE: Duration = Duration::from_secs(10);

/// The operations. `Ok` for asynchronous work means that it was queued; its own errors are reported at a later event.
pub(crate) trait Driver: Send + Sync {
    fn kind(&self) -> crate::machine::DeviceKind;
    /// Every card, in the order of `nvidia-smi`.
    fn cards(&self) -> &[Card];
    /// What decides which cards this process may use; `None` if it may use all of them.
    fn visibility(&self) -> Option<Visibility> {
        None
    }
    /// Reads the card's state. Opens no context.
    fn read(&self, card: usize) -> Result<CardReading, DeviceError>;
    /// Memory of this process on the card as the driver counts it; `None` if the driver does not report it.
    fn process_bytes(&self, card: usize) -> Result<Option<u64>, DeviceError>;

    /// Opens the card. Called once per card by [`crate::Machine`], undone by `close`.
    fn open(&self, card: usize) -> Result<(), DeviceError>;
    fn close(&self, card: usize);

    /// Allocates `bytes` of the card's memory, contiguous. With `capped`, from a memory pool capped at that size.
    fn reserve(&self, card: usize, bytes: u64, capped: bool) -> Result<Reservation, DeviceError>;
    /// Frees a reservation after all work queued on the card has finished.
    fn release(&self, reservation: Reservation);
    /// A block went back to its arena, and its content is undefined from now on. Simulated cards poison it.
    fn block_freed(&self, _at: Address, _bytes: u64) {}
    /// Asks the pool behind `reservation` for one more byte: `true` if the driver refuses.
    fn pool_refuses_more(&self, reservation: &Reservation) -> Result<bool, DeviceError>;
    fn alloc_host(&self, card: usize, bytes: u64) -> Result<HostSpan, DeviceError>;
    fn free_host(&self, card: usize, span: HostSpan);

    /// CUDA's number of the card, by which other libraries of this process know it; `None` for other kinds of devices.
    fn ordinal(&self, _card: usize) -> Option<i32> {
        None
    }
    /// What the calling thread had set before this: for [`restore_thread`](Driver::restore_thread). From here on, captures
    /// of others do not restrict its calls. A thread of ours is still restricted by its own captures, as it should be.
    fn enter_thread(&self, _is_foreign: bool) -> ThreadState {
        ThreadState::default()
    }
    /// Sets what [`enter_thread`](Driver::enter_thread) returned.
    fn restore_thread(&self, _before: ThreadState) {}
    /// Whether another library is capturing a graph on its stream.
    fn is_capturing(&self, _card: usize, _stream: StreamId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn create_stream(&self, card: usize, high_priority: bool) -> Result<StreamId, DeviceError>;
    fn destroy_stream(&self, card: usize, stream: StreamId);
    fn create_event(&self, card: usize, timed: bool) -> Result<EventId, DeviceError>;
    fn destroy_event(&self, card: usize, event: EventId);

    fn record(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError>;
    /// Makes the stream wait for the event's latest record so far. `card` is the stream's.
    fn wait(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError>;
    /// Whether the event's latest record has been reached.
    fn reached(&self, card: usize, event: EventId) -> Result<bool, DeviceError>;
    /// Blocks the calling thread until the event's latest record has been reached. If that waits for another card that is
    /// lost, fails with the loss.
    fn synchronize(&self, card: usize, event: EventId) -> Result<(), DeviceError>;
    /// The same for `longest` at most; `false` if the event was not reached.
    fn synchronize_within(&self, card: usize, event: EventId, longest: Duration) -> Result<bool, DeviceError>;
    /// Treats a card as lost: its work does not end, and nothing waits for it any more.
    fn abandon(&self, _card: usize) {}
    /// Nanoseconds on the device between two timed events that have both been reached.
    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError>;
    /// When a timed event was reached, on the clock of [`now_ns`](Driver::now_ns). It must have been reached.
    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError>;

    fn copy(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError>;
    /// A small copy from or to the host that never queues behind a bulk copy.
    fn copy_small(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        self.copy(card, stream, path)
    }
    fn fill(&self, card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError>;
    fn load(&self, card: usize, kernel: &'static Kernel) -> Result<KernelId, DeviceError>;
    /// Compiles those of `sources` that were not compiled before, in parallel, so that loading their kernels is fast.
    fn compile(&self, _card: usize, _sources: &[&'static Source], _workers: &Workers) -> Result<(), DeviceError> {
        Ok(())
    }
    fn launch(
        &self,
        card: usize,
        stream: StreamId,
        kernel: (&'static Kernel, KernelId),
        grid: Grid,
        args: &[RawArg],
    ) -> Result<(), DeviceError>;

    fn gemm(&self, card: usize, stream: StreamId, gemm: &RawGemm) -> Result<(), DeviceError>;
    /// Opens the library for GEMMs and allocates its device memory.
    fn prepare_gemms(&self, _card: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Makes what all ranks of a communicator join with.
    fn new_communicator_id(&self) -> Result<[u8; COMMUNICATOR_ID_BYTES], DeviceError> {
        Err(DeviceError::NoCommunicator { kind: self.kind().name() })
    }
    /// Joins a communicator. Returns when all ranks have joined, or when the deadline has passed.
    fn join_communicator(&self, _card: usize, _membership: &Membership) -> Result<Joined, DeviceError> {
        Err(DeviceError::NoCommunicator { kind: self.kind().name() })
    }
    /// Queues the sum over all ranks of `count` f32 values, in place.
    fn all_reduce(
        &self,
        _at: Address,
        _count: u64,
        _membership: MembershipId,
        _stream: StreamId,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoCommunicator { kind: self.kind().name() })
    }
    /// Queues the copy of `bytes` bytes from rank `root` to the same memory of all others.
    fn broadcast(
        &self,
        _at: Address,
        _bytes: u64,
        _root: u32,
        _membership: MembershipId,
        _stream: StreamId,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoCommunicator { kind: self.kind().name() })
    }
    /// The error of a collective, if there is one. Never blocks.
    fn check_communicator(&self, _card: usize, _membership: MembershipId) -> Result<(), DeviceError> {
        Err(DeviceError::NoCommunicator { kind: self.kind().name() })
    }
    /// Ends collectives in flight. Later calls fail.
    fn abort_communicator(&self, _card: usize, _membership: MembershipId) {}
    /// Ends the membership: in order if nothing is in flight, otherwise by aborting.
    fn leave_communicator(&self, _card: usize, _membership: MembershipId) {}

    /// Queues a faulting kernel. Once it has run, every call returns [`DeviceError::Lost`].
    fn trap(&self, card: usize, stream: StreamId) -> Result<(), DeviceError>;

    /// Starts a graph capture: work queued on the stream from here on is captured, not run.
    fn begin_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError>;
    fn end_capture(&self, card: usize, stream: StreamId) -> Result<GraphId, DeviceError>;
    /// Ends a capture and discards its graph.
    fn abandon_capture(&self, card: usize, stream: StreamId);
    fn replay(&self, card: usize, stream: StreamId, graph: GraphId) -> Result<(), DeviceError>;
    fn destroy_graph(&self, card: usize, graph: GraphId);

    /// Whether `reader` can access the memory of `owner` without the host.
    fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError>;
    /// What the driver says about the link over which `reader` would access the memory of `owner`.
    fn peer_attributes(&self, reader: usize, owner: usize) -> Result<PeerAttributes, DeviceError>;
    /// Takes the access of `reader` to `reservation` back.
    fn deny_peer(&self, _reservation: &Reservation, _reader: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Enables peer access of `reader` to `reservation`, which is on another card.
    fn allow_peer(&self, reservation: &Reservation, reader: usize) -> Result<(), DeviceError>;

    /// The card that holds the byte at `at`, according to the driver.
    fn card_of(&self, at: Address) -> Result<usize, DeviceError>;

    /// The clock of all timing: the host's for real devices, a simulated one for simulated cards.
    fn now_ns(&self) -> u64;
    /// The libraries behind this driver, and where each was found.
    fn libraries(&self) -> Vec<FoundLibrary> {
        Vec::new()
    }
    /// The driver's version, for messages and cache keys.
    fn driver_version(&self) -> String;
}
