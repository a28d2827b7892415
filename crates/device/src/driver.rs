//! What every kind of device must be able to do, at about the level of the CUDA driver.
//!
//! Three things answer it: [`crate::cuda`], [`crate::sim`] and [`crate::cpu`]. Nothing outside this crate
//! sees the trait: handles are plain numbers here, and the safe types around it ([`crate::Device`],
//! [`crate::Stream`], [`crate::Arena`], …) are what keeps them valid.

use crate::card::{Card, CardReading};
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
/// Work recorded on one card.
pub(crate) type RecordedId = u64;

/// A place in the memory of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Index of the card, in the order of [`Driver::cards`].
    pub(crate) card: usize,
    /// The card's own pointer.
    pub(crate) raw: u64,
}

impl Address {
    pub(crate) fn plus(self, bytes: u64) -> Address {
        Address { raw: self.raw + bytes, ..self }
    }
}

/// Page-locked host memory. Whoever holds it must give it back with [`Driver::free_host`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSpan {
    pub(crate) ptr: *mut u8,
    pub(crate) bytes: u64,
}

// SAFETY: a span is an address and a length; who may touch the bytes is decided by `Pinned`.
unsafe impl Send for HostSpan {}
// SAFETY: as above.
unsafe impl Sync for HostSpan {}

impl HostSpan {
    /// The part of `bytes` bytes from `offset` on. Panics when that is not inside the span.
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
    /// The driver pool behind it (0: none). A pool refuses every further byte by itself.
    pub(crate) pool: u64,
}

/// Where a copy goes. Lengths are equal on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyPath {
    /// Page-locked host memory to the stream's card.
    Up { from: HostSpan, to: Address },
    /// The stream's card to page-locked host memory.
    Down { from: Address, to: HostSpan },
    /// Within one card.
    Inside { from: Address, to: Address, bytes: u64 },
    /// From card to card without the host (also allowed within one card, to try the path).
    Peer { from: Address, to: Address, bytes: u64 },
}

impl CopyPath {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            CopyPath::Up { from, .. } => from.bytes,
            CopyPath::Down { to, .. } => to.bytes,
            CopyPath::Inside { bytes, .. } | CopyPath::Peer { bytes, .. } => *bytes,
        }
    }
}

/// A kernel argument with nothing left to check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawArg {
    Read { at: Address, bytes: u64 },
    Write { at: Address, bytes: u64 },
    U32(u32),
    U64(u64),
    F32(f32),
}

/// The calls themselves. `Ok` for queued work says only that it was queued; what becomes of it is learnt at an
/// event.
pub(crate) trait Driver: Send + Sync {
    fn kind(&self) -> crate::machine::DeviceKind;
    /// Every card, in the order `nvidia-smi` shows.
    fn cards(&self) -> &[Card];
    /// What the card says of itself now. Opens nothing on it.
    fn read(&self, card: usize) -> Result<CardReading, DeviceError>;
    /// Bytes this process holds on the card as the driver counts them; `None` where it does not say.
    fn process_bytes(&self, card: usize) -> Result<Option<u64>, DeviceError>;

    /// Makes the card usable. Called once per card by [`crate::Machine`], undone by `close`.
    fn open(&self, card: usize) -> Result<(), DeviceError>;
    fn close(&self, card: usize);

    /// Takes `bytes` of the card's memory in one piece. With `capped`, from a pool that can never give more.
    fn reserve(&self, card: usize, bytes: u64, capped: bool) -> Result<Reservation, DeviceError>;
    /// Gives a reservation back after all work queued on the card has finished.
    fn release(&self, held: Reservation);
    /// The bytes went back to their arena: nobody may count on what is in them. Simulated cards spoil them.
    fn forget(&self, _at: Address, _bytes: u64) {}
    /// Asks the pool behind `held` for one more byte: `true` when the driver itself refuses.
    fn pool_refuses_more(&self, held: &Reservation) -> Result<bool, DeviceError>;
    fn alloc_host(&self, card: usize, bytes: u64) -> Result<HostSpan, DeviceError>;
    fn free_host(&self, card: usize, span: HostSpan);

    fn create_stream(&self, card: usize, urgent: bool) -> Result<StreamId, DeviceError>;
    fn destroy_stream(&self, card: usize, stream: StreamId);
    fn create_event(&self, card: usize, timed: bool) -> Result<EventId, DeviceError>;
    fn destroy_event(&self, card: usize, event: EventId);

    fn record(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError>;
    /// The stream goes on only after the event's latest record so far. `card` is the stream's.
    fn wait(&self, card: usize, stream: StreamId, event: EventId) -> Result<(), DeviceError>;
    /// Whether the event's latest record has been reached.
    fn reached(&self, card: usize, event: EventId) -> Result<bool, DeviceError>;
    /// Blocks the calling thread until the event's latest record has been reached.
    fn synchronize(&self, card: usize, event: EventId) -> Result<(), DeviceError>;
    /// Nanoseconds on the device between two timed events that have both been reached.
    fn elapsed_ns(&self, card: usize, from: EventId, to: EventId) -> Result<u64, DeviceError>;
    /// When a timed event was reached that has been, on the clock of [`now_ns`](Driver::now_ns).
    fn reached_at_ns(&self, card: usize, event: EventId) -> Result<u64, DeviceError>;

    fn copy(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError>;
    /// A copy from or to the host that stands behind no other one.
    fn copy_small(&self, card: usize, stream: StreamId, path: CopyPath) -> Result<(), DeviceError> {
        self.copy(card, stream, path)
    }
    fn fill(&self, card: usize, stream: StreamId, at: Address, bytes: u64, value: u8) -> Result<(), DeviceError>;
    fn load(&self, card: usize, kernel: &'static Kernel) -> Result<KernelId, DeviceError>;
    /// Compiles `sources` that were not compiled before, several at a time: loading their kernels is then quick.
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
    /// Opens what GEMMs need: a library, and what it takes of the card.
    fn prepare_gemms(&self, _card: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Queues work that breaks the card when it runs: every call after that answers [`DeviceError::Lost`].
    fn trap(&self, card: usize, stream: StreamId) -> Result<(), DeviceError>;

    /// What is queued on the stream from here on is kept and not done.
    fn begin_capture(&self, card: usize, stream: StreamId) -> Result<(), DeviceError>;
    fn end_capture(&self, card: usize, stream: StreamId) -> Result<RecordedId, DeviceError>;
    /// Ends it, and throws away what was kept.
    fn abandon_capture(&self, card: usize, stream: StreamId);
    fn replay(&self, card: usize, stream: StreamId, recorded: RecordedId) -> Result<(), DeviceError>;
    fn drop_recorded(&self, card: usize, recorded: RecordedId);

    /// Whether `reader` can reach the memory of `owner` without the host.
    fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError>;
    /// Lets `reader` reach `held`, which lies on another card.
    fn allow_peer(&self, held: &Reservation, reader: usize) -> Result<(), DeviceError>;

    /// The card that really holds the byte at `at`, asked of the driver and not of our books.
    fn home_of(&self, at: Address) -> Result<usize, DeviceError>;

    /// The clock all timing is read from: real for real devices, its own for simulated ones.
    fn now_ns(&self) -> u64;
    /// The libraries behind this driver, and where each was found.
    fn libraries(&self) -> Vec<FoundLibrary> {
        Vec::new()
    }
    /// The driver's own version, for people and for caches.
    fn driver_version(&self) -> String;
}
